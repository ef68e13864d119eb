"""How long points will take: from the store where it has timed them, else by a stated rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from frameworktax import host
from frameworktax.measure import timing
from frameworktax.measure.schedule import SAMPLE_NS
from frameworktax.records import FLOOR, Block, Outcome, Point, Record, Subject
from frameworktax.stats import block_median

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


@dataclass
class Known:
    """What a store holds of a model in a runtime, batch aside."""

    call_ns: dict[int, float] = field(default_factory=dict)
    load_ns: list[int] = field(default_factory=list)
    memory_bytes: int = 0


class Estimator:
    """Estimates from the records of a store, taken one at a time."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._points: dict[str, Point] = {}
        self._medians: dict[str, list[float]] = defaultdict(list)
        self._load_ns: dict[str, list[int]] = defaultdict(list)
        self._memory_bytes: dict[str, int] = {}
        for record in records:
            self.add(record)

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
                most = max(record.peak_memory_bytes or 0, self._memory_bytes.get(record.point, 0))
                self._memory_bytes[record.point] = most
            case _:
                return

    @cached_property
    def _known(self) -> dict[Point, Known]:
        found: dict[Point, Known] = defaultdict(Known)
        for key, point in self._points.items():
            if key in self._medians or key in self._memory_bytes:
                known = found[point.without_batch()]
                known.load_ns += self._load_ns.get(key, [])
                known.memory_bytes = max(known.memory_bytes, self._memory_bytes.get(key, 0))
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
        known = self._known.get(point.without_batch())
        if known is not None and known.memory_bytes:
            return known.memory_bytes
        return FLOOR_BYTES if point.runtime == FLOOR else MEMORY_BYTES

    def knows(self, point: Point) -> bool:
        """Return whether the store has timed this model in this runtime."""
        known = self._known.get(point.without_batch())
        return known is not None and bool(known.call_ns)

    def _load_s(self, series: Point) -> float:
        known = self._known.get(series)
        if known is not None and known.load_ns:
            return median(known.load_ns) / 1e9
        return FLOOR_LOAD_S if series.runtime == FLOOR else LOAD_S

    def _point_s(self, point: Point) -> float:
        known = self._known.get(point.without_batch())
        if known is None or not known.call_ns:
            return 0.2 if point.runtime == FLOOR else POINT_S
        batch = point.workload.batch
        nearest = min(known.call_ns, key=lambda other: abs(other - batch))
        # a smaller batch may take as long as the nearest that is known
        call_ns = known.call_ns[nearest] * max(1.0, batch / nearest)
        calls = timing.calls_for(int(call_ns))
        block_ns = timing.WARM_IN_NS + call_ns * (1 + calls)
        sample_ns = 0.0 if point.runtime == FLOOR else max(SAMPLE_NS, call_ns)
        return (ROUNDS * (block_ns + sample_ns) + timing.WARMUP_CALLS * call_ns) / 1e9


def _processes(point: Point, processes: int) -> int:
    return 1 if point.runtime == FLOOR else processes
