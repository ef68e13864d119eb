"""A study carried out: what is open, job after job, and what came of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import store
from frameworktax.api import DEFAULT_STORE, Results, document
from frameworktax.clock import REAL, Clock
from frameworktax.errors import NothingMeasuredError, WorkerError
from frameworktax.measure.reporter import Reporter
from frameworktax.records import FLOOR, Block, LeftOut, Note, Point, Record, Session
from frameworktax.sweep import executors as engines
from frameworktax.sweep.executor import Done, Engine, Job
from frameworktax.sweep.load import Study, load
from frameworktax.sweep.look import Outlook, look, read, scan
from frameworktax.sweep.nodes import AWAY_S, Places
from frameworktax.sweep.queue import Queue
from frameworktax.sweep.results import SweepResults
from frameworktax.sweep.retries import Retries
from frameworktax.sweep.running_jobs import Crew, Out
from frameworktax.sweep.schedule import Group
from frameworktax.sweep.shard import open_shard, shard_of
from frameworktax.sweep.status import resumed, survey
from frameworktax.sweep.status_counts import Standing

LEAST_S = 5.0
"""A session is not begun with less than this left of the time budget."""
UNHURRIED_S = 600.0
UNHURRIED = 5.0
"""Without a time budget a session may take this long, or so many times its estimate: it ends by
itself when its intervals are told, and only what hangs or is misjudged meets this end."""
PATIENCE_S = 10.0
"""How long an end of a job is waited for before one looks for new nodes, and what is gone."""


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
    """Measure a study, leaving out what the store already holds.

    Args:
        study: a TOML file, or the same as nested data.
        overrides: ``key=value`` over what the study says.
        store: folder that keeps every sample.
        engine: ``local``, ``ray`` (the cluster of this host) or ``ray://HOST:PORT``.
        resume: leave out points that the store already holds.
        allow_code: let models of the study be Python code.
        reporter: told of progress.
        command: recorded with each session.

    Raises:
        UsageError: the study is wrong, names code and ``allow_code`` is not given, or there is no
            such engine.
        NothingMeasuredError: no point of it could be measured.
    """
    told = reporter or Reporter()
    words = tuple(command or sys.argv[1:])
    folder = Path(store)
    chosen = engines.engine(engine, folder, told, words, allow_code=allow_code)
    with contextlib.closing(chosen):
        platforms = {platform.label: platform.device for platform in chosen.platforms()}
        loaded = load(study, overrides, platforms=platforms, allow_code=allow_code)
        for reference in loaded.code:
            told.say(f"runs code of yours: {reference}")
        with engines.lock(engine, words, told.say):
            return Campaign(loaded, folder, chosen, told, words, resume=resume).run()


class Campaign:
    """One run over a study: jobs are submitted as places are free, and again what failed by chance.

    Args:
        study: what is asked for.
        folder: the store.
        engine: carries out jobs.
        reporter: told how it goes.
        command: recorded with each session.
        resume: leave out points that the store already holds.
        clock: tells the time and waits.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        engine: Engine,
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
        self._places = Places(engine, clock)
        self._crew = Crew(engine, clock)
        self._sessions: set[str] = set()
        self._standing = Standing({})

    def run(self) -> SweepResults:
        """Measure what is open and return everything the store holds of the study."""
        first = self._look(scan(self._folder))
        for note in self._study.notes:
            self._reporter.say(note)
        if text := resumed(first.held):
            self._reporter.say(text)
        self._standing = Standing(first.held)
        self._reporter.counts(self._standing.counts)
        retries = Retries(first.held, self._study.settings.attempts)
        self._measure(Queue(first.groups), retries)
        records, notes = read(self._folder)
        now = self._look(records)
        results = self._results(records, notes)
        wall_ns = self._clock.wall_ns() - self._begin_ns
        if not any(held.status == "measured" for held in now.held.values()):
            reasons = dict.fromkeys(held.reason for held in now.held.values() if held.reason)
            why = "; ".join(list(reasons)[:3]) or "the time budget was too short"
            raise NothingMeasuredError(f"nothing could be measured; {why}")
        return SweepResults(results, first, now.held, wall_ns, self._crew.spent_ns(wall_ns))

    def _look(self, records: Iterable[Record]) -> Outlook:
        return look(
            self._study,
            records,
            only=None if self._resume else self._sessions,
            asked=self._sessions,
            platforms=self._places.now(),
        )

    def _left_s(self) -> float | None:
        budget = self._study.settings.time_budget
        spent_s = (self._clock.wall_ns() - self._begin_ns) / 1e9
        return None if budget is None else budget - spent_s

    def _measure(self, queue: Queue, retries: Retries) -> None:
        """Keep every place at work until nothing waits, or time is over."""
        while queue or self._crew:
            left_s = self._left_s()
            if left_s is not None and left_s < LEAST_S:
                budget = self._study.settings.time_budget
                reason = f"the time budget of {budget:.0f} s was spent; run the same command again"
                waiting = [*queue.drain(queue.labels()), *self._crew.recall(self._crew.labels())]
                self._leave_out(waiting, reason)
            else:
                self._leave_out_gone(queue)
                self._submit(queue, left_s)
            if self._crew:
                ended = self._crew.next_done(PATIENCE_S, self._reporter.say)
                if ended is not None:
                    self._take(*ended, queue, retries)
            elif queue:
                self._clock.sleep(PATIENCE_S)

    def _submit(self, queue: Queue, left_s: float | None) -> None:
        """Give every free place the first group that waits for it.

        Each gets its share of the time left by its estimate; what one does not use goes to those
        after it.
        """
        places = self._places.now()
        while True:
            free = [place.label for place in places if self._crew.on(place) < place.slots]
            found = queue.take(free)
            if found is None:
                return
            rank, group = found
            place = self._places.named(group.platform)
            mates = [one.label for one in places if one.host == place.host]
            expected_s = (queue.waiting_s(mates) + group.estimate_s) / place.slots
            shown_s = self._crew.scale * expected_s
            number = queue.total - len(queue)
            self._reporter.session(
                number, queue.total, group.name, shown_s if left_s is None else min(left_s, shown_s)
            )
            budget_s = _budget_s(group.estimate_s, expected_s, left_s)
            job = self._job(f"{number} {group.name}", group, budget_s)
            self._crew.begin(job, group, rank, place)

    def _job(self, name: str, group: Group, budget_s: float) -> Job:
        settings = self._study.settings
        return Job(
            name=name,
            points=group.points,
            platform=group.platform,
            processes=settings.processes,
            until=settings.until,
            budget_s=budget_s,
            twin=settings.twin,
            stop_when_linear=settings.stop_when_linear,
        )

    def _take(self, out: Out, done: Done, queue: Queue, retries: Retries) -> None:
        """See what a job has left, and what of it is run again."""
        self._sessions.add(done.session)
        lost = isinstance(done.error, WorkerError)
        told = shard_of(self._folder, done.session)
        records = list(scan(told))
        self._standing.update(survey(out.group.points, records, self._study.settings.attempts))
        self._reporter.counts(self._standing.counts)
        self._reporter.records(told, ended=True)
        again = retries.after(out.group, records, lost=lost)
        for group in again.now:
            queue.add(group, out.rank)
        for group in again.later:
            queue.add(group)
        if done.error is not None:
            self._reporter.say(
                "; ".join(filter(None, (f"{out.job.name}: {done.error}", again.text)))
            )
        if again.blamed is not None and isinstance(done.error, WorkerError):
            session = store.new_session_id(self._folder)
            self._sessions.add(session)
            with open_shard(self._folder, session, self._command) as shard:
                shard.tell([again.blamed], done.error.status, str(done.error))

    def _leave_out_gone(self, queue: Queue) -> None:
        """Leave out what waits for nodes that do not come back."""
        labels = {*queue.labels(), *self._crew.labels()}
        for label in self._places.gone(sorted(labels), self._reporter.say):
            groups = [*queue.drain([label]), *self._crew.recall([label])]
            reason = (
                f"no node of platform '{label}' was there for {AWAY_S:.0f} s; "
                "run the same command again once there is one"
            )
            self._leave_out(groups, reason)

    def _leave_out(self, groups: Iterable[Group], reason: str) -> None:
        """Write down why points are not measured; of those that failed it is known."""
        points = [point for group in groups if not group.failed for point in group.points]
        if not points:
            return
        session = store.new_session_id(self._folder)
        with open_shard(self._folder, session, self._command) as shard:
            for point in points:
                shard.write(LeftOut(session=session, point=point, reason=reason))

    def _results(self, records: Sequence[Record], notes: Sequence[Note]) -> Results:
        """Return the document of the study's points alone: a store may hold other things."""
        asked = {point.key() for point in self._study.points}
        foreign: set[str] = set()
        for record in records:
            point = getattr(record, "point", None)
            if isinstance(point, Point):
                own = replace(point, workload=replace(point.workload, twin=False))
                if own.key() not in asked and point.runtime != FLOOR:
                    foreign.add(point.key())
        # Where nothing was timed (what the driver writes down itself) is no environment of a point.
        timed = {record.session for record in records if isinstance(record, Block)}
        kept = [
            record
            for record in records
            if _key(record) not in foreign
            and not (timed and isinstance(record, Session) and record.session not in timed)
        ]
        run = document(kept, self._study.settings.until)
        return Results(replace(run, notes=run.notes + tuple(notes)), self._folder)


def _key(record: Record) -> str | None:
    point = getattr(record, "point", None)
    return point.key() if isinstance(point, Point) else point


def _budget_s(estimate_s: float, expected_s: float, left_s: float | None) -> float:
    """Return the time a session may take: its share of what is left, or ample time."""
    if left_s is None:
        return max(UNHURRIED_S, UNHURRIED * estimate_s)
    return min(left_s, max(LEAST_S, left_s * estimate_s / expected_s))
