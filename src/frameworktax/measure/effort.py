"""Where a session's own wall time goes: set-up, measuring, and calls of the model inside that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frameworktax.clock import Clock
from frameworktax.measure.protocol import TimedBlock
from frameworktax.records import Attribution, Effort, Places


class EffortClock:
    """Adds up what the session's own thread spends its time on.

    Args:
        clock: to read time from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = clock.wall_ns()
        self._setup_ns = 0
        self._measuring_ns = 0
        self._measuring_since: int | None = None
        self._calls_ns = 0

    @property
    def measured_s(self) -> float:
        """What is charged to the time budget until now."""
        return self._measured_ns() / 1e9

    def _measured_ns(self) -> int:
        since = self._measuring_since
        return self._measuring_ns + (self._clock.wall_ns() - since if since is not None else 0)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Charge what is inside to the time budget: warm-up, blocks, samples, pauses."""
        self._measuring_since = self._clock.wall_ns()
        try:
            yield
        finally:
            self._measuring_ns, self._measuring_since = self._measured_ns(), None

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Account for time in which nothing could be measured yet."""
        begin = self._clock.wall_ns()
        try:
            yield
        finally:
            self._setup_ns += self._clock.wall_ns() - begin

    def called(self, found: TimedBlock | Attribution | Places) -> None:
        """Count the time in calls of the model, timed or sampled."""
        if isinstance(found, Attribution | Places):
            self._calls_ns += found.wall_ns
            return
        self._calls_ns += sum(found.latency_ns)
        if found.enqueue_ns is not None:  # on a device the pipelined calls are others
            self._calls_ns += found.pipelined_ns

    def record(self, session: str) -> Effort:
        """Return what it was until now."""
        return Effort(
            session=session,
            wall_ns=self._clock.wall_ns() - self._begin_ns,
            setup_ns=self._setup_ns,
            measuring_ns=self._measured_ns(),
            calls_ns=self._calls_ns,
        )
