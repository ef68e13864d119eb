"""Jobs that are out: where they run, what they took, each counted once however often it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from frameworktax.clock import Clock
from frameworktax.errors import StoreError, WorkerError
from frameworktax.sweep.executor import Done, Engine, Job, Platform
from frameworktax.sweep.schedule import Group

LOST = "lost"
"""What the time of a session is booked under that told nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """A job that is out, with what it was made from."""

    job: Job
    group: Group
    rank: int
    host: str
    begin_ns: int


class Crew:
    """The jobs that an engine has, and the time that all of them took."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._out: dict[str, Out] = {}
        self._on: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._spent: Counter[str] = Counter()
        self._took_ns = 0
        self._estimated_s = 0.0
        self._most = 0
        self._busy_ns = 0
        self._since_ns = 0

    def __len__(self) -> int:
        return len(self._out)

    @property
    def scale(self) -> float:
        """How much longer than estimated sessions took so far."""
        return self._took_ns / 1e9 / self._estimated_s if self._estimated_s else 1.0

    def on(self, place: Platform) -> int:
        """Return how many jobs a host has."""
        return self._on[place.host]

    def labels(self) -> set[str]:
        """Return the platforms that have jobs."""
        return {out.job.platform for out in self._out.values()}

    def begin(self, job: Job, group: Group, rank: int, place: Platform) -> None:
        """Hand a job to the engine."""
        now_ns = self._clock.wall_ns()
        if not self._out:
            self._since_ns = now_ns
        out = Out(job=job, group=group, rank=rank, host=place.host, begin_ns=now_ns)
        self._out[job.name] = out
        self._on[place.host] += 1
        self._most = max(self._most, len(self._out))
        self._engine.submit(job)

    def next_done(self, wait_s: float, say: Callable[[str], None]) -> tuple[Out, Done] | None:
        """Return a job that has ended, None where none did for ``wait_s``.

        A job that ended before, or is none of this campaign's, is not counted again.

        Raises:
            StoreError: the engine has no job any more, and this side has.
        """
        begin_ns = self._clock.wall_ns()
        done = next(self._engine.completed(wait_s), None)
        if done is None:
            if self._clock.wall_ns() - begin_ns < wait_s / 2 * 1e9:
                raise StoreError("the engine lost a job; run the same command again")
            return None
        name = done.job.name
        if name not in self._out:
            known = "was told twice" if name in self._ended else "is none of this sweep's"
            say(f"{name}: {known}, and is not counted")
            return None
        out = self._remove(name)
        self._ended.add(name)
        self._book(out, done)
        return out, done

    def recall(self, labels: Collection[str]) -> list[Group]:
        """Take back the jobs of some platforms that have not begun."""
        names = [name for name, out in self._out.items() if out.job.platform in labels]
        return [self._remove(name).group for name in names if self._engine.cancel(name)]

    def spent_ns(self, wall_ns: int) -> Mapping[str, int]:
        """Return the time of all nodes by what it was spent on, and what is left of the whole.

        Args:
            wall_ns: of the campaign. Where one job ran at a time the parts add up to it.
        """
        working_ns = sum(self._spent.values()) if self._most <= 1 else self._busy_ns
        return {**self._spent, "planning and reading": wall_ns - working_ns}

    def _remove(self, name: str) -> Out:
        out = self._out.pop(name)
        self._on[out.host] -= 1
        if not self._out:
            self._busy_ns += self._clock.wall_ns() - self._since_ns
        return out

    def _book(self, out: Out, done: Done) -> None:
        if isinstance(done.error, WorkerError):
            elapsed_ns = self._clock.wall_ns() - out.begin_ns
            self._spent.update(done.spent_ns or {LOST: elapsed_ns})
            return
        self._spent.update(done.spent_ns)
        self._took_ns += done.wall_ns
        self._estimated_s += out.group.estimate_s
