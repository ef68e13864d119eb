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


class Alias(Base):
    """The same once more."""

    name = "cal-alias"


class Alias2(Base):
    """The same a third time: six of one code give fifteen pairs in one session."""

    name = "cal-alias2"


class Alias3(Base):
    """The same a fourth time."""

    name = "cal-alias3"


class Alias4(Base):
    """The same a fifth time."""

    name = "cal-alias4"


class Alias5(Base):
    """The same a sixth time."""

    name = "cal-alias5"


class Slow5(Wrapped):
    """5 % slower."""

    name = "cal-slow5"

    def around(self, call: Call) -> Call:
        return spinning(call, 0.05)


class Slow5b(Slow5):
    """5 % slower once more."""

    name = "cal-slow5b"


class Slow10(Wrapped):
    """10 % slower."""

    name = "cal-slow10"

    def around(self, call: Call) -> Call:
        return spinning(call, 0.10)


class Slow10b(Slow10):
    """10 % slower once more."""

    name = "cal-slow10b"


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


ENTRY_POINTS = {
    cls.name: f"variants:{cls.__name__}"
    for cls in (
        Base,
        Alias,
        Alias2,
        Alias3,
        Alias4,
        Alias5,
        Slow5,
        Slow5b,
        Slow10,
        Slow10b,
        HostWork,
        KernelWork,
    )
}
