"""Makes every series ready to be timed, or records why it is not; runs beside measuring.

One thread reads the models and exports them for one runtime after another, the slow compilers last,
in a set-up process, in which nothing is timed. A second process exports beside it where there is
room. Other threads load each runtime in its first measuring process once its files are there. Each
step has a time limit of its own, and all of them pass the gate: nothing here runs while a block is
timed. ``Setup.start`` and ``Setup.bind`` serve further processes and batch sizes later, too.
"""

from __future__ import annotations

import math
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from frameworktax import host
from frameworktax.errors import StoreError, WorkerError
from frameworktax.host.cache import alone, remove
from frameworktax.measure import orphans, timing
from frameworktax.measure.process import Worker
from frameworktax.measure.protocol import Described
from frameworktax.measure.recorder import Bench
from frameworktax.measure.series import PointRun, Series, series_of
from frameworktax.measure.worker import Server
from frameworktax.models.libraries import libraries_in
from frameworktax.models.user import BEGINS_OTHERS
from frameworktax.records import FLOOR, Note, Workload, distinct_name, point_name

DESCRIBE_S = 3.0
"""After this time no larger batch size is run to count its operations."""
DESCRIBE_LIMIT_S = 60.0
"""After this time a description is given up: nothing that is measured needs it."""
SECOND_BYTES, SECOND_COPIES = 4 << 30, 8
"""Memory that must be free for a second process that exports, and copies of the float32 weights."""
BIND_S = 5.0
"""A batch size that needs no compiler may take this long to warm up, or ten times its cost."""
DEVICE_BIND_S = 30.0
"""The same on a device, where TorchScript compiles its fused kernels for each new shape."""
SCALED = "counts-scaled"
"""Code of the note on counts of a batch size at which the model was not called."""
LOOK_S = 0.5
"""A wait is cut into pieces this long, so that Ctrl-C is seen."""
Spawn = Callable[[str, Mapping[str, str], tuple[str, ...] | None], Worker]
"""Label, further environment variables, libraries that a template has imported (None: it is not to
be forked) → a process to ask."""


