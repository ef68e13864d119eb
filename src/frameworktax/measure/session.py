"""A session: set up every series, then measure them in turn until the intervals are narrow enough.

All processes of one comparison are alive together and measured in turn (round robin, shuffled),
one block at a time on the host: the host's clock drifts by 10 % and more, and only neighbours in
time can be compared. Where memory does not hold all processes, they are measured in shifts, each
shift with every runtime in it. What is measured is in the store the moment it is measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import host
from frameworktax.attribution import available_samplers
from frameworktax.errors import NothingMeasuredError, StoreError, UsageError, WorkerError
from frameworktax.host.cache import VARIABLE as CACHE_VARIABLE
from frameworktax.host.cache import keep_from_pruning, prune_cache
from frameworktax.measure import orphans, timing
from frameworktax.measure.export_worker import ExportWorker
from frameworktax.measure.known import KnownModels
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import AnyWorker, InPlace, Worker
from frameworktax.measure.protocol import Bound, Describe, Described, ReadMemory
from frameworktax.measure.recorder import OutputChecks, Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.schedule import BLOCK_NS, Rounds, Scheduler, Todo
from frameworktax.measure.series import PointRun, Series, Spawn, is_fixed, series_of
from frameworktax.measure.template import Templates
from frameworktax.models.libraries import libraries_in
from frameworktax.records import FLOOR, Note, Point, Workload, device_of
from frameworktax.store import Writer

MEMORY_SHARE = 0.8
"""Share of the free memory that measuring processes may fill together."""
SETUP_SHARE = 0.6
"""Share of the time budget within which a runtime must be ready."""
LOAD_S = 10.0
"""Loading a model that needs no compiler may take this long whatever the budget."""
DESCRIBE_SHARE = 0.05
"""Share of the time budget after which no larger batch size is run to count its operations."""


class MeasuringSession:
    """One session of a plan, written to a store as it goes.

    Args:
        plan: what to measure.
        writer: takes the records.
        session: its identity.
        reporter: shows progress.
        export_worker: kept for the next session; None ends it with this one's set-up.
        templates: kept for the next session; None ends them with this one.
    """

    def __init__(
        self,
        plan: Plan,
        writer: Writer,
        session: str,
        reporter: Reporter | None = None,
        export_worker: ExportWorker | None = None,
        templates: Templates | None = None,
    ) -> None:
        self._plan = plan
        self._templates = templates or Templates()
        self._keeps_templates = templates is not None
        self._reporter = reporter or Reporter()
        self._deadline = time.monotonic() + plan.budget_s
        self._scratch = plan.folder.absolute() / f"{orphans.NAME}{session}"
        self._spawned: list[AnyWorker] = []
        self._stopping = False
        self._spawning = threading.Lock()
        self._threads = max(point.threads for point in plan.points)
        self._on_device = any(device_of(point.platform) != "cpu" for point in plan.points)
        self._memory_bytes = int(0.9 * host.memory_available_bytes())
        self._series = series_of(plan.points, plan.folder, self._scratch, plan.live)
        self._recorder = Recorder(writer, session)
        self._has_sampler = any(usable for _, usable, _ in available_samplers())
        # The user's own code stays in a process that has run it: no other session gets that one.
        is_shared = export_worker is not None and plan.live is None
        lasting = is_shared and all(map(is_fixed, plan.points))
        export_worker = export_worker or ExportWorker(plan.folder)
        kind = (self._threads, self._on_device, plan.in_place)
        export_worker.serve(self._export_process, kind, lasting=lasting)
        self._setup = Setup(
            plan,
            self._series,
            self._recorder,
            self._spawn,
            self._reporter,
            self._scratch,
            export_worker,
        )
        known = KnownModels(plan.folder, plan.live)
        self._outputs = OutputChecks(self._series, self._recorder, self._scratch, known)
        self._scheduler = Scheduler(plan, self._series, self._recorder)
        self._rounds = Rounds(
            plan,
            self._series,
            self._recorder,
            self._reporter,
            cpus=host.pick_cpus(self._threads),
            has_sampler=self._has_sampler,
            seed=session,
        )

    def run(self) -> None:
        """Measure everything; on Ctrl-C what was measured is in the store and this raises.

        Raises:
            UsageError: what was asked for cannot be (the model, the device).
            NothingMeasuredError: no point could be measured at all.
        """
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        with keep_from_pruning(self._plan.folder):
            self._run()
        with contextlib.suppress(UsageError):  # another session runs, and prunes when it ends
            prune_cache(self._plan.folder)

    def spent_ns(self) -> dict[str, int]:
        """Return the wall time that workers were waited for, by step, over all of them."""
        spent: Counter[str] = Counter()
        for worker in self._spawned:
            spent.update(worker.spent_ns)
        return dict(spent)

    def _run(self) -> None:
        orphans.end_of_dead(self._plan.folder)
        try:
            self._scratch.mkdir(mode=0o700)
        except OSError as error:
            raise StoreError(
                f"cannot write in the cache {self._plan.folder}: {error.strerror}; "
                f"free space, or name another folder in {CACHE_VARIABLE}"
            ) from error
        pool = ThreadPoolExecutor(max(1, min(len(host.usable_cpus()), 8)))
        try:
            self._begin_templates()
            self._setup.run(pool, self._has_sampler)
            self._raise_if_nothing()
            shifts = self._shifts()
            for number, processes in enumerate(shifts):
                now = time.monotonic()
                share = (self._deadline - now) / (len(shifts) - number)
                self._shift(pool, processes, now + share)
        finally:
            with self._spawning:  # a worker that was begun is in the list, no other is begun
                self._stopping = True
            self._recorder.close()
            for worker in self._spawned:  # threads of the pool that wait for an answer are woken
                worker.kill()
            if not self._keeps_templates:
                self._templates.close()
            orphans.end(self._scratch)
            pool.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _raise_if_nothing(self) -> None:
        asked = [s for s in self._series if s.timed and not s.is_twin]
        if any(s.dead is None and not s.is_floor for s in asked):
            return
        reasons = [f"{s.runtime.name}: {s.dead}" for s in asked if s.dead]
        if reasons:
            raise NothingMeasuredError("nothing could be measured; " + "; ".join(reasons))

    # --- processes ----------------------------------------------------------------------------

    def _begin_templates(self) -> None:
        """Have the templates import now what is certain to be needed."""
        if self._plan.in_place:
            return
        for series in self._series:
            if series.dead is None:
                variables = self._variables(series.runtime.variables())
                self._templates.get(series.runtime.python(), variables, series.libraries)

    def _variables(self, further: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **host.worker_environment(self._threads), **further}

    def _spawn(
        self,
        label: str,
        python: Path | None,
        variables: Mapping[str, str],
        libraries: tuple[str, ...],
    ) -> AnyWorker:
        with self._spawning:
            if self._stopping:
                raise WorkerError("failed", "the session is ending")
            variables = {"TMPDIR": str(self._scratch), **variables}
            worker = self._process(label, python, variables, libraries)
            self._spawned.append(worker)
            return worker

    def _export_process(self, python: Path | None, temporary: Path) -> AnyWorker:
        needed = {name for series in self._series for name in series.model_libraries}
        return self._process("set-up", python, {"TMPDIR": str(temporary)}, libraries_in(needed))

    def _process(
        self,
        label: str,
        python: Path | None,
        variables: Mapping[str, str],
        libraries: tuple[str, ...],
    ) -> AnyWorker:
        if not self._plan.in_place:
            return Worker(
                label,
                memory_bytes=0 if self._on_device else self._memory_bytes,
                python=python,
                environment=self._variables(variables),
                templates=self._templates,
                libraries=libraries,
            )
        if python is not None:
            raise WorkerError(
                "unavailable", "a module measured in place runs in this environment only"
            )
        if set(variables) - {"TMPDIR"}:
            raise WorkerError(
                "unavailable", "a module measured in place keeps this process's allocator"
            )
        return InPlace(label)

    def _shifts(self) -> list[list[int]]:
        """Split processes into groups that fit in memory together, as many as time allows."""
        processes = self._scheduler.processes(self._deadline)
        used = 0
        for series in self._series:
            for worker in series.workers.values():
                with contextlib.suppress(WorkerError):
                    used += worker.request(ReadMemory(), 30.0).resident_bytes
        room = MEMORY_SHARE * host.memory_available_bytes()
        together = max(1, min(processes, 1 + int(room // max(1, used))))
        order = list(range(processes))
        return [order[i : i + together] for i in range(0, len(order), together)]

    def _start(self, series: Series, process: int) -> None:
        try:
            series.start(process, self._spawn, self._patience())
        except WorkerError as error:
            self._recorder.fail(series, process, sorted(series.points), error)
            series.workers.pop(process, None)

    def _revive(self, series: Series, process: int) -> None:
        """Start a process anew after one batch size ended it, for the sake of the others."""
        bound = [batch for p, batch in series.bound if p == process]
        for batch in bound:
            del series.bound[process, batch]
        del series.workers[process]
        try:
            series.start(process, self._spawn, self._patience())
            for batch in bound:
                series.bind(process, batch, self._patience())
        except WorkerError as error:
            self._recorder.fail(series, process, bound, error)
            series.workers.pop(process, None)

    def _patience(self) -> float:
        """Seconds one step of a worker may take."""
        return max(10.0, self._deadline - time.monotonic())

    # --- measuring ----------------------------------------------------------------------------

    def _shift(self, pool: ThreadPoolExecutor, processes: list[int], deadline: float) -> None:
        self._reporter.phase("starting processes")
        starts = [
            pool.submit(self._start, series, process)
            for process in processes
            for series in self._series
            if series.dead is None
            and process < series.processes(self._plan.processes)
            and process not in series.workers
        ]
        await_all(starts, self._reporter, "fresh processes")
        todo: Todo = {
            (series.key, batch)
            for series in self._series
            if series.timed and series.dead is None and series.workers
            for batch in series.points
            if batch not in series.failed
        }
        last = processes[-1] + 1 == self._plan.processes
        try:
            while todo and (points := self._next_batch(todo, len(processes), deadline)):
                todo -= {(series.key, batch) for series, batch in points}
                self._warm_up(pool, points)
                self._rounds.run(deadline, last=not todo and last)
                if self._plan.stop_when_linear:
                    self._scheduler.stop_linear(todo)
            self._outputs.compare_waiting(last=True)
            self._rounds.profile()
        finally:
            left_behind = self._left_behind()
            for series in self._series:
                for (batch, process), run in series.runs.items():
                    run.notes += left_behind
                    self._recorder.outcome(series, batch, process, None, run)
        self._leave_out(todo)
        for series in self._series:
            series.runs.clear()
            if not last and not series.is_floor:
                series.stop()

    def _next_batch(self, todo: Todo, processes: int, deadline: float) -> list[tuple[Series, int]]:
        until = self._rounds.until(deadline)
        return self._scheduler.next_batch(todo, processes, until, begun=self._rounds.begun)

    def _warm_up(self, pool: ThreadPoolExecutor, points: list[tuple[Series, int]]) -> None:
        self._reporter.phase("warming up")
        batches: dict[str, list[int]] = {}
        for series in self._series:
            mine = {b for s, b in points if s is series}
            if not series.timed:  # the reference follows what is compared with it
                mine = {b for s, b in points if s.reference == series.config}
            batches[series.key] = sorted(mine)
        for later in (False, True):
            # What one process has compiled lies in a cache for those after it.
            jobs = [
                pool.submit(self._bind, series, process, batches[series.key])
                for series in self._series
                if series.dead is None and batches[series.key]
                for process in list(series.workers)
                if later == (series.runtime.compiles and process != min(series.workers))
            ]
            await_all(jobs, self._reporter, "warm-up")
        self._outputs.compare_waiting()
        for series in self._series:
            if series.dead is None and not series.is_twin and not series.is_floor:
                self._outputs.compare(series, batches[series.key])

    def _bind(self, series: Series, process: int, batches: list[int]) -> None:
        for batch in batches:
            if process not in series.workers:
                return
            if batch in series.failed:
                continue
            try:
                bound = series.bind(process, batch, self._bind_patience(series, batch))
            except WorkerError as error:
                series.failed.add(batch)
                self._recorder.outcome(series, batch, process, error)
                if not series.workers[process].alive:
                    self._revive(series, process)
                continue
            if series.timed:
                series.runs[batch, process] = _run_of(series.points[batch], process, bound)

    def _bind_patience(self, series: Series, batch: int) -> float:
        """Seconds a batch size may take to be bound: a hang must not eat the whole budget."""
        if series.runtime.compiles or not series.call_ns:
            return self._patience()
        nearest = max((b for b in series.call_ns if b <= batch), default=min(series.call_ns))
        expected_s = series.call_ns[nearest] * batch / nearest * 2 * timing.WARMUP_CALLS / 1e9
        return min(self._patience(), max(5.0, 10 * expected_s))

    def _left_behind(self) -> list[Note]:
        """Return a note where a model started what left its group, and runs beside the rest."""
        found = sorted({one.command for one in orphans.find(self._scratch)})
        if not found:
            return []
        text = (
            f"a model started {', '.join(found[:3])}, which left its group and ran beside this; "
            "it was ended with the session"
        )
        return [Note("left-behind", text)]

    def _leave_out(self, todo: Todo) -> None:
        reason = f"the time budget of {self._plan.budget_s:.0f} s was spent"
        option = self._plan.budget_option
        for series in self._series:
            for batch, point in series.points.items():
                if (series.key, batch) in todo and series.dead is None and not series.is_twin:
                    self._recorder.left_out(point, f"{reason}; give a longer {option}")


def _run_of(point: Point, process: int, bound: Bound) -> PointRun:
    """Return the run of a point that a process has bound and warmed up."""
    run = PointRun(
        point=point,
        process=process,
        calls=timing.calls_for(bound.call_ns, BLOCK_NS),
        call_ns=max(1, bound.call_ns),
        warmup_calls=bound.calls,
        peak_memory_bytes=bound.peak_memory_bytes,
    )
    if not bound.settled:
        text = "warm-up ended at its time limit while calls were still getting faster"
        run.notes.append(Note("not-settled", text))
    return run


def await_all(futures: list[Future[Any]], reporter: Reporter, text: str) -> None:
    """Wait in short steps, so that Ctrl-C is seen; a wrong use in any of them is raised."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=0.5)
        for future in finished:
            future.result()
        reporter.progress(len(futures) - len(pending), len(futures), text)


