"""How a number is worded wherever it is told."""

from __future__ import annotations

SMALL = 1.2
"""A factor below this is told with two decimals: 1.05 is not 1.0."""


def times(factor: float) -> str:
    """Return a factor on latency as text: ``1.9 ×``, ``1.05 ×``."""
    return f"{factor:.2f} ×" if factor < SMALL else f"{factor:.1f} ×"
