"""The engine of one host: one job at a time, measured here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from frameworktax import host, store
from frameworktax.errors import FrameworktaxError, StoreError
from frameworktax.measure.export_worker import ExportWorker
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.session import MeasuringSession
from frameworktax.sweep.executor import Done, Job, Platform
from frameworktax.sweep.look import here
from frameworktax.sweep.results import ENDED
from frameworktax.sweep.shard import open_shard, shard_of
from frameworktax.sweep.time_accounting import PhaseClock, itemise


class LocalEngine:
    """Runs jobs in the order they are submitted, each a session of its own.

    Args:
        folder: the store.
        device: what ``local`` means here.
        reporter: told how each session goes.
        command: recorded with each session.
    """

    def __init__(
        self, folder: Path, device: str, reporter: Reporter, command: Sequence[str]
    ) -> None:
        self._folder = folder
        self._device = device
        self._reporter = reporter
        self._command = tuple(command)
        self._queue: deque[Job] = deque()
        self._export_worker = ExportWorker(host.cache_folder())

    def platforms(self) -> Sequence[Platform]:
        """Return this host under the names a study may give it."""
        return here(self._device)

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
        self._export_worker.close()

    def _run(self, job: Job) -> Done:
        begin = time.monotonic_ns()
        session = store.new_session_id(self._folder)
        clock = PhaseClock(self._reporter)
        plan = Plan(
            points=job.points,
            processes=job.processes,
            until=job.until,
            budget_s=job.budget_s,
            budget_option="study.time_budget",
            twin=job.twin,
            stop_when_linear=job.stop_when_linear,
        )
        fault: FrameworktaxError | None = None
        with open_shard(self._folder, session, self._command) as writer:
            self._reporter.records(shard_of(self._folder, session))
            sweep = MeasuringSession(plan, writer, session, clock, self._export_worker)
            try:
                sweep.run()
            except StoreError:
                raise
            except FrameworktaxError as error:
                fault = error  # the other jobs of the study go on
                writer.tell(job.points, "failed", str(error))
            finally:
                clock.end()
                self._reporter.phase(ENDED)
        wall_ns = time.monotonic_ns() - begin
        spent = itemise(clock.wall_ns, sweep.spent_ns())
        spent["ending"] = wall_ns - sum(clock.wall_ns.values())
        return Done(job=job, session=session, wall_ns=wall_ns, spent_ns=spent, error=fault)
