"""Round after round over live processes: one block at a time, others in between.

A round times one block of every cell still active, in shuffled order, after a block of the
calibrator. After the first rounds every cell is asked once where its time goes, in a run of its
own; what a device does is asked last, when nothing is timed in these processes any more. A point
leaves when its interval is narrow enough, or when only more processes could narrow it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.measure.plan import Plan
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.series import Cell, Series
from frameworktax.records import Note, Workload
from frameworktax.stats import MIN_BLOCKS, process_interval, relative_half_width, spread

BLOCK_NS = 20_000_000
"""A block is as many calls as fill this time, within ``timing``'s bounds."""
SPACING_S = 2.0
"""Blocks of one point lie this far apart, else they are correlated; a small time budget makes it
less, so that a first answer still has several rounds."""
SPACING_SHARE = 1 / 30
FIRST_ROUNDS = 3
"""Rounds before anything is judged or attributed."""
LAST_ROUNDS = 2
"""Rounds made even after the deadline: one block has no interval."""
MAX_BLOCKS = 30
SAMPLE_SHARE = 0.4
"""Share of the time left after the first rounds that goes to attribution."""
SAMPLE_NS = (100_000_000, 1_000_000_000)
"""Shortest and longest attribution run of one cell, at one sample a millisecond."""
STRETCHES = 5
DEVICE_CALLS = 10
DEVICE_S = 2.0
"""What asking a device about one cell takes: twice half a second under load, a profile, spans."""


