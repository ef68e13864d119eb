"""Measure, itemise, explain and cut the framework tax of neural-network inference."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frameworktax.version import __version__

for _package in ("measure", "sweep", "optimize"):
    # These packages are named like functions exported below. Importing a package binds its name
    # here, once: done now and undone, so that the name stays the function's.
    import_module(f"frameworktax.{_package}")
    del globals()[_package]

if TYPE_CHECKING:
    from frameworktax.api import Results, measure
    from frameworktax.block import tax
    from frameworktax.comparing import Compared, compare
    from frameworktax.explaining import Predictions, explain, whatif
    from frameworktax.integrations.watch import watch
    from frameworktax.optimize.run import optimize
    from frameworktax.runtimes.serving import load
    from frameworktax.sweep.run import sweep

__all__ = [
    "Compared",
    "Predictions",
    "Results",
    "__version__",
    "compare",
    "explain",
    "load",
    "measure",
    "optimize",
    "sweep",
    "tax",
    "watch",
    "whatif",
]


def __getattr__(name: str) -> Any:
    # Lazy: the measuring process imports this package and must not pull in the parent's side.
    if name in ("Results", "measure"):
        from frameworktax import api

        return getattr(api, name)
    if name in ("Compared", "compare"):
        from frameworktax import comparing

        return getattr(comparing, name)
    if name in ("Predictions", "explain", "whatif"):
        from frameworktax import explaining

        return getattr(explaining, name)
    if name == "tax":
        from frameworktax import block

        return block.tax
    if name == "watch":
        from frameworktax.integrations import watch as watching

        return watching.watch
    if name == "load_ipython_extension":
        from frameworktax.integrations import notebooks

        return notebooks.load_ipython_extension
    if name == "load":
        from frameworktax.runtimes import serving

        return serving.load
    if name == "optimize":
        from frameworktax.optimize import run as optimizing

        return optimizing.optimize
    if name == "sweep":
        from frameworktax.sweep import run

        return run.sweep
    raise AttributeError(f"module 'frameworktax' has no attribute {name!r}")
