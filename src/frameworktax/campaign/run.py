"""A study carried out: what is open, job after job, and what came of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from frameworktax import store
from frameworktax.api import DEFAULT_STORE, Results, document, pick_device
from frameworktax.campaign.held import Held, resumed
from frameworktax.campaign.local import LocalEngine
from frameworktax.campaign.look import Outlook, look, read
from frameworktax.campaign.schedule import Group
from frameworktax.campaign.shard import open_shard
from frameworktax.engines.base import Done, Engine, Job
from frameworktax.errors import NothingMeasuredError, StoreError, UsageError
from frameworktax.host.lock import host_lock
from frameworktax.records import LeftOut, Note, Point, Record
from frameworktax.runtimes import FLOOR
from frameworktax.session import Silent
from frameworktax.setup import Reporter
from frameworktax.study.load import Study, load

ENGINES = ("local",)
LEAST_S = 5.0
"""A session is not begun with less than this left of the time budget."""
UNHURRIED_S = 600.0
UNHURRIED = 5.0
"""Without a time budget a session may take this long, or so many times its estimate: it ends by
itself when its intervals are told, and only what hangs or is misjudged meets this end."""
BY_CHANCE = ("crashed", "out-of-memory", "timeout")
"""Faults that may be chance, and are tried again in the same campaign."""


class StudyReporter(Reporter, Protocol):
    """Told how a study goes."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say that a session begins, and how long the study will still take."""

    def say(self, text: str) -> None:
        """Pass on a line for people."""


