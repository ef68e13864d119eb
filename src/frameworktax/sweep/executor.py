"""What carries out the jobs of a study: on this host, or on many.

An executor is five methods. Everything a job measured is in the store by the time ``next_done``
returns it; the sweep above decides what to submit, and when. What it may rely on, and what not:

- **Nodes join and leave.** ``platforms`` is asked again after the end of each job, and every few
  seconds. A label without a node has no slots, or is not named; the executor keeps its jobs until
  the sweep takes them back (``cancel``).
- **A job may be lost** with its process or node. It ends as a ``Done`` whose error is a
  ``WorkerError`` of status ``crashed`` (``out-of-memory``, where that is known). What it had
  measured stays in the store; the sweep runs the rest again, and apart.
- **A job may be delivered twice.** Only the first ``Done`` of a name counts, and records written
  twice are read once.
- **A job that is late** (``limit_s``) is ended with everything it started, as a ``WorkerError`` of
  status ``timeout``; a session keeps to its budget by itself, so it hangs.
- **Any order.** Jobs end in any order. Retries are the sweep's alone: an executor runs a job once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from frameworktax import host, runtimes, store
from frameworktax.api import pick_device
from frameworktax.errors import Fault, FrameworktaxError, StoreError, WorkerError, check_known
from frameworktax.measure.plan import Plan, refuse_crowd
from frameworktax.measure.recorder import open_shard, this_environment, without_end
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.session import MeasuringSession
from frameworktax.measure.template import Templates
from frameworktax.records import Environment, Outcome, Point, Subject

EXECUTORS = ("local", "ray", "ray://HOST:PORT")
LATE = 2.0
LATE_S = 120.0
"""A job is late at so many times its budget, this much more, and two steps of set-up: what a
session measures keeps to the budget, what it sets up to a limit for each step."""
LEAST_SHARE = 0.5
"""Share of a job's time that is left to measuring, however long its set-up may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A place to measure.

    Attributes:
        label: the name a study gives it.
        device: ``cpu`` or ``cuda:N`` there.
        host: labels of one host share its slots; a label of many hosts is one of these, too.
        slots: jobs at a time: one per host, because the framework tax is made on the host.
        memory_bytes: free for measuring processes there, None for as much as here.
    """

    label: str
    device: str
    host: str = "here"
    slots: int = 1
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Points that are measured side by side, in one session on one host; plain data.

    Attributes:
        name: unique within the sweep, for people.
        platform: label of where it runs.
        plan: of the session; its budget is wall time for all of it, its folder is the host's own.
    """

    name: str
    platform: str
    plan: Plan

    @property
    def points(self) -> tuple[Point, ...]:
        """What it measures."""
        return self.plan.points


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that has ended.

    Attributes:
        session: under which its records are in the store.
        wall_ns: from its start to its end on its host.
        error: why it ended early. A ``WorkerError`` means that the job was lost or late; after any
            other the store says of each of its points how it ended.
    """

    job: Job
    session: str
    wall_ns: int
    error: FrameworktaxError | None = None


def lost(job: Job, status: Fault, why: str) -> Done:
    """Return the end of a job that was lost or late."""
    return Done(job=job, session="", wall_ns=0, error=WorkerError(status, why))


def limit_s(job: Job) -> float:
    """Return how long a job may take on its node before it counts as hanging, s."""
    return LATE * job.plan.budget_s + LATE_S + 2 * job.plan.setup_limit_s


class Executor(Protocol):
    """Carries out jobs."""

    def platforms(self) -> Sequence[Platform]:
        """Return where jobs can run now; asked before anything is submitted, and again."""

    def submit(self, job: Job) -> None:
        """Take a job; it may wait for its platform."""

    def next_done(self, wait_s: float) -> Done | None:
        """Return a job that has ended; None once nothing is left, or none did for ``wait_s``."""

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun; False if it has, or was never submitted."""

    def close(self) -> None:
        """End everything that was started here."""


@dataclass(eq=False)
class LocalExecutor:
    """Runs jobs in the order they are submitted, each a session of its own.

    ``device`` is what ``local`` means here, ``command`` is recorded with each session.
    """

    folder: Path
    device: str
    reporter: Reporter
    command: Sequence[str]
    _queue: dict[str, Job] = field(default_factory=dict)
    _templates: Templates = field(default_factory=Templates)
    _setup_s: float = 0.0
    """Of the session before: about as much as the next one's."""

    @cached_property
    def _environment(self) -> Environment:
        """Looked up once for all sessions of a sweep: their load is that of its beginning."""
        return this_environment()

    @cached_property
    def _gpus(self) -> int:
        """How many the driver lists, other makers' than NVIDIA's left out."""
        return len(host.gpus())

    def platforms(self) -> Sequence[Platform]:
        """Return this host under the names a study may give it; ``local`` is the device."""
        devices = {"local": self.device, "cpu": "cpu", self.device: self.device}
        if self.device != "cpu":
            devices |= {name: name for name in (f"cuda:{n}" for n in range(self._gpus))}
        return [Platform(label=label, device=one) for label, one in devices.items()]

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._queue[job.name] = job

    def next_done(self, wait_s: float) -> Done | None:
        """Run the job that was submitted first, however long it takes; None if none is left."""
        del wait_s
        if not self._queue:
            return None
        first = next(iter(self._queue))
        return self.run(self._queue.pop(first))

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun."""
        return self._queue.pop(name, None) is not None

    def close(self) -> None:
        """Forget what has not begun; a job that runs ends its own processes."""
        self._queue.clear()
        self._templates.close()

    def run(self, job: Job) -> Done:
        """Measure a job in a session of its own.

        Raises:
            StoreError: nothing can be written any more.
        """
        begin = time.monotonic_ns()
        budget_s = job.plan.budget_s
        plan = replace(
            job.plan,
            folder=host.cache_folder(),
            budget_s=max(LEAST_SHARE * budget_s, budget_s - self._setup_s),
        )
        fault: FrameworktaxError | None = None
        with open_shard(self.folder, self.command, self._environment) as writer:
            measuring = MeasuringSession(plan, writer, self.reporter, self._templates)
            try:
                refuse_crowd(plan.points, forced=plan.force_threads)
                measuring.run()
            except StoreError:
                raise
            except FrameworktaxError as error:
                fault = error  # the other jobs of the study go on
                write_ends(writer, without_end(writer.path, job.points), error)
        wall_ns = time.monotonic_ns() - begin
        self._setup_s = (wall_ns - measuring.effort.measuring_ns) / 1e9
        return Done(job=job, session=writer.session, wall_ns=wall_ns, error=fault)


def open_executor(name: str, folder: Path, reporter: Reporter, command: Sequence[str]) -> Executor:
    """Return the executor of a name, one of ``EXECUTORS``, to be closed.

    Raises:
        UsageError: no such executor, or its cluster cannot be used.
    """
    if name == "local":
        return LocalExecutor(folder, pick_device("auto"), reporter, command)
    if not str(name).startswith("ray://"):
        check_known("engine", name, EXECUTORS)
    from frameworktax.sweep.ray import RayExecutor

    return RayExecutor(folder, None if name == "ray" else name, reporter, command)


def write_ends(writer: store.Writer, points: Iterable[Point], error: FrameworktaxError) -> None:
    """Write that points failed with an error."""
    session = writer.session
    status = error.status if isinstance(error, WorkerError) else "failed"
    for point in points:
        paradigm = runtimes.get(point.runtime).paradigm
        writer.write(Subject(session=session, point=point, paradigm=paradigm))
        writer.write(
            Outcome(session=session, point=point.key(), process=0, status=status, reason=str(error))
        )
