"""What a session writes down in its shard: every fact once, the moment it is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from frameworktax import host, runtimes, store
from frameworktax.attribution import usable_sampler
from frameworktax.clock import Clock
from frameworktax.errors import WorkerError
from frameworktax.measure import parity
from frameworktax.measure.known import KnownModels
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Gate
from frameworktax.measure.protocol import Described, Facts
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.series import PointRun, Series
from frameworktax.measure.worker import Server
from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Effort,
    Environment,
    LeftOut,
    Note,
    Outcome,
    Places,
    Point,
    Session,
    Subject,
    Workload,
)
from frameworktax.version import __version__

CHATTY_BYTES = 1_000_000
"""A process that prints more than this gets a note: printing takes time too."""


def open_shard(
    folder: Path, command: Sequence[str], environment: Environment | None = None
) -> store.Writer:
    """Return a writer for a new session on this host; its first record is the session.

    ``environment`` is looked up where it is not given.

    Raises:
        StoreError: the store cannot be written.
    """
    shard = store.Writer(folder, store.new_session_id(folder))
    shard.write(
        Session(
            session=shard.session,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            command=tuple(command),
            environment=environment or this_environment(),
        )
    )
    return shard


def this_environment() -> Environment:
    """Return what this host is, and its load now."""
    return host.environment(sampler=usable_sampler(), packages=runtimes.distributions())


def without_end(shard: Path, points: Iterable[Point]) -> list[Point]:
    """Return the points of which a shard does not say how they ended."""
    records, _ = store.read(shard)
    ended = {r.point for r in records if isinstance(r, Outcome)}
    ended |= {r.point.key() for r in records if isinstance(r, LeftOut)}
    return [point for point in points if point.key() not in ended]


class Recorder:
    """Turns what workers answer into records of one session."""

    def __init__(self, writer: store.Writer) -> None:
        self.write = writer.write
        self.session = writer.session
        self.reasons: dict[str, str] = {}
        """Runtime → why the last point of it that failed did, in process 0."""
        self._ended: set[tuple[str, int]] = set()
        self._introduced: set[str] = set()
        self._closing = False

    def close(self) -> None:
        """Take no more outcomes: a process that the session's end ends has not failed."""
        self._closing = True

    def subjects(self, series: Series, described: Described | None) -> None:
        """Write what is known of each point of a series before it is timed."""
        if not series.timed:
            return
        known = [*(described.notes if described else ()), *series.notes]
        is_reference = series.is_eager and series.config == series.reference
        if not (is_reference or series.is_floor):
            known += comparison_notes(series.workload)
        for batch, point in series.points.items():
            self._introduced.add(point.key())
            facts = Facts()
            if series.is_compared:
                facts = described.facts.get(batch, facts) if described else facts
                if series.workload.input == "ragged" and series.runtime.paradigm == "sparse-input":
                    facts = replace(facts, padding_share=0.0)  # padded tokens are not computed
            facts = replace(facts, notes=tuple(dict.fromkeys([*known, *facts.notes])))
            self.write(
                Subject(
                    session=self.session,
                    point=point,
                    paradigm=series.runtime.paradigm,
                    setup_ns=series.setup_ns,
                    artifact_bytes=series.artifact_bytes,
                    **{field.name: getattr(facts, field.name) for field in fields(facts)},
                )
            )

    def _introduce(self, point: Point) -> str:
        """Write which point it is before anything is said of it; return its key.

        The session may be killed at any time, and records of a point that nothing describes are
        lost.
        """
        key = point.key()
        if key not in self._introduced:
            self._introduced.add(key)
            self.write(Subject(session=self.session, point=point, paradigm="unknown", final=False))
        return key

    def calibration(self, round_: int, timed: Block) -> None:
        """Write a block of the calibrator."""
        self.write(Calibration(session=self.session, round=round_, latency_ns=timed.latency_ns))

    def found(self, run: PointRun, round_: int, found: Block | Attribution | Places) -> None:
        """Write what a process found out about a point, with where and when it was."""
        self.write(
            replace(
                found,
                session=self.session,
                point=self._introduce(run.point),
                process=run.process,
                round=round_,
            )
        )

    def parity(
        self, point: Point, precision: str, own: Path | None, reference: Path | None, why: str
    ) -> None:
        """Compare outputs, computed in ``precision``, with eager's and write the verdict.

        ``own`` is their file, ``reference`` that of eager; ``why`` says why one of them is None.
        """
        if own is None or reference is None:
            found = replace(parity.compare([], [], precision), reason=why)
        else:
            found = parity.compare_files(own, reference, precision)
        against = "eager, float32" if point.workload.precision == "int8" else "eager"
        key = self._introduce(point)
        self.write(replace(found, session=self.session, point=key, reference=against))

    def left_out(self, point: Point, reason: str) -> None:
        """Write that a point was asked for and not measured."""
        self.write(LeftOut(session=self.session, point=point, reason=reason))

    def outcome(
        self,
        series: Series,
        batch: int,
        process: int,
        error: WorkerError | None = None,
        run: PointRun | None = None,
    ) -> None:
        """Write how a process of a point ended; later outcomes of the same are dropped."""
        point = series.points[batch]
        if not series.timed or self._closing or (point.key(), process) in self._ended:
            return
        self._ended.add((point.key(), process))
        if error is not None and not (process or series.is_twin or series.is_beside):
            self.reasons[point.runtime] = str(error)
        worker, bound = series.workers.get(process), run.bound if run else None
        notes = [*(run.notes if run else ()), *(worker.notes if worker is not None else ())]
        if worker is not None and worker.printed_bytes > CHATTY_BYTES:
            size = worker.printed_bytes / 1e6
            notes.append(Note("chatty", f"the process printed {size:.0f} MB; the end was kept"))
        self.write(
            Outcome(
                session=self.session,
                point=self._introduce(point),
                process=process,
                status="ok" if error is None else error.status,
                reason=None if error is None else str(error),
                warmup_calls=bound.calls if bound else None,
                load_ns=series.load_ns.get(process),
                first_ns=bound.first_ns if bound else None,
                peak_memory_bytes=bound.peak_memory_bytes if bound else None,
                notes=tuple(notes),
                started=worker.started if worker is not None else None,
            )
        )

    def mark_failed(self, series: Series, error: WorkerError) -> None:
        """Record that nothing can come from a series, and end its processes."""
        series.dead = error
        for batch in series.points:
            self.outcome(series, batch, 0, error)
        series.stop()

    def fail(
        self, series: Series, process: int, batches: Sequence[int], error: WorkerError
    ) -> None:
        """Record that batch sizes failed in a process; a dead process leaves the rounds.

        What was timed in it stays, and goes on in others. What else was warm there ended with it;
        in process 0 it is open again, for a new one.
        """
        worker = series.workers.get(process)
        has_ended = worker is not None and not worker.alive
        ended = [b for b, its_process in series.bound if its_process == process and has_ended]
        for batch in dict.fromkeys([*batches, *ended]):
            series.bound.pop((batch, process), None)
            run = series.runs.get((batch, process))
            is_timed = run is not None and bool(run.medians)
            if is_timed or batch in batches:
                self.outcome(series, batch, process, error, run)
            elif process == 0:
                series.open.add(batch)
            if not is_timed:
                series.runs.pop((batch, process), None)
        if has_ended:
            del series.workers[process]


