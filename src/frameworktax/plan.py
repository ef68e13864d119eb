"""What a session is to measure: points, how well, and in what time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.records import PRECISIONS, Point, Workload

DEFAULT_BUDGET_S = 60.0
DEFAULT_UNTIL = 0.03
DEFAULT_PROCESSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One session.

    Attributes:
        points: what to measure, in the order it is shown.
        processes: fresh processes a point; below three an interval lacks the spread between them.
        until: half-width of the 95 % interval, as a share of the value, at which a point is done.
        budget_s: wall time of the whole session, set-up included.
        twin: ``auto`` where no sampler can tell kernels from the rest and for eager, ``all``,
            ``none``.
        folder: where exports, compiled code and temporary files go.
        live: file holding a live module sent from Python; the (module, inputs) pair itself where
            it is measured in place; None otherwise.
        why: the reason for ``in_place``.
        in_place: measure in this process, because the live module cannot be sent to another.
        stop_when_linear: leave out larger batches once latency grows as fast as the batch.
    """

    points: tuple[Point, ...]
    folder: Path
    processes: int = DEFAULT_PROCESSES
    until: float = DEFAULT_UNTIL
    budget_s: float = DEFAULT_BUDGET_S
    twin: str = "auto"
    live: Any = None
    in_place: bool = False
    why: str = ""
    stop_when_linear: bool = False


def points_for(
    workload: Workload,
    *,
    batches: Iterable[int],
    runtimes: Iterable[str],
    precisions: Iterable[str] = ("float32",),
    device: str = "cpu",
    threads: int = 1,
) -> tuple[Point, ...]:
    """Return the grid batch × runtime × precision over one workload.

    Raises:
        UsageError: a batch below 1, an unknown precision, an empty axis.
    """
    batch_list, runtime_list, precision_list = list(batches), list(runtimes), list(precisions)
    for name, axis in (("batch", batch_list), ("runtimes", runtime_list)):
        if not axis:
            raise UsageError(f"--{name} is empty; name at least one")
    for precision in precision_list:
        if precision not in PRECISIONS:
            raise UsageError(f"no precision '{precision}'; choose from {', '.join(PRECISIONS)}")
    for batch in batch_list:
        if batch < 1:
            raise UsageError(f"batch {batch} cannot be; give 1 or more, as in --batch 1,2,4")
    return tuple(
        Point(
            workload=replace(workload, batch=batch, precision=precision),
            runtime=runtime,
            platform=device,
            threads=threads,
        )
        for precision in dict.fromkeys(precision_list)
        for runtime in dict.fromkeys(runtime_list)
        for batch in sorted(set(batch_list))
    )
