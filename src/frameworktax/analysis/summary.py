"""A line a point of a large store: its latency with its interval, without reading samples twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from frameworktax.analysis.grouping import worst_end
from frameworktax.records import (
    Estimate,
    Outcome,
    Point,
    Session,
    Status,
    Subject,
    session_order,
)
from frameworktax.store.columns import Blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """What is in a store of a point, from the newest session that measured it.

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
    """Return whether ``summarise`` needs a line of a store."""
    if kind == "outcome":
        return b'"status":"ok"' not in line
    return kind in ("block", "subject", "session", "calibration")


def summarise(records: Iterable[Any]) -> list[PointSummary]:
    """Return a line for each point that was measured, or has a reason why not, as first met.

    Twins are left out: they are part of their point's bill.

    Args:
        records: of ``store.read_columns``.
    """
    sessions: dict[str, Session] = {}
    failures: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    subjects: dict[tuple[str, str], Subject] = {}
    for record in records:
        match record:
            case Session():
                sessions[record.session] = record
            case Outcome() if record.status != "ok":
                failures[record.session, record.point].append(record)
            case Subject():
                subjects.setdefault((record.session, record.point.key()), record)
            case Blocks():
                timed = record
    # as in a report: that a further process did not start is no reason against the point
    failures = {pair: ends for pair, ends in failures.items() if any(not o.process for o in ends)}
    rows = timed.groups
    calls = np.bincount(timed.group, timed.calls, len(rows)).astype(np.int64).tolist()

    def age(candidate: tuple[str, Subject]) -> tuple[bool, tuple[str, str]]:
        session, subject = candidate
        started = sessions[session].started if session in sessions else ""
        return (session, subject.point.key()) in rows, session_order(session, started)

    found: dict[str, list[tuple[str, Subject]]] = defaultdict(list)
    for (session, key), subject in subjects.items():
        if not subject.point.workload.twin and (
            (session, key) in rows or (session, key) in failures
        ):
            found[key].append((session, subject))
    lines = []
    for key, candidates in found.items():
        session, subject = candidates[0] if len(candidates) == 1 else max(candidates, key=age)
        row = rows.get((session, key))
        last, _ = max(candidates, key=lambda one: age(one)[1])
        status, reason = ("ok", None) if row is not None else worst_end(failures[session, key])
        if last != session:
            how, why = worst_end(failures[last, key])
            reason = f"the latest attempt ended {how}: {why}"
        lines.append(
            PointSummary(
                point=subject.point,
                session=session,
                sessions=sum((one, key) in rows for one, _ in candidates),
                status=status,
                reason=reason,
                processes=0 if row is None else len(timed.levels[row]),
                blocks=0 if row is None else len(timed.rows(row)),
                calls=0 if row is None else calls[row],
                latency_ns=None if row is None else timed.latency[row],
            )
        )
    return lines
