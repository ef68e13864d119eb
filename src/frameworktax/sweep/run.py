"""``sweep``: a study measured session by session, each of its points exactly once."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworktax import store
from frameworktax.analysis.document import build
from frameworktax.api import DEFAULT_STORE, Results, no_collection
from frameworktax.clock import REAL, Clock
from frameworktax.errors import NothingMeasuredError, StoreError, UsageError, WorkerError, as_path
from frameworktax.host.lock import host_lock
from frameworktax.measure.plan import Plan, check_flags, refuse_crowd
from frameworktax.measure.recorder import open_shard
from frameworktax.measure.reporter import Reporter
from frameworktax.records import FLOOR, Block, LeftOut, Note, Point, Record, Session
from frameworktax.store.read import point_key
from frameworktax.sweep.executor import Done, Executor, Job, Platform, open_executor, write_ends
from frameworktax.sweep.grid import shipped
from frameworktax.sweep.plan import SweepPlan, plan, resumed, scan
from frameworktax.sweep.schedule import Group, Queue, Retries
from frameworktax.sweep.status import PointStatus, find_statuses
from frameworktax.sweep.study import Study, load

LEAST_S = 5.0
"""A session is not begun with less than this left of the time budget."""
UNHURRIED_S = 600.0
UNHURRIED = 5.0
"""Without a time budget a session may take this long, or so many times its estimate: it ends by
itself when its intervals are narrow, and only one that hangs or is misjudged meets this end."""
PATIENCE_S = 10.0
"""How long to wait for the end of a job before looking for nodes that joined or left."""
AWAY_S = 600.0
"""How long points wait for a platform without a node: a machine starts anew in less."""


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
    force_threads: bool = False,
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
        force_threads: measure with more threads than processors, too.
        reporter: receives progress.
        command: recorded with each session.

    Raises:
        UsageError: the study is wrong, names code and ``allow_code`` is not given, there is no
            such engine, or the store is a file.
        NothingMeasuredError: no point of it could be measured.
    """
    folder = as_path("store", store)
    check_flags(resume=resume, allow_code=allow_code, force_threads=force_threads)
    reporter = reporter or Reporter()
    command = tuple(command or sys.argv[1:])
    if folder.is_file():
        raise UsageError(f"{folder} is a file; name a folder with --store")
    executor = open_executor(engine, folder, reporter, command)
    with contextlib.closing(executor):
        platforms = {platform.label: platform.device for platform in executor.platforms()}
        loaded = load(study, overrides, platforms=platforms, allow_code=allow_code)
        is_here = engine == "local"
        if is_here:
            refuse_crowd(loaded.points, forced=force_threads)
        else:
            shipped(loaded.points)  # what has no place on a node is refused before anything runs
        for reference in loaded.code:
            reporter.say(f"runs code of yours: {reference}")
        # a cluster's nodes are locked one by one
        with host_lock(command, reporter.say) if is_here else contextlib.nullcontext():
            study_run = Sweep(loaded, folder, executor, reporter, command, resume, force_threads)
            return study_run.run()


