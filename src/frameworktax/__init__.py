"""Measure, itemise, explain and cut the framework tax of neural-network inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.version import __version__

if TYPE_CHECKING:
    from frameworktax.api import Results, measure

__all__ = ["Results", "__version__", "measure"]


def __getattr__(name: str) -> Any:
    # Lazy: the measuring process imports this package and must not pull in the parent's side.
    if name in ("Results", "measure"):
        from frameworktax import api

        return getattr(api, name)
    raise AttributeError(f"module 'frameworktax' has no attribute {name!r}")
