"""A session: set up every series, then go round them block by block until the intervals are told.

All processes of one comparison are alive together and measured in turn (round robin, shuffled),
one block at a time on the host: the host's clock drifts by 10 % and more, and only neighbours in
time can be compared. Where memory does not hold all processes, they are measured in shifts, each
shift with every runtime in it. What is measured is in the store the moment it is measured.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from frameworktax import host, runtimes
from frameworktax.attribution import available_samplers
from frameworktax.errors import NothingMeasuredError, StoreError, UsageError, WorkerError
from frameworktax.host.cache import VARIABLE as CACHE_VARIABLE
from frameworktax.host.cache import held, prune_cache
from frameworktax.measure import orphans, timing
from frameworktax.measure.export_worker import ExportWorker
from frameworktax.measure.in_place import InPlace
from frameworktax.measure.outputs import Outputs
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.rounds import BLOCK_NS, Rounds
from frameworktax.measure.scheduler import Scheduler, Todo
from frameworktax.measure.series import Cell, Series, is_fixed, series_of
from frameworktax.measure.setup import Setup, await_all
from frameworktax.records import FLOOR, Note, Point, device_of
from frameworktax.runtimes.base import Target
from frameworktax.store import Writer

MEMORY_SHARE = 0.8
"""Share of the free memory that measuring processes may fill together."""


class MeasuringSession:
    """One session of a plan, written to a store as it goes."""

    def __init__(
        self,
        plan: Plan,
        writer: Writer,
        session: str,
        reporter: Reporter | None = None,
        export_worker: ExportWorker | None = None,
    ) -> None:
        """Prepare a session.

        Args:
            plan: what to measure.
            writer: takes the records.
            session: its identity.
            reporter: told of progress.
            export_worker: kept for the next session; None ends it with this one's set-up.
        """
        self._plan = plan
        self._reporter = reporter or Reporter()
        self._deadline = time.monotonic() + plan.budget_s
        self._scratch = plan.folder.absolute() / f"{orphans.NAME}{session}"
        self._spawned: list[Worker | InPlace] = []
        self._stopping = False
        self._spawning = threading.Lock()
        self._threads = max(point.threads for point in plan.points)
        self._on_device = any(device_of(point.platform) != "cpu" for point in plan.points)
        self._memory_bytes = int(0.9 * host.memory_available_bytes())
        self._series = series_of(plan.points, plan.folder, self._scratch, plan.live)
        self._recorder = Recorder(writer, session)
        has_sampler = any(ok for _, ok, _ in available_samplers())
        self._has_sampler = has_sampler
        # The user's own code stays in a process that has run it: no other session gets that one.
        lasting = (
            export_worker is not None and plan.live is None and all(map(is_fixed, plan.points))
        )
        export_worker = export_worker or ExportWorker(plan.folder)
        kind = (self._threads, self._on_device, plan.in_place)
        export_worker.serve(self._set_up_process, kind, lasting=lasting)
        self._setup = Setup(
            plan,
            self._series,
            self._recorder,
            self._spawn,
            self._reporter,
            self._scratch,
            export_worker,
        )
        self._outputs = Outputs(self._series, self._recorder, self._scratch)
        self._scheduler = Scheduler(plan, self._series, self._recorder)
        self._rounds = Rounds(
            plan,
            self._series,
            self._recorder,
            self._reporter,
            cpus=host.pick_cpus(self._threads),
            has_sampler=has_sampler,
            seed=session,
        )

    def run(self) -> None:
        """Measure everything; on Ctrl-C what was measured is in the store and this raises.

        Raises:
            UsageError: what was asked for cannot be (the model, the device).
            NothingMeasuredError: no point could be measured at all.
        """
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        with held(self._plan.folder):
            self._run()
        with contextlib.suppress(UsageError):  # another session runs: that one will see to it
            prune_cache(self._plan.folder)

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
            self._setup.run(pool, self._has_sampler)
            self._raise_if_nothing()
            shifts = self._shifts()
            for number, processes in enumerate(shifts):
                now = time.monotonic()
                share = (self._deadline - now) / (len(shifts) - number)
                self._shift(pool, processes, now + share)
        finally:
            with self._spawning:  # who has begun one has it in the list, nobody begins another
                self._stopping = True
            self._recorder.close()
            self._end_workers()  # whoever waits in the pool for an answer is woken by this
            orphans.end(self._scratch)
            pool.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def spent_ns(self) -> dict[str, int]:
        """Return the wall time that workers were waited for, by request, over all of them."""
        spent: Counter[str] = Counter()
        for worker in self._spawned:
            spent.update(worker.spent_ns)
        return dict(spent)

    def _raise_if_nothing(self) -> None:
        asked = [s for s in self._series if s.timed and not s.is_twin]
        if any(s.dead is None and not s.is_floor for s in asked):
            return
        reasons = [f"{s.runtime.name}: {s.dead}" for s in asked if s.dead]
        if reasons:
            raise NothingMeasuredError("nothing could be measured; " + "; ".join(reasons))

    def _astray(self) -> list[Note]:
        """Return a note where a model started what left its group, and runs beside the rest."""
        found = sorted({one.command for one in orphans.find(self._scratch)})
        if not found:
            return []
        text = (
            f"a model started {', '.join(found[:3])}, which left its group and ran beside this; "
            "it was ended with the session"
        )
        return [Note("left-behind", text)]

    def _end_workers(self) -> None:
        for worker in self._spawned:
            worker.kill()

    def _spawn(
        self,
        label: str,
        python: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Worker | InPlace:
        with self._spawning:
            if self._stopping:
                raise WorkerError("failed", "the session is ending")
            own = {"TMPDIR": str(self._scratch), **(variables or {})}
            worker = self._process(label, python, own)
            self._spawned.append(worker)
            return worker

    def _process(
        self, label: str, python: Path | None, variables: Mapping[str, str]
    ) -> Worker | InPlace:
        if not self._plan.in_place:
            return Worker(
                label,
                memory_bytes=0 if self._on_device else self._memory_bytes,
                python=python,
                environment={**host.worker_environment(self._threads), **variables},
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

    def _set_up_process(self, python: Path | None, temporary: Path) -> Worker | InPlace:
        return self._process("set-up", python, {"TMPDIR": str(temporary)})

    def _shifts(self) -> list[list[int]]:
        """Split processes into groups that fit in memory together, as many as time allows."""
        processes = self._scheduler.processes(self._deadline)
        used = 0
        for series in self._series:
            for worker in series.workers.values():
                with contextlib.suppress(WorkerError):
                    used += worker.request("memory", timeout_s=30.0)["resident_bytes"]
        room = MEMORY_SHARE * host.memory_available_bytes()
        together = max(1, min(processes, 1 + int(room // max(1, used))))
        order = list(range(processes))
        return [order[i : i + together] for i in range(0, len(order), together)]

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
        todo = {
            (series.key, batch)
            for series in self._series
            if series.timed and series.dead is None and series.workers
            for batch in series.points
            if batch not in series.failed
        }
        try:
            while todo and (wave := self._wave(todo, len(processes), self._rounds.until(deadline))):
                todo -= {(series.key, batch) for series, batch in wave}
                self._bind_wave(pool, wave)
                self._rounds.run(deadline)
                if self._plan.stop_when_linear:
                    self._scheduler.stop_linear(todo)
            self._outputs.compare_late(last=True)
            self._rounds.profile()
        finally:
            astray = self._astray()
            for series in self._series:
                for (batch, process), cell in series.cells.items():
                    cell.notes += astray
                    self._recorder.outcome(series, batch, process, None, cell)
        self._leave_out(todo)
        last = processes[-1] + 1 == self._plan.processes
        for series in self._series:
            series.cells.clear()
            if not last and not series.is_floor:
                series.stop()

    def _start(self, series: Series, process: int) -> None:
        try:
            series.start(process, self._spawn, self._patience())
        except WorkerError as error:
            self._recorder.fail(series, process, sorted(series.points), error)
            series.workers.pop(process, None)

    def _wave(self, todo: Todo, processes: int, deadline: float) -> list[tuple[Series, int]]:
        return self._scheduler.wave(todo, processes, deadline, begun=self._rounds.begun)

    def _bind_wave(self, pool: ThreadPoolExecutor, wave: list[tuple[Series, int]]) -> None:
        self._reporter.phase("warming up")
        batches: dict[str, list[int]] = {}
        for series in self._series:
            mine = {b for s, b in wave if s is series}
            if not series.timed:  # the reference follows whoever is compared with it
                mine = {b for s, b in wave if s.reference == series.config}
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
        self._outputs.compare_late()
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
                answer = series.bind(process, batch, self._bind_patience(series, batch))
            except WorkerError as error:
                series.failed.add(batch)
                self._recorder.outcome(series, batch, process, error)
                if not series.workers[process].alive:
                    self._revive(series, process)
                continue
            if series.timed:
                series.cells[batch, process] = _cell(series.points[batch], process, answer)

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

    def _bind_patience(self, series: Series, batch: int) -> float:
        """Seconds a batch size may take to be bound: a hang must not eat the whole budget."""
        if series.runtime.compiles or not series.call_ns:
            return self._patience()
        nearest = max((b for b in series.call_ns if b <= batch), default=min(series.call_ns))
        expected_s = series.call_ns[nearest] * batch / nearest * 2 * timing.WARMUP_CALLS / 1e9
        return min(self._patience(), max(5.0, 10 * expected_s))

    def _patience(self) -> float:
        """Seconds one step of a worker may take."""
        return max(10.0, self._deadline - time.monotonic())

    def _leave_out(self, todo: Todo) -> None:
        reason = f"the time budget of {self._plan.budget_s:.0f} s was spent"
        option = self._plan.budget_option
        for series in self._series:
            for batch, point in series.points.items():
                if (series.key, batch) in todo and series.dead is None and not series.is_twin:
                    self._recorder.left_out(point, f"{reason}; give a longer {option}")


def _cell(point: Point, process: int, answer: Mapping[str, Any]) -> Cell:
    """Return the cell of a point that a process has bound and warmed up."""
    cell = Cell(
        point=point,
        process=process,
        calls=timing.calls_for(answer["call_ns"], BLOCK_NS),
        call_ns=max(1, answer["call_ns"]),
        warmup_calls=answer["calls"],
        peak_memory_bytes=answer["peak_memory_bytes"],
    )
    if not answer["settled"]:
        text = "warm-up ended at its time limit while calls were still getting faster"
        cell.notes.append(Note("not-settled", text))
    return cell


def refuse_unavailable(points: Iterable[Point]) -> None:
    """Refuse to begin a session of which nothing can run here.

    Raises:
        UsageError: why no runtime can, and what to install or choose for each.
    """
    reasons: dict[str, str] = {}
    for point in points:
        if point.runtime == FLOOR:
            continue
        runtime = runtimes.get(point.runtime)
        target = Target(device_of(point.platform), point.workload.precision, point.threads)
        reason = runtime.missing(target) or runtime.cannot(point.workload)
        if reason is None:
            return
        reasons.setdefault(runtime.name, reason)
    if not reasons:
        return
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UsageError(f"nothing that was asked for can run here: {told}")


def known_runtimes(names: Iterable[str], input_kind: str = "dense") -> tuple[str, ...]:
    """Return runtime names with ``all`` written out; raises UsageError for an unknown one."""
    found: list[str] = []
    for name in names:
        found += runtimes.every(input_kind) if name == "all" else [runtimes.get(name).name]
    return tuple(dict.fromkeys(found))
