"""What would change if: predictions from what was measured, each with its formula and its errors.

The formulas stand in ``analysis/formulas.py`` (a CPU: host and kernels share a thread) and
``analysis/replay.py`` (a GPU or a trace: two queues). What none of them has earned trust for is
refused, with the reason (METHOD, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frameworktax.records import Prediction, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is asked; None (or False) where it is not.

    Attributes:
        device_speed: factor on the device's speed, 2 = twice as fast.
        host_speed: factor on the speed of the host.
        graphs: replay of captured graphs in place of single launches.
        batch: samples a call.
        width: factor on the layer widths.
        depth: factor on the number of layers.
        runtime: another runtime, by name.
    """

    device_speed: float | None = None
    host_speed: float | None = None
    graphs: bool = False
    batch: int | None = None
    width: float | None = None
    depth: float | None = None
    runtime: str | None = None


def predict(
    asked: WhatIf, run: Run | None = None, steps: Sequence[Any] = (), subject: str = "step"
) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked and each subject it can start from.

    Args:
        asked: the changes; each is answered alone, and the replayed ones also together.
        run: a document: subjects are its measured points, one a model and runtime, at the
            smallest batch.
        steps: of a trace (``frameworktax.traces.timeline.Step``), of one kind: their predictions
            give one interval.
        subject: what the steps are called.

    Returns:
        Predictions and refusals, in the order of the fields of ``WhatIf``.

    Raises:
        UsageError: a factor or batch at or below zero, an unknown runtime, nothing asked.
    """
    raise NotImplementedError
