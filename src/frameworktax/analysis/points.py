"""Raw records grouped by point, and the intervals that come straight from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, quantiles, stdev

from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Estimate,
    LeftOut,
    Note,
    Outcome,
    Parity,
    Point,
    Record,
    Session,
    Status,
    Subject,
    device_of,
    session_order,
)
from frameworktax.stats import MIN_PROCESSES, process_interval, relative_half_width, spread

WALL_OVER_CPU = 1.05
"""Wall over thread CPU time above which other load is in the numbers (METHOD, section 4)."""
MIN_BLOCKS = 5
"""Blocks a point needs at least, over its processes together (METHOD, section 4)."""
MIN_ROUNDS = 3
"""Rounds of the calibrator below which nothing is said of the host's drift."""
ROBUST_ROUNDS = 6
NORMAL_95 = 1.96
WIDENED = ", widened by the calibrator's spread"
UNTIL = 0.03
"""Half-width, as a share of the value, that a measurement aims at."""
WORST_FIRST: tuple[Status, ...] = (
    "crashed",
    "out-of-memory",
    "timeout",
    "failed",
    "unavailable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecords:
    """Every record of one point in one session.

    ``calibrator_spread`` is the relative standard deviation of the session's calibrator from round
    to round: how far the host's own speed moved. ``calibrator`` holds round → its median, ns.
    ``last_try`` says that a later session tried the point in vain.
    """

    point: Point
    session: str
    subject: Subject
    blocks: tuple[Block, ...] = ()
    attributions: tuple[Attribution, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    parity: Parity | None = None
    calibrator_spread: float = 0.0
    calibrator: Mapping[int, float] = field(default_factory=dict)
    last_try: Note | None = None

    @property
    def measured(self) -> bool:
        """Whether there is anything to tell: a block, or a reason why there is none.

        Process 0 tells whether a point can be measured; that a further one did not start in time
        is no such reason.
        """
        return bool(self.blocks) or any(o.status != "ok" and not o.process for o in self.outcomes)

    @property
    def cut_off(self) -> bool:
        """Whether its session was ended from outside before it had told enough of the point."""
        rounds = {block.round for block in self.blocks}
        ended = bool(self.outcomes) and len(rounds) > 1
        return 0 < len(self.blocks) < MIN_BLOCKS and not ended

    def by_process(self) -> list[list[Block]]:
        """Return the blocks of each process, in the order of their rounds."""
        processes: dict[int, list[Block]] = defaultdict(list)
        for block in sorted(self.blocks, key=lambda b: (b.process, b.round)):
            processes[block.process].append(block)
        return list(processes.values())

    def block_medians(self) -> list[list[float]]:
        """Return per process its block medians of latency, ns."""
        return [[median(b.latency_ns) for b in blocks] for blocks in self.by_process()]

    def by_round(self) -> dict[tuple[int, int], float]:
        """Return (process, round) → block median of latency, ns, for paired ratios."""
        return {(b.process, b.round): median(b.latency_ns) for b in self.blocks}


@dataclass(slots=True)
class _Gathered:
    subject: Subject | None = None
    blocks: list[Block] = field(default_factory=list)
    attributions: list[Attribution] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    parity: Parity | None = None


def gather(records: Iterable[Record]) -> tuple[list[PointRecords], list[Note]]:
    """Group records by point, in the order the points first appear.

    A point measured in several sessions is told from the newest that measured it and was not cut
    off half-way, because sessions are not comparable block by block. Where a later one tried in
    vain, what was measured stays, and ``last_try`` says so.

    Returns:
        The points, and a note if records had to be left aside because nothing says what they
        belong to.
    """
    order: dict[str, Point] = {}
    started: dict[str, str] = {}
    found: dict[tuple[str, str], _Gathered] = defaultdict(_Gathered)
    calibrations: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        match record:
            case Session():
                started[record.session] = record.started
            case Subject():
                order.setdefault(record.point.key(), record.point)
                found[record.point.key(), record.session].subject = record
            case Block():
                found[record.point, record.session].blocks.append(record)
            case Attribution():
                found[record.point, record.session].attributions.append(record)
            case Parity():
                found[record.point, record.session].parity = record
            case Outcome():
                found[record.point, record.session].outcomes.append(record)
            case Calibration():
                calibrations[record.session][record.round] = median(record.latency_ns)
            case _:  # told elsewhere
                continue
    points: dict[str, list[PointRecords]] = {key: [] for key in order}
    orphans = 0
    for (key, session), group in found.items():
        if group.subject is None:
            orphans += 1
            continue
        points[key].append(
            PointRecords(
                point=group.subject.point,
                session=session,
                subject=group.subject,
                blocks=tuple(group.blocks),
                attributions=tuple(group.attributions),
                outcomes=tuple(group.outcomes),
                parity=group.parity,
                calibrator_spread=relative_spread(list(calibrations[session].values())),
                calibrator=calibrations[session],
            )
        )
    notes = []
    if orphans:
        text = f"{orphans} points have numbers but no description; they are not shown"
        notes.append(Note("no-subject", text))
    newest = []
    for sessions in points.values():
        sessions.sort(key=lambda p: session_order(p.session, started.get(p.session, "")))
        # of equals the last: max takes the first
        told = max(reversed(sessions), key=lambda p: (p.measured, not p.cut_off, bool(p.blocks)))
        later = sessions[sessions.index(told) + 1 :]
        vain = next((p for p in reversed(later) if p.measured and not p.blocks), None)
        newest.append(replace(told, last_try=_in_vain(vain)) if told.blocks and vain else told)
    return newest, notes


def _in_vain(last: PointRecords) -> Note:
    """Return a note on a session that tried a point which an earlier one had measured."""
    how, reason = status(last)
    text = f"the last try, in session {last.session}, ended {how}: {reason}; told is an earlier one"
    return Note("last-try-failed", text)


def relative_spread(rounds: Sequence[float]) -> float:
    """Return the relative standard deviation, 0 where three values are not there to take it of.

    From ``ROBUST_ROUNDS`` on it is half the way from the 16th to the 84th percentile: a single
    round that others disturbed moves no median of blocks either.
    """
    if len(rounds) < MIN_ROUNDS:
        return 0.0
    if len(rounds) < ROBUST_ROUNDS:
        return stdev(rounds) / fmean(rounds)
    cuts = quantiles(rounds, n=100, method="inclusive")
    return (cuts[83] - cuts[15]) / 2 / median(rounds)


def _widened(estimate: Estimate | None, records: PointRecords) -> Estimate | None:
    return None if estimate is None else widened(estimate, records.calibrator_spread)


def widened(estimate: Estimate, drift: float) -> Estimate:
    """Add the host's drift to an interval: half-width √(h² + (1.96 · s · value)²).

    All blocks of a session stand on one stretch of a drifting clock, so the spread between
    processes does not hold the drift; the calibrator's does. It is not divided by the number of
    rounds: drift is slow, and rounds that follow each other share it. Ratios are not touched.

    Args:
        estimate: from the session's own spread.
        drift: s, the calibrator's relative spread from round to round.
    """
    if not drift:
        return estimate
    extra = NORMAL_95 * drift * estimate.value
    return Estimate(
        value=estimate.value,
        low=estimate.value - math.hypot(estimate.value - estimate.low, extra),
        high=estimate.value + math.hypot(estimate.high - estimate.value, extra),
        confidence=estimate.confidence,
        method=estimate.method + WIDENED,
        n=estimate.n,
    )


def narrowed(estimate: Estimate, drift: float) -> Estimate:
    """Take the host's drift out again, for ratios within one session: ``widened`` undone."""
    extra = NORMAL_95 * drift * estimate.value
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    # rounding alone can bring a difference of squares under zero
    return replace(
        estimate,
        low=estimate.value - math.sqrt(max(0.0, below**2 - extra**2)),
        high=estimate.value + math.sqrt(max(0.0, above**2 - extra**2)),
        method=estimate.method.removesuffix(WIDENED),
    )


def status(records: PointRecords) -> tuple[Status, str | None]:
    """Return ``ok`` if any process was timed, otherwise the worst end and its reason."""
    if records.blocks:
        return "ok", None
    for wanted in WORST_FIRST:
        for outcome in records.outcomes:
            if outcome.status == wanted:
                return wanted, outcome.reason
    return "failed", "no process of this point was timed"


def latency(records: PointRecords) -> Estimate | None:
    """Return the latency of one call, ns, over processes and their blocks, host drift included."""
    return _widened(undrifted(records), records)


def undrifted(records: PointRecords) -> Estimate | None:
    """Return the latency with the session's own spread alone: for ratios within the session."""
    return process_interval(records.block_medians())


def pipelined(records: PointRecords) -> Estimate | None:
    """Return the time per call with one synchronise per block, ns."""
    by_process = [
        [b.pipelined_ns / b.pipelined_calls for b in blocks if b.pipelined_calls]
        for blocks in records.by_process()
    ]
    return _widened(process_interval(by_process), records)


def enqueue(records: PointRecords) -> Estimate | None:
    """Return the host time until a call returns, ns; None where there is no device."""
    by_process = [
        [median(b.enqueue_ns) for b in blocks if b.enqueue_ns] for blocks in records.by_process()
    ]
    return _widened(process_interval(by_process), records)


def first_token(records: PointRecords) -> Estimate | None:
    """Return the time to the first generated token, ns; None where nothing is generated."""
    by_process = [
        [median(b.first_token_ns) for b in blocks if b.first_token_ns]
        for blocks in records.by_process()
    ]
    return _widened(process_interval(by_process), records)


def per_token(records: PointRecords) -> Estimate | None:
    """Return the time of each further token, ns: (latency − first token) / (tokens − 1) of a call.

    None where nothing is generated, or one token only.
    """
    tokens = records.point.workload.new_tokens
    if tokens is None or tokens < 2:
        return None
    by_process = [
        [
            median(
                (whole - first) / (tokens - 1)
                for whole, first in zip(b.latency_ns, b.first_token_ns, strict=True)
            )
            for b in blocks
            if b.first_token_ns
        ]
        for blocks in records.by_process()
    ]
    return _widened(process_interval(by_process), records)


def spreads(records: PointRecords) -> tuple[float | None, float | None]:
    """Return the relative spread between processes and within them."""
    return spread(records.block_medians())


def samples(records: PointRecords) -> tuple[tuple[int, ...], ...]:
    """Return every latency, ns: one tuple a process."""
    return tuple(
        tuple(value for block in blocks for value in block.latency_ns)
        for blocks in records.by_process()
    )


def notes(records: PointRecords, until: float = UNTIL) -> list[Note]:
    """Return the trust notes of a point: those recorded, once each, and those its numbers ask for.

    Args:
        records: of the point.
        until: the half-width that was asked for, as a share of the value.
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
    wall_ns = sum(sum(b.latency_ns) for b in records.blocks)
    cpu_ns = sum(b.cpu_ns for b in records.blocks)
    if (
        device_of(records.point.platform) == "cpu"
        and cpu_ns > 0
        and wall_ns / cpu_ns > WALL_OVER_CPU
    ):
        text = (
            f"wall time is {wall_ns / cpu_ns:.2f} × the CPU time of the calling thread: "
            "other load or other threads are in these numbers"
        )
        found.append(Note("wall-over-cpu", text))
    medians = records.block_medians()
    half = relative_half_width(process_interval(medians))
    if half > until and sum(map(len, medians)) > 1:
        text = f"interval ±{half:.1%}, asked for ±{until:.1%}; give it more --time-budget"
        found.append(Note("wide-interval", text))
    if len(medians) < MIN_PROCESSES:
        text = (
            f"{len(medians)} of at least {MIN_PROCESSES} processes: "
            "the spread between processes is not in the interval"
        )
        found.append(Note("few-processes", text))
    if sum(map(len, medians)) < MIN_BLOCKS:
        text = f"{sum(map(len, medians))} blocks, {MIN_BLOCKS} are asked for"
        found.append(Note("few-blocks", text))
    failed = [o for o in records.outcomes if o.status != "ok"]
    if failed:
        text = f"{len(failed)} of its processes {failed[0].status}: {failed[0].reason}"
        found.append(Note("process-lost", text))
    return found


def host_drift(rounds: Sequence[float]) -> float | None:
    """Return how far the calibrator moved: range over median of its round medians, a fraction."""
    return (max(rounds) - min(rounds)) / median(rounds) if len(rounds) > 1 else None


def left_out(records: Iterable[Record], told: set[Point]) -> list[str]:
    """Return in words what sessions left out, batches together; not what is told after all."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for record in records:
        if isinstance(record, LeftOut) and record.point not in told:
            workload = record.point.workload
            if not workload.twin:
                name = (workload.model, record.point.runtime, record.reason)
                groups[name].append(workload.batch)
    return [
        f"{model}, {runtime}, batch {', '.join(map(str, sorted(set(batches))))}: {reason}"
        for (model, runtime, reason), batches in groups.items()
    ]
