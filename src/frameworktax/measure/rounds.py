"""Times blocks, samples, and device profiles: one at a time on the host, set-up stopped meanwhile.

A round times one block of each of its points, in every process that is alive, after a block of the
calibrator. What is compared is measured in the same rounds, because the host's clock drifts by 10 %
and more and only neighbours in time can be compared.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.measure import schedule
from frameworktax.measure.process import P, Step, Worker
from frameworktax.measure.recorder import Bench
from frameworktax.measure.schedule import Runs
from frameworktax.measure.series import PointRun, Series
from frameworktax.measure.timing import block_ns, calls_for
from frameworktax.measure.worker import Server
from frameworktax.records import Attribution, By, Note, Places
from frameworktax.stats import MIN_BLOCKS

SPACING_S = 0.5
"""Rounds of one point lie this far apart: what disturbs a host lasts for tenths of a second."""
ALONE_SPACING_S = 2.0
"""The same of one process: its interval is over blocks, which are correlated where they are nearer
(METHOD, section 4); a small budget makes it less."""
ALONE_SPACING_SHARE = 1 / 30
JOINED_S = 10.0
"""Longest round that joins groups: what is compared is measured in the same seconds."""
CALIBRATOR_NS = 30_000_000
"""What the calibrator takes in a round; 8 ms of it were as noisy as the host."""
STRETCHES = 5
DEVICE_CALLS = 10
DEVICE_SHARE = 0.5
"""Share of the time budget that is kept for asking devices."""
TELLING = (1, 8, 64)
"""Batch sizes that are asked about first: where the time ends, they say most."""


def by_point(runs: Runs) -> Runs:
    """Return one run of each point."""
    return list({(run.series, run.batch): run for run in runs}.values())


class Rounds:
    """Measures in rounds, in an order by ``seed``, and writes down what it finds.

    Measuring processes are pinned to ``cpus``.
    """

    def __init__(self, bench: Bench, *, cpus: Sequence[int], seed: str) -> None:
        self._bench = bench
        self._plan, self._series, self._clock = bench.plan, bench.series, bench.clock
        self._cpus = tuple(cpus)
        self._random = random.Random(seed)
        self._round = 0  # counts on through the session: a block's identity holds it
        self._pinned: set[Worker] = set()
        self._ended_ns: dict[schedule.Group, int] = {}

    @property
    def begun(self) -> bool:
        """Whether anything has been timed in this session."""
        return self._round > 0

    @property
    def left_s(self) -> float:
        """What is left of the time budget, less what devices are still to be asked."""
        runs = self._unprofiled()
        processes = {run.worker for run in runs}
        asking_s = schedule.DEVICE_S * len(runs) + schedule.DEVICE_FIRST_S * len(processes)
        asking_s = min(asking_s, DEVICE_SHARE * self._plan.budget_s)
        placing_s = sum(ns for *_, ns in self._unplaced()) / 1e9
        return self._plan.budget_s - self._bench.effort.measured_s - asking_s - placing_s

    @property
    def precise_left_s(self) -> float:
        """What is left for narrower intervals."""
        most_s = self._plan.precise_s - self._bench.effort.measured_s
        return min(self.left_s, most_s)

    def first(
        self, runs: Runs, rounds: int = schedule.FIRST_ROUNDS, beside: Sequence[PointRun] = ()
    ) -> None:
        """Make the first rounds of runs, sampled; the first is made in order.

        ``beside`` are timed before them, for ratios, and not sampled again.
        """
        for number in range(rounds):
            self._make(runs, beside, in_order=number == 0)

    def all_processes(self) -> None:
        """Make the first rounds of every process, as far as the budget goes."""
        for number in range(schedule.FIRST_ROUNDS):
            for runs in self._joined(partial(schedule.behind, number)):
                if self.left_s > 0:
                    self._make(runs)

    def settle(self) -> None:
        """Time once more, without samples, where the two blocks of a process disagree.

        One of them was disturbed, and nothing says which: of three the middle one counts. What is
        compared with it, in the same process number, takes part.
        """
        for runs in self._joined(schedule.unsettled):
            if schedule.rounds_s(runs) <= self.left_s:
                self._make([], beside=runs)

    def _joined(self, due: Callable[[Runs], Runs]) -> list[Runs]:
        """Return what is due of each group, in rounds of ``JOINED_S`` or what is left of the time.

        The smallest batch is timed once for all that are in a round.
        """
        joined: list[Runs] = []
        length_s, longest_s = math.inf, min(JOINED_S, self.left_s)
        for group in self.groups():
            runs = due(group)
            cost_s = schedule.rounds_s(runs)
            if runs and length_s + cost_s > longest_s:
                joined.append([])
                length_s = 0.0
            if runs:
                joined[-1] += runs
                length_s += cost_s
        return joined

    def groups(self) -> list[Runs]:
        """Return the runs whose process lives, by what is compared with one another."""
        found: dict[schedule.Group, Runs] = defaultdict(list)
        for series in list(self._series):
            for run in list(series.runs.values()):
                if run.worker is not None and not series.is_beside:
                    found[schedule.group_of(series, run.batch)].append(run)
        return list(found.values())

    def precise(self, keep_s: float = 0.0) -> None:
        """Give rounds to the group whose intervals narrow most per second, until all are done.

        A round that would not end in time is neither begun nor waited for. ``keep_s`` of the time
        budget are left to other processes.
        """
        while (left_s := min(self.left_s - keep_s, self.precise_left_s)) > 0:
            due: list[tuple[float, Runs]] = []
            pauses_s: list[float] = []
            for runs in filter(None, map(self._open, self.groups())):
                gain = max(schedule.narrowing(run.of_point) for run in runs)
                cost_s, pause_s = self._cost_s(runs), self._pause_s(runs)
                if pause_s + cost_s > left_s:
                    continue
                if pause_s:
                    pauses_s.append(pause_s)
                elif gain:
                    due.append((gain / cost_s, runs))
            if due:
                self._bench.reporter.remaining(left_s)
                _, runs = max(due, key=lambda pair: pair[0])
                self._make(runs)
            elif pauses_s:  # nothing else is left to do
                self._clock.sleep(min(pauses_s))
            else:
                return

    def place(self) -> None:
        """Find which layers pay: a run of its own, after which nothing is timed in its process.

        A device takes as long for that as for a profile, and slow calls take longer than they are
        sampled for; once the budget is spent that is not done unasked.
        """
        budget_s, unasked = self._plan.budget_s, self._plan.by == "auto"
        for run, by, duration_ns in self._unplaced():
            least_s = schedule.PLACE_CALLS * run.call_ns / 1e9
            is_long = run.series.target.is_cuda or least_s > schedule.UNASKED_SHARE * budget_s
            if unasked and is_long and self._bench.effort.measured_s >= budget_s:
                continue
            run.placed.add(by)
            self._bench.reporter.now(run.point)
            with self._bench.gate.quiet():
                self._attribute(
                    run,
                    Server.places,
                    batch=run.batch,
                    by=by,
                    duration_ns=duration_ns,
                    stretches=STRETCHES,
                )

    def profile(self) -> None:
        """Ask about every point on a device, in one process, what the device does.

        Batches of ``TELLING`` first; what the time budget does not reach gets a note. Nothing is to
        be timed in these processes afterwards: a device profile leaves hooks on the launch path,
        which made what followed 10 to 20 % slower (pytorch/pytorch#146604).
        """
        for run in self._unprofiled():
            run.profiled = True
            if self._bench.effort.measured_s >= self._plan.budget_s:
                option = self._plan.budget_option
                text = f"kernel time was not measured: the time budget was spent; raise {option}"
                run.notes.append(Note("not-profiled", text))
                continue
            with self._bench.gate.quiet():
                self._attribute(run, Server.device, batch=run.batch, calls=DEVICE_CALLS)

    # --- what is worth a round ------------------------------------------------------------------

    def _open(self, group: Runs) -> Runs:
        """Return the runs of a group that another round is for; none where all are done.

        Points that are compared with one another stay together: a ratio is taken over the rounds
        that both were in. Twins were not asked for, and the floor is no comparison: they stay for
        their first blocks only.
        """
        asked = [run for run in group if run.series.is_compared]
        others = [run for run in group if not run.series.is_compared]
        beside = [run for run in others if sum(map(len, run.of_point)) < MIN_BLOCKS]
        runs = by_point(asked)
        points = [run.of_point for run in runs]
        has_tax = all(schedule.has_tax(run.of_point, run.shares_of_point) for run in runs)
        has_latency = schedule.processes_differ(points) or all(
            schedule.has_converged(medians, self._plan.until) for medians in points
        )
        return beside if has_tax and has_latency else asked + beside

    def wide(self) -> dict[Series, list[int]]:
        """Return the batch sizes at which precision is lacking, and what is compared there.

        On a processor only: what a device's memory holds of further processes is not known.
        """
        found: dict[Series, list[int]] = defaultdict(list)
        for group in self.groups():
            runs = [run for run in by_point(group) if run.series.processes(2) > 1]
            runs = [run for run in runs if run.medians and not run.series.target.is_cuda]
            if not all(schedule.is_narrow(run.of_point, self._plan.until) for run in runs):
                for run in runs:
                    found[run.series].append(run.batch)
        return found

    def _pause_s(self, runs: Runs) -> float:
        """Return how long a group is to wait for its next round; 0 where it is due."""
        ended = self._ended_ns.get(schedule.group_of(runs[0].series, runs[0].batch))
        if ended is None:
            return 0.0
        is_alone = max(len(run.of_point) for run in runs) < 2
        alone_s = min(ALONE_SPACING_S, ALONE_SPACING_SHARE * self._plan.budget_s)
        past_s = (self._clock.wall_ns() - ended) / 1e9
        return max(0.0, (alone_s if is_alone else SPACING_S) - past_s)

    def _cost_s(self, runs: Runs) -> float:
        """Return what a round of these takes, the smallest batch beside them included."""
        beside_ns = sum(block_ns(run.call_ns) for run in self._smallest(runs))
        return schedule.rounds_s(runs) + beside_ns / 1e9

    # --- one round ------------------------------------------------------------------------------

    def _make(self, runs: Runs, beside: Sequence[PointRun] = (), *, in_order: bool = False) -> None:
        """Make one round of a group.

        Each block is followed by a sample of the same process, so that latency and tax are of one
        state and time: processes differ, and one can change its state in between.
        """
        order, asked = [*beside, *runs, *self._smallest([*beside, *runs])], set(runs)
        if not in_order:
            order = self._drawn(order)
        self._pin(order)
        with self._bench.gate.quiet():
            self._calibrate()
            for run in order:
                if run.worker is not None:  # an earlier one may have ended the process
                    self._bench.reporter.now(run.point)
                    self._time_block(run)
                if run in asked and self._is_samplable(run):
                    run.is_samplable = self._attribute(
                        run, Server.sample, batch=run.batch, duration_ns=schedule.SAMPLE_NS
                    )
        self._round += 1
        for run in by_point(runs):
            self._ended_ns[schedule.group_of(run.series, run.batch)] = self._clock.wall_ns()
            if medians := run.of_point:
                self._bench.reporter.measured(run.point, medians)

    def _drawn(self, runs: Runs) -> Runs:
        """Return runs in an order drawn anew, what is compared side by side.

        A ratio is of two blocks of processes of one number. A round of many points takes seconds,
        in which a host changes its speed: so one batch size in those processes comes together,
        then its other batch sizes, then other processes.
        """
        drawn: dict[Any, float] = defaultdict(self._random.random)
        return sorted(
            runs,
            key=lambda run: (
                drawn[run.process],
                drawn[run.process, run.batch],
                self._random.random(),
            ),
        )

    def _smallest(self, runs: Runs) -> Runs:
        """Return the smallest batch in the same processes: a free batch is a ratio to it."""
        smallest = [
            run.series.runs.get((min(run.series.points), run.process))
            for run in runs
            if not run.series.is_twin
        ]
        asked = set(runs)
        return [run for run in dict.fromkeys(smallest) if run is not None and run not in asked]

    def _pin(self, runs: Runs) -> None:
        for worker in (run.worker for run in runs):
            if worker is not None and worker not in self._pinned:
                self._pinned.add(worker)
                with contextlib.suppress(WorkerError):  # it shows up again when it is timed
                    worker.request(Server.pin, 30.0, cpus=self._cpus)

    def unpin(self, workers: Iterable[Worker]) -> None:
        """Let processes warm up on all they could use at first; they are pinned again later."""
        for worker in self._pinned.intersection(workers):
            self._pinned.discard(worker)
            with contextlib.suppress(WorkerError):  # as above
                worker.request(Server.pin, 30.0)

    def _calibrate(self) -> None:
        """Time the calibrator, and the harness's own cost until that is known."""
        floor = next((s for s in list(self._series) if s.is_floor and s.ready), None)
        if floor is None or 0 not in floor.workers:
            return
        with contextlib.suppress(WorkerError):  # without it a drifting host goes unnoticed, no more
            worker = floor.workers[0]
            found = worker.request(Server.calibrate, 30.0, duration_ns=CALIBRATOR_NS)
            self._bench.recorder.calibration(self._round, found)
        for run in list(floor.runs.values()):
            if floor.is_beside and len(run.medians) < MIN_BLOCKS:
                self._time_block(run)

    def _time_block(self, run: PointRun) -> None:
        series = run.series
        timeout_s = 30.0 + 20 * run.calls * run.call_ns / 1e9
        try:
            timed = series.workers[run.process].request(
                Server.block, timeout_s, batch=run.batch, calls=run.calls
            )
        except WorkerError as error:
            self._bench.recorder.fail(series, run.process, [run.batch], error)
            return
        self._bench.recorder.found(run, self._round, timed)
        run.medians.append(float(median(timed.latency_ns)))
        if series.target.is_cuda and len(run.medians) == 1:
            # Others used the device while this warmed up; now it had it alone.
            run.call_ns = max(1, round(run.medians[0]))  # a clock may not see a short call
            run.calls = calls_for(run.call_ns)
            series.call_ns[run.batch] = run.call_ns  # larger batches are priced by it
        if not series.is_floor:
            self._bench.effort.called(timed)

    # --- where the time goes --------------------------------------------------------------------

    def _is_samplable(self, run: PointRun) -> bool:
        is_asked = run.series.is_compared and run.is_samplable and run.worker is not None
        return is_asked and self._bench.sampler is not None

    def _unprofiled(self) -> Runs:
        """Return one run of each point that no device was asked about, the telling ones first."""
        found: Runs = []
        for series in list(self._series):
            if not (series.target.is_cuda and series.is_compared):
                continue
            runs = sorted(series.runs.values(), key=lambda run: run.process)
            asked = {run.batch for run in runs if run.profiled}
            for run in runs:
                if run.worker is not None and run.batch not in asked:
                    asked.add(run.batch)
                    found.append(run)
        return sorted(found, key=lambda run: (run.batch not in TELLING, run.batch))

    def _with_others(self, series: Series, found: Any) -> Any:
        """Note processes that hold the same device and are none of this session's."""
        if not isinstance(found, Attribution):
            return found
        device = series.target.device
        there = [s for s in list(self._series) if s.target.device == device]
        mine = {worker for s in there for worker in s.workers.values()} | self._bench.gate.at_work()
        others = found.device_state.get("processes", 0) - len(mine)
        if others <= 0:
            return found
        text = f"{others} other processes hold the device: their work is in every number"
        return replace(found, notes=(*found.notes, Note("device-shared", text)))

    def _unplaced(self) -> list[tuple[PointRun, By, int]]:
        """Return what is still to be broken down by place, and for how long it is to be sampled."""
        found: list[tuple[PointRun, By, int]] = []
        for series, batch, by, ns in schedule.by_place(self._plan, list(self._series)):
            if not series.target.is_cuda and self._bench.sampler is None:
                continue
            alive = [series.runs.get((batch, process)) for process in sorted(series.workers)]
            timed = [run for run in alive if run is not None and run.medians]
            runs, duration_ns = schedule.placed_in(timed, ns, self._plan.processes)
            found += [(run, by, duration_ns) for run in runs if by not in run.placed]
        return found

    def _attribute(
        self,
        run: PointRun,
        method: Step[P, Attribution | Places],
        *arguments: P.args,
        **given: P.kwargs,
    ) -> bool:
        series, worker = run.series, run.worker
        if worker is None:  # another batch size has ended it
            return False
        try:
            timeout_s = 60.0 + 40 * run.call_ns / 1e9
            found = worker.request(method, timeout_s, time.monotonic_ns, *arguments, **given)
        except WorkerError as error:
            run.notes.append(Note("not-attributed", f"where the time goes is missing: {error}"))
            if not worker.alive:
                self._bench.recorder.fail(series, run.process, [run.batch], error)
            return False
        if method is Server.sample and not series.target.is_cuda:
            run.shares += _kernel_shares(found)
        self._bench.recorder.found(run, self._round, self._with_others(series, found))
        self._bench.effort.called(found)
        return True


def _kernel_shares(found: Attribution | Places) -> list[float]:
    """Return the share of kernels in each stretch of a sample that has any."""
    stretches = found.samples if isinstance(found, Attribution) else ()
    totals = ((stretch.get("kernel", 0), sum(stretch.values())) for stretch in stretches)
    return [kernel / total for kernel, total in totals if total > 0]
