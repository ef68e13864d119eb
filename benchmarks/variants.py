"""Eager under other names, and eager made slower by a known amount, for ``calibration.py``.

``Slow5`` and ``Slow10`` spin after each call for a share of what that very call took, so that the
true ratio is the same in every call, whatever the host does. ``HostWork`` and ``KernelWork`` add
a fixed amount of work of one kind: a loop of the interpreter, products of matrices.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.eager import Eager

if TYPE_CHECKING:
    from frameworktax.models.base import Model

TURNS = 12_000
"""Of the interpreter loop: about a quarter of a call of bert-tiny, 32 tokens."""
PRODUCTS = 6
SIDE = 96
"""Of the matrices: 1.8 million operations, of which a dispatch is under a tenth."""


class Wrapped(Eager):
    """Eager, with something around each call."""

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        loaded = super().load(model, target, directory)
        bind = loaded.bind
        loaded.bind = lambda batch: self.around(bind(batch))
        return loaded

    def around(self, call: Call) -> Call:
        raise NotImplementedError


def spinning(call: Call, share: float) -> Call:
    """Return the call followed by a spin for ``share`` of the time it just took."""
    now = time.perf_counter_ns

    def slowed() -> Any:
        begin = now()
        result = call()
        until = now()
        until += round(share * (until - begin))
        while now() < until:
            pass
        return result

    return slowed


class Base(Wrapped):
    """What the others are compared with; it reads the clock as they do."""

    name = "cal-base"

    def around(self, call: Call) -> Call:
        return spinning(call, 0.0)


class Slow5(Wrapped):
    """5 % slower."""

    name = "cal-slow5"

    def around(self, call: Call) -> Call:
        return spinning(call, 0.05)


class Slow10(Wrapped):
    """10 % slower."""

    name = "cal-slow10"

    def around(self, call: Call) -> Call:
        return spinning(call, 0.10)


class HostWork(Wrapped):
    """Eager and an interpreter loop: host time."""

    name = "cal-host"

    def around(self, call: Call) -> Call:
        def more() -> Any:
            result = call()
            for _ in range(TURNS):
                pass
            return result

        return more


class KernelWork(Wrapped):
    """Eager and products of matrices: kernel time."""

    name = "cal-kernel"

    def around(self, call: Call) -> Call:
        import torch

        a = torch.ones(SIDE, SIDE)
        out = torch.empty(SIDE, SIDE)

        def more() -> Any:
            result = call()
            for _ in range(PRODUCTS):
                torch.mm(a, a, out=out)
            return result

        return more


AGAIN = {
    **{f"Alias{number}": (Base, f"cal-alias{number}") for number in ("", 2, 3, 4, 5)},
    "Slow5b": (Slow5, "cal-slow5b"),
    "Slow10b": (Slow10, "cal-slow10b"),
}
"""The same once more under other names: six of one code give fifteen pairs in one session."""
globals().update({title: type(title, (of,), {"name": name}) for title, (of, name) in AGAIN.items()})
ENTRY_POINTS = {
    **{cls.name: f"variants:{cls.__name__}" for cls in (Base, Slow5, Slow10, HostWork, KernelWork)},
    **{name: f"variants:{title}" for title, (_, name) in AGAIN.items()},
}
