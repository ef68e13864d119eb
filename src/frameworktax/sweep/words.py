"""What a sweep says: its plan, how it goes on after an end, and its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from frameworktax.records import Point, point_name
from frameworktax.report.blocks import Block, Text, table
from frameworktax.sweep.estimate import RULE
from frameworktax.sweep.plan import SweepPlan
from frameworktax.sweep.status import PointStatus, Status
from frameworktax.sweep.values import duration

if TYPE_CHECKING:
    from frameworktax.sweep.run import SweepResults

STATUSES: dict[Status, str] = {
    "measured": "measured",
    "linear": "left out, as the curve is linear",
    "unavailable": "not available here",
    "given-up": "given up",
    "open": "open",
}


def plan_blocks(plan: SweepPlan) -> list[Block]:
    """Return a plan as a table with a row for every point, and the time it takes."""
    session = {
        point: number for number, group in enumerate(plan.groups, start=1) for point in group.points
    }
    rows = [
        [
            str(session.get(point, "–")),
            point.workload.model,
            point.runtime,
            point_name(point, model=False, runtime=False),
            status_text(plan.statuses[point]),
        ]
        for point in sorted((one.point for one in plan.chosen), key=lambda p: session.get(p, 0))
    ]
    columns = ["session", "model", "runtime", "point", "status"]
    return [table("", columns, rows), *map(Text, forecast(plan))]


def status_text(one: PointStatus) -> str:
    """Return the status of a point, with the reason."""
    if one.status == "open" and one.cut_off:
        return "open (cut off half-way)"
    if one.status in ("given-up", "unavailable") or (one.status == "open" and one.reason):
        return f"{STATUSES[one.status]}: {one.reason}"
    return STATUSES[one.status]


def forecast(plan: SweepPlan) -> list[str]:
    """Return what a plan comes to: points, sessions, time."""
    counts = Counter(one.status for one in plan.statuses.values())
    to_do = sum(len(group.points) for group in plan.groups)
    lines = [
        f"{len(plan.chosen)} points, {to_do} to measure in {len(plan.groups)} sessions, "
        f"{counts['measured']} measured already"
    ]
    if plan.beyond:
        lines.append(f"{plan.beyond} more are beyond the point budget")
    if to_do:
        source = f"for {plan.known} of {to_do} points from the store; {RULE}"
        lines.append(f"about {duration(plan.whole_s)} ({source})")
        budget = plan.study.settings.time_budget
        if budget is not None:
            cut = "; the most expensive points will be left out" if plan.whole_s > budget else ""
            lines.append(f"time budget {duration(budget)}{cut}")
    return [*lines, *plan.study.notes]


def resumed(statuses: Mapping[Point, PointStatus]) -> str:
    """Return what a store held before the sweep, empty if nothing."""
    found = statuses.values()
    measured = sum(one.status == "measured" for one in found)
    cut = sum(one.cut_off for one in found)
    again = sum(one.status == "open" and one.tries > 0 for one in found)
    given_up = sum(one.status == "given-up" for one in found)
    if not measured + cut + again + given_up:
        return ""
    parts = [f"{measured} of {len(statuses)} points are measured already"]
    parts += [f"{cut} were cut off half-way and are measured again"] if cut else []
    parts += [f"{again} failed before and are tried again"] if again else []
    parts += [f"{given_up} are given up"] if given_up else []
    return "resuming: " + ", ".join(parts)


def summary(results: SweepResults) -> list[str]:
    """Return the lines at the end of a sweep: the status of its points, and how long it took."""
    counts = Counter(one.status for one in results.statuses.values())
    parts = [f"{counts[status]} {STATUSES[status]}" for status in STATUSES if counts[status]]
    lines = [f"{len(results.statuses)} points: {', '.join(parts)}"]
    if results.plan.beyond:
        lines.append(f"{results.plan.beyond} more are beyond the point budget")
    lines += [
        f"given up: {point_name(point)}: {one.reason}"
        for point, one in results.statuses.items()
        if one.status == "given-up"
    ]
    return [*lines, f"took {duration(results.wall_ns / 1e9)}"]
