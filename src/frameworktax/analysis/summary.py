"""A line a point of a large store: its latency as in a report, without what else a report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from frameworktax.analysis.grouping import gather, status_of
from frameworktax.records import Estimate, Point, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """What is in a store of a point, from the session that a report shows.

    ``reason`` is why it was not measured, or how a later attempt ended; ``sessions`` is how many
    have timed it; ``latency_ns`` is as in a report, None where one block or none was timed.
    """

    point: Point
    session: str
    sessions: int
    status: Status
    reason: str | None
    processes: int
    blocks: int
    calls: int
    latency_ns: Estimate | None


def wanted(line: bytes, kind: str) -> bool:
    """Return whether ``summarise`` needs a line of a store.

    Of the processes of a point that ended well one is enough: its session was not cut off.
    """
    if kind == "outcome":
        return b'"status":"ok"' not in line or b'"process":0,' in line
    return kind in ("block", "subject", "session")


def summarise(records: Iterable[Any]) -> list[PointSummary]:
    """Return a line for each point that was measured, or has a reason why not, as first met.

    Twins are left out: they are part of their point's bill.

    Args:
        records: of ``store.read_columns``.
    """
    found, _ = gather(records)
    sessions = Counter(key for one in found[:1] for _, key in one.timed.groups)  # all have the same
    lines = []
    for one in found:
        if not one.measured or one.point.workload.twin:
            continue
        status, reason = status_of(one)
        lines.append(
            PointSummary(
                point=one.point,
                session=one.session,
                sessions=sessions[one.point.key()],
                status=status,
                reason=one.last_try.text if one.last_try else reason,
                processes=len(one.levels),
                blocks=len(one.blocks),
                calls=int(one.timed.calls[one.blocks.start : one.blocks.stop].sum()),
                latency_ns=one.latency,
            )
        )
    return lines
