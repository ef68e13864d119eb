"""How far a session is, and what it found last, from a shard that may still be written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from frameworktax import store
from frameworktax.analysis.document import build
from frameworktax.errors import StoreError
from frameworktax.records import (
    FLOOR,
    Block,
    Calibration,
    Effort,
    Measurement,
    Outcome,
    Point,
    Record,
    Session,
    Subject,
    point_name,
)
from frameworktax.report.words import plus_minus, tax, time_text
from frameworktax.stats import MIN_BLOCKS


@dataclass(frozen=True, slots=True)
class Latest:
    """What a session has found so far.

    Attributes:
        measured: points with blocks enough for an interval.
        failed: points that process 0 could not measure.
        unavailable: points that cannot be measured there.
        verdicts: the points timed last, the newest at the end.
    """

    measured: int = 0
    failed: int = 0
    unavailable: int = 0
    verdicts: tuple[Measurement, ...] = ()


def latest(shard: Path, most: int) -> Latest:
    """Return how far a session is; nothing where its shard cannot be read (yet).

    Args:
        shard: of the session.
        most: verdicts to return; others are not computed.
    """
    try:
        records, _ = store.read(shard)
    except StoreError:
        return Latest()
    points = {r.point.key(): r.point for r in records if isinstance(r, Subject) and _asked(r.point)}
    blocks: Counter[str] = Counter()
    last: dict[str, int] = {}
    for number, record in enumerate(records):
        if isinstance(record, Block) and record.point in points:
            blocks[record.point] += 1
            last[record.point] = number
    done = [key for key in sorted(last, key=last.__getitem__) if blocks[key] >= MIN_BLOCKS]
    ends = {
        r.point: r.status
        for r in records
        if isinstance(r, Outcome) and not r.process and r.point in points and r.point not in last
    }
    lost = Counter(ends.values())
    lost.pop("ok", None)
    unavailable = lost.pop("unavailable", 0)
    chosen = {points[key] for key in done[-most:]}
    found = {m.point: m for m in build(_records_of(records, chosen)).measurements}
    verdicts = (found.get(points[key]) for key in done[-most:])
    return Latest(
        measured=len(done),
        failed=lost.total(),
        unavailable=unavailable,
        verdicts=tuple(m for m in verdicts if m is not None),
    )


def verdict(m: Measurement) -> tuple[str, str, str, str, str]:
    """Return a point, its runtime, latency with half-width, tax share and regime in words."""
    known = m.latency_ns
    latency = f"{time_text(known.value)} {plus_minus(known)}".rstrip() if known else m.status
    return point_name(m.point, runtime=False), m.runtime, latency, f"tax {tax(m)}", m.regime or ""


def _asked(point: Point) -> bool:
    return point.runtime != FLOOR and not point.workload.twin


def _records_of(records: list[Record], chosen: set[Point]) -> list[Record]:
    """Return the records of some points: theirs, their twins', and the session's own."""
    twins = {replace(p, workload=replace(p.workload, twin=True)) for p in chosen}
    keys = {point.key() for point in chosen | twins}

    def belongs(record: Record) -> bool:
        if isinstance(record, Session | Calibration | Effort):
            return True
        point = record.point
        return (point.key() if isinstance(point, Point) else point) in keys

    return [record for record in records if belongs(record)]