@dataclass(eq=False)
class SetupProcess:
    """At most one set-up process at a time, which has imported the libraries of all series.

    It ends with the set-up, and with it everything that the model or a compiler has begun there.
    It builds one model alone: another's code may have changed the default type of torch's numbers.
    Its temporary files are in a folder of its own below ``scratch``.
    """

    scratch: Path
    spawn: Spawn
    series: list[Series]
    _process: Worker | None = None
    _model: str = ""
    _temporary: Path = field(init=False)

    def get(self, model: str, *, fresh: bool = False) -> Worker:
        """Return the process, a new one where none is well or it has built another model.

        Raises:
            WorkerError: none can be started.
            StoreError: the cache takes nothing more.
        """
        is_well = self._process is not None and self._process.alive
        if self._process is not None and is_well and self._model == model and not fresh:
            return self._process
        self.close()
        self._model = model
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            self._temporary = Path(mkdtemp(prefix=f"{orphans.NAME}set-up-", dir=self.scratch))
        except OSError as error:
            raise StoreError(
                f"cannot write in the cache {self.scratch}: {error.strerror}; free space"
            ) from error
        needed = {name for series in list(self.series) for name in series.model_libraries}
        if any(series.is_to_be_prepared for series in list(self.series)):
            needed.add("exporter")
        variables = {"TMPDIR": str(self._temporary)}
        self._process = self.spawn("set-up", variables, libraries_in(needed))
        return self._process

    def close(self) -> None:
        """End the process, what it has left running, and remove its temporary files."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            orphans.end(self._temporary)
            shutil.rmtree(self._temporary, ignore_errors=True)


class Setup:
    """Sets up the series of a session in threads of ``pool``, two at least.

    References, the floor and twins are added to the series; the reporter is called by the session's
    own thread alone.
    """

    def __init__(self, bench: Bench, spawn: Spawn, pool: ThreadPoolExecutor) -> None:
        self._bench = bench
        self._plan, self._series, self._gate = bench.plan, bench.series, bench.gate
        self._spawn = spawn
        self._process = SetupProcess(bench.scratch, spawn, bench.series)
        self._second = SetupProcess(bench.scratch, spawn, bench.series)
        self._pool = pool
        self._described: dict[Workload, Described] = {}
        self._is_described = False
        self._ended = threading.Event()
        self._news: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._labels: dict[Series, str] = {}
        """Kept: others may be added, which are named differently."""
        self._threads: list[Future[None]] = []
        self._turns: dict[tuple[Series, int], threading.Lock] = {}

    # --- from the session's own thread ----------------------------------------------------------

    def begin(self) -> None:
        """Begin with all that is asked for, and what that needs."""
        for series in self._series:
            reason = series.runtime.missing(series.target)
            if reason := reason or series.runtime.cannot(series.workload):
                self._bench.recorder.mark_failed(series, WorkerError("unavailable", reason))
        self._add_references()
        self._add_floor()
        wanted = [series for series in self._series if series.dead is None]
        # What compiles last; eager first, because nothing is ranked without it.
        for series in sorted(wanted, key=lambda one: (one.runtime.compiles, not one.is_eager)):
            if not series.runtime.prepares and not _is_asked_floor(series):
                self._submit(self._make_ready, series)
        self._submit(self._describe_and_export, wanted)

    def is_running(self) -> bool:
        """Return whether anything is still being set up.

        Raises:
            UsageError: what was asked for cannot be, found by the first step that tried.
        """
        running = False
        for thread in list(self._threads):
            if thread.done():
                thread.result()
            else:
                running = True
        return running

    def show(self, *, block: bool = False) -> None:
        """Show what happened meanwhile; ``block``: wait until something is ready or has ended."""
        while True:
            try:
                label, step = self._news.get(block, LOOK_S if block else None)
            except queue.Empty:
                return
            block = False
            if step:
                self._bench.reporter.setting_up(label, step)
            elif label:
                self._bench.reporter.ready(label)

    def write_subjects(self) -> None:
        """Write once what is known of each point, in the order in which they were asked for."""
        if not self._is_described:
            self._is_described = True
            for series in list(self._series):
                self._bench.recorder.subjects(series, self._described.get(series.config))

    def end(self) -> None:
        """End what still runs or waits; nothing new can be started any more."""
        self._ended.set()
        if any(not thread.done() for thread in list(self._threads)):
            self._process.close()
            self._second.close()

    # --- in threads -----------------------------------------------------------------------------

    def _tell(self, series: Series, step: str) -> None:
        """Have a step of a series shown, or that its set-up has ended."""
        if series not in self._labels:
            first = {one: next(iter(one.points.values())) for one in (series, *self._series)}
            self._labels[series] = distinct_name(first[series], first.values())
        self._news.put((self._labels[series], step))

    def _submit(self, work: Any, *arguments: Any) -> None:
        thread = self._pool.submit(work, *arguments)
        self._threads.append(thread)
        thread.add_done_callback(lambda _: self._news.put(("", "")))

    def _describe_and_export(self, wanted: list[Series]) -> None:
        """Read the models, then export for one runtime after another."""
        try:
            named = [s for s in wanted if not (s.is_floor or s.is_deployed)]
            for config in dict.fromkeys(series.config for series in named):
                self._described[config] = self._describe([s for s in named if s.config == config])
            twins = self._add_twins()
            floors = [series for series in wanted if _is_asked_floor(series)]
            for series in twins + floors:  # the floor runs no model: one that is wrong shows here
                if not series.runtime.prepares:
                    self._submit(self._make_ready, series)
            exports = [series for series in wanted + twins if series.runtime.prepares]
            models = [series.workload.model for series in wanted]
            # What is asked for before its twins, and one model after the other.
            exports.sort(key=lambda one: (one.is_twin, models.index(one.workload.model)))
            quick = [series for series in exports if not series.runtime.compiles]
            waiting = iter(quick)  # both threads take from it
            if len(quick) > 1 and self._has_room_for_two():
                self._submit(self._export, waiting, self._second)
            self._export(waiting, self._process)
            # One compiler at a time: it begins processes of its own.
            self._export((one for one in exports if one.runtime.compiles), self._process)
        finally:
            self._process.close()

    def _export(self, waiting: Iterator[Series], process: SetupProcess) -> None:
        """Export what another thread has not taken, for one runtime after another."""
        try:
            for series in waiting:
                if self._prepare(series, process):
                    self._submit(self._make_ready, series)
        finally:
            if process is self._second:
                process.close()

    def _has_room_for_two(self) -> bool:
        """Return whether two processes may export at once: no more for a model of unknown size."""
        facts = [facts for known in self._described.values() for facts in known.facts.values()]
        needed = [SECOND_BYTES + SECOND_COPIES * 4 * (one.parameters or math.inf) for one in facts]
        is_room = max(needed, default=math.inf) < host.memory_available_bytes()
        return is_room and len(host.usable_cpus()) > 1

    def _describe(self, same: list[Series]) -> Described:
        """Return what one call of a model at each batch size of these series is made of."""
        series, batches = same[-1], sorted({batch for one in same for batch in one.points})
        point = series.points[min(series.points)]
        known = self._bench.known.description(point, batches)
        if known is not None:
            return known
        label = point_name(point, runtime=False, batch=False)
        self._news.put((label, "counting its operations"))
        try:
            timeout_s = min(DESCRIBE_LIMIT_S, self._plan.setup_limit_s)
            found = self._gate.ask(
                self._process.get(series.workload.model),
                Server.describe,
                timeout_s,
                workload=series.workload,
                device=series.target.device,
                batches=tuple(batches),
                limit_s=DESCRIBE_S,
                live=series.live,
            )
        except WorkerError as error:
            # Counting is not measuring: the model may still run where it cannot be described.
            notes = (Note("not-described", str(error)),)
            return Described(facts={}, has_twin=False, notes=notes)
        finally:
            self._news.put((label, ""))
        self._bench.known.keep_description(point, found)
        return found

    def _prepare(self, series: Series, process: SetupProcess) -> bool:
        """Export for one runtime; where that fails, once more in a fresh process.

        Then without the batch sizes that the model itself cannot be called with.
        """
        self._tell(series, "compiling" if series.runtime.compiles else "exporting")
        model = series.workload.model
        try:
            try:
                self.prepare(series, lambda: process.get(model))
            except WorkerError as error:
                if error.status == "timeout":
                    raise
                if (wrong := self._wrong_batches(series)) < series.points.keys():
                    series.failed |= wrong
                    for batch in sorted(wrong):
                        self._bench.recorder.outcome(series, batch, 0, error)
                self.prepare(series, lambda: process.get(model, fresh=True))
        except WorkerError as error:
            self._fail(series, error)
            return False
        return True

    def _wrong_batches(self, series: Series) -> set[int]:
        """Return the batch sizes at which a model raised where its operations were counted.

        None for what is kept for later sessions: its name says that every batch size is there.
        """
        described = self._described.get(series.config)
        if described is None or self._bench.scratch not in series.folder.parents:
            return set()
        facts = {batch: its for batch, its in described.facts.items() if batch in series.points}
        codes = {batch: [note.code for note in its.notes] for batch, its in facts.items()}
        return {b for b, its in codes.items() if "counts-failed" in its and SCALED not in its}

    def _make_ready(self, series: Series) -> None:
        """Start process 0 and bind the smallest batch that works; all of them where that compiles.

        Once it is ready, the process belongs to the session's own thread.
        """
        compiles = series.runtime.compiles
        if not series.is_floor:
            self._tell(series, "loading and compiling" if compiles else "loading")
        try:
            for batch in sorted(series.points):
                if (error := self.bind(series, 0, batch)) is None:
                    if not compiles:
                        break
                elif (
                    0 not in series.load_ns
                    or (error.status == "timeout" and not series.bound)
                    or len(series.failed) == len(series.points)
                ):
                    raise error  # no other batch size would fare better
            if not _is_alive(series, 0):  # the last batch size ended it
                self._start(series, 0)
        except WorkerError as error:
            self._fail(series, error)
            return
        series.ready = True
        self._tell(series, "")

    def prepare(self, series: Series, process: Callable[[], Worker]) -> None:
        """Have a set-up process export or compile, unless an earlier session left it ready.

        ``process`` returns that process, and is not called where nothing is to be done. The time
        limit is also for another session that prepares the same at this moment.
        """
        limit_s = self._plan.setup_limit_s
        if series.is_ready():
            return
        with alone(series.folder, limit_s, self._ended):
            if series.is_ready():
                return
            for litter in series.folder.iterdir():  # of a session killed while preparing
                remove(litter)
            worker, batches = process(), tuple(sorted(series.points.keys() - series.failed))
            took_ns = self._gate.ask(
                worker, Server.prepare, limit_s, batches=batches, **series.made_of
            )
            end_ns = time.monotonic_ns()  # a process may have begun after it was asked
            series.mark_ready(took_ns - self._gate.quiet_ns(end_ns - took_ns, end_ns))

    # --- one process, one batch size ------------------------------------------------------------

    def start(self, series: Series, process: int, warm: list[int] | None = None) -> None:
        """Start a process, anew with what was ``warm`` in it.

        Where that fails, so do these batch sizes in it, or all of a new one; and it is ended, for
        it may hold what it loaded.
        """
        try:
            self._start(series, process)
            for batch in warm or ():
                self._warm_up(series, process, batch)
        except WorkerError as error:
            if process in series.workers:
                series.workers[process].kill()
            batches = sorted(series.points) if warm is None else warm
            self._bench.recorder.fail(series, process, batches, error)

    def bind(self, series: Series, process: int, batch: int) -> WorkerError | None:
        """Warm up one batch size, in process 0 started for it if need be; return why it cannot be.

        A process that it ends is started anew with what was warm in it; process 0 where there was
        nothing is started for the next batch size. One batch size of a process at a time: none that
        waits is to fail with the one before.
        """
        with self._turns.setdefault((series, process), threading.Lock()):
            has_ended = not _is_alive(series, process)
            if batch in series.failed or (has_ended and process > 0):
                return None
            try:
                if has_ended:
                    self._start(series, process)
                run = self._warm_up(series, process, batch)
            except WorkerError as error:
                if process == 0:
                    series.failed.add(batch)
                said = error if series.ready else self._explain(error)
                self._bench.recorder.outcome(series, batch, process, said)
                warm = [batch for batch, its_process in series.bound if its_process == process]
                is_worth_it = process in series.workers and (warm or process)
                if is_worth_it and not _is_alive(series, process):
                    self.start(series, process, warm)
                return error
            if series.timed and series.ready:  # what was timed before its process ended stays
                series.runs.setdefault((batch, process), run)
            return None

    def _start(self, series: Series, process: int) -> None:
        """Start a measuring process and load the model in it."""
        twin, variables = " (twin)" if series.is_twin else "", series.runtime.variables()
        label = f"{series.runtime.name}{twin}, process {process}"
        limit_s = self._plan.setup_limit_s
        for batch in series.points:  # whatever was bound went with the process before
            series.bound.pop((batch, process), None)
        if not process:
            series.begun_ns = time.monotonic_ns()
        worker = series.workers[process] = self._spawn(label, variables, series.libraries)
        loaded = self._gate.ask(worker, Server.load, limit_s, **series.made_of)
        begins = [note.text for note in loaded.notes if note.code == BEGINS_OTHERS]
        if begins and worker.started == "forked":
            worker.kill()
            worker = series.workers[process] = self._spawn(label, variables, None)
            worker.notes.append(Note("not-forked", f"started, and not forked: {begins[0]}"))
            loaded = self._gate.ask(worker, Server.load, limit_s, **series.made_of)
        if process in series.load_ns:
            text = "another batch size ended the process; a new one took its place in the intervals"
            worker.notes.append(Note("restarted", text))
        series.load_ns[process] = loaded.load_ns
        series.add(*loaded.notes)

    def _warm_up(self, series: Series, process: int, batch: int) -> PointRun:
        """Make one batch size callable in one process and warm it up; a second time is free."""
        if (batch, process) in series.bound:
            return series.bound[batch, process]
        worker, begin_ns = series.workers[process], time.monotonic_ns()
        limit_s, warm_up_ns = self._bind_limit_s(series, batch), round(self._plan.warm_up_s * 1e9)
        bound = self._gate.ask(worker, Server.bind, limit_s, batch=batch, limit_ns=warm_up_ns)
        call_ns = series.call_ns[batch] = max(1, bound.call_ns)  # a clock may not see a short call
        # What compiles at its first call is set up by it; what it has compiled stays in its folder.
        compiles_here = series.runtime.compiles and not series.runtime.prepares
        if compiles_here and series.setup_ns is None and not series.is_ready():
            end_ns = begin_ns + bound.first_ns
            series.mark_ready(bound.first_ns - self._gate.quiet_ns(begin_ns, end_ns))
        calls = timing.calls_for(call_ns)
        run = series.bound[batch, process] = PointRun(series, batch, process, calls, call_ns, bound)
        if not bound.settled:
            text = "warm-up ended at its time limit while calls were still getting faster"
            run.notes.append(Note("not-settled", text))
        series.add(*bound.notes)
        return run

    def _bind_limit_s(self, series: Series, batch: int) -> float:
        """Seconds a batch size may take to be bound: a hang must not take the whole budget."""
        if series.runtime.compiles or not series.call_ns:
            return self._plan.setup_limit_s
        nearest = max((b for b in series.call_ns if b <= batch), default=min(series.call_ns))
        expected_s = series.call_ns[nearest] * batch / nearest * 2 * timing.WARMUP_CALLS / 1e9
        least_s = DEVICE_BIND_S if series.target.is_cuda else BIND_S
        return min(self._plan.setup_limit_s, max(least_s, 10 * expected_s))

    def _fail(self, series: Series, error: WorkerError) -> None:
        self._bench.recorder.mark_failed(series, self._explain(error))
        self._tell(series, "")

    def _explain(self, error: WorkerError) -> WorkerError:
        if error.status != "timeout":
            return error
        text = f"{error}: no step of set-up may take longer; give a longer"
        return WorkerError("timeout", f"{text} {self._plan.setup_option}")

    # --- what is measured beside what was asked for ----------------------------------------------

    def _add_references(self) -> None:
        """Add an untimed eager series for every workload and batch size that is measured without.

        Not where an earlier session kept eager's outputs. Runtimes may have other batch sizes each:
        what an interrupted session has left.
        """
        have = {(s.config, b) for s in self._series if s.is_eager and not s.dead for b in s.points}
        for series in list(self._series):
            missing = [batch for batch in series.points if (series.reference, batch) not in have]
            if not missing or series.dead or series.is_floor or series.is_deployed:
                continue
            points = [series.reference_point(batch) for batch in missing]
            if all(self._bench.known.output(point) for point in points):
                text = "outputs are compared with those that eager gave in an earlier session"
                series.notes.append(Note("reference-reused", text))
                continue
            have |= {(series.reference, batch) for batch in missing}
            self._series += series_of(points, self._plan, self._bench.scratch, timed=False)

    def _add_floor(self) -> None:
        """Add the null runtime: its latency is the harness's own floor, measured every session."""
        if not any(s.is_floor for s in self._series):
            point = replace(self._plan.points[0], runtime=FLOOR)  # it synchronises as others do
            (floor,) = series_of([point], self._plan, self._bench.scratch)
            floor.is_beside = True
            self._series.append(floor)

    def _add_twins(self) -> list[Series]:
        """Add the twins that were asked for, or that are needed because nothing can be sampled."""
        twins: list[Series] = []
        kinds = ("all",) if self._bench.sampler is not None else ("all", "auto")
        for series in self._series if self._plan.twin in kinds else ():
            model = self._described.get(series.config)
            if model is None or not model.has_twin or series.dead or not series.timed:
                continue
            if series.target.is_cuda or series.is_floor:
                continue
            own = series.points.values()
            points = [replace(p, workload=replace(p.workload, twin=True)) for p in own]
            twins += series_of(points, self._plan, self._bench.scratch)
        self._series += twins
        return twins


def _is_alive(series: Series, process: int) -> bool:
    return process in series.workers and series.workers[process].alive


def _is_asked_floor(series: Series) -> bool:
    return series.is_floor and not series.is_beside
