"""A session: set-up runs beside, every point gets a first value, then the intervals get narrow.

The story is ``MeasuringSession._measure``. Pass A measures each point once, in one process, as soon
as its runtime is ready: ``_cover``. When set-up is over, pass B adds the other processes
(``_add_processes``), more of them where intervals are wide (``_add_further``), and pass C gives
rounds to the widest intervals (``Rounds.precise``). Where memory does not hold all processes they
are measured in shifts, every runtime in each. What is measured is in the store the moment it is
measured; the budget is charged for measuring only.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from frameworktax import host
from frameworktax.attribution import usable_sampler
from frameworktax.clock import REAL, Clock
from frameworktax.errors import NothingMeasuredError, UsageError, WorkerError
from frameworktax.host.cache import prune_cache
from frameworktax.measure import orphans, schedule
from frameworktax.measure.known import KnownModels
from frameworktax.measure.plan import EXPECTED_SETUP_S, Plan, why_not
from frameworktax.measure.process import TOO_MANY_OPEN, Gate, Worker
from frameworktax.measure.recorder import Bench, EffortClock, OutputChecks, Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.rounds import JOINED_S, Rounds
from frameworktax.measure.schedule import Points, Runs
from frameworktax.measure.series import Series, series_of
from frameworktax.measure.setup import Setup
from frameworktax.measure.template import Templates
from frameworktax.measure.worker import Server
from frameworktax.records import Effort, Note, device_of
from frameworktax.store import Writer

MEMORY_SHARE = 0.8
"""Share of the free memory that measuring processes may fill together."""
MOMENT_S = 1.0
"""What a point may take that is warmed up while others are being set up."""
THREADS = 8
"""Most steps of set-up at a time: many only wait for what a template still imports."""


class MeasuringSession:
    """One session of a plan, written to a store as it goes.

    ``templates`` are kept for the next session; without them it has its own and ends them.
    """

    def __init__(
        self,
        plan: Plan,
        writer: Writer,
        reporter: Reporter | None = None,
        templates: Templates | None = None,
        clock: Clock = REAL,
    ) -> None:
        host.need_linux("measuring")
        host.need_surroundings()
        self._scratch = plan.folder.resolve() / f"{orphans.NAME}{writer.session}"
        self._sent: Path | None = None
        if plan.live is not None:  # it goes with the scratch folder, however the session ends
            self._sent = Path(plan.live)
            plan = replace(plan, live=str(self._scratch / self._sent.name))
        self._plan = plan
        self._templates = templates or Templates()
        self._keeps_templates = templates is not None
        self._spawned: list[Worker] = []
        self._stopping = False
        self._spawning = threading.Lock()
        self._threads = max(point.threads for point in plan.points)
        devices = {device_of(point.platform) for point in plan.points} - {"cpu"}
        self._memory_bytes = 0 if devices else int(0.9 * host.memory_available_bytes())
        self._series = series_of(plan.points, plan, self._scratch)
        self._bench = Bench(
            plan=plan,
            series=self._series,
            recorder=Recorder(writer),
            reporter=reporter or Reporter(),
            gate=Gate(self._templates),
            known=KnownModels(plan.folder, plan.live),
            effort=EffortClock(clock),
            clock=clock,
            scratch=self._scratch,
            sampler=usable_sampler(),
        )
        self._reporter, self._recorder = self._bench.reporter, self._bench.recorder
        self._effort = self._bench.effort
        self._outputs = OutputChecks(self._bench)
        self._setup_pool = ThreadPoolExecutor(THREADS)
        self._pool = ThreadPoolExecutor(min(len(host.usable_cpus()), THREADS))
        self._setup = Setup(self._bench, self._spawn, self._setup_pool)
        near = host.near_cpus(min(devices)) if devices else ()
        cpus = host.pick_cpus(self._threads, near=near)
        self._rounds = Rounds(self._bench, cpus=cpus, seed=writer.session)

    def run(self) -> None:
        """Measure everything; on Ctrl-C what was measured is in the store and this raises.

        Raises:
            UsageError: what was asked for cannot be (the model, the device, so many open files).
            NothingMeasuredError: no point could be measured at all.
        """
        try:
            self._run()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            raise UsageError(TOO_MANY_OPEN) from error

    def _run(self) -> None:
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        orphans.end_of_dead(self._plan.folder)
        with orphans.scratch(self._plan.folder, self._scratch):
            if self._sent is not None:
                self._sent.replace(str(self._plan.live))
            try:
                self._measure()
            finally:
                self._end()
        if self._rounds.begun:  # what was interrupted is no stage of a race
            self._recorder.write(self.effort)
        with contextlib.suppress(UsageError):  # another session runs, and prunes when it ends
            prune_cache(self._plan.folder)

    @property
    def effort(self) -> Effort:
        """What the session took until now."""
        return self._effort.record(self._recorder.session)

    def _measure(self) -> None:
        able = [point for point in self._plan.points if why_not(point) is None]
        self._reporter.asked(able, self._plan.until)
        measuring_s = min(self._plan.budget_s, self._plan.precise_s)
        self._reporter.remaining(EXPECTED_SETUP_S + measuring_s)
        self._reporter.phase("setting up")
        with self._effort.spending("set-up"):
            self._begin_templates()
            self._setup.begin()
            for name in ("scipy.special", "scipy.optimize"):
                self._pool.submit(import_module, name)  # intervals and curves need them, later
        self._cover()
        self._setup.write_subjects()
        self._raise_if_nothing()
        fit = self._fit()
        shifts = self._shifts(fit)
        for number, processes in enumerate(shifts):
            left = len(shifts) - number - 1
            measured = {series: series.measured for series in self._series}
            started_s = self._start_processes(processes, measured)
            with self._effort.spending("measuring"):
                self._add_processes(processes, measured, self._rounds.left_s)
            if len(shifts) == 1:
                self._add_further(min(fit, self._plan.most_processes), started_s)
            with self._effort.spending("measuring"):
                self._rounds.precise(keep_s=self._rounds.left_s * left / (left + 1))
                self._rounds.profile()
                self._rounds.place()
            self._finish_shift(is_last=not left)

    def _raise_if_nothing(self) -> None:
        asked = [s for s in self._series if s.timed and not (s.is_twin or s.is_beside)]
        real = [s for s in asked if not s.is_floor] or asked
        if any(s.measured for s in real):
            return
        reasons = [f"{name}: {why}" for name, why in self._recorder.reasons.items()]
        raise NothingMeasuredError("; ".join(["nothing could be measured", *reasons]))

    # --- pass A: every point once -----------------------------------------------------------------

    def _cover(self) -> None:
        """Measure each point in one process, as its runtime becomes ready."""
        while True:
            is_over = not self._setup.is_running()  # looked at first: what is ready then, is seen
            self._setup.show()
            self._bind_beside()
            if points := self._next_visit():
                with self._effort.spending("measuring"):
                    self._visit(points)
                continue
            if is_over and self._try_one():
                continue
            if is_over or (self._rounds.begun and self._rounds.left_s <= 0):
                break
            with self._effort.spending("set-up"):
                if not self._warm_up_one():
                    self._setup.show(block=True)
        self._leave_out()

    def _next_visit(self) -> Points:
        everything = list(self._series)
        ready = schedule.after_eager(schedule.waiting(everything), everything)
        if self._rounds.begun:
            return schedule.next_visit(ready, self._rounds.left_s, JOINED_S)
        return schedule.next_visit(ready, math.inf)  # one group: the first value is there soon

    def _try_one(self) -> bool:
        """Warm up a point that was expected to take too long; False where there is none."""
        tried = schedule.next_try(schedule.waiting(list(self._series)), self._rounds.left_s)
        self._rounds.unpin(one.workers[0] for one, _ in tried if 0 in one.workers)
        for series, batch in tried:
            with self._effort.spending("measuring"):
                self._setup.bind(series, 0, batch)
        return bool(tried)

    def _warm_up_one(self) -> bool:
        """Warm up a point that is due later; False where there is none.

        Only while others are being set up, and what takes a moment: nothing is timed meanwhile.
        """
        for series in list(self._series):
            if not (series.is_usable and series.timed) or series.runtime.compiles:
                continue
            for batch in sorted(series.open - series.failed):
                is_quick = 0 < schedule.cost_s(series, batch) < MOMENT_S
                if is_quick and 0 in series.workers and (batch, 0) not in series.bound:
                    self._setup.bind(series, 0, batch)
                    return True
        return False

    def _visit(self, points: Points) -> None:
        """Bind, compare, time and sample points that are compared with one another."""
        batches: dict[Series, list[int]] = {}
        for series, batch in points:
            series.open.discard(batch)
            batches.setdefault(series, []).append(batch)
        self._rounds.unpin(one.workers[0] for one in batches if 0 in one.workers)
        binds = [self._pool.submit(self._bind_all, one, 0, its) for one, its in batches.items()]
        self._await(binds)
        runs = [series.runs[batch, 0] for series, batch in points if (batch, 0) in series.runs]
        self._bind_beside()
        self._outputs.compare(points)
        if not self._rounds.begun:
            self._reporter.phase("measuring")
        if runs:
            ready = [*points, *schedule.waiting(list(self._series))]
            rounds = schedule.first_rounds(ready, self._plan.processes, self._rounds.left_s)
            self._rounds.first(runs, rounds, self._beside(points))

    def _bind_all(self, series: Series, process: int, batches: Sequence[int]) -> None:
        for batch in batches:
            self._setup.bind(series, process, batch)
        for batch in batches if process == 0 else ():  # once all are warm: a call may end it
            self._outputs.write(series, batch)

    def _beside(self, points: Points) -> Runs:
        """Return eager's runs at these batch sizes, where measured before: for the ratios."""
        wanted = {(series.reference, batch) for series, batch in points}
        wanted -= {(s.config, batch) for s, batch in points if s.is_eager}
        return [
            one.runs[batch, 0]
            for one in self._series
            if one.is_eager and 0 in one.workers
            for batch in sorted(one.points)
            if (one.config, batch) in wanted and (batch, 0) in one.runs
        ]

    def _bind_beside(self) -> None:
        """Bind what was not asked for: the floor, and eager where others have been measured."""
        for series in list(self._series):
            if (series.timed and not series.is_beside) or not series.is_usable:
                continue
            mine = [s for s in list(self._series) if s.timed and s.reference == series.config]
            for batch in sorted(series.open):
                if series.is_beside or any(batch in s.points and batch not in s.open for s in mine):
                    series.open.discard(batch)
                    self._setup.bind(series, 0, batch)

    def _leave_out(self) -> None:
        """Write why points have no value; what set-up would still bring is not waited for."""
        option = self._plan.budget_option
        reason = f"the time budget of {self._plan.budget_s:.0f} s was spent; give a longer {option}"
        for series in self._series:
            if series.timed and series.dead is None and not (series.is_twin or series.is_beside):
                for batch in sorted(series.open - series.failed):
                    self._recorder.left_out(series.points[batch], reason)
            series.open.clear()

    # --- pass B: the other processes --------------------------------------------------------------

    def _fit(self) -> int:
        """Return how many processes of each runtime fit in memory together; 0 is alive."""
        used = 0
        for series in list(self._series):
            if series.ready and 0 in series.workers:
                with contextlib.suppress(WorkerError):
                    used += series.workers[0].request(Server.memory, 30.0)
        room = MEMORY_SHARE * host.memory_available_bytes()
        return 1 + int(room // used) if used else self._plan.processes

    def _shifts(self, fit: int) -> list[list[int]]:
        """Split processes into groups that fit in memory together."""
        together = min(self._plan.processes, fit)
        order = list(range(self._plan.processes))
        return [order[i : i + together] for i in range(0, len(order), together)]

    def _add_further(self, most: int, started_s: float) -> None:
        """Add as many processes again, as long as intervals are wide and there is time.

        That narrows more than blocks of the same processes: the half-width of three is 2.5 of
        their standard deviations, that of six 1.05. ``started_s`` is what starting the last took.
        """
        begun = self._plan.processes
        while begun < most:
            processes = list(range(begun, min(2 * begun, most)))
            left_s = self._rounds.precise_left_s
            batches = schedule.affordable(self._rounds.wide(), processes, left_s - started_s)
            if not batches:
                return
            self._reporter.remaining(left_s)
            begun += len(processes)
            started_s = self._start_processes(processes, batches)
            if not any(process in series.workers for series in batches for process in processes):
                return  # none could be loaded, for memory perhaps: twice as many are not tried
            with self._effort.spending("measuring"):
                left_s = self._rounds.precise_left_s
                self._add_processes(processes, batches, left_s, by_batch=True)

    def _start_processes(self, processes: list[int], batches: Mapping[Series, list[int]]) -> float:
        """Load runtimes in further processes; what compiles is bound there, too.

        Returns what that took, s.
        """
        if self._rounds.left_s <= 0:
            return 0.0
        self._reporter.phase("starting processes")
        begin_ns = self._bench.clock.wall_ns()
        with self._effort.spending("set-up"):
            starts = [
                self._pool.submit(self._start, series, process, batches[series])
                for process in processes
                for series in self._turns(process)
                if process < series.processes(process + 1) and batches.get(series)
                if process not in series.workers
            ]
            self._await(starts)
        return (self._bench.clock.wall_ns() - begin_ns) / 1e9

    def _turns(self, process: int) -> list[Series]:
        """Return the series in the order in which they are loaded and warmed up in a process.

        What comes first gets its memory in more pieces and is slower by as much as a third
        (``benchmarks/huge_pages.py``). Two processes have orders that are each other's reverse:
        process 1 that of process 0, where it begins with what is ready; 2 and 3 one that this
        session draws, and so on.
        """
        order = sorted(self._series, key=lambda one: one.begun_ns)
        if process > 1:
            random.Random(f"{self._recorder.session} {process // 2}").shuffle(order)
        return order[::-1] if process % 2 else order

    def _start(self, series: Series, process: int, batches: list[int]) -> None:
        self._setup.start(series, process)
        if series.runtime.compiles:
            self._bind_all(series, process, batches)

    def _add_processes(
        self,
        processes: list[int],
        batches: Mapping[Series, list[int]],
        left_s: float,
        *,
        by_batch: bool = False,
    ) -> None:
        """Warm up points in new processes, as far as the time left goes, and begin there.

        One process after the other, or ``by_batch`` one batch size, as they are given, after the
        other.
        """
        self._reporter.phase("warming up")
        wanted = [
            (
                batches[series].index(batch) if by_batch else 0,
                process,
                schedule.cost_s(series, batch, process),
                series,
                batch,
            )
            for process in processes
            for series in batches
            if process in series.workers
            for batch in batches[series]
            if (batch, process) not in series.bound
        ]
        chosen: dict[tuple[int, Series], list[int]] = defaultdict(list)
        for _, process, cost_s, series, batch in sorted(wanted, key=lambda one: one[:3]):
            if cost_s <= left_s:
                left_s -= cost_s
                chosen[process, series].append(batch)
        self._await(
            [
                self._pool.submit(self._bind_all, series, process, chosen[process, series])
                for process in processes
                for series in self._turns(process)
            ]
        )
        self._reporter.phase("measuring")
        self._rounds.all_processes()
        self._rounds.settle()

    def _finish_shift(self, *, is_last: bool) -> None:
        self._outputs.compare(last=is_last)
        self._write_outcomes()
        for series in self._series:
            if not is_last and not series.is_floor:
                series.stop()

    def _write_outcomes(self) -> None:
        left_behind = self._left_behind()
        for series in self._series:
            for run in list(series.runs.values()):  # set-up may still add some
                if run.medians:  # what was warmed up and not timed was not reached
                    run.notes += [note for note in left_behind if note not in run.notes]
                    self._recorder.outcome(series, run.batch, run.process, None, run)

    def _left_behind(self) -> list[Note]:
        """Return a note where a model started what left its group, and runs beside the rest."""
        found = sorted({one.command for one in orphans.find(self._scratch)})
        text = (
            f"a model started {', '.join(found[:3])}, which left its group and ran beside this; "
            "it was ended with the session"
        )
        return [Note("left-behind", text)] if found else []

    def _await(self, futures: list[Future[Any]]) -> None:
        """Wait in short steps, so that Ctrl-C is seen; a wrong use in any of them is raised."""
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=0.5)
            for future in finished:
                future.result()

    # --- processes --------------------------------------------------------------------------------

    def _begin_templates(self) -> None:
        """Have the templates import now what is certain to be needed."""
        for series in self._series:
            if series.dead is None:
                variables = self._variables(series.runtime.variables())
                with contextlib.suppress(OSError):  # a process that needs it says why it cannot be
                    self._templates.get(variables, series.libraries)

    def _variables(self, further: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **host.worker_environment(self._threads), **further}

    def _spawn(
        self, label: str, variables: Mapping[str, str], libraries: tuple[str, ...] | None
    ) -> Worker:
        """Return a process to ask; ``variables`` may name another ``TMPDIR`` than the session's."""
        made = Worker(
            label,
            memory_bytes=self._memory_bytes,
            environment=self._variables({"TMPDIR": str(self._scratch), **variables}),
            templates=None if libraries is None else self._templates,
            libraries=libraries or (),
        )
        with self._spawning:
            if self._stopping:
                raise WorkerError("failed", "the session is ending")
            self._spawned.append(made)
        return made

    def _end(self) -> None:
        """Write what is known at the end, however it came, and end every process."""
        try:
            self._setup.write_subjects()
            self._write_outcomes()
        finally:
            with self._spawning:  # a worker that was begun is in the list, no other is begun
                self._stopping = True
            self._recorder.close()
            self._setup.end()
            for worker in self._spawned:  # all at once, before any is waited for
                worker.signal(signal.SIGKILL)
            for worker in self._spawned:  # those that wait for an answer are woken
                worker.kill()
            if not self._keeps_templates:
                self._templates.close()
            for pool in (self._setup_pool, self._pool):
                pool.shutdown(wait=True, cancel_futures=True)
