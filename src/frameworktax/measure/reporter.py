"""Progress of a session or a study: what happens is reported as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from frameworktax.records import Point


class Reporter:
    """Receives progress and ignores it; a subclass overrides what it shows.

    ``cli.progress`` has the one for people. Every event is sent between blocks: nothing is timed
    until the method returns.
    """

    def say(self, text: str) -> None:
        """Show a line for people that stays."""

    def phase(self, text: str) -> None:
        """Begin a phase of the session."""

    def progress(self, done: float, total: float, text: str) -> None:
        """Show how much of the phase is done, in any unit."""

    def now(self, point: Point) -> None:
        """Show which point is timed next."""

    def remaining(self, seconds: float) -> None:
        """Show an estimate of how long the whole still takes."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Begin a session of a study; ``left_s`` estimates the rest of the study."""

    def counts(self, counts: Mapping[str, int]) -> None:
        """Show the number of a study's points by status: ``measured``, ``failed``, ``open``."""

    def records(self, shard: Path, *, ended: bool = False) -> None:
        """Show results from the shard that a session writes, or that it has ended."""
