"""Whom a campaign tells how it goes, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping

from frameworktax.api import Results
from frameworktax.records import Point
from frameworktax.sweep.look import Outlook
from frameworktax.sweep.status import Held

ENDED = "ended"
"""The phase after the last one of a session."""


class SweepResults(Results):
    """The results of a study.

    Attributes:
        outlook: how the study stood before.
        held: how each of its points stands now.
        wall_ns: of the whole campaign.
        spent_ns: the same by what it was spent on (``campaign.spent``); the time of every node
            where several measured at a time.
    """

    def __init__(
        self,
        results: Results,
        outlook: Outlook,
        held: Mapping[Point, Held],
        wall_ns: int,
        spent_ns: Mapping[str, int],
    ) -> None:
        super().__init__(results.run, results.store)
        self.outlook = outlook
        self.held = held
        self.wall_ns = wall_ns
        self.spent_ns = spent_ns