class Setup:
    """Makes every series ready to be timed, or records why it is not.

    Args:
        plan: of the session.
        series: to set up; references, the floor and twins are added.
        recorder: takes what fails, and what is known of each point.
        spawn: starts a measuring process.
        reporter: shows progress.
        scratch: for what is prepared for this session alone.
        export_worker: has the process that describes and exports.
    """

    def __init__(
        self,
        plan: Plan,
        series: list[Series],
        recorder: Recorder,
        spawn: Spawn,
        reporter: Reporter,
        scratch: Path,
        export_worker: ExportWorker,
    ) -> None:
        self._plan = plan
        self._series = series
        self._recorder = recorder
        self._spawn = spawn
        self._reporter = reporter
        self._scratch = scratch
        self._export_worker = export_worker
        self._known = KnownModels(plan.folder, plan.live)
        self._deadline = time.monotonic() + SETUP_SHARE * plan.budget_s

    def run(self, pool: ThreadPoolExecutor, has_sampler: bool) -> None:
        """Set up every series, references, floor and twins included.

        One set-up process reads the model and exports it for one runtime after another, so that
        the model's library is imported once; measuring processes start beside it.

        Raises:
            UsageError: what was asked for cannot be, found by the first step that tried.
        """
        self._reporter.phase("setting up")
        for series in self._series:
            reason = series.runtime.missing(series.target)
            if reason := reason or series.runtime.cannot(series.workload):
                self._recorder.mark_failed(series, WorkerError("unavailable", reason))
        self._add_references()
        self._add_floor()
        wanted = [s for s in self._series if s.dead is None]
        starts = [pool.submit(self._make_ready, s) for s in wanted if not s.runtime.prepares]
        try:
            described = {}
            for config, series in {s.config: s for s in wanted if not s.is_floor}.items():
                self._reporter.progress(0, len(wanted), f"reading {series.workload.model}")
                described[config] = self._describe(series)
            twins = self._add_twins(described, has_sampler)
            starts += [pool.submit(self._make_ready, s) for s in twins if not s.runtime.prepares]
            exports = [s for s in wanted + twins if s.runtime.prepares]
            exports.sort(key=_export_order)
            for number, series in enumerate(exports):
                self._reporter.progress(number, len(exports), f"exporting for {series.label}")
                if self._prepare(series):
                    starts.append(pool.submit(self._make_ready, series))
        except BaseException:  # nothing waits any more for what was asked of it
            self._export_worker.close()
            raise
        self._export_worker.rest()
        await_all(starts, self._reporter, "loading and compiling")
        for series in self._series:
            self._recorder.subjects(series, described.get(series.config))

    def _describe(self, series: Series) -> Described:
        known = self._known.description(series.points[min(series.points)], series.points)
        if known is not None:
            return known
        request = Describe(
            workload=series.workload,
            device=series.target.device,
            batches=tuple(sorted(series.points)),
            limit_s=DESCRIBE_SHARE * self._plan.budget_s,
            live=series.live,
        )
        try:
            timeout_s = max(8.0, SETUP_SHARE / 2 * self._plan.budget_s)
            found = self._export_worker.process().request(request, timeout_s)
            self._known.keep_description(series.points[min(series.points)], found)
            return found
        except WorkerError as error:
            # Counting is not measuring: the model may still run where it cannot be described.
            notes = (Note("not-described", str(error)),)
            return Described(facts={}, has_twin=False, notes=notes)

    def _prepare(self, series: Series) -> bool:
        """Export for one runtime; where that fails, once more in a fresh process."""
        python = series.runtime.python()
        process = self._export_worker.process
        try:
            try:
                series.prepare(lambda: process(python), self._left())
            except WorkerError as error:
                if error.status == "timeout":
                    raise
                series.prepare(lambda: process(python, fresh=True), self._left())
        except WorkerError as error:
            self._recorder.mark_failed(series, self._explain(error))
            return False
        return True

    def _make_ready(self, series: Series) -> None:
        """Start process 0 and bind the smallest batch that works."""
        try:
            for batch in sorted(series.points):
                try:
                    if not (0 in series.workers and series.workers[0].alive):
                        series.start(0, self._spawn, self._left(LOAD_S))
                    least = 0.0 if series.runtime.compiles else LOAD_S
                    series.bind(0, batch, self._left(least))
                    return
                except WorkerError as error:
                    if 0 not in series.load_ns or error.status == "timeout":
                        raise  # no other batch size would fare better
                    series.failed.add(batch)
                    self._recorder.outcome(series, batch, 0, self._explain(error))
                    last = error
            raise last
        except WorkerError as error:
            self._recorder.mark_failed(series, self._explain(error))

    def _left(self, least: float = 0.0) -> float:
        """Return the seconds a step of set-up may take, ``least`` however little time is left.

        Raises:
            WorkerError: none is left, and the step is not to be begun.
        """
        left = max(least, self._deadline - time.monotonic())
        if left <= 0:
            raise WorkerError("timeout", "not begun in time")
        return left

    def _explain(self, error: WorkerError) -> WorkerError:
        if error.status != "timeout":
            return error
        return WorkerError(
            "timeout",
            f"{error}: set-up may take {SETUP_SHARE:.0%} of the {self._plan.budget_s:.0f} s that "
            f"this session has; give three times the {self._plan.budget_option}",
        )

    def _add_references(self) -> None:
        """Add an untimed eager series to every workload that is measured without one.

        Not where an earlier session kept eager's outputs.
        """
        have = {s.config for s in self._series if s.runtime.name == "eager" and s.dead is None}
        for series in list(self._series):
            if series.reference in have or series.dead or series.is_floor:
                continue
            points = tuple(series.reference_point(batch) for batch in series.points)
            if all(self._known.output(point) for point in points):
                series.note_known_reference()
                continue
            have.add(series.reference)
            plan = self._plan
            self._series += series_of(points, plan.folder, self._scratch, plan.live, timed=False)

    def _add_floor(self) -> None:
        """Add the null runtime: its latency is the harness's own floor, measured every session."""
        if not any(s.is_floor for s in self._series):
            point = replace(self._plan.points[0], runtime=FLOOR, platform="cpu")
            self._series += series_of((point,), self._plan.folder, self._scratch, None)

    def _add_twins(
        self, described: Mapping[Workload, Described], has_sampler: bool
    ) -> list[Series]:
        twins: list[Series] = []
        for series in self._series:
            needed = not (series.runtime.has_symbols and has_sampler)
            wanted = self._plan.twin == "all" or (
                self._plan.twin == "auto" and (needed or series.runtime.name == "eager")
            )
            model = described.get(series.config)
            can = (
                model is not None
                and model.has_twin
                and series.dead is None
                and series.timed
                and not series.target.is_cuda
                and not series.is_floor
            )
            if wanted and can:
                points = tuple(
                    replace(p, workload=replace(p.workload, twin=True))
                    for p in series.points.values()
                )
                twins += series_of(points, self._plan.folder, self._scratch, None)
        self._series += twins
        return twins


def _export_order(series: Series) -> tuple[bool, bool, str]:
    """What is asked for before its twins, what compiles last, one interpreter after another."""
    return series.runtime.compiles, series.is_twin, str(series.runtime.python() or "")
