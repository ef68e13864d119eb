"""What is measured next, and how long: batches of points, then rounds over live processes.

A round times one block of every point still active, in shuffled order, after a block of the
calibrator. After the first rounds every point is asked once where its time goes, in a run of its
own; what a device does is asked last, when nothing is timed in these processes any more. A point
leaves when its interval is narrow enough, or when only more processes could narrow it.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from frameworktax import host
from frameworktax.errors import WorkerError
from frameworktax.measure import timing
from frameworktax.measure.plan import Plan
from frameworktax.measure.protocol import Calibrate, Pin, ProfileDevice, Request, Sample, TimeBlock
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.series import PointRun, Series
from frameworktax.records import LINEAR_REASON, Attribution, Estimate, Note, Workload
from frameworktax.stats import LINEAR, MIN_BLOCKS, process_interval, relative_half_width, spread

OWED_SHARE = 0.5
"""Share of the time budget by which a session may run over, for each runtime's first point."""
WATCHED = 3
"""Batches measured at first where a curve is to stop when it is linear: two doublings."""
ADMIT_SHARE = 0.85
"""Share of the time left that is given out: costs are estimates."""
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
"""Shortest and longest attribution run of one point, at one sample a millisecond."""
STRETCHES = 5
DEVICE_CALLS = 10
DEVICE_S = 2.0
"""What asking a device about one point takes: twice half a second under load, a profile, spans."""

Todo = set[tuple[str, int]]
"""Keys of series with batches: what is not yet measured."""
Runs = list[tuple[Series, PointRun]]


class Scheduler:
    """Chooses points by what they will cost; leaves out those that would show nothing new."""

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

    def next_batch(
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
            for batch in self.candidates(series, todo)
            if series.dead is None
        )
        # The reference's first point comes first: without it nothing is ranked.
        candidates.sort(key=lambda c: not _is_first_reference(self._series[c[2]], c[1]))
        chosen: list[tuple[Series, int]] = []
        # Set-up may have taken all the time: every runtime's first point is measured all the same.
        owed = 0.0 if begun else OWED_SHARE * self._plan.budget_s
        have: set[int] = set()
        for cost, batch, number in candidates:
            if cost <= left:
                left -= cost
            elif number not in have and cost <= owed + max(0.0, left):
                owed -= cost
            else:
                continue
            have.add(number)
            chosen.append((self._series[number], batch))
        return chosen

    def candidates(self, series: Series, todo: Todo) -> list[int]:
        """Return the batches of a series that may come next: all, unless its curve may stop."""
        batches = sorted(batch for key, batch in todo if key == series.key)
        if not self._plan.stop_when_linear:
            return batches
        return batches[: 1 if any(run.medians for run in series.runs.values()) else WATCHED]

    def stop_linear(self, todo: Todo) -> None:
        """Take the larger batches of plainly linear curves out of what is left to do."""
        for series in self._series:
            larger = [batch for key, batch in todo if key == series.key]
            if not larger or series.is_twin:
                continue
            medians: dict[int, list[list[float]]] = {}
            for (batch, _), run in series.runs.items():
                if run.medians:
                    medians.setdefault(batch, []).append(run.medians)
            curve = {batch: process_interval(values) for batch, values in medians.items()}
            reason = why_linear({batch: found for batch, found in curve.items() if found})
            if reason is None:
                continue
            for batch in larger:
                self._recorder.left_out(series.points[batch], reason)
            config = replace(series.config, twin=True)
            for one in self._series:
                is_twin = one.config == config and one.runtime.name == series.runtime.name
                if one is series or is_twin:
                    todo -= {(one.key, batch) for batch in larger}


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


def why_linear(curve: Mapping[int, Estimate]) -> str | None:
    """Return why larger batches need not be measured, None if they do.

    Over the last two doublings, n₁ to n₂ to n₃, each elasticity is above ``LINEAR``, and so is the
    low end over both together: log(low₃ / high₁) / log(n₃ / n₁).

    Args:
        curve: batch size → latency, ns, with its interval.
    """
    chosen: list[int] = []
    for batch in sorted(curve, reverse=True):
        if not chosen or 2 * batch <= chosen[0]:
            chosen.insert(0, batch)
        if len(chosen) == 3:
            break
    if len(chosen) < 3 or min(curve[b].low for b in chosen) <= 0:
        return None
    first, middle, last = chosen

    def slope(small: int, large: int) -> float:
        return math.log(curve[large].value / curve[small].value) / math.log(large / small)

    low = math.log(curve[last].low / curve[first].high) / math.log(last / first)
    if min(slope(first, middle), slope(middle, last), low) <= LINEAR:
        return None
    return (
        f"{LINEAR_REASON}: elasticity {slope(first, last):.2f}, at least {low:.2f}, "
        f"from batch {first} to {last}"
    )


