"""``sweep``: a study measured session by session, each of its points exactly once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import store
from frameworktax.api import DEFAULT_STORE, Results, document, no_collection, pick_device
from frameworktax.clock import REAL, Clock
from frameworktax.errors import NothingMeasuredError, UsageError, WorkerError, nearest
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.shard import open_shard
from frameworktax.records import FLOOR, Block, LeftOut, Note, Point, Record, Session
from frameworktax.store.read import point_key
from frameworktax.sweep.executor import Done, Executor, Job, Platform
from frameworktax.sweep.jobs import AWAY_S, Nodes, RunningJobs, Submitted
from frameworktax.sweep.local import LocalExecutor, shard_of, write_ends
from frameworktax.sweep.plan import SweepPlan, plan, scan
from frameworktax.sweep.schedule import Group, Queue, Retries
from frameworktax.sweep.status import PointStatus, StatusCounts, find_statuses
from frameworktax.sweep.study import Study, load
from frameworktax.sweep.words import resumed

EXECUTORS = ("local", "ray", "ray://HOST:PORT")
LEAST_S = 5.0
"""A session is not begun with less than this left of the time budget."""
UNHURRIED_S = 600.0
UNHURRIED = 5.0
"""Without a time budget a session may take this long, or so many times its estimate: it ends by
itself when its intervals are narrow, and only one that hangs or is misjudged meets this end."""
PATIENCE_S = 10.0
"""How long to wait for the end of a job before looking for nodes that joined or left."""


class SweepResults(Results):
    """The results of a study.

    Attributes:
        plan: of the sweep, made before it.
        statuses: of each of its points now.
        wall_ns: of the whole sweep.
    """

    def __init__(
        self,
        results: Results,
        plan: SweepPlan,
        statuses: Mapping[Point, PointStatus],
        wall_ns: int,
    ) -> None:
        super().__init__(results.run, results.store)
        self.plan = plan
        self.statuses = statuses
        self.wall_ns = wall_ns


def sweep(
    study: str | Path | Mapping[str, Any],
    *overrides: str,
    store: str | Path = DEFAULT_STORE,
    engine: str = "local",
    resume: bool = True,
    allow_code: bool = False,
    reporter: Reporter | None = None,
    command: Sequence[str] | None = None,
) -> SweepResults:
    """Measure every point of a study exactly once, leaving out those that the store holds.

    Args:
        study: a TOML file, or the same as nested data.
        overrides: ``key=value`` over what the study says.
        store: folder that keeps every sample.
        engine: ``local``, ``ray`` (the cluster of this host) or ``ray://HOST:PORT``.
        resume: leave out points that the store already holds.
        allow_code: let models of the study be Python code.
        reporter: receives progress.
        command: recorded with each session.

    Raises:
        UsageError: the study is wrong, names code and ``allow_code`` is not given, or there is no
            such engine.
        NothingMeasuredError: no point of it could be measured.
    """
    reporter = reporter or Reporter()
    command = tuple(command or sys.argv[1:])
    folder = Path(store)
    executor = open_executor(engine, folder, reporter, command, allow_code=allow_code)
    with contextlib.closing(executor):
        platforms = {platform.label: platform.device for platform in executor.platforms()}
        loaded = load(study, overrides, platforms=platforms, allow_code=allow_code)
        for reference in loaded.code:
            reporter.say(f"runs code of yours: {reference}")
        is_here = engine == "local"  # a cluster's nodes are locked one by one
        lock = host_lock(command, reporter.say) if is_here else contextlib.nullcontext()
        with lock:
            return Sweep(loaded, folder, executor, reporter, command, resume=resume).run()


def open_executor(
    name: str, folder: Path, reporter: Reporter, command: Sequence[str], *, allow_code: bool
) -> Executor:
    """Return the executor of a name, to be closed.

    Args:
        name: ``local``, ``ray`` or ``ray://HOST:PORT``.
        folder: the store.
        reporter: receives the progress of sessions.
        command: recorded with each session.
        allow_code: whether a user's own model may be sent to other hosts.

    Raises:
        UsageError: no such executor, or its cluster cannot be used.
    """
    if name == "local":
        return LocalExecutor(folder, pick_device("auto"), reporter, command)
    if name != "ray" and not name.startswith("ray://"):
        raise UsageError(
            f"no engine '{name}'{nearest(name, EXECUTORS)}; choose {', '.join(EXECUTORS)}"
        )
    from frameworktax.sweep.ray import RayExecutor
    from frameworktax.sweep.ray_cluster import RayCluster

    cluster = RayCluster(None if name == "ray" else name)
    return RayExecutor(folder, cluster, reporter, command, allow_code=allow_code)


def platforms_of(name: str, reporter: Reporter) -> Sequence[Platform]:
    """Return where an executor could measure now; raises as ``open_executor`` does."""
    executor = open_executor(name, Path(), reporter, (), allow_code=False)
    with contextlib.closing(executor):
        return executor.platforms()


class Sweep:
    """One run over a study: submits jobs as nodes are free, and again what failed by chance.

    Args:
        study: what is to be measured.
        folder: the store.
        executor: carries out jobs.
        reporter: receives progress.
        command: recorded with each session.
        resume: leave out points that the store already holds.
        clock: gives the time and waits.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        executor: Executor,
        reporter: Reporter,
        command: Sequence[str],
        *,
        resume: bool,
        clock: Clock = REAL,
    ) -> None:
        self._study = study
        self._folder = folder
        self._reporter = reporter
        self._command = tuple(command)
        self._resume = resume
        self._clock = clock
        self._begin_ns = clock.wall_ns()
        self._nodes = Nodes(executor, clock)
        self._jobs = RunningJobs(executor, clock)
        self._sessions: set[str] = set()
        self._counts = StatusCounts({})

    def run(self) -> SweepResults:
        """Measure the open points and return everything the store holds of the study."""
        first = self._plan()
        for text in (*self._study.notes, resumed(first.statuses)):
            if text:
                self._reporter.say(text)
        self._counts = StatusCounts(first.statuses)
        self._reporter.counts(self._counts.counts)
        self._measure(Queue(first.groups), Retries(first.statuses, self._study.settings.attempts))
        has_records = self._folder.is_dir() and any(self._folder.glob("*.jsonl"))
        with no_collection():
            records, notes = store.read(self._folder) if has_records else ([], [])
            counted = [r for r in records if self._resume or r.session in self._sessions]
            statuses = self._statuses(first.statuses, counted)
            settled = ("unavailable", "linear")
            asked = [point for point, one in statuses.items() if one.status not in settled]
            results = self._results(records, notes, asked)
        wall_ns = self._clock.wall_ns() - self._begin_ns
        if not any(one.status == "measured" for one in statuses.values()):
            reasons = dict.fromkeys(one.reason for one in statuses.values() if one.reason)
            why = "; ".join(list(reasons)[:3]) or "the time budget was too short"
            raise NothingMeasuredError(f"nothing could be measured; {why}", results)
        return SweepResults(results, first, statuses, wall_ns)

    def _plan(self) -> SweepPlan:
        only = None if self._resume else self._sessions
        return plan(self._study, scan(self._folder), only=only, platforms=self._nodes.now())

    def _statuses(
        self, points: Iterable[Point], records: Iterable[Record]
    ) -> Mapping[Point, PointStatus]:
        return find_statuses(points, records, self._study.settings.attempts, self._sessions)

    def _left_s(self) -> float | None:
        budget = self._study.settings.time_budget
        spent_s = (self._clock.wall_ns() - self._begin_ns) / 1e9
        return None if budget is None else budget - spent_s

    def _measure(self, queue: Queue, retries: Retries) -> None:
        """Keep every node at work until nothing waits, or time is over."""
        while queue or self._jobs:
            left_s = self._left_s()
            if left_s is not None and left_s < LEAST_S:
                budget = self._study.settings.time_budget
                reason = f"the time budget of {budget:.0f} s was spent; run the same command again"
                waiting = [*queue.drain(queue.labels()), *self._jobs.recall(self._jobs.labels())]
                self._leave_out(waiting, reason)
            else:
                self._leave_out_gone(queue)
                self._submit(queue, left_s)
            if self._jobs:
                ended = self._jobs.next_done(PATIENCE_S, self._reporter.say)
                if ended is not None:
                    self._take(*ended, queue, retries)
            elif queue:
                self._clock.sleep(PATIENCE_S)

    def _submit(self, queue: Queue, left_s: float | None) -> None:
        """Give every free node the first group that waits for it.

        Each gets its share of the time left by its estimate; what one does not use goes to those
        after it.
        """
        platforms = self._nodes.now()
        while True:
            free = [one.label for one in platforms if self._jobs.on(one) < one.slots]
            found = queue.take(free)
            if found is None:
                return
            rank, group = found
            platform = self._nodes.named(group.platform)
            mates = [one.label for one in platforms if one.host == platform.host]
            expected_s = (queue.waiting_s(mates) + group.estimate_s) / platform.slots
            shown_s = self._jobs.scale * expected_s
            number = queue.total - len(queue)
            self._reporter.session(
                number, queue.total, group.name, shown_s if left_s is None else min(left_s, shown_s)
            )
            budget_s = _budget_s(group.estimate_s, expected_s, left_s)
            job = self._job(f"{number} {group.name}", group, budget_s)
            self._jobs.begin(job, group, rank, platform)

    def _job(self, name: str, group: Group, budget_s: float) -> Job:
        settings = self._study.settings
        return Job(
            name=name,
            points=group.points,
            platform=group.platform,
            processes=settings.processes,
            until=settings.until,
            budget_s=budget_s,
            setup_limit_s=settings.setup_limit,
            twin=settings.twin,
            stop_when_linear=settings.stop_when_linear,
        )

    def _take(self, one: Submitted, done: Done, queue: Queue, retries: Retries) -> None:
        """Read what a job has written, and decide what of it is run again."""
        self._sessions.add(done.session)
        shard = shard_of(self._folder, done.session)
        attempts = self._study.settings.attempts
        statuses = find_statuses(one.group.points, scan(shard), attempts)
        self._counts.update(statuses)
        self._reporter.counts(self._counts.counts)
        self._reporter.ended()
        lost = isinstance(done.error, WorkerError)
        again = retries.after(one.group, statuses, lost=lost)
        for group in again.now:
            queue.add(group, one.rank)
        for group in again.later:
            queue.add(group)
        if done.error is not None:
            text = "; ".join(filter(None, (f"{one.job.name}: {done.error}", again.text)))
            self._reporter.say(text)
        if again.blamed is not None and isinstance(done.error, WorkerError):
            session = store.new_session_id(self._folder)
            self._sessions.add(session)
            with open_shard(self._folder, session, self._command) as writer:
                write_ends(writer, session, [again.blamed], done.error)

    def _leave_out_gone(self, queue: Queue) -> None:
        """Leave out what waits for nodes that do not come back."""
        labels = {*queue.labels(), *self._jobs.labels()}
        for label in self._nodes.gone(sorted(labels), self._reporter.say):
            groups = [*queue.drain([label]), *self._jobs.recall([label])]
            reason = (
                f"there was no node of platform '{label}' for {AWAY_S:.0f} s; "
                "run the same command again once there is one"
            )
            self._leave_out(groups, reason)

    def _leave_out(self, groups: Iterable[Group], reason: str) -> None:
        """Write why points are not measured; the store says it already of those that failed."""
        points = [point for group in groups if not group.failed for point in group.points]
        if not points:
            return
        session = store.new_session_id(self._folder)
        with open_shard(self._folder, session, self._command) as shard:
            for point in points:
                shard.write(LeftOut(session=session, point=point, reason=reason))

    def _results(
        self, records: Sequence[Record], notes: Sequence[Note], asked: Sequence[Point]
    ) -> Results:
        """Return the document of the study's points alone: a store may hold other things."""
        own = {*self._study.points}
        foreign: set[str] = set()
        for record in records:
            point = getattr(record, "point", None)
            if isinstance(point, Point) and point.runtime != FLOOR and point not in own:
                of = replace(point, workload=replace(point.workload, twin=False))
                if of not in own:
                    foreign.add(point.key())
        # A session that timed nothing (the sweep's own) is no environment of a point.
        timed = {record.session for record in records if isinstance(record, Block)}
        kept = [
            record
            for record in records
            if not (foreign and point_key(record) in foreign)
            and not (timed and isinstance(record, Session) and record.session not in timed)
        ]
        run = document(kept, self._study.settings.until, asked)
        return Results(replace(run, notes=run.notes + tuple(notes)), self._folder)


def _budget_s(estimate_s: float, expected_s: float, left_s: float | None) -> float:
    """Return the time a session may take: its share of what is left, or ample time."""
    if left_s is None:
        return max(UNHURRIED_S, UNHURRIED * estimate_s)
    return min(left_s, max(LEAST_S, left_s * estimate_s / expected_s))
