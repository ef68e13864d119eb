"""What a session measures next: cheap points first, as many as the time left holds."""

from __future__ import annotations

import time
from dataclasses import replace

from frameworktax import host
from frameworktax.measure import timing
from frameworktax.measure.linear import why_linear
from frameworktax.measure.plan import Plan
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.rounds import BLOCK_NS, FIRST_ROUNDS, SAMPLE_NS
from frameworktax.measure.series import Series
from frameworktax.stats import process_interval

OWED_SHARE = 0.5
"""Share of the time budget by which a session may run over, to tell each runtime's first point."""
WATCHED = 3
"""Batches measured at first where a curve is to stop when it is linear: two doublings."""
ADMIT_SHARE = 0.85
"""Share of the time left that is given out: costs are estimates."""

Todo = set[tuple[str, int]]
"""Keys of series with batches: what is not yet measured."""


class Scheduler:
    """Chooses points by what they will cost; takes out those that tell nothing more."""

    def __init__(self, plan: Plan, series: list[Series], recorder: Recorder) -> None:
        self._plan = plan
        self._series = series
        self._recorder = recorder

    def processes(self, deadline: float) -> int:
        """Return how many processes a point can have: few and measured beat many and not."""
        left = ADMIT_SHARE * (deadline - time.monotonic())
        ready = [s for s in self._series if s.dead is None and s.timed and s.call_ns]
        starting = sum(s.load_ns[0] / 1e9 for s in ready if s.processes(2) > 1)
        for count in range(self._plan.processes, 1, -1):
            first = sum(cost_s(s, min(s.call_ns), count) for s in ready)
            if (count - 1) * starting / len(host.usable_cpus()) + first <= left:
                return count
        return 1

    def wave(
        self, todo: Todo, processes: int, deadline: float, *, begun: bool
    ) -> list[tuple[Series, int]]:
        """Take the cheapest points first, as many as the time left holds.

        Args:
            todo: what is not yet measured.
            processes: alive for each point.
            deadline: monotonic.
            begun: whether anything has been timed in this session.
        """
        left = ADMIT_SHARE * (deadline - time.monotonic())
        candidates = sorted(
            (cost_s(series, batch, processes), batch, number)
            for number, series in enumerate(self._series)
            for batch in self.next(series, todo)
            if series.dead is None
        )
        # The reference's first point comes first: without it nothing is ranked.
        candidates.sort(key=lambda c: not _is_first_reference(self._series[c[2]], c[1]))
        wave: list[tuple[Series, int]] = []
        # Set-up may have taken all the time: every runtime's first point is told nevertheless.
        owed = 0.0 if begun else OWED_SHARE * self._plan.budget_s
        told: set[int] = set()
        for cost, batch, number in candidates:
            if cost <= left:
                left -= cost
            elif number not in told and cost <= owed + max(0.0, left):
                owed -= cost
            else:
                continue
            told.add(number)
            wave.append((self._series[number], batch))
        return wave

    def next(self, series: Series, todo: Todo) -> list[int]:
        """Return the batches of a series that may come next: all, unless its curve is watched."""
        batches = sorted(batch for key, batch in todo if key == series.key)
        if not self._plan.stop_when_linear:
            return batches
        return batches[: 1 if any(cell.medians for cell in series.cells.values()) else WATCHED]

    def stop_linear(self, todo: Todo) -> None:
        """Take the larger batches of plainly linear curves out of what is left to do."""
        for series in self._series:
            larger = [batch for key, batch in todo if key == series.key]
            if not larger or series.is_twin:
                continue
            medians: dict[int, list[list[float]]] = {}
            for (batch, _), cell in series.cells.items():
                if cell.medians:
                    medians.setdefault(batch, []).append(cell.medians)
            told = {batch: process_interval(values) for batch, values in medians.items()}
            reason = why_linear({batch: found for batch, found in told.items() if found})
            if reason is None:
                continue
            for batch in larger:
                self._recorder.left_out(series.points[batch], reason)
            todo -= {(s.key, b) for s in (series, *self._twins(series)) for b in larger}

    def _twins(self, series: Series) -> list[Series]:
        config = replace(series.config, twin=True)
        return [
            s for s in self._series if s.config == config and s.runtime.name == series.runtime.name
        ]


def cost_s(series: Series, batch: int, processes: int) -> float:
    """Return what warming up, timing and sampling one point will take, from smaller batches."""
    known = [b for b in series.call_ns if b <= batch]
    if not known:
        return 0.0
    call_ns = int(series.call_ns[max(known)] * batch / max(known))
    count = min(processes, series.processes(processes))
    block = timing.WARM_IN_NS + call_ns * (1 + timing.calls_for(call_ns, BLOCK_NS))
    each = FIRST_ROUNDS * block + max(SAMPLE_NS[0], 3 * call_ns)
    warm = sum(b == batch for _, b in series.bound)
    warming = call_ns * (1 + timing.WARMUP_CALLS) * max(0, count - warm)
    return (count * each + warming) / 1e9


def _is_first_reference(series: Series, batch: int) -> bool:
    return series.runtime.name == "eager" and not series.is_twin and batch == min(series.points)
