"""What a sweep will do: open points, their sessions, the time; this and its end in words."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax import host
from frameworktax.api import DEFAULT_STORE
from frameworktax.errors import counted
from frameworktax.measure.plan import refuse_crowd
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.session import MEMORY_SHARE
from frameworktax.records import Point, Points, Record, point_name
from frameworktax.report.blocks import Block, Text, table
from frameworktax.report.words import points_text
from frameworktax.store import shards
from frameworktax.sweep.executor import Platform, open_executor
from frameworktax.sweep.grid import shipped
from frameworktax.sweep.schedule import Group, groups
from frameworktax.sweep.status import RULE, Estimator, PointStatus, Status, find_statuses
from frameworktax.sweep.study import Study, load
from frameworktax.sweep.values import duration

if TYPE_CHECKING:
    from frameworktax.sweep.run import SweepResults

UNUSED = ("calibration", "parity")
"""Kinds of records that say nothing of a point's status or duration."""
WIDE = "wide-interval"
STATUSES: dict[Status, str] = {
    "measured": "measured",
    "unavailable": "not available here",
    "given-up": "given up",
    "open": "open",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep will do.

    Attributes:
        statuses: of each point.
        groups: what is to be measured, session by session.
        known: number of open points whose estimate rests on the store.
        whole_s: how long it will take without a time budget, nodes of a platform side by side.
    """

    study: Study
    statuses: Mapping[Point, PointStatus]
    groups: tuple[Group, ...]
    known: int
    whole_s: float

    def as_data(self) -> dict[str, Any]:
        """Return the plan as the document of a dry run."""
        return {
            "study": self.study.settings.model_dump(),
            "points": [
                {
                    "key": one.point.key(),
                    "priority": one.priority,
                    "platform_label": one.platform,
                    **asdict(one.point),
                    "held": asdict(self.statuses[one.point]),
                }
                for one in self.study.planned
            ],
            "sessions": [
                {
                    "name": group.name,
                    "estimate_s": group.estimate_s,
                    "points": [point.key() for point in group.points],
                }
                for group in self.groups
            ],
            "estimate_s": min(self.whole_s, self.study.settings.time_budget or self.whole_s),
            "code": list(self.study.code),
            "notes": list(self.study.notes),
        }


def plan_sweep(
    study: str | Path | Mapping[str, Any],
    *overrides: str,
    store: str | Path = DEFAULT_STORE,
    engine: str = "local",
    resume: bool = True,
    force_threads: bool = False,
    reporter: Reporter | None = None,
) -> SweepPlan:
    """Return what ``sweep`` will do, without measuring; its arguments, and raises as it does."""
    executor = open_executor(engine, Path(store), reporter or Reporter(), ())
    with contextlib.closing(executor):
        platforms = executor.platforms()
    devices = {platform.label: platform.device for platform in platforms}
    loaded = load(study, overrides, platforms=devices, allow_code=True)  # nothing is run
    if engine == "local":
        refuse_crowd(loaded.points, forced=force_threads)
    else:
        shipped(loaded.points)  # refuses what has no place on a node
    return plan(loaded, scan(Path(store)), resume=resume, platforms=platforms)


def plan(
    study: Study,
    records: Iterable[Record],
    *,
    resume: bool = True,
    platforms: Sequence[Platform] = (),
) -> SweepPlan:
    """Return the plan of a study by the records of a store, in one pass over them.

    Without ``resume`` they say how long points take, and of none that it is measured.
    """
    settings, estimator = study.settings, Estimator()

    def noted() -> Iterator[Record]:
        for record in records:
            estimator.add(record)
            if resume:
                yield record

    statuses = find_statuses(study.points, noted(), settings.attempts)
    todo = [one for one in study.planned if statuses[one.point].status == "open"]
    found = groups(
        todo,
        estimator,
        processes=settings.processes,
        together=settings.together,
        memory_bytes=MEMORY_SHARE * host.memory_available_bytes(),
        platforms=platforms,
    )
    by_label = {platform.label: platform for platform in platforms}
    hosts_s: dict[str, float] = defaultdict(float)
    for group in found:
        platform = by_label.get(group.platform, Platform(label="", device=""))
        hosts_s[platform.host] += group.estimate_s / max(1, platform.slots)  # 0 now: one comes
    return SweepPlan(
        study=study,
        statuses=statuses,
        groups=tuple(found),
        known=sum(estimator.knows(one.point) for one in todo),
        whole_s=max(hosts_s.values(), default=0.0),
    )


def scan(folder: Path) -> Iterator[Record]:
    """Yield the records that give status and estimates, and keep none of them.

    Repeated records are not sorted out: they say the same twice. The folder need not exist, or is
    one shard.
    """
    if not folder.is_file() and not any(folder.glob("*.jsonl")):
        return
    for shard in shards.find(folder):
        for record, _ in shards.records(shard, [], lambda _, kind: kind not in UNUSED):
            yield record


# --- in words ---------------------------------------------------------------------------------


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
        for point in sorted(plan.study.points, key=lambda p: session.get(p, 0))
    ]
    columns = ["session", "model", "runtime", "point", "status"]
    return [table("", columns, rows), *map(Text, forecast(plan))]


def status_text(one: PointStatus) -> str:
    """Return the status of a point, with the reason."""
    if one.status == "open" and one.cut_off:
        return "open (cut off half-way)"
    return f"{STATUSES[one.status]}: {one.reason}" if one.reason else STATUSES[one.status]


def forecast(plan: SweepPlan) -> list[str]:
    """Return what a plan comes to: points, sessions, time."""
    counts = Counter(one.status for one in plan.statuses.values())
    to_do = sum(len(group.points) for group in plan.groups)
    points, sessions = counted(len(plan.statuses), "point"), counted(len(plan.groups), "session")
    lines = [f"{points}, {to_do} to measure in {sessions}, {counts['measured']} measured already"]
    if to_do:
        known = f"for {plan.known} of {to_do} points from the store; for the others "
        source = "from the store" if plan.known == to_do else f"{known if plan.known else ''}{RULE}"
        lines.append(f"about {duration(plan.whole_s)} ({source})")
        budget = plan.study.settings.time_budget
        if budget is not None:
            cut = "; the most expensive points will be left out" if plan.whole_s > budget else ""
            lines.append(f"time budget {duration(budget)}{cut}")
    return [*lines, *plan.study.notes]


def resumed(statuses: Mapping[Point, PointStatus]) -> str:
    """Return what a store held before the sweep, empty if nothing."""
    words = Counter(one.word for one in statuses.values())
    cut_off = sum(one.cut_off for one in statuses.values())
    others = {
        "cut off half-way and measured again": cut_off,
        "failed before and tried again": words["failed"],
        "given up": words["given-up"],
    }
    parts = [f"{count} {what}" for what, count in others.items() if count]
    if not words["measured"] and not parts:
        return ""
    measured = f"resuming: {words['measured']} of {len(statuses)} points measured already"
    return ", ".join([measured, *parts])


def summary(results: SweepResults) -> list[str]:
    """Return the lines at the end of a sweep: the status of its points, and how long it took."""
    counts = Counter(one.status for one in results.statuses.values())
    measured, unavailable = counts.pop("measured", 0), counts["unavailable"]
    asked = points_text(Points(asked=len(results.statuses) - unavailable, measured=measured))
    before = {p for p, one in results.plan.statuses.items() if one.status == "measured"}
    wide = sum(m.point in before and any(n.code == WIDE for n in m.notes) for m in results)
    said = (
        f", {wide} with a wider interval than asked for: --no-resume measures anew" if wide else ""
    )
    parts = [f"{len(before)} of them before{said}"] if before else []
    parts += [f"{counts[status]} {STATUSES[status]}" for status in STATUSES if counts[status]]
    lines = [
        f"given up: {point_name(point)}: {one.reason}"
        for point, one in results.statuses.items()
        if one.status == "given-up"
    ]
    last = ", ".join([f"{asked} measured", *parts])
    return [*lines, f"{last}; took {duration(results.wall_ns / 1e9)}"]