class EffortClock:
    """Adds up what the session's own thread spends time on: set-up, measuring, calls in that."""

    def __init__(self, clock: Clock) -> None:
        self._wall_ns = clock.wall_ns
        self._begin_ns = clock.wall_ns()
        self._spent_ns = {"set-up": 0, "measuring": 0}
        self._now: tuple[str, int] | None = None
        """What time is spent on now, and since when."""
        self._calls_ns = 0

    @property
    def measured_s(self) -> float:
        """What is charged to the time budget until now."""
        return self._until_now_ns("measuring") / 1e9

    def _until_now_ns(self, what: str) -> int:
        now = self._wall_ns() - self._now[1] if self._now and self._now[0] == what else 0
        return self._spent_ns[what] + now

    @contextlib.contextmanager
    def spending(self, what: Literal["set-up", "measuring"]) -> Iterator[None]:
        """Count what is inside as set-up, or charge it to the time budget.

        Measuring is warm-up, blocks, samples and pauses; set-up is when nothing could be measured.
        """
        self._now = what, self._wall_ns()
        try:
            yield
        finally:
            self._spent_ns[what], self._now = self._until_now_ns(what), None

    def called(self, found: Block | Attribution | Places) -> None:
        """Count the time in calls of the model, timed or sampled."""
        if isinstance(found, Attribution | Places):
            self._calls_ns += found.wall_ns
            return
        self._calls_ns += sum(found.latency_ns)
        if found.enqueue_ns is not None:  # on a device the pipelined calls are others
            self._calls_ns += found.pipelined_ns

    def record(self, session: str) -> Effort:
        """Return what it was until now."""
        return Effort(
            session=session,
            wall_ns=self._wall_ns() - self._begin_ns,
            setup_ns=self._until_now_ns("set-up"),
            measuring_ns=self._until_now_ns("measuring"),
            calls_ns=self._calls_ns,
        )


