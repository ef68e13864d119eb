"""What a campaign has to say, in lines for people and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from frameworktax.records import point_name
from frameworktax.sweep.estimate import RULE
from frameworktax.sweep.look import Outlook
from frameworktax.sweep.results import SweepResults
from frameworktax.sweep.status import Held, Status
from frameworktax.sweep.time_accounting import MEASURING, overhead
from frameworktax.sweep.values import duration

STANDINGS: dict[Status, str] = {
    "measured": "measured",
    "linear": "left out, as the curve is linear",
    "unavailable": "not available here",
    "given-up": "given up",
    "open": "open",
}


def rows(outlook: Outlook) -> list[list[str]]:
    """Return a row for every point of a dry run: session, model, runtime, what, standing."""
    session = {
        point: number
        for number, group in enumerate(outlook.groups, start=1)
        for point in group.points
    }
    found = []
    for one in sorted(outlook.chosen, key=lambda p: session.get(p.point, 0)):
        point, held = one.point, outlook.held[one.point]
        place = str(session.get(point, "–"))
        found.append(
            [
                place,
                point.workload.model,
                point.runtime,
                point_name(point, model=False, runtime=False),
                standing(held),
            ]
        )
    return found


def standing(held: Held) -> str:
    """Return how a point stands, with the reason."""
    text = STANDINGS[held.status]
    if held.status == "open" and held.cut_off:
        return "open (cut off half-way)"
    if held.status in ("given-up", "unavailable") or (held.status == "open" and held.reason):
        return f"{text}: {held.reason}"
    return text


def forecast(outlook: Outlook) -> list[str]:
    """Return what a dry run says below its table."""
    counts = Counter(held.status for held in outlook.held.values())
    to_do = sum(len(group.points) for group in outlook.groups)
    lines = [
        f"{len(outlook.chosen)} points, {to_do} to measure in {len(outlook.groups)} sessions, "
        f"{counts['measured']} there already"
    ]
    if outlook.beyond:
        lines.append(f"{outlook.beyond} more are beyond the point budget")
    if to_do:
        total = outlook.whole_s
        source = f"{outlook.known} of {to_do} points rest on the store; {RULE}"
        lines.append(f"about {duration(total)} ({source})")
        budget = outlook.study.settings.time_budget
        if budget is not None:
            cut = "; the dearest points will be left out" if total > budget else ""
            lines.append(f"time budget {duration(budget)}{cut}")
    lines += outlook.study.notes
    return lines


def summary(results: SweepResults) -> list[str]:
    """Return what a finished campaign came to, and what it cost."""
    counts = Counter(held.status for held in results.held.values())
    parts = [f"{counts[status]} {STANDINGS[status]}" for status in STANDINGS if counts[status]]
    lines = [f"{len(results.held)} points: {', '.join(parts)}"]
    if results.outlook.beyond:
        lines.append(f"{results.outlook.beyond} more are beyond the point budget")
    lines += [
        f"given up: {point_name(point)}: {held.reason}"
        for point, held in results.held.items()
        if held.status == "given-up"
    ]
    # Where several nodes measured, their time is more than the wall's.
    cost = overhead(results.spent_ns, sum(results.spent_ns.values()))
    if cost is not None:
        lines.append(
            f"{duration(results.wall_ns / 1e9)}: {_shares(results.spent_ns)}; "
            f"{cost:.0%} over the time spent measuring"
        )
    return lines


def _shares(spent_ns: Mapping[str, int]) -> str:
    order = sorted(spent_ns, key=lambda name: (name not in MEASURING, -spent_ns[name]))
    return ", ".join(f"{name} {spent_ns[name] / 1e9:.1f} s" for name in order)


def plain(outlook: Outlook) -> dict[str, Any]:
    """Return a dry run as data."""
    return {
        "study": outlook.study.settings.model_dump(),
        "points": [
            {
                "key": one.point.key(),
                "priority": one.priority,
                "platform_label": one.platform,
                **asdict(one.point),
                "held": asdict(outlook.held[one.point]),
            }
            for one in outlook.chosen
        ],
        "sessions": [
            {
                "name": group.name,
                "estimate_s": group.estimate_s,
                "points": [point.key() for point in group.points],
            }
            for group in outlook.groups
        ],
        "beyond_point_budget": outlook.beyond,
        "estimate_s": outlook.estimate_s,
        "code": list(outlook.study.code),
        "notes": list(outlook.study.notes),
    }
