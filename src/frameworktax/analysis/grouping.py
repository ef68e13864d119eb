"""Raw records grouped by point: which session counts, how it ended, what was left out."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, cast

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
    device_of,
    session_order,
)
from frameworktax.stats import (
    MIN_BLOCKS,
    MIN_PROCESSES,
    UNTIL,
    block_median,
    block_medians,
    process_interval,
    relative_half_width,
)

_PROCESS, _BY_PROCESS = attrgetter("process"), attrgetter("process", "round")
WORST_FIRST: tuple[Status, ...] = (
    "crashed",
    "out-of-memory",
    "timeout",
    "failed",
    "unavailable",
)

WALL_OVER_CPU = 1.05
"""Wall over thread CPU time above which other load is in the numbers (METHOD, section 4)."""


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """Every record of one point in one session.

    What a reader asks for several times is computed once and kept: a study has thousands of points.

    ``blocks`` are in the order of processes and rounds; ``medians_ns`` and ``sums_ns`` are of the
    latencies of each. ``calibrator`` holds round → the median of the session's calibrator, ns.
    ``last_try`` says that a later session tried the point in vain.
    """

    point: Point
    session: str
    subject: Subject
    blocks: Sequence[Block] = ()
    medians_ns: Sequence[float] = ()
    sums_ns: Sequence[float] = ()
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
        return [list(blocks) for _, blocks in groupby(self.blocks, key=_PROCESS)]

    @cached_property
    def block_medians(self) -> Sequence[Sequence[float]]:
        """Per process its block medians of latency, ns."""
        medians = iter(self.medians_ns)
        return [list(islice(medians, len(blocks))) for blocks in self.by_process]

    @cached_property
    def by_round(self) -> Mapping[tuple[Hashable, int], float]:
        """Process and round → block median of latency, ns, for paired ratios."""
        return dict(zip(map(_BY_PROCESS, self.blocks), self.medians_ns, strict=True))

    @cached_property
    def levels(self) -> Mapping[int, float]:
        """Process → the median of its block medians, ns."""
        medians = zip(self.by_process, self.block_medians, strict=True)
        return {blocks[0].process: block_median(own) for blocks, own in medians}

    @cached_property
    def latency(self) -> Estimate | None:
        """The latency of one call, ns, over processes and their blocks."""
        return process_interval(self.block_medians)

    @cached_property
    def pipelined(self) -> Estimate | None:
        """The time per call with one synchronise per block, ns."""
        return _interval(
            self, lambda b: b.pipelined_ns / b.pipelined_calls if b.pipelined_calls else None
        )


def gather(records: Iterable[Record]) -> tuple[list[PointRecords], list[Note]]:
    """Group records by point, in the order the points first appear.

    Of a point in several sessions the newest counts that measured it and was not cut off half-way,
    because sessions are not comparable block by block. Where a later attempt failed, what was
    measured stays, and ``last_try`` says so. A note says if records belong to no known point.
    """
    started: dict[str, str] = {}
    calibrations: dict[str, dict[int, float]] = defaultdict(dict)
    of: dict[str, dict[tuple[str, str], list[Any]]] = {
        cls.kind: defaultdict(list)
        for cls in (Subject, Block, Attribution, Places, Parity, Outcome)
    }
    record: Any
    for record in records:
        kind = record.kind
        if kind == Subject.kind:
            of[kind][record.point.key(), record.session].append(record)
        elif kind in of:
            of[kind][record.point, record.session].append(record)
        elif kind == Session.kind:
            started[record.session] = record.started
        elif kind == Calibration.kind:
            calibrations[record.session][record.round] = block_median(record.latency_ns)
    blocks = [sorted(found, key=_BY_PROCESS) for found in of[Block.kind].values()]
    medians, sums = map(iter, block_medians([b.latency_ns for found in blocks for b in found]))
    timed = {
        group: (found, list(islice(medians, len(found))), list(islice(sums, len(found))))
        for group, found in zip(of[Block.kind], blocks, strict=True)
    }
    points: dict[str, list[PointRecords]] = defaultdict(list)
    for group, subjects in of[Subject.kind].items():
        key, session = group
        own_blocks, own_medians, own_sums = timed.get(group, ((), (), ()))
        subject = max(subjects, key=lambda s: s.final)
        points[key].append(
            PointRecords(
                point=subject.point,
                session=session,
                subject=subject,
                blocks=own_blocks,
                medians_ns=own_medians,
                sums_ns=own_sums,
                attributions=tuple(of[Attribution.kind].get(group, ())),
                places=tuple(of[Places.kind].get(group, ())),
                outcomes=tuple(of[Outcome.kind].get(group, ())),
                parity=next(reversed(of[Parity.kind].get(group, ())), None),
                calibrator=calibrations[session],
            )
        )
    orphans = len(set().union(*of.values()) - of[Subject.kind].keys())
    notes = []
    if orphans:
        text = f"{orphans} points have blocks but no description; they are not shown"
        notes.append(Note("no-subject", text))
    newest = []
    for sessions in points.values():
        if len(sessions) == 1:
            newest += sessions
            continue
        sessions.sort(key=lambda p: session_order(p.session, started.get(p.session, "")))
        # of equals the last: max takes the first
        best = max(reversed(sessions), key=lambda p: (p.measured, not p.cut_off, bool(p.blocks)))
        later = sessions[sessions.index(best) + 1 :]
        failed = next((p for p in reversed(later) if p.measured and not p.blocks), None)
        if best.blocks and failed:
            how, reason = status_of(failed)
            text = (
                f"the latest attempt, in session {failed.session}, ended {how}: {reason}; "
                "this is the result of an earlier one"
            )
            best = replace(best, last_try=Note("last-try-failed", text))
        newest.append(best)
    return newest, notes


def status_of(records: PointRecords) -> tuple[Status, str | None]:
    """Return ``ok`` if any process was timed, otherwise the worst end and its reason."""
    if records.blocks:
        return "ok", None
    failed = [o for o in records.outcomes if o.status != "ok"]
    return worst_end(failed) if failed else ("failed", "no process of this point was timed")


def worst_end(failed: Iterable[Outcome]) -> tuple[Status, str | None]:
    """Return how the worst of some processes ended, and why."""
    end = min(failed, key=lambda o: WORST_FIRST.index(o.status))
    return end.status, end.reason


def left_out_names(left_out: Sequence[LeftOut], measured: Iterable[Point]) -> list[str]:
    """Return in words what sessions left out and none measured, batches together."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    known = set(measured) if left_out else ()
    for record in left_out:
        workload = record.point.workload
        if record.point not in known and not workload.twin:
            name = (workload.model, record.point.runtime, record.reason)
            groups[name].append(workload.batch)
    return [
        f"{model}, {runtime}, batch {', '.join(map(str, sorted(set(batches))))}: {reason}"
        for (model, runtime, reason), batches in groups.items()
    ]


