"""Whom a campaign tells how it goes, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from frameworktax.api import Results
from frameworktax.measure.session import Silent
from frameworktax.measure.setup import Reporter
from frameworktax.records import Point
from frameworktax.sweep.look import Outlook
from frameworktax.sweep.status import Held

ENDED = "ended"
"""The phase after the last one of a session."""


class JobReporter(Reporter, Protocol):
    """Told how one job after the other goes."""

    def records(self, shard: Path, *, ended: bool = False) -> None:
        """Say where the records of a session go, or that they are all there."""


class StudyReporter(JobReporter, Protocol):
    """Told how a study goes."""

    def standing(self, counts: Mapping[str, int]) -> None:
        """Say how many points stand how (``campaign.standing``)."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say that a session begins, and how long the study will still take."""

    def say(self, text: str) -> None:
        """Pass on a line for people."""


class SilentStudy(Silent):
    """A reporter that says nothing."""

    def records(self, shard: Path, *, ended: bool = False) -> None:
        """Say nothing."""

    def standing(self, counts: Mapping[str, int]) -> None:
        """Say nothing."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""


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