@dataclass(eq=False)
class Sweep:
    """One run over a study: submits jobs as nodes are free, and again what failed by chance."""

    study: Study
    folder: Path
    executor: Executor
    reporter: Reporter
    command: Sequence[str]
    resume: bool
    force_threads: bool = False
    clock: Clock = REAL
    _away_ns: dict[str, int] = field(default_factory=dict)
    """Label without a node → since when."""
    _jobs: dict[str, Group] = field(default_factory=dict)
    """What the executor has, by name."""
    _took_s: float = 0.0
    _estimated_s: float = 0.0
    """Of the sessions so far."""
    _sessions: set[str] = field(default_factory=set)
    _words: dict[Point, str] = field(default_factory=dict)
    """The status of each point, in a word."""

    def __post_init__(self) -> None:
        self._settings = self.study.settings
        self._begin_ns = self.clock.wall_ns()

    def run(self) -> SweepResults:
        """Measure the open points and return everything the store holds of the study."""
        platforms = self.executor.platforms()
        first = plan(self.study, scan(self.folder), resume=self.resume, platforms=platforms)
        for text in (*self.study.notes, resumed(first.statuses)):
            if text:
                self.reporter.say(text)
        self._words = {point: one.word for point, one in first.statuses.items()}
        self.reporter.counts(Counter(self._words.values()))
        queue = Queue(first.groups)
        self._measure(queue, Retries(queue, first.statuses, self._settings.attempts))
        attempts, has_records = self._settings.attempts, any(self.folder.glob("*.jsonl"))
        with no_collection():
            records, notes = store.read(self.folder) if has_records else ([], [])
            if not self.resume:
                records = [record for record in records if record.session in self._sessions]
            statuses = find_statuses(first.statuses, records, attempts, self._sessions)
            asked = [point for point, one in statuses.items() if one.status != "unavailable"]
            results = self._results(records, notes, asked)
        if not any(one.status == "measured" for one in statuses.values()):
            reasons = dict.fromkeys(one.reason for one in statuses.values() if one.reason)
            why = "; ".join(list(reasons)[:3]) or "the time budget was too short"
            raise NothingMeasuredError(f"nothing could be measured; {why}", results)
        return SweepResults(results, first, statuses, self.clock.wall_ns() - self._begin_ns)

    def _measure(self, queue: Queue, retries: Retries) -> None:
        """Keep every node at work until nothing waits, or time is over."""
        budget_s = self._settings.time_budget or float("inf")
        spent = f"the time budget of {budget_s:.0f} s was spent; run the same command again"
        while queue or self._jobs:
            left_s = budget_s - (self.clock.wall_ns() - self._begin_ns) / 1e9
            if left_s < LEAST_S:
                self._leave_out(queue, self._labels(queue), spent)
            else:
                platforms = {one.label: one for one in self.executor.platforms()}
                self._leave_out_gone(queue, platforms)
                self._submit(queue, platforms, left_s)
            if self._jobs:
                self._listen(retries)
            elif queue:
                self.clock.sleep(PATIENCE_S)

    # --- nodes --------------------------------------------------------------------------------

    def _labels(self, queue: Queue) -> set[str]:
        """Return the platforms that groups or jobs are for."""
        return {group.platform for group in (*queue, *self._jobs.values())}

    def _leave_out_gone(self, queue: Queue, platforms: Mapping[str, Platform]) -> None:
        """Leave out what waits for nodes that do not come back."""
        now_ns = self.clock.wall_ns()
        for label in sorted(self._labels(queue)):
            if label in platforms and platforms[label].slots > 0:
                self._away_ns.pop(label, None)
                continue
            if label not in self._away_ns:
                self._away_ns[label] = now_ns
                text = f"no node of platform '{label}'; its points wait for {AWAY_S:.0f} s"
                self.reporter.say(text)
            if now_ns - self._away_ns[label] >= AWAY_S * 1e9:
                reason = (
                    f"there was no node of platform '{label}' for {AWAY_S:.0f} s; "
                    "run the same command again once there is one"
                )
                self._leave_out(queue, [label], reason)

    def _leave_out(self, queue: Queue, labels: Collection[str], reason: str) -> None:
        """Write why what waits for platforms is not measured; of what failed it is written."""
        begun = [name for name, group in self._jobs.items() if group.platform in labels]
        recalled = [self._jobs.pop(name) for name in begun if self.executor.cancel(name)]
        waiting = [group for group in (*queue.drain(labels), *recalled) if not group.failed]
        points = [point for group in waiting for point in group.points]
        if points:
            with open_shard(self.folder, self.command) as shard:
                self._sessions.add(shard.session)
                for point in points:
                    shard.write(LeftOut(session=shard.session, point=point, reason=reason))

    # --- jobs ---------------------------------------------------------------------------------

    def _submit(self, queue: Queue, platforms: Mapping[str, Platform], left_s: float) -> None:
        """Give every free node the first group that waits for it.

        Each gets its share of the time left by its estimate; what one does not use goes to those
        after it.
        """
        while True:
            labels = [group.platform for group in self._jobs.values()]
            busy = Counter(platforms[label].host for label in labels if label in platforms)
            free = [label for label, one in platforms.items() if busy[one.host] < one.slots]
            group = queue.take(free)
            if group is None:
                return
            platform = platforms[group.platform]
            mates = [label for label, one in platforms.items() if one.host == platform.host]
            ahead = [group, *(other for other in queue if other.platform in mates)]
            expected_s = sum(one.estimate_s for one in ahead) / platform.slots
            slower = self._took_s / self._estimated_s if self._estimated_s else 1.0
            number, total = queue.taken, queue.taken + len(queue)
            shown_s = min(left_s, slower * expected_s)
            self.reporter.session(number, total, group.name, shown_s)
            session = Plan(
                points=group.points,
                processes=self._settings.processes,
                until=self._settings.until,
                budget_s=_budget_s(group.estimate_s, expected_s, left_s),
                setup_limit_s=self._settings.setup_limit,
                budget_option="study.time_budget",
                setup_option="study.setup_limit",
                twin=self._settings.twin,
                force_threads=self.force_threads,
            )
            job = Job(name=f"{number} {group.name}", platform=group.platform, plan=session)
            self._jobs[job.name] = group
            self.executor.submit(job)

    def _listen(self, retries: Retries) -> None:
        """Wait ``PATIENCE_S`` for the end of a job; one that has ended before counts once.

        Raises:
            StoreError: the executor has no job any more, and this side has.
        """
        begin_ns = self.clock.wall_ns()
        done = self.executor.next_done(PATIENCE_S)
        if done is None:
            if self.clock.wall_ns() - begin_ns < PATIENCE_S / 2 * 1e9:
                raise StoreError("the executor lost a job; run the same command again")
        elif group := self._jobs.pop(done.job.name, None):
            self._take(group, done, retries)
        else:
            self.reporter.say(f"{done.job.name}: result ignored, it had ended or was taken back")

    def _take(self, group: Group, done: Done, retries: Retries) -> None:
        """Read what a job has written, and decide what of it is run again."""
        self._sessions.add(done.session)
        written = scan(self.folder / f"{done.session}.jsonl")
        statuses = find_statuses(group.points, written, self._settings.attempts, self._sessions)
        # what a session left open stays as it was
        ended = {point: known.word for point, known in statuses.items() if known.word != "open"}
        self._words |= ended
        self.reporter.counts(Counter(self._words.values()))
        self.reporter.ended()
        is_lost = isinstance(done.error, WorkerError)
        if not is_lost:
            self._took_s += done.wall_ns / 1e9
            self._estimated_s += group.estimate_s
        blamed, what_next = retries.after(group, statuses, lost=is_lost)
        if done.error is not None:
            said = f"{done.job.name}: {done.error}"
            self.reporter.say(f"{said}; {what_next}" if what_next else said)
        if blamed is not None and done.error is not None:
            with open_shard(self.folder, self.command) as writer:
                self._sessions.add(writer.session)
                write_ends(writer, [blamed], done.error)

    def _results(
        self, records: Sequence[Record], notes: Sequence[Note], asked: Sequence[Point]
    ) -> Results:
        """Return the document of the study's points alone: a store may hold other things."""
        own = {*self.study.points}
        kept = records_of(records, lambda point: point in own)
        # A session that timed nothing (the sweep's own) is no environment of a point.
        if timed := {record.session for record in kept if isinstance(record, Block)}:
            kept = [r for r in kept if not isinstance(r, Session) or r.session in timed]
        run = build(kept, until=self._settings.until, asked=asked)
        return Results(replace(run, notes=run.notes + tuple(notes)), self.folder)


def records_of(records: Sequence[Record], where: store.Where) -> list[Record]:
    """Return the records of some points and their twins, and of their sessions."""
    named = {p for r in records if isinstance(p := getattr(r, "point", None), Point)}
    own: set[str] = set()
    foreign: set[str] = set()
    for point in named:
        is_own = where(replace(point, workload=replace(point.workload, twin=False)))
        if is_own or point.runtime != FLOOR:
            (own if is_own else foreign).add(point.key())
    sessions = {record.session for record in records if point_key(record) in own}
    return [r for r in records if r.session in sessions and point_key(r) not in foreign]


def _budget_s(estimate_s: float, expected_s: float, left_s: float) -> float:
    """Return the time a session may take: its share of what is left, or ample time."""
    if math.isinf(left_s):
        return max(UNHURRIED_S, UNHURRIED * estimate_s)
    return min(left_s, max(LEAST_S, left_s * estimate_s / expected_s))