class Rounds:
    """Measures points until each is known well enough or the time is over."""

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
        self._cpus = tuple(cpus)
        self._spacing_s = min(SPACING_S, SPACING_SHARE * plan.budget_s)
        self._has_sampler = has_sampler
        self._random = random.Random(seed)
        self._round = 0  # counts on through the session: a block's identity holds it

    @property
    def begun(self) -> bool:
        """Whether anything has been timed in this session."""
        return self._round > 0

    def run(self, deadline: float, *, last: bool = False) -> None:
        """Measure every point that is not done; returns soon after ``until(deadline)``.

        ``last``: nothing is to be measured after these, so that what remains can be estimated.
        """
        deadline = self.until(deadline)
        self._reporter.phase("measuring")
        self._pin()
        attributed = False
        rounds = 0
        while active := self._active():
            started = time.monotonic()
            if rounds >= LAST_ROUNDS and started > deadline:
                break
            self._run_round(active, rounds, deadline)
            rounds += 1
            round_s = max(self._spacing_s, time.monotonic() - started)
            if rounds == FIRST_ROUNDS:
                self._attribute(deadline)
                attributed = True
                self._reporter.phase("measuring")
            self._drop_converged(rounds)
            if last and rounds >= FIRST_ROUNDS:
                left_s = self._rounds_left() * round_s
                self._reporter.remaining(min(deadline - time.monotonic(), left_s))
            pause = started + self._spacing_s - time.monotonic()
            if pause > 0 and self._active():
                time.sleep(pause)
        if not attributed:
            self._attribute(deadline)
        for series in self._series:
            for run in series.runs.values():
                run.done = True

    def until(self, deadline: float) -> float:
        """Return when timing is to end (monotonic), so that devices are asked by ``deadline``."""
        asking_s = DEVICE_S * len(self._unprofiled())
        return deadline - min(asking_s, SAMPLE_SHARE * self._plan.budget_s)

    def profile(self) -> None:
        """Ask every point on a device, once, what the device does.

        Nothing is to be timed in these processes afterwards: a device profile leaves hooks on the
        launch path, which made what followed 10 to 20 % slower (pytorch/pytorch#146604).
        """
        runs = self._unprofiled()
        for _, run in runs:
            run.profiled = True
        self._ask(runs, lambda batch: ProfileDevice(batch=batch, calls=DEVICE_CALLS))

    def _unprofiled(self) -> Runs:
        runs = self._attributable()
        return [(series, run) for series, run in runs if series.target.is_cuda and not run.profiled]

    def _attributable(self) -> Runs:
        """Return runs whose breakdown is wanted and whose process lives."""
        return [
            (series, run)
            for series in self._series
            for run in series.runs.values()
            if run.process in series.workers and not series.is_twin and not series.is_floor
        ]

    def _active(self) -> Runs:
        return [
            (series, run)
            for series in self._series
            for run in series.runs.values()
            if not run.done and run.process in series.workers
        ]

    def _pin(self) -> None:
        for series in self._series:
            for worker in series.workers.values():
                with contextlib.suppress(WorkerError):  # it shows up again when it is timed
                    worker.request(Pin(cpus=self._cpus), 30.0)

    def _run_round(self, active: Runs, rounds: int, deadline: float) -> None:
        self._calibrate()
        self._random.shuffle(active)
        for number, (series, run) in enumerate(active):
            if rounds >= FIRST_ROUNDS and time.monotonic() > deadline:
                break
            if run.process in series.workers:  # an earlier one may have ended the process
                self._reporter.now(run.point)
                self._time_block(series, run)
            self._reporter.progress(number + 1, len(active), f"round {rounds + 1}")
        self._round += 1

    def _calibrate(self) -> None:
        floor = next((s for s in self._series if s.is_floor and 0 in s.workers), None)
        if floor is None:
            return
        with contextlib.suppress(WorkerError):  # without it a drifting host goes unnoticed, no more
            self._recorder.calibration(
                self._round, floor.workers[0].request(Calibrate(calls=20), 30.0)
            )

    def _time_block(self, series: Series, run: PointRun) -> None:
        batch = run.point.workload.batch
        timeout_s = 30.0 + 20 * run.calls * run.call_ns / 1e9
        try:
            timed = series.workers[run.process].request(
                TimeBlock(batch=batch, calls=run.calls), timeout_s
            )
        except WorkerError as error:
            self._recorder.fail(series, run.process, [batch], error)
            return
        self._recorder.block(run, self._round, timed)

    def _drop_converged(self, rounds: int) -> None:
        """Take out the points that are known well enough, or that more rounds cannot improve.

        Points that are compared with one another, the runtimes at one batch size, leave together:
        a ratio is taken over the rounds that both were in.
        """
        groups: dict[tuple[Workload, bool], dict[str, list[PointRun]]] = {}
        for series, run in self._active():
            points = groups.setdefault((run.point.workload, series.is_floor), {})
            points.setdefault(run.point.key(), []).append(run)
        for points in groups.values():
            if rounds >= FIRST_ROUNDS and all(map(self._has_converged, points.values())):
                for run in chain.from_iterable(points.values()):
                    run.done = True
        left = self._active()
        if rounds >= MIN_BLOCKS and all(s.is_floor or s.is_twin for s, _ in left):
            for _, run in left:  # these were not asked for: they do not make a session longer
                run.done = True

    def _has_converged(self, runs: Sequence[PointRun]) -> bool:
        medians = [run.medians for run in runs]
        count = sum(map(len, medians))
        if count < MIN_BLOCKS:
            return False
        narrow = relative_half_width(process_interval(medians)) <= self._plan.until
        return narrow or count >= MAX_BLOCKS or processes_differ(medians)

    def _rounds_left(self) -> int:
        """Estimate the rounds until every point that was asked for has converged."""
        points: dict[str, list[list[float]]] = {}
        for series, run in self._active():
            if not (series.is_floor or series.is_twin):
                points.setdefault(run.point.key(), []).append(run.medians)
        return max((rounds_left(one, self._plan.until) for one in points.values()), default=0)

    def _attribute(self, deadline: float) -> None:
        """Ask every point where its time on the host goes: once, in a run of its own."""
        runs = [
            (series, run)
            for series, run in self._attributable()
            if self._has_sampler and series.runtime.has_symbols and not run.sampled
        ]
        if not runs:
            return
        for _, run in runs:
            run.sampled = True
        left_ns = (deadline - time.monotonic()) * 1e9
        duration_ns = int(min(SAMPLE_NS[1], max(SAMPLE_NS[0], SAMPLE_SHARE * left_ns / len(runs))))
        self._ask(
            runs,
            lambda batch: Sample(batch=batch, duration_ns=duration_ns, stretches=STRETCHES),
        )

    def _ask(self, runs: Runs, request: Callable[[int], Request[Attribution]]) -> None:
        if runs:
            self._reporter.phase("attributing")
        for number, (series, run) in enumerate(runs):
            if run.process in series.workers:
                self._reporter.now(run.point)
                self._ask_one(series, run, request(run.point.workload.batch))
            self._reporter.progress(number + 1, len(runs), "where the time goes")

    def _ask_one(self, series: Series, run: PointRun, request: Request[Attribution]) -> None:
        worker = series.workers[run.process]
        try:
            found = worker.request(request, 60.0 + 40 * run.call_ns / 1e9)
        except WorkerError as error:
            run.notes.append(Note("not-attributed", f"where the time goes is missing: {error}"))
            if not worker.alive:
                self._recorder.fail(series, run.process, [run.point.workload.batch], error)
        else:
            self._recorder.attribution(run, found)


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


def rounds_left(medians: Sequence[Sequence[float]], until: float) -> int:
    """Estimate the rounds until an interval is narrow enough: it narrows with √blocks."""
    count = sum(map(len, medians))
    width = relative_half_width(process_interval(medians))
    wanted = MAX_BLOCKS if math.isinf(width) else min(MAX_BLOCKS, count * (width / until) ** 2)
    return max(1, math.ceil((max(MIN_BLOCKS, wanted) - count) / len(medians)))
