"""A study's points by the records of a store: measured, failed or open, and how long they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from frameworktax import host, runtimes
from frameworktax.measure import timing
from frameworktax.measure.plan import why_not
from frameworktax.measure.schedule import FIRST_ROUNDS, round_s
from frameworktax.records import (
    FLOOR,
    Attribution,
    Block,
    Outcome,
    Point,
    Record,
    Session,
    Subject,
    device_of,
)
from frameworktax.stats import MIN_BLOCKS

Status = Literal["open", "measured", "unavailable", "given-up"]
LOAD_S = 6.0
"""To start a process and load a model of which nothing is known."""
FLOOR_LOAD_S = 0.5
POINT_S = 2.0
"""For one point in one process where nothing is known: warm-up, blocks, attribution."""
ROUNDS = 5
"""Blocks a process gives to a point, on the average."""
MEMORY_BYTES = 500_000_000
"""Of a measuring process of which nothing is known: torch, transformers and a small model."""
FLOOR_BYTES = 60_000_000
RULE = f"{LOAD_S:.0f} s a process and {POINT_S:.0f} s a point and process"


@dataclass(frozen=True, slots=True)
class PointStatus:
    """The status of a point.

    Attributes:
        reason: why it is not measured.
        tries: sessions in which it failed.
        fault: how the last of them ended, of ``records.STATUSES``.
        cut_off: whether a session began to time it and did not come to the end.
    """

    status: Status
    reason: str | None = None
    tries: int = 0
    fault: str | None = None
    cut_off: bool = False

    @property
    def word(self) -> str:
        """The status, ``failed`` for an open point that failed: what progress counts."""
        return "failed" if self.status == "open" and self.fault else self.status


@dataclass(slots=True)
class _Session:
    """The records of one point in one session."""

    blocks: set[tuple[int, int]] = field(default_factory=set)
    attributed: bool = False
    ended: bool = False
    fault: Outcome | None = None

    def add(self, record: Block | Attribution | Outcome) -> None:
        match record:
            case Block():
                self.blocks.add((record.process, record.round))
            case Attribution():
                self.attributed = True
            case Outcome():
                self.ended |= record.status == "ok"
                self.attributed |= any(note.code == "not-attributed" for note in record.notes)
                if record.status != "ok" and record.process == 0:
                    self.fault = record


def find_statuses(
    points: Iterable[Point],
    records: Iterable[Record],
    attempts: int,
    sessions: Collection[str] = (),
) -> dict[Point, PointStatus]:
    """Return the status of each point by the records of a store, in one pass over them.

    A point is measured once one session holds enough blocks for an interval, and an attribution
    where one is possible: a session that was killed half-way leaves points of both kinds, and
    only the missing ones are measured again.

    Args:
        points: of a study.
        records: of a store.
        attempts: sessions in which a point that fails is tried.
        sessions: of this sweep: what they found unavailable is not asked for again. Of what
            earlier ones found, on this host, one can look.
    """
    wanted = {point.key(): point for point in points}
    found: dict[str, dict[str, _Session]] = {key: defaultdict(_Session) for key in wanted}
    sampled: set[str] = set()
    for record in records:
        if isinstance(record, Session) and record.environment.sampler is not None:
            sampled.add(record.session)
        elif isinstance(record, Block | Attribution | Outcome) and record.point in wanted:
            found[record.point][record.session].add(record)
    statuses = {}
    for key, point in wanted.items():
        own = found[key]
        if any(_is_measured(point, one, name in sampled) for name, one in own.items()):
            statuses[point] = PointStatus("measured")
        else:
            statuses[point] = _unmeasured(point, own.values(), attempts, sessions)
    return statuses


def _is_measured(point: Point, session: _Session, has_sampler: bool) -> bool:
    rounds = {round_ for _, round_ in session.blocks}
    is_timed = len(session.blocks) >= MIN_BLOCKS or (session.ended and len(rounds) >= FIRST_ROUNDS)
    if not is_timed or session.attributed or point.runtime == FLOOR:
        return is_timed
    can_attribute = has_sampler and runtimes.get(point.runtime).has_symbols
    return device_of(point.platform) == "cpu" and not can_attribute


def _unmeasured(
    point: Point, own: Collection[_Session], attempts: int, sessions: Collection[str]
) -> PointStatus:
    faults = [session.fault for session in own if session.fault is not None]
    if faults and faults[-1].status == "unavailable":
        return _unavailable(point, faults[-1], sessions)
    failed = [fault for fault in faults if fault.status != "unavailable"]
    cut_off = any(session.blocks for session in own)
    if not failed:
        return PointStatus("open", cut_off=cut_off)
    tries, last = len(failed), failed[-1]
    if tries >= attempts:
        reason = f"{last.status} in {tries} sessions, last: {last.reason}"
        return PointStatus("given-up", reason, tries, last.status)
    return PointStatus("open", last.reason, tries, last.status, cut_off)


def _unavailable(point: Point, fault: Outcome, sessions: Collection[str]) -> PointStatus:
    if fault.session in sessions:
        return PointStatus("unavailable", fault.reason)
    if point.platform != device_of(point.platform):  # nodes of a cluster
        return PointStatus("open", fault.reason)
    reason = why_not(point)
    return PointStatus("unavailable", reason) if reason else PointStatus("open")


# --- how long they take -----------------------------------------------------------------------


@dataclass(slots=True)
class _Known:
    """What a store holds of a model in a runtime; ``blocks_ns`` are medians by batch size."""

    blocks_ns: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    load_ns: list[int] = field(default_factory=list)
    memory_bytes: int = 0


class Estimator:
    """Estimates from the records of a store, taken one at a time."""

    def __init__(self) -> None:
        self._known: dict[Point, _Known] = defaultdict(_Known)
        self._of: dict[str, tuple[_Known, int]] = {}
        """Key of a point → what it adds to, and its batch size."""

    def add(self, record: Record) -> None:
        """Take one record into account; a session says which point it is before all else of it."""
        if isinstance(record, Subject):
            point = record.point
            if point.key() not in self._of:
                known = self._known[point.without_batch()]
                self._of[point.key()] = known, point.workload.batch
        elif isinstance(record, Block | Outcome) and record.point in self._of:
            known, batch = self._of[record.point]
            if isinstance(record, Block):
                known.blocks_ns[batch].append(median(record.latency_ns))
                return
            if record.load_ns:
                known.load_ns.append(record.load_ns)
            known.memory_bytes = max(known.memory_bytes, record.peak_memory_bytes or 0)

    def seconds(self, points: Sequence[Point], processes: int) -> float:
        """Return how long points take that are measured in one session."""
        series = {point.without_batch() for point in points}
        cpus = len(host.usable_cpus())
        loads = sum(self._load_s(one) * _processes(one, processes) for one in series)
        return loads / cpus + sum(self._point_s(p) * _processes(p, processes) for p in points)

    def memory_bytes(self, point: Point) -> int:
        """Return what one measuring process of a point's series holds."""
        usual = FLOOR_BYTES if point.runtime == FLOOR else MEMORY_BYTES
        return self._known[point.without_batch()].memory_bytes or usual

    def knows(self, point: Point) -> bool:
        """Return whether the store has timed this model in this runtime."""
        return bool(self._known[point.without_batch()].blocks_ns)

    def _load_s(self, series: Point) -> float:
        if load_ns := self._known[series].load_ns:
            return median(load_ns) / 1e9
        return FLOOR_LOAD_S if series.runtime == FLOOR else LOAD_S

    def _point_s(self, point: Point) -> float:
        known_ns, batch = self._known[point.without_batch()].blocks_ns, point.workload.batch
        if not known_ns:
            return 0.2 if point.runtime == FLOOR else POINT_S
        nearest = min(known_ns, key=lambda other: abs(other - batch))
        # a smaller batch may take as long as the nearest that is known
        call_ns = round(median(known_ns[nearest]) * max(1.0, batch / nearest))
        is_floor = point.runtime == FLOOR
        once_s = timing.block_ns(call_ns) / 1e9 if is_floor else round_s(call_ns)
        return ROUNDS * once_s + timing.warm_up_calls(call_ns) * call_ns / 1e9


def _processes(point: Point, processes: int) -> int:
    return 1 if point.runtime == FLOOR else processes