class Rounds:
    """Measures cells until each is told well enough or the time is over."""

    def __init__(
        self,
        plan: Plan,
        series: list[Series],
        recorder: Recorder,
        reporter: Reporter,
        *,
        cpus: Sequence[int],
        has_sampler: bool,
        seed: str,
    ) -> None:
        self._plan = plan
        self._series = series
        self._recorder = recorder
        self._reporter = reporter
        self._cpus = list(cpus)
        self._spacing_s = min(SPACING_S, SPACING_SHARE * plan.budget_s)
        self._has_sampler = has_sampler
        self._random = random.Random(seed)
        self._round = 0  # counts on through the session: a block's identity holds it

    @property
    def begun(self) -> bool:
        """Whether anything has been timed in this session."""
        return self._round > 0

    def run(self, deadline: float) -> None:
        """Measure every cell that is not done; returns soon after ``until(deadline)``."""
        deadline = self.until(deadline)
        self._reporter.phase("measuring")
        self._pin()
        attributed = False
        rounds = 0
        while active := self._active():
            started = time.monotonic()
            if rounds >= LAST_ROUNDS and started > deadline:
                break
            self._one(active, rounds, deadline)
            rounds += 1
            if rounds == FIRST_ROUNDS:
                self._attribute(deadline)
                attributed = True
                self._reporter.phase("measuring")
            self._drop_converged(rounds)
            pause = started + self._spacing_s - time.monotonic()
            if pause > 0 and self._active():
                time.sleep(pause)
        if not attributed:
            self._attribute(deadline)
        for series in self._series:
            for cell in series.cells.values():
                cell.done = True

    def until(self, deadline: float) -> float:
        """Return when timing is to end (monotonic), so that devices are asked by ``deadline``."""
        asking_s = DEVICE_S * len(self._unprofiled())
        return deadline - min(asking_s, SAMPLE_SHARE * self._plan.budget_s)

    def profile(self) -> None:
        """Ask every cell on a device, once, what the device does.

        Nothing is to be timed in these processes afterwards: a device profile leaves hooks on the
        launch path, which made what followed 10 to 20 % slower (pytorch/pytorch#146604).
        """
        cells = self._unprofiled()
        for _, cell in cells:
            cell.profiled = True
        self._ask(cells, "device", calls=DEVICE_CALLS)

    def _unprofiled(self) -> list[tuple[Series, Cell]]:
        return [(s, c) for s, c in self._asked_for() if s.target.is_cuda and not c.profiled]

    def _asked_for(self) -> list[tuple[Series, Cell]]:
        """Return cells whose bill is wanted and whose process lives."""
        return [
            (series, cell)
            for series in self._series
            for cell in series.cells.values()
            if cell.process in series.workers and not series.is_twin and not series.is_floor
        ]

    def _active(self) -> list[tuple[Series, Cell]]:
        return [
            (series, cell)
            for series in self._series
            for cell in series.cells.values()
            if not cell.done and cell.process in series.workers
        ]

    def _pin(self) -> None:
        for series in self._series:
            for worker in series.workers.values():
                with contextlib.suppress(WorkerError):  # it shows up again when it is timed
                    worker.request("pin", timeout_s=30.0, cpus=self._cpus)

    def _one(self, active: list[tuple[Series, Cell]], rounds: int, deadline: float) -> None:
        self._calibrate()
        self._random.shuffle(active)
        for number, (series, cell) in enumerate(active):
            if rounds >= FIRST_ROUNDS and time.monotonic() > deadline:
                break
            if cell.process in series.workers:  # an earlier cell may have ended the process
                self._reporter.now(cell.point)
                self._time(series, cell)
            self._reporter.progress(number + 1, len(active), f"round {rounds + 1}")
        self._round += 1

    def _calibrate(self) -> None:
        floor = next((s for s in self._series if s.is_floor and 0 in s.workers), None)
        if floor is None:
            return
        with contextlib.suppress(WorkerError):  # without it a drifting host goes unnoticed, no more
            answer = floor.workers[0].request("calibrate", timeout_s=30.0, calls=20)
            self._recorder.calibration(self._round, answer)

    def _time(self, series: Series, cell: Cell) -> None:
        batch = cell.point.workload.batch
        timeout_s = 30.0 + 20 * cell.calls * cell.call_ns / 1e9
        try:
            answer = series.workers[cell.process].request(
                "block", timeout_s=timeout_s, batch=batch, calls=cell.calls
            )
        except WorkerError as error:
            self._recorder.fail(series, cell.process, [batch], error)
            return
        self._recorder.block(cell, self._round, answer)

    def _drop_converged(self, rounds: int) -> None:
        """Take out the points that are told well enough, or that more rounds cannot tell better.

        Points that are compared with one another, the runtimes at one batch size, leave together:
        a ratio is taken over the rounds that both were in.
        """
        groups: dict[tuple[Workload, bool], dict[str, list[Cell]]] = {}
        for series, cell in self._active():
            points = groups.setdefault((cell.point.workload, series.is_floor), {})
            points.setdefault(cell.point.key(), []).append(cell)
        for points in groups.values():
            if rounds >= FIRST_ROUNDS and all(map(self._has_converged, points.values())):
                for cell in chain.from_iterable(points.values()):
                    cell.done = True
        left = self._active()
        if rounds >= MIN_BLOCKS and all(s.is_floor or s.is_twin for s, _ in left):
            for _, cell in left:  # nobody asked for these: they do not make a session longer
                cell.done = True

    def _has_converged(self, cells: Sequence[Cell]) -> bool:
        medians = [cell.medians for cell in cells]
        count = sum(map(len, medians))
        if count < MIN_BLOCKS:
            return False
        told = relative_half_width(process_interval(medians)) <= self._plan.until
        return told or count >= MAX_BLOCKS or processes_differ(medians)

    def _attribute(self, deadline: float) -> None:
        """Ask every cell where its time on the host goes: once, in a run of its own."""
        cells = [
            (series, cell)
            for series, cell in self._asked_for()
            if self._has_sampler and series.runtime.has_symbols and not cell.sampled
        ]
        if not cells:
            return
        for _, cell in cells:
            cell.sampled = True
        left_ns = (deadline - time.monotonic()) * 1e9
        duration_ns = int(min(SAMPLE_NS[1], max(SAMPLE_NS[0], SAMPLE_SHARE * left_ns / len(cells))))
        self._ask(cells, "sample", duration_ns=duration_ns, stretches=STRETCHES)

    def _ask(self, cells: list[tuple[Series, Cell]], do: str, **arguments: Any) -> None:
        if cells:
            self._reporter.phase("attributing")
        for number, (series, cell) in enumerate(cells):
            if cell.process in series.workers:
                self._reporter.now(cell.point)
                self._ask_one(series, cell, do, arguments)
            self._reporter.progress(number + 1, len(cells), "where the time goes")

    def _ask_one(self, series: Series, cell: Cell, do: str, arguments: dict[str, Any]) -> None:
        batch, worker = cell.point.workload.batch, series.workers[cell.process]
        try:
            answer = worker.request(
                do, timeout_s=60.0 + 40 * cell.call_ns / 1e9, batch=batch, **arguments
            )
        except WorkerError as error:
            text = f"where the time goes is missing: {error}"
            cell.notes.append(Note("not-attributed", text))
            if not worker.alive:
                self._recorder.fail(series, cell.process, [batch], error)
        else:
            self._recorder.attribution(cell, answer)


def processes_differ(medians: Sequence[Sequence[float]]) -> bool:
    """Return whether the spread between processes leaves more rounds nothing to improve.

    A process median over n blocks carries the blocks' variance times about pi / (2 n); once that
    is under a quarter of the variance between process medians, halving it narrows the interval by
    less than a tenth.
    """
    between, within = spread(medians)
    if between is None or within is None:
        return False
    blocks = min(map(len, medians))
    return within**2 * 1.571 / blocks < 0.25 * between**2
