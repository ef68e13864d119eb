"""Jobs that an executor has, and the nodes it has for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from frameworktax.clock import Clock
from frameworktax.errors import StoreError, WorkerError
from frameworktax.sweep.executor import Done, Executor, Job, Platform
from frameworktax.sweep.schedule import Group

REFRESH_S = 5.0
"""How old the executor's answer may be."""
AWAY_S = 600.0
"""How long points wait for a platform without a node: a machine starts anew in less."""


class Nodes:
    """The platforms of an executor, asked for again as nodes join and leave."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._found: dict[str, Platform] = {}
        self._asked_ns: int | None = None
        self._away_ns: dict[str, int] = {}

    def now(self) -> Sequence[Platform]:
        """Return where jobs can run, as of ``REFRESH_S`` ago at most."""
        now_ns = self._clock.wall_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= REFRESH_S * 1e9:
            self._found = {platform.label: platform for platform in self._executor.platforms()}
            self._asked_ns = now_ns
        return tuple(self._found.values())

    def named(self, label: str) -> Platform:
        """Return a platform that ``now`` named."""
        return self._found[label]

    def gone(self, labels: Iterable[str], say: Callable[[str], None]) -> list[str]:
        """Return those of the labels that have had no node for ``AWAY_S``."""
        self.now()
        now_ns = self._clock.wall_ns()
        found = []
        for label in labels:
            platform = self._found.get(label)
            if platform is not None and platform.slots > 0:
                self._away_ns.pop(label, None)
                continue
            if label not in self._away_ns:
                self._away_ns[label] = now_ns
                say(f"no node of platform '{label}'; its points wait for {AWAY_S:.0f} s")
            if now_ns - self._away_ns[label] >= AWAY_S * 1e9:
                found.append(label)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job that the executor has, with what it was made from."""

    job: Job
    group: Group
    rank: int
    host: str


class RunningJobs:
    """The jobs that an executor has, each counted once."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._jobs: dict[str, Submitted] = {}
        self._on: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._took_ns = 0
        self._estimated_s = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def scale(self) -> float:
        """How much longer than estimated sessions took so far."""
        return self._took_ns / 1e9 / self._estimated_s if self._estimated_s else 1.0

    def on(self, platform: Platform) -> int:
        """Return how many jobs a host has."""
        return self._on[platform.host]

    def labels(self) -> set[str]:
        """Return the platforms that have jobs."""
        return {one.job.platform for one in self._jobs.values()}

    def begin(self, job: Job, group: Group, rank: int, platform: Platform) -> None:
        """Submit a job to the executor."""
        self._jobs[job.name] = Submitted(job=job, group=group, rank=rank, host=platform.host)
        self._on[platform.host] += 1
        self._executor.submit(job)

    def next_done(self, wait_s: float, say: Callable[[str], None]) -> tuple[Submitted, Done] | None:
        """Return a job that has ended, None where none did for ``wait_s``.

        A job that ended before, or is none of this sweep's, is not counted again.

        Raises:
            StoreError: the executor has no job any more, and this side has.
        """
        begin_ns = self._clock.wall_ns()
        done = next(self._executor.completed(wait_s), None)
        if done is None:
            if self._clock.wall_ns() - begin_ns < wait_s / 2 * 1e9:
                raise StoreError("the executor lost a job; run the same command again")
            return None
        name = done.job.name
        if name not in self._jobs:
            kind = "duplicate" if name in self._ended else "unknown"
            say(f"{name}: {kind} result ignored")
            return None
        one = self._remove(name)
        self._ended.add(name)
        if not isinstance(done.error, WorkerError):
            self._took_ns += done.wall_ns
            self._estimated_s += one.group.estimate_s
        return one, done

    def recall(self, labels: Collection[str]) -> list[Group]:
        """Take back the jobs of some platforms that have not begun."""
        names = [name for name, one in self._jobs.items() if one.job.platform in labels]
        return [self._remove(name).group for name in names if self._executor.cancel(name)]

    def _remove(self, name: str) -> Submitted:
        one = self._jobs.pop(name)
        self._on[one.host] -= 1
        return one