# --- what comes straight from the blocks of a point ---------------------------------------------


def _interval(records: PointRecords, value: Callable[[Block], float | None]) -> Estimate | None:
    """Return the interval of one value a block, as of a latency; blocks with None are left out."""
    found = [[value(block) for block in blocks] for blocks in records.by_process]
    return process_interval([[one for one in own if one is not None] for own in found])


def _median(values: Sequence[float] | None) -> float | None:
    return block_median(values) if values else None


def enqueue(records: PointRecords) -> Estimate | None:
    """Return the host time until a call returns, ns; None where there is no device."""
    if device_of(records.point.platform) == "cpu":
        return None
    return _interval(records, lambda b: _median(b.enqueue_ns))


def first_token(records: PointRecords) -> Estimate | None:
    """Return the time to the first generated token, ns; None where nothing is generated."""
    if records.point.workload.new_tokens is None:
        return None
    return _interval(records, lambda b: _median(b.first_token_ns))


def per_token(records: PointRecords) -> Estimate | None:
    """Return the time of each further token, ns: (latency − first token) / (tokens − 1) of a call.

    None where nothing is generated, or one token only.
    """
    tokens = records.point.workload.new_tokens
    if tokens is None or tokens < 2:
        return None
    further = tokens - 1

    def value(block: Block) -> float | None:
        first = block.first_token_ns
        calls = zip(block.latency_ns, first, strict=True) if first else ()
        return _median([(whole - begun) / further for whole, begun in calls])

    return _interval(records, value)


def samples(records: PointRecords) -> tuple[tuple[int, ...], ...]:
    """Return every latency, ns: one tuple a process, or an array of what is read as such."""
    found = tuple(_joined([b.latency_ns for b in blocks]) for blocks in records.by_process)
    return cast("tuple[tuple[int, ...], ...]", found)


def _joined(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    codes = {part.typecode if isinstance(part, array) else "" for part in parts}
    if codes == {"I"}:
        return array("I", b"".join(parts))  # type: ignore[arg-type] # arrays are buffers
    return array("q", chain(*parts)) if "q" in codes else tuple(chain(*parts))


def notes(records: PointRecords, until: float = UNTIL) -> list[Note]:
    """Return the trust notes of a point: those recorded, once each, and those its numbers ask for.

    ``until`` is the half-width that was asked for, as a share of the value.
    """
    recorded: list[Note] = [*records.subject.notes]
    recorded.extend(note for outcome in records.outcomes for note in outcome.notes)
    recorded.extend(note for a in records.attributions for note in a.notes)
    recorded += [records.last_try] if records.last_try else []
    unique = list(dict.fromkeys(recorded))
    if not records.blocks:
        return unique
    return unique + [note for note in _judged(records, until) if note not in unique]


def _judged(records: PointRecords, until: float) -> list[Note]:
    found = []
    if device_of(records.point.platform) == "cpu":
        wall_ns, cpu_ns = sum(records.sums_ns), sum(b.cpu_ns for b in records.blocks)
        if cpu_ns > 0 and wall_ns / cpu_ns > WALL_OVER_CPU:
            text = (
                f"wall time is {wall_ns / cpu_ns:.2f} × the CPU time of the calling thread: "
                "other load or other threads are in these numbers"
            )
            found.append(Note("wall-over-cpu", text))
    processes, blocks = len(records.by_process), len(records.blocks)
    half = relative_half_width(records.latency)
    if half > until and blocks > 1:
        text = f"interval ±{half:.1%}, asked for ±{until:.1%}; give it more --time-budget"
        found.append(Note("wide-interval", text))
    if processes < MIN_PROCESSES:
        text = f"{processes} of at least {MIN_PROCESSES} processes: " + (
            "the interval is of this process alone, how much processes differ is unknown"
            if processes == 1
            else "two say little of how much processes differ, so the interval is wide"
        )
        found.append(Note("few-processes", text))
    if blocks < MIN_BLOCKS:
        text = f"{blocks} blocks, {MIN_BLOCKS} are asked for"
        found.append(Note("few-blocks", text))
    failed = [o for o in records.outcomes if o.status != "ok"]
    if failed:
        text = f"{len(failed)} of its processes {failed[0].status}: {failed[0].reason}"
        found.append(Note("process-lost", text))
    return found
