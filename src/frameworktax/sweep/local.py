"""The executor of one host: one job at a time, each a session with a shard of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from frameworktax import runtimes, store
from frameworktax.errors import FrameworktaxError, StoreError, WorkerError
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.session import MeasuringSession
from frameworktax.measure.shard import open_shard, this_environment, without_end
from frameworktax.measure.template import Templates
from frameworktax.records import Outcome, Point, Subject
from frameworktax.store.write import PLAIN, SUFFIX
from frameworktax.sweep.executor import Done, Job, Platform, this_host

ENDED = "ended"
"""The phase after the last one of a session."""
LEAST_SHARE = 0.5
"""Share of a job's time that is left to measuring, however long its set-up may take."""

_environment = cache(this_environment)
"""Looked up once for all sessions of a sweep: their load is that of its beginning."""


class LocalExecutor:
    """Runs jobs in the order they are submitted, each a session of its own.

    ``device`` is what ``local`` means here, ``command`` is recorded with each session.
    """

    def __init__(
        self,
        folder: Path,
        device: str,
        reporter: Reporter,
        command: Sequence[str],
        writer: type[store.Writer] = store.Writer,
    ) -> None:
        self._folder = folder
        self._device = device
        self._reporter = reporter
        self._command = tuple(command)
        self._writer = writer
        self._queue: deque[Job] = deque()
        self._templates = Templates()
        self._setup_s = 0.0  # of the session before: about as much as the next one's

    def platforms(self) -> Sequence[Platform]:
        """Return this host under the names a study may give it."""
        return this_host(self._device)

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._queue.append(job)

    def completed(self, wait_s: float | None = None) -> Iterator[Done]:
        """Run what was submitted, one after the other, however long each takes.

        Raises:
            StoreError: nothing can be written any more.
        """
        del wait_s
        while self._queue:
            yield self._run(self._queue.popleft())

    def cancel(self, name: str) -> bool:
        """Take back a job that has not begun."""
        for job in self._queue:
            if job.name == name:
                self._queue.remove(job)
                return True
        return False

    def close(self) -> None:
        """Forget what has not begun; a job that runs ends its own processes."""
        self._queue.clear()
        self._templates.close()

    def _run(self, job: Job) -> Done:
        begin = time.monotonic_ns()
        session = store.new_session_id(self._folder)
        plan = Plan(
            points=job.points,
            processes=job.processes,
            until=job.until,
            budget_s=max(LEAST_SHARE * job.budget_s, job.budget_s - self._setup_s),
            setup_limit_s=job.setup_limit_s,
            budget_option="study.time_budget",
            setup_option="study.setup_limit",
            twin=job.twin,
            stop_when_linear=job.stop_when_linear,
        )
        fault: FrameworktaxError | None = None
        with open_shard(
            self._folder,
            session,
            self._command,
            environment=_environment(),
            writer=self._writer,
        ) as writer:
            measuring = MeasuringSession(
                plan, writer, session, self._reporter, templates=self._templates
            )
            try:
                measuring.run()
            except StoreError:
                raise
            except FrameworktaxError as error:
                fault = error  # the other jobs of the study go on
                write_ends(writer, session, without_end(writer.path, job.points), error)
            finally:
                self._reporter.phase(ENDED)
        wall_ns = time.monotonic_ns() - begin
        self._setup_s = (wall_ns - measuring.effort.measuring_ns) / 1e9
        return Done(job=job, session=session, wall_ns=wall_ns, error=fault)


def write_ends(
    writer: store.Writer, session: str, points: Iterable[Point], error: FrameworktaxError
) -> None:
    """Write that points failed with an error."""
    status = error.status if isinstance(error, WorkerError) else "failed"
    for point in points:
        paradigm = runtimes.get(point.runtime).paradigm
        writer.write(Subject(session=session, point=point, paradigm=paradigm))
        writer.write(
            Outcome(session=session, point=point.key(), process=0, status=status, reason=str(error))
        )


def shard_of(folder: Path, session: str) -> Path:
    """Return the shard of a session; a text that is no identity leads nowhere."""
    return folder / f"{session if PLAIN.fullmatch(session) else 'none'}{SUFFIX}"
