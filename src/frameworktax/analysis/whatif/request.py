"""The question of a what-if, and what an answer is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from frameworktax.errors import UsageError
from frameworktax.records import Estimate, Measurement

MEASURED = "measured"
"""The formula of an answer that was measured: nothing was predicted."""
ZERO = "its interval reaches zero; measure it for longer"
REPLAYED = ("device_speed", "host_speed", "cpu_speed", "graphs")
"""Changes of the machine, which can be combined; the others change the work itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is asked; None (or False) where it is not.

    Attributes:
        device_speed: factor on the device's speed, 2 = twice as fast.
        host_speed: factor on the speed of the framework's part, kernels left as they are.
        cpu_speed: factor on the speed of the CPU: of all that runs on it.
        graphs: replay of captured graphs in place of single launches.
        batch: samples a call.
        width: factor on the layer widths.
        depth: factor on the number of layers.
        runtime: another runtime, by name.
    """

    device_speed: float | None = None
    host_speed: float | None = None
    cpu_speed: float | None = None
    graphs: bool = False
    batch: int | None = None
    width: float | None = None
    depth: float | None = None
    runtime: str | None = None

    def words(self) -> str:
        """Return the change as it would be typed: ``--device-speed 2 --graphs``."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            option = f"--{field.name.replace('_', '-')}"
            if value is True:
                parts.append(option)
            elif value not in (None, False):
                parts.append(
                    f"{option} {value:g}" if not isinstance(value, str) else f"{option} {value}"
                )
        return " ".join(parts)


SCALED_ON_CPU = {
    "host_speed": "the tax; kernels stay, though they run on this CPU (--cpu-speed scales both)",
    "cpu_speed": "tax and kernels; the interval reaches to kernels that stay, bound by memory",
    "runtime": "the tax; kernels stay",
    "depth": "the latency, along a line through measured depths",
}
SCALED_ON_DEVICE = {
    "device_speed": "kernels and copies; the host, launch latency and gaps stay",
    "host_speed": "the host's time; kernels, launch latency and gaps stay",
    "cpu_speed": "the host's time; kernels, launch latency and gaps stay",
    "graphs": "launches, to one; kernels and gaps stay",
    "runtime": "the host's time; kernels stay",
    "width": "kernels, by the width to its square; the host stays",
    "batch": "kernels, along a line through measured batches; the host stays",
}
"""By change: what of the latency it scales, and what it keeps."""


def scales(asked: WhatIf, *, on_device: bool) -> str:
    """Return what a change scales and what it keeps; of several changes each, in brackets."""
    known = SCALED_ON_DEVICE if on_device else SCALED_ON_CPU
    said = [known[f.name] for f in fields(asked) if getattr(asked, f.name) and f.name in known]
    return said[0] if len(said) == 1 else " and ".join(f"({one})" for one in said)


@dataclass(frozen=True, slots=True)
class Answer:
    """A predicted latency, ns; ``factor`` where it is known better than as a quotient."""

    formula: str
    latency: Estimate
    factor: Estimate | None = None


class Refused(Exception):  # noqa: N818 - an answer too: it becomes a prediction without a number
    """No prediction by this formula, and why."""

    def __init__(self, formula: str, reason: str) -> None:
        super().__init__(formula, reason)
        self.formula, self.reason = formula, reason


def check(asked: WhatIf) -> None:
    """Raise UsageError where a change is impossible, or none is asked for."""
    for field in fields(asked):
        value = getattr(asked, field.name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and not 0 < value < math.inf:
            option = f"--{field.name.replace('_', '-')}"
            raise UsageError(f"{option} must be above zero (got {value:g})")
    if not asked.words():
        raise UsageError("no change to predict; give --batch 8, --host-speed 2 or another")


def changes(asked: WhatIf) -> list[WhatIf]:
    """Return each change alone, and those of the machine together where there are several."""
    names = [f.name for f in fields(asked) if getattr(asked, f.name) not in (None, False)]
    alone = [WhatIf(**{name: getattr(asked, name)}) for name in names]
    machine = [name for name in names if name in REPLAYED]
    if len(machine) > 1:
        alone.append(WhatIf(**{name: getattr(asked, name) for name in machine}))
    return alone


def batches(relatives: Sequence[Measurement], runtime: str) -> list[Measurement]:
    """Return the measured points of one runtime, by batch."""
    mine = [m for m in relatives if m.runtime == runtime]
    return sorted(mine, key=lambda m: m.workload.batch)
