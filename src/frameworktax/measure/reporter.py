"""Progress of a session or a study: what happens is reported as it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frameworktax.records import Point


class Reporter:
    """Receives progress and ignores it; a subclass overrides what it shows.

    ``cli.progress`` has the one for people. Every event is sent by the session's own thread and
    between blocks: nothing is timed until the method returns.
    """

    def say(self, text: str) -> None:
        """Show a line for people that stays."""

    def asked(self, points: Sequence[Point], until: float) -> None:
        """Show what a session is to measure, and at which half-width, a share, a point is done."""

    def phase(self, text: str) -> None:
        """Begin a phase of the session."""

    def now(self, point: Point) -> None:
        """Show which point is timed next."""

    def setting_up(self, label: str, step: str) -> None:
        """Show a step of set-up that began beside the rest: ``inductor``, ``compiling``."""

    def ready(self, label: str) -> None:
        """Show that the set-up of ``label`` has ended; it can be measured, or has failed."""

    def measured(self, point: Point, medians_ns: Sequence[Sequence[float]]) -> None:
        """Show what is known of a point after one more block.

        Args:
            point: a twin or the floor too: ``workload.twin`` and ``runtime`` say so.
            medians_ns: for each process that measures it, the medians of its blocks; for
                ``stats.process_interval``.
        """

    def remaining(self, seconds: float) -> None:
        """Show an estimate of how long the session still takes."""

    def follows(self, seconds: float, besides: str) -> None:
        """Have estimates include the sessions that follow; ``besides`` says what none includes."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Begin a session of a study; ``left_s`` estimates the rest of the study."""

    def counts(self, counts: Mapping[str, int]) -> None:
        """Show the number of a study's points by status: ``measured``, ``failed``, ``open``."""

    def ended(self) -> None:
        """Show that a session of a study has ended; its points are in ``counts``."""
