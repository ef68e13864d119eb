"""Raw records grouped by point: which session counts, how it ended, what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from statistics import median
from typing import Any

from frameworktax.analysis.estimates import at_most
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
    point_name,
    session_order,
)
from frameworktax.stats import (
    FURTHER_PROCESSES,
    MIN_BLOCKS,
    MIN_PROCESSES,
    UNTIL,
    process_interval,
    relative_half_width,
)
from frameworktax.store.columns import Batch, Blocks

WORST_FIRST = ("crashed", "out-of-memory", "timeout", "failed", "unavailable")

SEVERAL_HOSTS = "several-hosts"
"""Code of the note on a document whose points are of more than one host."""
WALL_OVER_CPU = 1.05
"""Wall over thread CPU time above which other load is in the numbers (METHOD, section 4), where
the thread has not waited for so long by itself."""
SLOWER = 1.5
"""Factor by which calls get slower from the first block of a process to its last, beyond all that
the calibrator moved, where the module is the cause: two blocks of a process are 0.85 to 1.15 of
each other, and processes that are disturbed by something else are not all so, at all times."""


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """Every record of one point in one session.

    What a reader asks for several times is computed once and kept: a study has thousands of points.

    ``timed`` has the blocks of every point, ``group`` is which of them are this one's, None where
    there are none. ``calibrator`` holds round → the median of the session's calibrator, ns.
    ``last_try`` says that a later session tried the point in vain.
    """

    point: Point
    session: str
    subject: Subject
    timed: Blocks = field(default_factory=lambda: Blocks([]))
    group: int | None = None
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
        return self.group is not None or any(
            o.status != "ok" and not o.process for o in self.outcomes
        )

    @property
    def cut_off(self) -> bool:
        """Whether its session was ended from outside before it had enough blocks of the point."""
        ended = bool(self.outcomes) and len(set(self.timed.round[self.blocks].tolist())) > 1
        return 0 < len(self.blocks) < MIN_BLOCKS and not ended

    @property
    def blocks(self) -> range:
        """The rows of its blocks in ``timed``, by process and round."""
        return range(0) if self.group is None else self.timed.rows[self.group]

    @cached_property
    def by_process(self) -> Sequence[range]:
        """The rows of each process."""
        rows = self.blocks
        processes = self.timed.process[rows.start : rows.stop].tolist()
        ends = [*accumulate(len(list(own)) for _, own in groupby(processes))]
        return [rows[begin:end] for begin, end in pairwise([0, *ends])]

    @cached_property
    def block_medians(self) -> Sequence[Sequence[float]]:
        """Per process its block medians of latency, ns."""
        return [self.timed.median_ns[own.start : own.stop].tolist() for own in self.by_process]

    @property
    def levels(self) -> Mapping[int, tuple[float, float]]:
        """Process → medians of its blocks' latencies and of its pipelined calls, ns."""
        return {} if self.group is None else self.timed.levels[self.group]

    @property
    def latency(self) -> Estimate | None:
        """The latency of one call, ns, over processes and their blocks."""
        return None if self.group is None else self.timed.latency[self.group]

    @cached_property
    def pipelined(self) -> Estimate | None:
        """The time per call with one synchronise per block, ns."""
        return _interval(self, self.timed.pipelined_ns.item)


