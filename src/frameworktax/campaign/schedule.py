"""Points as jobs, in an order that makes a campaign which ends early worth having."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from frameworktax.campaign.estimate import Estimator, bare
from frameworktax.records import Point, Workload
from frameworktax.study.grid import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that share a session: measured side by side, by processes alive together."""

    name: str
    planned: tuple[Planned, ...]
    estimate_s: float

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
        series[bare(one.point)].append(one)
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
) -> list[Group]:
    """Return what shares a session, in the order it is measured: priority, then the cheaper.

    A group has one model, or models that are compared; one platform, number of threads and
    priority. Every runtime of a workload is in it. Where lengths, widths and the like would need
    more memory than there is, they go to several groups.
    """
    set_of = {model: number for number, names in enumerate(together) for model in names}
    families: dict[tuple[object, ...], list[Planned]] = defaultdict(list)
    for one in planned:
        point = one.point
        model = set_of.get(point.workload.model, point.workload.model)
        families[-one.priority, model, one.platform, point.threads].append(one)
    found: list[Group] = []
    for members in families.values():
        parts = _packed(
            members, lambda point: processes * estimator.memory_bytes(point), memory_bytes
        )
        names = ", ".join(dict.fromkeys(one.point.workload.model for one in members))
        for number, part in enumerate(parts, start=1):
            points = [one.point for one in part]
            found.append(
                Group(
                    name=names if len(parts) == 1 else f"{names} ({number} of {len(parts)})",
                    planned=tuple(part),
                    estimate_s=estimator.seconds(points, processes),
                )
            )
    found.sort(key=lambda group: (-group.planned[0].priority, group.estimate_s))
    return found


def _packed(
    members: Sequence[Planned], needs: Callable[[Point], float], room: float
) -> list[list[Planned]]:
    """Return members in parts that fit; one workload with all its runtimes is never split."""
    configs: dict[Workload, list[Planned]] = defaultdict(list)
    for one in members:
        configs[replace(one.point.workload, batch=0)].append(one)
    parts: list[list[Planned]] = []
    left = 0.0
    for config in configs.values():
        need = sum(needs(point) for point in {bare(one.point) for one in config})
        if not parts or need > left:
            parts.append([])
            left = room
        parts[-1] += config
        left -= need
    return parts
