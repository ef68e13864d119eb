"""Measure, itemise, explain and cut the framework tax of neural-network inference."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from frameworktax.version import __version__

if sys.platform == "win32":
    raise ImportError("frameworktax needs Linux; on Windows, install and run it in WSL")

for _package in ("measure", "sweep", "optimize"):
    # These packages are named like functions exported below. Importing a package binds its name
    # here, once: done now and undone, so that the name stays the function's.
    import_module(f"frameworktax.{_package}")
    globals().pop(_package, None)  # importlib.reload binds none

if TYPE_CHECKING:
    from frameworktax.api import Results, measure
    from frameworktax.block import tax
    from frameworktax.comparing import Compared, compare
    from frameworktax.explaining import explain, whatif
    from frameworktax.integrations.watch import watch
    from frameworktax.optimize.run import optimize
    from frameworktax.runtimes.serving import load
    from frameworktax.sweep.run import sweep

__all__ = [
    "Compared",
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


_MODULES = {
    "Compared": "comparing",
    "Results": "api",
    "compare": "comparing",
    "explain": "explaining",
    "load": "runtimes.serving",
    "load_ipython_extension": "integrations.notebooks",
    "measure": "api",
    "optimize": "optimize.run",
    "sweep": "sweep.run",
    "tax": "block",
    "watch": "integrations.watch",
    "whatif": "explaining",
}
"""Name → its module, imported when it is used: a measuring process needs none of them."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"frameworktax.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'frameworktax' has no attribute {name!r}")