class SilentStudy(Silent):
    """A reporter that says nothing."""

    def session(self, number: int, total: int, name: str, left_s: float) -> None:
        """Say nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""


class SweepResults(Results):
    """The results of a study.

    Attributes:
        outlook: how the study stood before.
        held: how each of its points stands now.
        wall_ns: of the whole campaign.
        spent_ns: the same by what it was spent on (``campaign.spent``).
    """

    def __init__(
        self,
        results: Results,
        outlook: Outlook,
        held: Mapping[Point, Held],
        wall_ns: int,
        spent_ns: Mapping[str, int],
    ) -> None:
        super().__init__(results.run, results.store)
        self.outlook = outlook
        self.held = held
        self.wall_ns = wall_ns
        self.spent_ns = spent_ns


def sweep(
    study: str | Path | Mapping[str, Any],
    *overrides: str,
    store: str | Path = DEFAULT_STORE,
    engine: str = "local",
    resume: bool = True,
    allow_code: bool = False,
    reporter: StudyReporter | None = None,
    command: Sequence[str] | None = None,
) -> SweepResults:
    """Measure a study, leaving out what the store already holds.

    Args:
        study: a TOML file, or the same as nested data.
        overrides: ``key=value`` over what the study says.
        store: folder that keeps every sample.
        engine: ``local``.
        resume: leave out points that the store already holds.
        allow_code: let models of the study be Python code.
        reporter: told of progress.
        command: recorded with each session.

    Raises:
        UsageError: the study is wrong, or names code and ``allow_code`` is not given.
        NothingMeasuredError: no point of it could be measured.
    """
    if engine not in ENGINES:
        raise UsageError(f"no engine '{engine}'; choose {', '.join(ENGINES)}")
    told = reporter or SilentStudy()
    words = tuple(command or sys.argv[1:])
    folder = Path(store)
    with contextlib.closing(LocalEngine(folder, pick_device("auto"), told, words)) as local:
        platforms = {platform.label: platform.device for platform in local.platforms()}
        loaded = load(study, overrides, platforms=platforms, allow_code=allow_code)
        for reference in loaded.code:
            told.say(f"runs code of yours: {reference}")
        with host_lock(words, told.say):
            return Campaign(loaded, folder, local, told, words, resume=resume).run()


class Campaign:
    """One run over a study: jobs are submitted as time allows, and again what failed by chance."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        engine: Engine,
        reporter: StudyReporter,
        command: Sequence[str],
        *,
        resume: bool,
    ) -> None:
        self._study = study
        self._folder = folder
        self._engine = engine
        self._reporter = reporter
        self._command = tuple(command)
        self._resume = resume
        self._sessions: set[str] = set()
        self._spent: Counter[str] = Counter()
        self._estimates: dict[str, float] = {}
        self._estimated_s = 0.0
        self._took_ns = 0
        self._scale = 1.0  # how much longer than estimated sessions took so far
        self._begin = time.monotonic()
        budget = study.settings.time_budget
        self._deadline = None if budget is None else self._begin + budget

    def run(self) -> SweepResults:
        """Measure what is open and return everything the store holds of the study."""
        first = now = self._look()
        if text := resumed(first.held):
            self._reporter.say(text)
        for attempt in range(self._study.settings.attempts):
            todo = now.groups if not attempt else _once_more(now)
            if not todo:
                break
            in_time = self._pass(todo, tell=not attempt)
            now = self._look()
            if not in_time:
                break
        records, notes = read(self._folder)
        results = self._results(records, notes)
        wall_ns = round((time.monotonic() - self._begin) * 1e9)
        self._spent["planning and reading"] = wall_ns - sum(self._spent.values())
        if not any(held.status == "measured" for held in now.held.values()):
            reasons = dict.fromkeys(held.reason for held in now.held.values() if held.reason)
            why = "; ".join(list(reasons)[:3]) or "the time budget was too short"
            raise NothingMeasuredError(f"nothing could be measured; {why}")
        return SweepResults(results, first, now.held, wall_ns, dict(self._spent))

    def _look(self) -> Outlook:
        records, _ = read(self._folder)
        own = records
        if not self._resume:
            own = [record for record in records if record.session in self._sessions]
        return look(self._study, own, records)

    def _pass(self, todo: Sequence[Group], *, tell: bool) -> bool:
        """Run the groups in order, as many at a time as there are places; False once time is over.

        Each gets its share of the time left by its estimate; what one does not use goes to those
        after it.
        """
        places = {platform.label: platform for platform in self._engine.platforms()}
        free = Counter({platform.host: platform.slots for platform in places.values()})
        waiting, running = list(todo), 0
        while waiting or running:
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left < LEAST_S and waiting:
                if tell:
                    self._leave_out(waiting)
                waiting.clear()
                continue
            for group in list(waiting):
                host_name = places[group.planned[0].platform].host
                if not free[host_name]:
                    continue
                expected = sum(later.estimate_s for later in waiting)
                free[host_name] -= 1
                running += 1
                waiting.remove(group)
                number = len(todo) - len(waiting)
                shown = self._scale * expected
                self._reporter.session(
                    number, len(todo), group.name, shown if left is None else min(left, shown)
                )
                budget_s = _budget_s(group.estimate_s, expected, left)
                self._engine.submit(self._job(f"{number} {group.name}", group, budget_s))
            done = next(self._engine.completed(), None)
            if done is None:
                raise StoreError("the engine lost a job; run the same command again")
            self._take(done)
            free[places[done.job.platform].host] += 1
            running -= 1
        return self._deadline is None or self._deadline - time.monotonic() >= LEAST_S

    def _take(self, done: Done) -> None:
        self._sessions.add(done.session)
        self._spent.update(done.spent_ns)
        self._took_ns += done.wall_ns
        self._estimated_s += self._estimates.pop(done.job.name)
        self._scale = self._took_ns / 1e9 / self._estimated_s
        if done.error is not None:
            self._reporter.say(f"{done.job.name}: {done.error}")

    def _job(self, name: str, group: Group, budget_s: float) -> Job:
        settings = self._study.settings
        self._estimates[name] = group.estimate_s
        return Job(
            name=name,
            points=group.points,
            platform=group.planned[0].platform,
            processes=settings.processes,
            until=settings.until,
            budget_s=budget_s,
            twin=settings.twin,
            stop_when_linear=settings.stop_when_linear,
        )

    def _leave_out(self, todo: Sequence[Group]) -> None:
        budget = self._study.settings.time_budget
        reason = f"the time budget of {budget:.0f} s was spent; run the same command again"
        session = store.new_session_id()
        with open_shard(self._folder, session, self._command) as shard:
            for group in todo:
                for point in group.points:
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
        kept = [record for record in records if _key(record) not in foreign]
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


def _once_more(now: Outlook) -> tuple[Group, ...]:
    """Return the groups of points that a fault which may be chance took away."""
    found = []
    for group in now.groups:
        again = tuple(p for p in group.planned if now.held[p.point].fault in BY_CHANCE)
        if again:
            found.append(replace(group, planned=again))
    return tuple(found)