def gather(records: Iterable[Record]) -> tuple[list[PointRecords], list[Note]]:
    """Group records by point, in the order the points first appear.

    Of a point in several sessions the newest counts that measured it and was not cut off half-way,
    because sessions are not comparable block by block. Where a later attempt failed, what was
    measured stays, and ``last_try`` says so. A note says if records belong to no known point.
    """
    started: dict[str, str] = {}
    calibrations: dict[str, dict[int, float]] = defaultdict(dict)
    of: dict[str, dict[tuple[str, str], list[Any]]] = {
        cls.kind: defaultdict(list) for cls in (Subject, Attribution, Places, Parity, Outcome)
    }
    timed, blocks = None, []
    record: Any
    for record in records:
        kind = record.kind
        if kind == Subject.kind:
            of[kind][record.session, record.point.key()].append(record)
        elif kind in of:
            of[kind][record.session, record.point].append(record)
        elif kind == Block.kind:
            blocks.append(record)
        elif kind == Blocks.kind:
            timed = record
        elif kind == Session.kind:
            started[record.session] = record.started
        elif kind == Calibration.kind:
            calibrations[record.session][record.round] = median(record.latency_ns)
    timed = timed or Blocks([Batch.of(blocks)])
    points: dict[str, list[PointRecords]] = defaultdict(list)
    for group, subjects in of[Subject.kind].items():
        session, key = group
        subject = max(subjects, key=lambda s: s.final)
        points[key].append(
            PointRecords(
                point=subject.point,
                session=session,
                subject=subject,
                timed=timed,
                group=timed.groups.get(group),
                attributions=tuple(of[Attribution.kind].get(group, ())),
                places=tuple(of[Places.kind].get(group, ())),
                outcomes=tuple(of[Outcome.kind].get(group, ())),
                parity=next(reversed(of[Parity.kind].get(group, ())), None),
                calibrator=calibrations[session],
            )
        )
    orphans = len(set(timed.groups).union(*of.values()) - of[Subject.kind].keys())
    text = f"{orphans} points have blocks but no description; they are not shown"
    notes = [Note("no-subject", text)] if orphans else []
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
    if not failed:
        return "failed", "no process of this point was timed"
    end = min(failed, key=lambda o: WORST_FIRST.index(o.status))
    return end.status, end.reason


