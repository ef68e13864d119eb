"""Raw records grouped by point: which session counts, how it ended, what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Estimate,
    LeftOut,
    Note,
    Outcome,
    Parity,
    Places,
    Point,
    Record,
    Session,
    Status,
    Subject,
    session_order,
)
from frameworktax.stats import MIN_BLOCKS, block_median, process_interval

_BY_PROCESS = attrgetter("process", "round")
WORST_FIRST: tuple[Status, ...] = (
    "crashed",
    "out-of-memory",
    "timeout",
    "failed",
    "unavailable",
)


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """Every record of one point in one session.

    What a reader asks for several times is computed once and kept: a study has thousands of points.

    ``calibrator`` holds round → the median of the session's calibrator, ns. ``last_try`` says that
    a later session tried the point in vain.
    """

    point: Point
    session: str
    subject: Subject
    blocks: tuple[Block, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    places: tuple[Places, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    parity: Parity | None = None
    calibrator: Mapping[int, float] = field(default_factory=dict)
    last_try: Note | None = None

    @property
    def measured(self) -> bool:
        """Whether there is a block, or a reason why there is none.

        Process 0 decides whether a point can be measured; that a further one did not start in time
        is no such reason.
        """
        return bool(self.blocks) or any(o.status != "ok" and not o.process for o in self.outcomes)

    @property
    def cut_off(self) -> bool:
        """Whether its session was ended from outside before it had enough blocks of the point."""
        rounds = {block.round for block in self.blocks}
        ended = bool(self.outcomes) and len(rounds) > 1
        return 0 < len(self.blocks) < MIN_BLOCKS and not ended

    @cached_property
    def by_process(self) -> Sequence[Sequence[Block]]:
        """The blocks of each process, in the order of their rounds."""
        processes: dict[int, list[Block]] = defaultdict(list)
        for block in sorted(self.blocks, key=_BY_PROCESS):
            processes[block.process].append(block)
        return list(processes.values())

    @cached_property
    def block_medians(self) -> Sequence[Sequence[float]]:
        """Per process its block medians of latency, ns."""
        return [[block_median(b.latency_ns) for b in blocks] for blocks in self.by_process]

    @cached_property
    def by_round(self) -> Mapping[tuple[int, int], float]:
        """Process and round → block median of latency, ns, for paired ratios."""
        return {
            (block.process, block.round): ns
            for blocks, medians in zip(self.by_process, self.block_medians, strict=True)
            for block, ns in zip(blocks, medians, strict=True)
        }

    @cached_property
    def latency(self) -> Estimate | None:
        """The latency of one call, ns, over processes and their blocks."""
        return process_interval(self.block_medians)


def gather(records: Iterable[Record]) -> tuple[list[PointRecords], list[Note]]:
    """Group records by point, in the order the points first appear.

    Of a point in several sessions the newest counts that measured it and was not cut off half-way,
    because sessions are not comparable block by block. Where a later attempt failed, what was
    measured stays, and ``last_try`` says so.

    Returns:
        The points, and a note if records had to be left aside because nothing says what they
        belong to.
    """
    order: dict[str, Point] = {}
    started: dict[str, str] = {}
    found: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    calibrations: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        match record:
            case Session():
                started[record.session] = record.started
            case Subject():
                key = record.point.key()
                order.setdefault(key, record.point)
                found[key, record.session][record.kind].append(record)
            case Block() | Attribution() | Places() | Parity() | Outcome():
                found[record.point, record.session][record.kind].append(record)
            case Calibration():
                calibrations[record.session][record.round] = block_median(record.latency_ns)
            case _:  # read elsewhere
                continue
    points: dict[str, list[PointRecords]] = {key: [] for key in order}
    orphans = 0
    for (key, session), group in found.items():
        if not group[Subject.kind]:
            orphans += 1
            continue
        subject = max(group[Subject.kind], key=lambda s: s.final)
        points[key].append(
            PointRecords(
                point=subject.point,
                session=session,
                subject=subject,
                blocks=tuple(group[Block.kind]),
                attributions=tuple(group[Attribution.kind]),
                places=tuple(group[Places.kind]),
                outcomes=tuple(group[Outcome.kind]),
                parity=group[Parity.kind][-1] if group[Parity.kind] else None,
                calibrator=calibrations[session],
            )
        )
    notes = []
    if orphans:
        text = f"{orphans} points have blocks but no description; they are not shown"
        notes.append(Note("no-subject", text))
    newest = []
    for sessions in points.values():
        sessions.sort(key=lambda p: session_order(p.session, started.get(p.session, "")))
        # of equals the last: max takes the first
        best = max(reversed(sessions), key=lambda p: (p.measured, not p.cut_off, bool(p.blocks)))
        later = sessions[sessions.index(best) + 1 :]
        failed = next((p for p in reversed(later) if p.measured and not p.blocks), None)
        if best.blocks and failed:
            best = replace(best, last_try=_failed_attempt(failed))
        newest.append(best)
    return newest, notes


def _failed_attempt(last: PointRecords) -> Note:
    how, reason = status_of(last)
    text = (
        f"the latest attempt, in session {last.session}, ended {how}: {reason}; "
        "this is the result of an earlier one"
    )
    return Note("last-try-failed", text)


def status_of(records: PointRecords) -> tuple[Status, str | None]:
    """Return ``ok`` if any process was timed, otherwise the worst end and its reason."""
    if records.blocks:
        return "ok", None
    for wanted in WORST_FIRST:
        for outcome in records.outcomes:
            if outcome.status == wanted:
                return wanted, outcome.reason
    return "failed", "no process of this point was timed"


def left_out_names(records: Iterable[Record], measured: set[Point]) -> list[str]:
    """Return in words what sessions left out and none measured, batches together."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for record in records:
        if isinstance(record, LeftOut) and record.point not in measured:
            workload = record.point.workload
            if not workload.twin:
                name = (workload.model, record.point.runtime, record.reason)
                groups[name].append(workload.batch)
    return [
        f"{model}, {runtime}, batch {', '.join(map(str, sorted(set(batches))))}: {reason}"
        for (model, runtime, reason), batches in groups.items()
    ]
