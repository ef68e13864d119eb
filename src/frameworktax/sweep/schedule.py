"""Points as jobs: which share a session, in which order, and which are run again.

The order makes a sweep that ends early worth having: priority first, then the cheaper.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frameworktax.errors import counted
from frameworktax.records import Point, Workload, point_name
from frameworktax.sweep.executor import Platform
from frameworktax.sweep.grid import Planned
from frameworktax.sweep.status import Estimator, PointStatus

PARTS = 4
"""Sessions a node gets of what many nodes share: so many even out their ends, and a lost one costs
little."""
PART_S = 60.0
"""No session is made shorter than this for the sake of many nodes: blocks of one point lie seconds
apart, and with few points beside it that time is lost."""
BY_CHANCE = ("crashed", "out-of-memory", "timeout")
"""Faults that may be chance, and are tried again in the same sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that share a session: measured side by side, by processes alive together.

    Attributes:
        losses: sessions of these points that were lost with their node, or hung.
        failed: whether the store says already that its points failed.
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

    def part(self, planned: Sequence[Planned]) -> Group:
        """Return some of its points as a group, with their share of the estimate."""
        share = len(planned) / len(self.planned)
        return replace(self, planned=tuple(planned), estimate_s=share * self.estimate_s)


def groups(
    planned: Iterable[Planned],
    estimator: Estimator,
    *,
    processes: int,
    together: Sequence[Sequence[str]],
    memory_bytes: float,
    platforms: Sequence[Platform] = (),
) -> list[Group]:
    """Return the groups of points, in the order they are measured: priority, then the cheaper.

    A group has one model, or models that are compared; one platform, number of threads and
    priority. Every runtime of a workload is in it. Where lengths, widths and the like would need
    more memory than is free, they go to several groups, and so they do where a platform has
    several nodes to give them to. A label that is not among ``platforms`` counts as one node;
    measuring processes may fill ``memory_bytes`` where a platform does not say.
    """
    set_of: dict[str, frozenset[str]] = {}
    for names in together:  # sets that share a model are one
        whole = frozenset(names).union(*(set_of.get(name, ()) for name in names))
        set_of |= dict.fromkeys(whole, whole)
    families: dict[tuple[object, ...], dict[Workload, list[Planned]]] = {}
    for one in planned:
        workload = one.point.workload
        model = set_of.get(workload.model, workload.model)
        key = -one.priority, model, one.platform, one.point.threads
        family = families.setdefault(key, defaultdict(list))
        family[workload.without_batch()].append(one)
    configs = [
        [_Config(members, estimator, processes) for members in family.values()]
        for family in families.values()
    ]
    whole_s: dict[str, float] = defaultdict(float)
    for config in (config for members in configs for config in members):
        whole_s[config.platform] += config.estimate_s
    by_label = {platform.label: platform for platform in platforms}
    found: list[Group] = []
    for members in configs:
        label = members[0].platform
        platform = by_label.get(label, Platform(label=label, device=""))
        slots = platform.slots
        share_s = whole_s[label] / (PARTS * slots) if slots > 1 else float("inf")
        parts = _packed(members, platform.memory_bytes or memory_bytes, max(PART_S, share_s))
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


class Queue(deque[Group]):
    """Groups that wait, in order; ``taken`` counts those that were taken out."""

    taken = 0

    def take(self, labels: Collection[str]) -> Group | None:
        """Take out the first group for one of the platforms; None if there is none."""
        for at, group in enumerate(self if labels else ()):
            if group.platform in labels:
                del self[at]
                self.taken += 1
                return group
        return None

    def drain(self, labels: Collection[str]) -> Iterator[Group]:
        """Take out everything that waits for some platforms, in order."""
        while (group := self.take(labels)) is not None:
            yield group


class Retries:
    """Counts how often points failed, and decides what is run again in the same sweep.

    A session that is lost with its node, or hangs, names no culprit, and the points beside one
    must not suffer for it. Its points are run again together, as long as that may be chance; then
    in two halves, each of which is cut again when it is lost, so that in the end the point that
    kills its node is alone. Only a point that was lost alone has failed; it fails ``attempts``
    times, over this sweep and those before, and is given up.

    Args:
        queue: takes what is run again.
        statuses: of the points before the sweep.
        attempts: sessions in which a point is tried.
    """

    def __init__(self, queue: Queue, statuses: Mapping[Point, PointStatus], attempts: int) -> None:
        self._queue = queue
        self._tries = {point: one.tries for point, one in statuses.items() if one.tries}
        self._attempts = attempts

    def after(
        self, group: Group, statuses: Mapping[Point, PointStatus], *, lost: bool
    ) -> tuple[Point | None, str]:
        """Have run again what is to be after the end of a group's session.

        Args:
            group: its points.
            statuses: of its points by the records of that session alone.
            lost: whether it ended with its node, or hung.

        Returns:
            The point that a lost session was about, which has failed once more; and what becomes
            of the points of a lost session, for people.
        """
        failed = [one for one in group.planned if statuses[one.point].fault in BY_CHANCE]
        if again := [one for one in failed if self._may_again(one.point)]:
            self._queue.append(replace(group.part(again), failed=True))
        if not lost:
            return None, ""
        rest = [
            one
            for one in group.planned
            if statuses[one.point].status == "open" and statuses[one.point].fault is None
        ]
        if not rest:
            return None, "all its points had ended before"
        if len(group.planned) == 1:
            point = group.planned[0].point
            what_next = "is given up"
            if self._may_again(point):
                self._queue.append(replace(group, failed=True))
                what_next = "is tried once more"
            return point, f"{point_name(point)}, was alone in it and {what_next}"
        whole = replace(group.part(rest), losses=group.losses + 1)
        text = f"the rest of it, {counted(len(rest), 'point')}, is run again"
        if whole.losses < self._attempts:
            self._queue.appendleft(whole)
            return None, text
        self._queue.extend(halves(whole))
        return None, f"{text} in halves, to find the point that ends it"

    def _may_again(self, point: Point) -> bool:
        """Count a failure; return whether the point is tried again."""
        self._tries[point] = self._tries.get(point, 0) + 1
        return self._tries[point] < self._attempts


def halves(group: Group) -> list[Group]:
    """Return a group in two, cut between workloads where it has several, else between runtimes.

    The point that ended a session is in one of them, and the other can be measured.
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
    sides = (ordered[:cut], ordered[cut:])
    return [group.part([one for block in side for one in block]) for side in sides if side]