def left_out_names(left_out: Sequence[LeftOut], measured: Iterable[Point]) -> list[str]:
    """Return in words what sessions left out and none measured, batches together."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    known = set(measured) if left_out else ()
    for record in left_out:
        workload = record.point.workload
        if record.point not in known and not workload.twin:
            name = (point_name(record.point, batch=False), record.reason)
            groups[name].append(workload.batch)
    return [
        f"{name}, batch {', '.join(map(str, sorted(set(batches))))}: {reason}"
        for (name, reason), batches in groups.items()
    ]


# --- what comes straight from the blocks of a point ---------------------------------------------


def _interval(records: PointRecords, value: Callable[[int], float | None]) -> Estimate | None:
    """Return the interval of one value a row, as of a latency; without those of None and nan."""
    found = [[value(row) for row in own] for own in records.by_process]
    return process_interval([[x for x in own if x is not None and x == x] for own in found])


def aside(records: PointRecords, times_ns: Mapping[int, Sequence[int]]) -> Estimate | None:
    """Return the interval of what only some blocks have a time of for each call, ns.

    ``times_ns`` is that of ``timed``: ``enqueue_ns`` or ``first_token_ns``.
    """
    if not times_ns:
        return None
    return _interval(records, lambda row: median(times_ns[row]) if row in times_ns else None)


def per_token(records: PointRecords) -> Estimate | None:
    """Return the time of each further token, ns: (latency − first token) / (tokens − 1) of a call.

    None where nothing is generated, or one token only.
    """
    tokens = records.point.workload.new_tokens
    if tokens is None or tokens < 2:
        return None
    further, times_ns = tokens - 1, records.timed.first_token_ns

    def value(row: int) -> float | None:
        if row not in times_ns:
            return None
        calls = zip(records.timed.samples([row]), times_ns[row], strict=True)
        return median((whole - begun) / further for whole, begun in calls)

    return _interval(records, value)


def ratios(pairs: Iterable[tuple[PointRecords, PointRecords | None]]) -> Iterator[Estimate | None]:
    """Yield the latency of each point over the other's, paired by round.

    None where there is no other, it is of another session, or they share fewer than two rounds.
    """
    pairs = list(pairs)
    numbers = {
        i: (one.group, other.group)
        for i, (one, other) in enumerate(pairs)
        if other is not None
        and one.session == other.session
        and one.group is not None
        and other.group is not None
    }
    found: dict[int, Estimate | None] = {}
    if numbers:
        above, below = zip(*numbers.values(), strict=True)
        found = dict(zip(numbers, pairs[0][0].timed.ratios(above, below), strict=True))
    return map(found.get, range(len(pairs)))


def blocks(records: PointRecords) -> tuple[tuple[int, int, float], ...]:
    """Return process, round and median latency of each block; a median of integers is one."""
    timed, own = records.timed, slice(records.blocks.start, records.blocks.stop)
    columns = (c[own].tolist() for c in (timed.process, timed.round, timed.median_ns, timed.calls))
    return tuple(
        (p, r, int(ns) if calls % 2 else ns) for p, r, ns, calls in zip(*columns, strict=True)
    )


def samples(records: PointRecords) -> tuple[tuple[int, ...], ...]:
    """Return every latency, ns: one tuple a process."""
    return tuple(tuple(records.timed.samples(own)) for own in records.by_process)


def page_faults(records: PointRecords) -> float | None:
    """Return page faults in a call while it was sampled, mean; None where they were not counted."""
    counted = [(a.page_faults, a.calls) for a in records.attributions if a.page_faults is not None]
    calls = sum(calls for _, calls in counted)
    return sum(faults for faults, _ in counted) / calls if calls else None


def notes(records: PointRecords, until: float = UNTIL) -> list[Note]:
    """Return the trust notes of a point: those recorded, once each, and those its numbers ask for.

    ``until`` is the half-width that was asked for, as a share of the value.
    """
    noted: tuple[Subject | Outcome | Attribution, ...]
    noted = (records.subject, *records.outcomes, *records.attributions)
    found = [note for one in noted for note in one.notes or ()]
    found += [records.last_try] if records.last_try else []
    return list(dict.fromkeys([*found, *(_judged(records, until) if records.blocks else ())]))


def _own_wait(records: PointRecords) -> float:
    """Return the share of sampled time in which the thread waited, not for its processor.

    A sleep, input and output: part of the program. 0 where that is not known.
    """
    known = [
        (a.off_cpu_ns - a.queued_ns, a.wall_ns)
        for a in records.attributions
        if a.off_cpu_ns is not None and a.queued_ns is not None
    ]
    wall_ns = sum(wall for _, wall in known)
    return sum(own for own, _ in known) / wall_ns if wall_ns else 0.0


def _gets_slower(records: PointRecords) -> str | None:
    """Return how much slower calls get within processes, None where that is not certain.

    One process in eight may be another: its warm-up lasted until calls were slow.
    """
    several = [medians for medians in records.block_medians if len(medians) > 1]
    if len(several) < MIN_PROCESSES or len(records.blocks) < MIN_BLOCKS:
        return None
    if len(records.calibrator) < MIN_BLOCKS:
        return None
    moved = max(records.calibrator.values()) / min(records.calibrator.values())
    factors = sorted(medians[-1] / medians[0] for medians in several)
    odd = len(factors) // 8
    if factors[odd] <= SLOWER * moved:
        return None
    return (
        f"in {len(factors) - odd} of {len(factors)} processes the last calls took at least "
        f"{int(10 * factors[odd]) / 10:.1f} × as long as the first, and the host's speed moved by "
        f"{moved:.2f} ×: calls get slower, and the latency is of no one call; if the module keeps "
        "something from call to call, reset it"
    )


def _judged(records: PointRecords, until: float) -> Iterator[Note]:
    if device_of(records.point.platform) == "cpu" and records.group is not None:
        wall_ns, cpu_ns = records.timed.times[records.group]
        if cpu_ns > 0 and 1 - cpu_ns / wall_ns - _own_wait(records) > 1 - 1 / WALL_OVER_CPU:
            yield Note(
                "wall-over-cpu",
                f"wall time is {wall_ns / cpu_ns:.2f} × the CPU time of the calling thread: "
                "other load or other threads are in these numbers",
            )
        if slower := _gets_slower(records):
            yield Note("gets-slower", slower)
    processes, blocks = len(records.levels), len(records.blocks)
    half = relative_half_width(records.latency)
    if half > until and blocks > 1:
        begun = len({*records.levels, *(o.process for o in records.outcomes)})  # some may be lost
        more = "--time-budget" if begun < FURTHER_PROCESSES else "--processes"
        text = f"interval ±{at_most(100 * half, 1)}%, asked for ±{until:.1%}; give it more {more}"
        yield Note("wide-interval", text)
    if processes < MIN_PROCESSES:
        text = f"{processes} of at least {MIN_PROCESSES} processes: " + (
            "the interval is of this process alone, how much processes differ is unknown"
            if processes == 1
            else "two say little of how much processes differ, so the interval is wide"
        )
        yield Note("few-processes", text)
    if blocks < MIN_BLOCKS:
        yield Note("few-blocks", f"{blocks} blocks, {MIN_BLOCKS} are asked for")
    failed = [o for o in records.outcomes if o.status != "ok"]
    if failed:
        text = f"{len(failed)} of its processes {failed[0].status}: {failed[0].reason}"
        yield Note("process-lost", text)
