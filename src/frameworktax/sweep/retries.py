"""What is measured again in the same campaign: what failed by chance, what was lost.

A session that is lost with its node, or hangs, names no culprit, and the points beside one must
not suffer for it. Its points are run again together, as long as that may be chance; then in two
halves, each of which is cut again when it is lost, so that in the end what kills its node is alone.
Only a point that was lost alone has failed; it fails ``attempts`` times, over this campaign and
those before, and is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from frameworktax.records import Point, Record, point_name
from frameworktax.sweep.schedule import Group, halves, part_of
from frameworktax.sweep.status import Held, survey

BY_CHANCE = ("crashed", "out-of-memory", "timeout")
"""Faults that may be chance, and are tried again in the same campaign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What follows from the end of a job.

    Attributes:
        now: groups that take the place of theirs.
        later: groups that come after everything else.
        blamed: the point that a lost session was about; it has failed once more.
        text: what becomes of the points of a lost session, for people.
    """

    now: tuple[Group, ...] = ()
    later: tuple[Group, ...] = ()
    blamed: Point | None = None
    text: str = ""


class Retries:
    """Counts how often points failed, and says what is tried again.

    Args:
        held: how the points stood before.
        attempts: sessions in which a point is tried.
    """

    def __init__(self, held: Mapping[Point, Held], attempts: int) -> None:
        self._tries = {point: one.tries for point, one in held.items() if one.tries}
        self._attempts = attempts

    def after(self, group: Group, records: Iterable[Record], *, lost: bool) -> Again:
        """Return what follows from the end of a group's session.

        Args:
            group: its points.
            records: what the session wrote.
            lost: whether it ended with its node, or hung.
        """
        held = survey(group.points, records, self._attempts)
        failed = [one for one in group.planned if held[one.point].fault in BY_CHANCE]
        again = [one for one in failed if self._may_again(one.point)]
        later = [part_of(group, again, failed=True)] if again else []
        if not lost:
            return Again(later=tuple(later))
        rest = [
            one
            for one in group.planned
            if held[one.point].status == "open" and held[one.point].fault is None
        ]
        if not rest:
            return Again(later=tuple(later), text="all its points were told before")
        if len(group.planned) == 1:
            return self._alone(group, later)
        whole = replace(part_of(group, rest), losses=group.losses + 1)
        if whole.losses < self._attempts:
            text = f"what is left of it, {len(rest)} points, is run again"
            return Again(now=(whole,), later=tuple(later), text=text)
        text = (
            f"what is left of it, {len(rest)} points, is run again in halves, to find what ends it"
        )
        return Again(later=(*later, *halves(whole)), text=text)

    def _alone(self, group: Group, later: list[Group]) -> Again:
        point = group.planned[0].point
        what = f"{point_name(point)}"
        if self._may_again(point):
            later.append(replace(group, failed=True))
            text = f"{what}, was alone in it and is tried once more"
        else:
            text = f"{what}, was alone in it and is given up"
        return Again(later=tuple(later), blamed=point, text=text)

    def _may_again(self, point: Point) -> bool:
        """Count a failure; return whether the point is tried again."""
        self._tries[point] = self._tries.get(point, 0) + 1
        return self._tries[point] < self._attempts
