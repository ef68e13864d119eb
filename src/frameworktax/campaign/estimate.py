"""How long points will take, from what the store knows of them, else by a stated rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from frameworktax import host, runtimes, timing
from frameworktax.records import Block, Outcome, Point, Record, Subject
from frameworktax.rounds import BLOCK_NS, SAMPLE_NS

LOAD_S = 6.0
"""To start a process and load a model of which nothing is known."""
FLOOR_LOAD_S = 0.5
POINT_S = 2.0
"""For one point in one process where nothing is known: warm-up, blocks, attribution."""
ROUNDS = 5
"""Blocks a process gives to a point, on the average."""
MEMORY_BYTES = 500_000_000
"""A measuring process of which nothing is known; torch with transformers and a small model."""
FLOOR_BYTES = 60_000_000
RULE = f"where nothing is known, {LOAD_S:.0f} s a process and {POINT_S:.0f} s a point and process"


@dataclass
class Known:
    """What a store tells of a model in a runtime, batch aside."""

    call_ns: dict[int, float] = field(default_factory=dict)
    load_ns: list[int] = field(default_factory=list)
    memory_bytes: int = 0


class Estimator:
    """Estimates from the records of a store."""

    def __init__(self, records: Iterable[Record]) -> None:
        points: dict[str, Point] = {}
        latencies: dict[str, list[float]] = defaultdict(list)
        outcomes: list[Outcome] = []
        for record in records:
            match record:
                case Subject():
                    points[record.point.key()] = record.point
                case Block():
                    latencies[record.point].append(median(record.latency_ns))
                case Outcome():
                    outcomes.append(record)
                case _:
                    continue
        self._known: dict[Point, Known] = defaultdict(Known)
        for key, medians in latencies.items():
            if key in points:
                point = points[key]
                self._known[bare(point)].call_ns[point.workload.batch] = median(medians)
        for outcome in outcomes:
            if outcome.point in points:
                known = self._known[bare(points[outcome.point])]
                known.load_ns += [outcome.load_ns] if outcome.load_ns else []
                known.memory_bytes = max(known.memory_bytes, outcome.peak_memory_bytes or 0)

    def seconds(self, points: Sequence[Point], processes: int) -> float:
        """Return how long points take that are measured in one session."""
        series = {bare(point) for point in points}
        cpus = max(1, len(host.usable_cpus()))
        loads = sum(self._load_s(one) * _processes(one, processes) for one in series)
        return loads / cpus + sum(self._point_s(p) * _processes(p, processes) for p in points)

    def memory_bytes(self, point: Point) -> int:
        """Return what one measuring process of a point's series holds."""
        known = self._known.get(bare(point))
        if known is not None and known.memory_bytes:
            return known.memory_bytes
        return FLOOR_BYTES if point.runtime == runtimes.FLOOR else MEMORY_BYTES

    def knows(self, point: Point) -> bool:
        """Return whether the store has timed this model in this runtime."""
        known = self._known.get(bare(point))
        return known is not None and bool(known.call_ns)

    def _load_s(self, series: Point) -> float:
        known = self._known.get(series)
        if known is not None and known.load_ns:
            return median(known.load_ns) / 1e9
        return FLOOR_LOAD_S if series.runtime == runtimes.FLOOR else LOAD_S

    def _point_s(self, point: Point) -> float:
        known = self._known.get(bare(point))
        if known is None or not known.call_ns:
            return 0.2 if point.runtime == runtimes.FLOOR else POINT_S
        batch = point.workload.batch
        nearest = min(known.call_ns, key=lambda other: abs(other - batch))
        call_ns = known.call_ns[nearest] * max(1.0, batch / nearest)
        calls = timing.calls_for(int(call_ns), BLOCK_NS)
        block_ns = timing.WARM_IN_NS + call_ns * (1 + calls)
        sample_ns = 0.0 if point.runtime == runtimes.FLOOR else max(SAMPLE_NS[1], 3 * call_ns)
        return (ROUNDS * block_ns + sample_ns + timing.WARMUP_CALLS * call_ns) / 1e9


def bare(point: Point) -> Point:
    """Return a point without its batch: what one process serves."""
    return replace(point, workload=replace(point.workload, batch=0))


def _processes(point: Point, processes: int) -> int:
    return 1 if point.runtime == runtimes.FLOOR else processes
