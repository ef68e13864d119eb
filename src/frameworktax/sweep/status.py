"""A study's points by the records of a store: measured, failed or open, and how long they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import median
from typing import Literal

from frameworktax import host, runtimes
from frameworktax.measure import timing
from frameworktax.measure.schedule import FIRST_ROUNDS, block_s, round_s
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
from frameworktax.runtimes.base import Runtime, Target
from frameworktax.stats import MIN_BLOCKS, block_median

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
RULE = f"where nothing is known, {LOAD_S:.0f} s a process and {POINT_S:.0f} s a point and process"


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


class StatusScan:
    """Finds the status of points from the records of a store, taken one at a time.

    A point is measured once one session holds enough blocks for an interval, and an attribution
    where one is possible: a session that was killed half-way leaves points of both kinds, and
    only the missing ones are measured again. A point that failed is tried again, in ``attempts``
    sessions together.
    """

    def __init__(self, points: Iterable[Point], attempts: int) -> None:
        self._wanted = {point.key(): point for point in points}
        self._attempts = attempts
        self._found: dict[str, dict[str, _Session]] = defaultdict(lambda: defaultdict(_Session))
        self._samplers: dict[str, bool] = {}

    def add(self, record: Record) -> None:
        """Take one record into account."""
        if isinstance(record, Session):
            self._samplers[record.session] = record.environment.sampler is not None
        if (
            not isinstance(record, Block | Attribution | Outcome)
            or record.point not in self._wanted
        ):
            return
        found = self._found[record.point][record.session]
        match record:
            case Block():
                found.blocks.add((record.process, record.round))
            case Attribution():
                found.attributed = True
            case Outcome():
                found.ended |= record.status == "ok"
                found.attributed |= any(note.code == "not-attributed" for note in record.notes)
                if record.status != "ok" and record.process == 0:
                    found.fault = record

    def statuses(self, sessions: Collection[str] = ()) -> dict[Point, PointStatus]:
        """Return the status of each point.

        Args:
            sessions: of this sweep: what they found unavailable on another host is not asked for
                again. On this host one can look.
        """
        return {point: self._status(key, point, sessions) for key, point in self._wanted.items()}

    def _status(self, key: str, point: Point, sessions: Collection[str]) -> PointStatus:
        found = self._found.get(key, {})
        if any(self._is_measured(point, name, session) for name, session in found.items()):
            return PointStatus("measured")
        faults = [session.fault for session in found.values() if session.fault is not None]
        if faults and faults[-1].status == "unavailable":
            return _unavailable(point, faults[-1], sessions)
        failed = [fault for fault in faults if fault.status != "unavailable"]
        tries, last = len(failed), failed[-1] if failed else None
        if last is not None and tries >= self._attempts:
            reason = f"{last.status} in {tries} sessions, last: {last.reason}"
            return PointStatus("given-up", reason, tries, last.status)
        cut_off = any(session.blocks for session in found.values())
        if last is None:
            return PointStatus("open", cut_off=cut_off)
        return PointStatus("open", last.reason, tries, last.status, cut_off)

    def _is_measured(self, point: Point, name: str, session: _Session) -> bool:
        rounds = {round_ for _, round_ in session.blocks}
        is_timed = len(session.blocks) >= MIN_BLOCKS or (
            session.ended and len(rounds) >= FIRST_ROUNDS
        )
        if not is_timed or session.attributed or point.runtime == FLOOR:
            return is_timed
        has_symbols = _runtime(point.runtime).has_symbols
        can_attribute = has_symbols and self._samplers.get(name, False)
        return device_of(point.platform) == "cpu" and not can_attribute


def find_statuses(
    points: Iterable[Point],
    records: Iterable[Record],
    attempts: int,
    sessions: Collection[str] = (),
) -> dict[Point, PointStatus]:
    """Return the status of each point of a study by the records of a store (``StatusScan``)."""
    scan = StatusScan(points, attempts)
    for record in records:
        scan.add(record)
    return scan.statuses(sessions)


@cache
def _runtime(name: str) -> Runtime:
    """Return a runtime; finding one reads the entry points of every installed package."""
    return runtimes.get(name)


def _unavailable(point: Point, fault: Outcome, sessions: Collection[str]) -> PointStatus:
    if point.platform != device_of(point.platform):  # nodes of a cluster
        is_new = fault.session in sessions
        return PointStatus("unavailable" if is_new else "open", fault.reason)
    target = Target(point.platform, point.workload.precision, point.threads)
    reason = _runtime(point.runtime).missing(target)
    return PointStatus("unavailable", reason) if reason else PointStatus("open")


# --- how long they take -----------------------------------------------------------------------


@dataclass
class Known:
    """What a store holds of a model in a runtime, batch aside."""

    call_ns: dict[int, float] = field(default_factory=dict)
    load_ns: list[int] = field(default_factory=list)
    memory_bytes: int = 0


class Estimator:
    """Estimates from the records of a store, taken one at a time."""

    def __init__(self) -> None:
        self._points: dict[str, Point] = {}
        self._medians: dict[str, list[float]] = defaultdict(list)
        self._load_ns: dict[str, list[int]] = defaultdict(list)
        self._memory_bytes: dict[str, int] = defaultdict(int)

    def add(self, record: Record) -> None:
        """Take one record into account; every one comes before the first question."""
        match record:
            case Block():
                self._medians[record.point].append(block_median(record.latency_ns))
            case Subject():
                self._points[record.point.key()] = record.point
            case Outcome():
                if record.load_ns:
                    self._load_ns[record.point].append(record.load_ns)
                held = self._memory_bytes[record.point]
                self._memory_bytes[record.point] = max(record.peak_memory_bytes or 0, held)

    @cached_property
    def _known(self) -> defaultdict[Point, Known]:
        found: defaultdict[Point, Known] = defaultdict(Known)
        for key, point in self._points.items():
            known = found[point.without_batch()]
            known.load_ns += self._load_ns[key]
            known.memory_bytes = max(known.memory_bytes, self._memory_bytes[key])
            if key in self._medians:
                known.call_ns[point.workload.batch] = median(self._medians[key])
        return found

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
        return bool(self._known[point.without_batch()].call_ns)

    def _load_s(self, series: Point) -> float:
        if load_ns := self._known[series].load_ns:
            return median(load_ns) / 1e9
        return FLOOR_LOAD_S if series.runtime == FLOOR else LOAD_S

    def _point_s(self, point: Point) -> float:
        known_ns = self._known[point.without_batch()].call_ns
        if not known_ns:
            return 0.2 if point.runtime == FLOOR else POINT_S
        batch = point.workload.batch
        nearest = min(known_ns, key=lambda other: abs(other - batch))
        # a smaller batch may take as long as the nearest that is known
        call_ns = round(known_ns[nearest] * max(1.0, batch / nearest))
        once_s = block_s(call_ns) if point.runtime == FLOOR else round_s(call_ns)
        return ROUNDS * once_s + timing.WARMUP_CALLS * call_ns / 1e9


def _processes(point: Point, processes: int) -> int:
    return 1 if point.runtime == FLOOR else processes
