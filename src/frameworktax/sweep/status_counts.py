"""How many points of a study stand how, kept up as sessions end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from frameworktax.records import Point
from frameworktax.sweep.status import Held


class Standing:
    """Counts by ``held.Status``; an open point that failed before counts as ``failed``.

    Args:
        held: how each point stood at the begin.
    """

    def __init__(self, held: Mapping[Point, Held]) -> None:
        self._held = {point: _word(one) for point, one in held.items()}
        self._counts = Counter(self._held.values())

    @property
    def counts(self) -> Mapping[str, int]:
        """How many points stand how."""
        return dict(self._counts)

    def update(self, held: Mapping[Point, Held]) -> None:
        """Take over how points stand after a session that had them; what it left open stays so."""
        for point, one in held.items():
            word = _word(one)
            if point in self._held and word != "open":
                self._counts[self._held[point]] -= 1
                self._counts[word] += 1
                self._held[point] = word


def _word(held: Held) -> str:
    return "failed" if held.status == "open" and held.fault else held.status
