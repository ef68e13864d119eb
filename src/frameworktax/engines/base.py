"""What carries out the jobs of a study: on this host, or on many.

An engine is five methods. Everything a job measured is in the store by the time ``completed``
yields it; the campaign above decides what to submit, and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from frameworktax.errors import FrameworktaxError
from frameworktax.records import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A place to measure.

    Attributes:
        label: the name a study gives it.
        device: ``cpu`` or ``cuda:N`` there.
        host: labels of one host share its slots.
        slots: jobs at a time; one per host, because the framework tax is made on the host.
    """

    label: str
    device: str
    host: str = "here"
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Points that are measured side by side, in one session on one host; plain data.

    Attributes:
        name: unique within the campaign, for people.
        platform: label of where it runs.
        budget_s: wall time it may take.
        stop_when_linear: leave out larger batches once a curve is plainly linear.
    """

    name: str
    points: tuple[Point, ...]
    platform: str
    processes: int
    until: float
    budget_s: float
    twin: str = "auto"
    stop_when_linear: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that has ended.

    Attributes:
        session: under which its records stand in the store.
        wall_ns: from its start to its end on its host.
        spent_ns: the same, by what it was spent on (``campaign.spent``).
        error: why it ended early; its points are told in the store all the same.
    """

    job: Job
    session: str
    wall_ns: int
    spent_ns: Mapping[str, int] = field(default_factory=dict)
    error: FrameworktaxError | None = None


class Engine(Protocol):
    """Carries out jobs."""

    def platforms(self) -> Sequence[Platform]:
        """Return where jobs can run now; asked before anything is submitted."""

    def submit(self, job: Job) -> None:
        """Take a job; it may wait for its platform."""

    def completed(self) -> Iterator[Done]:
        """Yield jobs as they end; ends once nothing submitted is left."""

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun; False if it has, or was never submitted."""

    def close(self) -> None:
        """End everything that was started here."""
