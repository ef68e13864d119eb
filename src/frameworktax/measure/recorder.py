"""What a session writes down: every fact once, the moment it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.measure import parity
from frameworktax.measure.series import Cell, Series
from frameworktax.models import ragged
from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    LeftOut,
    Note,
    Outcome,
    Parity,
    Point,
    Subject,
    Workload,
)
from frameworktax.stats import block_median
from frameworktax.store import Writer, decode

CHATTY_BYTES = 1_000_000
"""A process that prints more than this gets a note: printing takes time too."""


class Recorder:
    """Turns what workers answer into records of one session."""

    def __init__(self, writer: Writer, session: str) -> None:
        self._writer = writer
        self._session = session
        self._ended: set[tuple[str, int]] = set()
        self._closing = False

    def close(self) -> None:
        """Take no more outcomes: a process that the session's end ends has not failed."""
        self._closing = True

    def subjects(self, series: Series, described: Mapping[str, Any]) -> None:
        """Write what is known of each point of a series before it is timed."""
        if not series.timed:
            return
        known = [Note(*n) for n in described.get("notes", [])] + series.notes
        is_reference = series.runtime.name == "eager" and series.config == series.reference
        if not (is_reference or series.is_floor):
            known += how_compared(series.workload)
        counted = not (series.is_floor or series.is_twin)
        for batch, point in series.points.items():
            facts = dict(described.get("facts", {}).get(str(batch), {})) if counted else {}
            if counted:
                facts["padding_share"] = padding_share(series, point, facts.get("padding_share"))
            extra = [Note(*n) for n in facts.pop("notes", [])]
            self._writer.write(
                Subject(
                    session=self._session,
                    point=point,
                    paradigm=series.runtime.paradigm,
                    setup_ns=series.setup_ns,
                    artifact_bytes=series.artifact_bytes,
                    notes=tuple(dict.fromkeys(known + extra)),
                    **facts,
                )
            )

    def calibration(self, round_: int, answer: Mapping[str, Any]) -> None:
        """Write a block of the calibrator."""
        self._writer.write(
            Calibration(session=self._session, round=round_, latency_ns=tuple(answer["latency_ns"]))
        )

    def block(self, cell: Cell, round_: int, answer: Mapping[str, Any]) -> None:
        """Write a timed block."""
        enqueue, first = answer["enqueue_ns"], answer.get("first_token_ns")
        self._writer.write(
            Block(
                session=self._session,
                point=cell.point.key(),
                process=cell.process,
                round=round_,
                latency_ns=tuple(answer["latency_ns"]),
                pipelined_ns=answer["pipelined_ns"],
                pipelined_calls=answer["pipelined_calls"],
                cpu_ns=answer["cpu_ns"],
                enqueue_ns=None if enqueue is None else tuple(enqueue),
                first_token_ns=None if first is None else tuple(first),
            )
        )
        cell.medians.append(float(block_median(answer["latency_ns"])))

    def attribution(self, cell: Cell, answer: Mapping[str, Any]) -> None:
        """Write where the time of a cell goes."""
        head = {
            "session": self._session,
            "point": cell.point.key(),
            "process": cell.process,
            "notes": [{"code": code, "text": text} for code, text in answer["notes"]],
        }
        self._writer.write(decode(Attribution, {**answer, **head}))

    def parity(
        self, point: Point, own: tuple[Path, bool], reference: tuple[Path, bool] | None
    ) -> None:
        """Compare outputs with eager's and write the verdict.

        Args:
            point: whose outputs they are.
            own: file of its outputs, and whether a second call gave the same.
            reference: the same of eager; None where eager gave none.
        """
        workload = point.workload
        expected, actual = [], parity.read_outputs(own[0])
        if reference is not None:
            expected = parity.read_outputs(reference[0])
            real = parity.read_real(reference[0])
            if real is not None:
                expected = parity.without_padding(expected, real)
                actual = parity.without_padding(actual, real)
        found = parity.compare(expected, actual, workload.precision)
        if reference is None:
            found = replace(found, reason="eager was not run at this batch size")
        elif not (own[1] and reference[1]):
            whose = "its" if reference[1] else "eager's"
            found = replace(
                found,
                within_tolerance=None,
                reason=f"{whose} own output differs from call to call",
            )
        against = "eager, float32" if workload.precision == "int8" else "eager"
        self._writer.write(
            Parity(session=self._session, point=point.key(), reference=against, **asdict(found))
        )

    def left_out(self, point: Point, reason: str) -> None:
        """Write that a point was asked for and not measured."""
        self._writer.write(LeftOut(session=self._session, point=point, reason=reason))

    def outcome(
        self,
        series: Series,
        batch: int,
        process: int,
        error: WorkerError | None = None,
        cell: Cell | None = None,
    ) -> None:
        """Write how a process of a point ended; the first word stands."""
        point = series.points[batch].key()
        if not series.timed or self._closing or (point, process) in self._ended:
            return
        self._ended.add((point, process))
        worker = series.workers.get(process)
        notes = list(cell.notes) if cell else []
        if worker is not None and worker.output.total_bytes > CHATTY_BYTES:
            size = worker.output.total_bytes / 1e6
            notes.append(Note("chatty", f"the process printed {size:.0f} MB; the end was kept"))
        self._writer.write(
            Outcome(
                session=self._session,
                point=point,
                process=process,
                status="ok" if error is None else error.status,
                reason=None if error is None else str(error),
                warmup_calls=cell.warmup_calls if cell else None,
                load_ns=series.load_ns.get(process),
                peak_memory_bytes=cell.peak_memory_bytes if cell else None,
                notes=tuple(notes),
            )
        )

    def mark_failed(self, series: Series, error: WorkerError) -> None:
        """Record that nothing can come from a series, and end its processes."""
        series.dead = error
        series.stop()
        for batch in series.points:
            self.outcome(series, batch, 0, error)

    def fail(
        self, series: Series, process: int, batches: Iterable[int], error: WorkerError
    ) -> None:
        """Record that batch sizes failed in a process, and take what died out of the round."""
        worker = series.workers.get(process)
        failed = list(batches)
        if worker is not None and not worker.alive:
            failed += [b for b, p in series.cells if p == process and b not in failed]
        for batch in failed:
            self.outcome(series, batch, process, error, series.cells.pop((batch, process), None))
        if worker is not None and not worker.alive:
            del series.workers[process]


def padding_share(series: Series, point: Point, described: float | None) -> float | None:
    """Return the share of the tokens a point computes that is padding; None for dense input.

    Where the model could not be described in time, the lengths alone tell; of the user's own
    model they tell nothing, since its mask says how far it pads.
    """
    w = point.workload
    if w.input != "ragged":
        return None
    if not series.runtime.computes_padding:
        return 0.0
    if described is not None or w.length is None or w.length_mean is None or w.length_sd is None:
        return described
    drawn = ragged.lengths(w.batch, w.length_mean, w.length_sd, w.length)
    return 1.0 - float(drawn.sum()) / (w.batch * w.length)


def how_compared(workload: Workload) -> list[Note]:
    """Return the notes on what outputs are compared with, where that is not all of eager's."""
    notes = []
    if workload.input == "ragged":
        text = "outputs are compared with eager's at real tokens; padded ones are nobody's"
        notes.append(Note("padding-not-compared", text))
    if workload.precision == "int8":
        text = f"outputs are compared with eager's in float32, tolerance {parity.TOLERANCE['int8']}"
        notes.append(Note("quantised-reference", text))
    return notes