@dataclass(eq=False, kw_only=True)
class Bench:
    """What all parts of a session share.

    Attributes:
        series: of the session; grows while set-up runs.
        scratch: folder for what is prepared for this session alone, and for outputs.
        sampler: of program counters that this host allows, None for none.
    """

    plan: Plan
    series: list[Series]
    recorder: Recorder
    reporter: Reporter
    gate: Gate
    known: KnownModels
    effort: EffortClock
    clock: Clock
    scratch: Path
    sampler: str | None


class OutputChecks:
    """Compares outputs with eager's, each batch size once: nothing is ranked without it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._waiting: list[tuple[Series, int]] = []
        self._why: dict[tuple[Series, int], str] = {}
        """Why outputs could not be written."""

    def write(self, series: Series, batch: int) -> None:
        """Have the outputs of a point written that are to be compared, beside those of others."""
        if series.timed and series.is_compared:
            self._output(series, batch)

    def compare(self, points: Sequence[tuple[Series, int]] = (), *, last: bool = False) -> None:
        """Compare points with eager, and those that waited; ``last``: no more comes of eager."""
        waiting, self._waiting = [*self._waiting, *points], []
        for series, batch in waiting:
            if series.timed and series.is_compared:
                self._compare(series, batch, last=last)

    def _compare(self, series: Series, batch: int, *, last: bool) -> None:
        same = (s for s in self._bench.series if s.is_eager and s.config == series.reference)
        eager = next((one for one in same if batch in one.points and not one.dead), None)
        own = self._output(series, batch)
        if eager is not None:
            reference = self._output(eager, batch)
        else:
            reference = self._bench.known.output(series.reference_point(batch))
        if own is None and (series, batch) not in self._why:  # it was not called
            return
        why = self._why.get((series, batch)) or (eager and self._why.get((eager, batch)))
        if reference is None and why is None and eager is not None and not last:
            self._waiting.append((series, batch))
            return
        precision = series.runtime.computes_in(series.workload.precision)
        why = why or "eager was not run at this batch size"
        self._bench.recorder.parity(series.points[batch], precision, own, reference, why)

    def _output(self, series: Series, batch: int) -> Path | None:
        """Return the file of the outputs of a batch; None where there is none."""
        path = self._bench.scratch / f"{series.points[batch].key()}.npz"
        worker, run = series.workers.get(0), series.bound.get((batch, 0))
        if not path.exists():
            if (series, batch) in self._why or worker is None or run is None or not series.ready:
                return None
            timeout_s = 120.0 + 4 * run.call_ns / 1e9  # for two calls
            try:
                worker.request(Server.output, timeout_s, batch=batch, path=str(path))
            except WorkerError as error:
                self._why[series, batch] = f"no outputs of {series.runtime.name}: {error}"
                if not worker.alive:
                    self._bench.recorder.fail(series, 0, [batch], error)
                return None
            if series.is_eager:
                self._bench.known.keep_output(series.points[batch], path)
        return path


def comparison_notes(workload: Workload) -> list[Note]:
    """Return the notes on what outputs are compared with, where that is not all of eager's."""
    notes = []
    if workload.input == "ragged":
        text = "outputs are compared with eager's at real tokens; padding positions are ignored"
        notes.append(Note("padding-not-compared", text))
    if workload.precision == "int8":
        text = f"outputs are compared with eager's in float32, tolerance {parity.TOLERANCE['int8']}"
        notes.append(Note("quantised-reference", text))
    return notes
