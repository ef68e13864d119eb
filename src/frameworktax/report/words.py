"""How numbers are written, and what things look like: the same in every format."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworktax.analysis.bill import TWIN as TWIN
from frameworktax.analysis.curves import whole_ends
from frameworktax.analysis.estimates import duration as duration
from frameworktax.analysis.estimates import percent as percent
from frameworktax.analysis.estimates import power
from frameworktax.errors import counted
from frameworktax.records import BILL, Estimate, Measurement, Parity, Points

NONE = "–"
"""In place of what is not known."""
WORDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""What has a look or a meaning of its own: colours, shapes, styles, letters, explanations."""
REGIME_MARKS: Mapping[str, str] = WORDS["marks"]


def milliseconds(ns: float | None) -> str:
    """Return a time in ms with three significant digits, no more than three decimals."""
    if ns is None:
        return "–"
    value = ns / 1e6
    if value and abs(value) < 0.001:
        return f"{value:.2g}"
    if abs(value) < 0.1:
        return f"{value:.3f}"
    return _three(value)


def _three(value: float) -> str:
    """Return a number of 0.1 or more with three significant digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def time_text(ns: float | None) -> str:
    """Return a time with its unit: ``53 ns``, ``0.704 ms``, ``43.4 s``; a dash for None."""
    if ns is None:
        return "–"
    if 0 < abs(ns) < 1e3:
        return f"{ns:.0f} ns"
    return f"{_three(ns / 1e9)} s" if abs(ns) >= 0.9995e9 else f"{milliseconds(ns)} ms"


def size_text(count: int | None) -> str:
    """Return a number of bytes in MB or GB."""
    if count is None:
        return "–"
    size, unit = (count / 1e9, "GB") if count >= 999.5e6 else (count / 1e6, "MB")
    return f"{size:.0f} {unit}" if size >= 99.95 else f"{size:.3g} {unit}"


def points_text(points: Points) -> str:
    """Return ``25 points``, or ``18 of 25 points`` where some were not measured."""
    if points.measured == points.asked:
        return counted(points.asked, "point")
    return f"{points.measured} of {points.asked} points"


def free_batch(free: Estimate, *, is_lower_bound: bool) -> str:
    """Return the largest free batch size, or from which size to which its interval reaches."""
    low, high = whole_ends(free)
    if is_lower_bound:
        return f"≥ {low}"
    return str(low) if low == high else f"{low} to {high}"


def warm(m: Measurement) -> str:
    """Return ``warm`` for a point whose twin's overhead stands where others have their tax."""
    return "warm " if m.bill_method == TWIN and m.tax_share is not None else ""


def tax(m: Measurement) -> str:
    """Return the tax share, or the warm overhead under its name."""
    return warm(m) + percent(m.tax_share.value if m.tax_share is not None else None)


def plus_minus(estimate: Estimate) -> str:
    """Return ``±4 %``, the half-width of the interval; empty where no interval is known."""
    if not estimate.value or not has_interval(estimate):
        return ""
    share = 100 * (estimate.high - estimate.low) / 2 / abs(estimate.value)
    # 0.0 would read as exact
    return f"±{share:.0f} %" if share >= 0.95 else f"±{max(share, 0.1):.1f} %"


def has_interval(estimate: Estimate) -> bool:
    """Return whether there is an interval, or only a value."""
    return not estimate.low == estimate.value == estimate.high


def interval(estimate: Estimate | None) -> str:
    """Return ``4.40 (4.35 to 4.45)`` in ms."""
    if estimate is None:
        return "–"
    if not has_interval(estimate):
        return f"{milliseconds(estimate.value)} (no interval)"
    low, high = milliseconds(estimate.low), milliseconds(estimate.high)
    return f"{milliseconds(estimate.value)} ({low} to {high})"


def factor(estimate: Estimate) -> str:
    """Return a gain with its interval, ``1.9 × (1.8 to 2.0)``."""
    return f"{estimate.value:.2f} × ({estimate.low:.2f} to {estimate.high:.2f})"


def is_reference(m: Measurement) -> bool:
    """Return whether others are compared with this: eager, unless it is quantised itself."""
    return m.runtime == "eager" and m.workload.precision != "int8"


def parity_mark(m: Measurement) -> str:
    """Return ``=`` for outputs proven equal to eager's, ``≠`` for different, ``?`` for neither."""
    if is_reference(m):
        return ""
    if m.parity is None or m.parity.within_tolerance is None:
        return "?"
    return "=" if m.parity.within_tolerance else "≠"


def parity_words(parity: Parity | None) -> str:
    """Return what the comparison with eager found."""
    if parity is None:
        return "not compared"
    if parity.within_tolerance is None:
        return f"not proven: {parity.reason}"
    found = parity.max_relative_difference
    if found is None:
        return f"differs: {parity.reason}"
    size = "exactly" if found == 0 else power(found)
    return f"equal, {size}" if parity.within_tolerance else f"differs, {size}"


def lines_of(bill: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the lines of a bill in the order of ``BILL``, zeros left out."""
    return [(name, bill[name]) for name in BILL if bill.get(name)]


def label(line: str) -> str:
    """Return a bill line as people write it."""
    return line.replace("_", " ")
