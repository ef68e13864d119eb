"""Points as jobs, in an order that makes a campaign which ends early worth having."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from frameworktax.records import Point, Workload
from frameworktax.sweep.estimate import Estimator
from frameworktax.sweep.executor import Platform
from frameworktax.sweep.grid import Planned

PARTS = 4
"""Sessions a node gets of what many nodes share: so many even out their ends, and a lost one costs
little."""
PART_S = 60.0
"""No session is made shorter than this for the sake of many nodes: blocks of one point lie seconds
apart, and with few points beside it that time is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that share a session: measured side by side, by processes alive together.

    Attributes:
        losses: sessions of these points that were lost with their node, or hung.
        failed: whether its points were told to have failed before.
    """

    name: str
    planned: tuple[Planned, ...]
    estimate_s: float
    losses: int = 0
    failed: bool = False

    @property
    def platform(self) -> str:
        """The label of where it is measured."""
        return self.planned[0].platform

    @property
    def points(self) -> tuple[Point, ...]:
        """The points alone."""
        return tuple(planned.point for planned in self.planned)


def within(planned: Sequence[Planned], point_budget: int | None) -> tuple[Planned, ...]:
    """Return as many points as the budget allows, in the order of the study.

    Higher priority first, then the smallest batch of every series, then the next of each: a curve
    that is cut is cut at its expensive end, and no runtime is left without a curve.
    """
    if point_budget is None or len(planned) <= point_budget:
        return tuple(planned)
    series: dict[Point, list[Planned]] = defaultdict(list)
    for one in planned:
        series[one.point.without_batch()].append(one)
    rank = {
        one: number
        for group in series.values()
        for number, one in enumerate(sorted(group, key=lambda p: p.point.workload.batch))
    }
    chosen = sorted(planned, key=lambda one: (-one.priority, rank[one]))[:point_budget]
    kept = set(chosen)
    return tuple(one for one in planned if one in kept)


def groups(
    planned: Iterable[Planned],
    estimator: Estimator,
    *,
    processes: int,
    together: Sequence[Sequence[str]],
    memory_bytes: float,
    platforms: Sequence[Platform] = (),
) -> list[Group]:
    """Return what shares a session, in the order it is measured: priority, then the cheaper.

    A group has one model, or models that are compared; one platform, number of threads and
    priority. Every runtime of a workload is in it. Where lengths, widths and the like would need
    more memory than there is, they go to several groups, and so they do where a platform has
    several nodes to give them to.

    Args:
        planned: what is to be measured.
        estimator: how long it takes, and in how much memory.
        processes: of each point.
        together: models that are compared.
        memory_bytes: what measuring processes may fill, where a platform does not say.
        platforms: where they run; a label that is not among them counts as one node.
    """
    set_of = {model: number for number, names in enumerate(together) for model in names}
    families: dict[tuple[object, ...], dict[Workload, list[Planned]]] = {}
    for one in planned:
        workload = one.point.workload
        model = set_of.get(workload.model, workload.model)
        family = families.setdefault(
            (-one.priority, model, one.platform, one.point.threads), defaultdict(list)
        )
        family[workload.without_batch()].append(one)
    configs = {
        key: [_Config(members, estimator, processes) for members in family.values()]
        for key, family in families.items()
    }
    whole_s: dict[str, float] = defaultdict(float)
    for family_configs in configs.values():
        for config in family_configs:
            whole_s[config.platform] += config.estimate_s
    places = {place.label: place for place in platforms}
    found: list[Group] = []
    for members in configs.values():
        label = members[0].platform
        place = places.get(label, Platform(label=label, device=""))
        share_s = whole_s[label] / (PARTS * place.slots) if place.slots > 1 else float("inf")
        parts = _packed(members, place.memory_bytes or memory_bytes, max(PART_S, share_s))
        names = ", ".join(dict.fromkeys(config.model for config in members))
        for number, part in enumerate(parts, start=1):
            found.append(
                Group(
                    name=names if len(parts) == 1 else f"{names} ({number} of {len(parts)})",
                    planned=tuple(one for config in part for one in config.planned),
                    estimate_s=sum(config.estimate_s for config in part),
                )
            )
    found.sort(key=lambda group: (-group.planned[0].priority, group.estimate_s))
    return found


class _Config:
    """One workload in all its runtimes and batch sizes: never split before it is measured."""

    def __init__(self, planned: Sequence[Planned], estimator: Estimator, processes: int) -> None:
        self.planned = planned
        self.platform = planned[0].platform
        self.model = planned[0].point.workload.model
        points = [one.point for one in planned]
        self.estimate_s = estimator.seconds(points, processes)
        series = {point.without_batch() for point in points}
        self.memory_bytes = processes * sum(estimator.memory_bytes(point) for point in series)


def _packed(configs: Sequence[_Config], room: float, limit_s: float) -> list[list[_Config]]:
    """Return configurations in parts that fit, in memory and in time."""
    parts: list[list[_Config]] = []
    left = left_s = 0.0
    for config in configs:
        if not parts or config.memory_bytes > left or config.estimate_s > left_s:
            parts.append([])
            left, left_s = room, limit_s
        parts[-1].append(config)
        left -= config.memory_bytes
        left_s -= config.estimate_s
    return parts


def halves(group: Group) -> list[Group]:
    """Return a group in two, cut between workloads where it has several, else between runtimes.

    What ended a session is in one of them, and the other can be measured.
    """
    keys: list[Callable[[Point], object]] = [
        lambda p: p.workload.without_batch(),
        lambda p: p.without_batch(),
        lambda p: p,
    ]
    for key in keys:
        blocks: dict[object, list[Planned]] = defaultdict(list)
        for one in group.planned:
            blocks[key(one.point)].append(one)
        if len(blocks) > 1:
            break
    ordered = list(blocks.values())
    cut = len(ordered) // 2
    return [
        part_of(group, [one for block in side for one in block])
        for side in (ordered[:cut], ordered[cut:])
        if side
    ]


def part_of(group: Group, planned: Sequence[Planned], **changed: bool | int) -> Group:
    """Return some points of a group as a group, with their share of the estimate."""
    share = len(planned) / len(group.planned)
    return replace(
        group,
        planned=tuple(planned),
        estimate_s=share * group.estimate_s,
        **changed,  # type: ignore[arg-type] # names with values of more than one type
    )
