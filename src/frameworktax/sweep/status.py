"""What a store already holds of a study: measured, tried in vain, or open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from frameworktax import runtimes
from frameworktax.measure.schedule import LAST_ROUNDS, LINEAR_REASON
from frameworktax.records import (
    FLOOR,
    Attribution,
    Block,
    LeftOut,
    Outcome,
    Point,
    Record,
    Session,
    device_of,
)
from frameworktax.runtimes.base import Runtime, Target
from frameworktax.stats import MIN_BLOCKS

Status = Literal["open", "measured", "linear", "unavailable", "given-up"]


@dataclass(frozen=True, slots=True)
class Held:
    """How a point stands.

    Attributes:
        reason: why it is not measured.
        tries: sessions in which it was tried in vain.
        fault: how the last of them ended, of ``records.STATUSES``.
        cut_off: whether a session began to time it and did not come to the end.
    """

    status: Status
    reason: str | None = None
    tries: int = 0
    fault: str | None = None
    cut_off: bool = False


@dataclass(slots=True)
class _Seen:
    """What one session says of one point."""

    blocks: set[tuple[int, int]] = field(default_factory=set)
    attributed: bool = False
    ended: bool = False
    fault: Outcome | None = None


class Survey:
    """How points stand, from the records of a store, taken one at a time.

    A point is measured once a session holds blocks enough for an interval, and where its time
    goes if that could be told there: a session that was killed half-way leaves both kinds of
    points, and only what is missing is measured again. A point that failed is tried again, in
    ``attempts`` sessions together.
    """

    def __init__(self, points: Iterable[Point], attempts: int) -> None:
        self._wanted = {point.key(): point for point in points}
        self._attempts = attempts
        self._seen: dict[str, dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))
        self._samplers: dict[str, bool] = {}
        self._linear: dict[str, str] = {}

    def add(self, record: Record) -> None:
        """Take one record into account."""
        match record:
            case Block():
                if record.point in self._wanted:
                    entry = self._seen[record.point][record.session]
                    entry.blocks.add((record.process, record.round))
            case Attribution():
                if record.point in self._wanted:
                    self._seen[record.point][record.session].attributed = True
            case Outcome():
                if record.point in self._wanted:
                    self._outcome(record)
            case LeftOut():
                if record.reason.startswith(LINEAR_REASON):
                    self._linear[record.point.key()] = record.reason
            case Session():
                self._samplers[record.session] = record.environment.sampler is not None
            case _:
                return

    def _outcome(self, record: Outcome) -> None:
        entry = self._seen[record.point][record.session]
        entry.ended |= record.status == "ok"
        entry.attributed |= any(note.code == "not-attributed" for note in record.notes)
        if record.status != "ok" and record.process == 0:
            entry.fault = record

    def standings(self, asked: Collection[str] = ()) -> dict[Point, Held]:
        """Return how each point stands.

        Args:
            asked: sessions of just now: what they found unavailable on another host is not asked
                for again. On this host one can look.
        """
        return {
            point: _standing(
                point,
                self._seen.get(key, {}),
                self._samplers,
                self._linear.get(key),
                self._attempts,
                asked,
            )
            for key, point in self._wanted.items()
        }


def survey(
    points: Iterable[Point],
    records: Iterable[Record],
    attempts: int,
    asked: Collection[str] = (),
) -> dict[Point, Held]:
    """Return how each point of a study stands by the records of a store (``Survey``)."""
    found = Survey(points, attempts)
    for record in records:
        found.add(record)
    return found.standings(asked)


def resumed(standings: Mapping[Point, Held]) -> str | None:
    """Return in words what a store held before, None if nothing."""
    held = standings.values()
    there = sum(one.status == "measured" for one in held)
    cut = sum(one.cut_off for one in held)
    again = sum(one.status == "open" and one.tries > 0 for one in held)
    given_up = sum(one.status == "given-up" for one in held)
    if not there + cut + again + given_up:
        return None
    parts = [f"{there} of {len(standings)} points are there"]
    parts += [f"{cut} were cut off half-way and are measured again"] if cut else []
    parts += [f"{again} failed before and are tried again"] if again else []
    parts += [f"{given_up} are given up"] if given_up else []
    return "going on: " + ", ".join(parts)


def _standing(
    point: Point,
    sessions: Mapping[str, _Seen],
    samplers: Mapping[str, bool],
    linear: str | None,
    attempts: int,
    asked: Collection[str],
) -> Held:
    runtime = _runtime(point.runtime)
    device = device_of(point.platform)
    for session, entry in sessions.items():
        rounds = {round_ for _, round_ in entry.blocks}
        told = len(entry.blocks) >= MIN_BLOCKS or (entry.ended and len(rounds) >= LAST_ROUNDS)
        expected = runtime.name != FLOOR and (
            device != "cpu" or (runtime.has_symbols and samplers.get(session, False))
        )
        if told and (entry.attributed or not expected):
            return Held("measured")
    faults = [entry.fault for entry in sessions.values() if entry.fault is not None]
    if faults and faults[-1].status == "unavailable":
        return _unavailable(point, faults[-1], asked)
    tries = [fault for fault in faults if fault.status != "unavailable"]
    if len(tries) >= attempts:
        reason = f"{tries[-1].status} in {len(tries)} sessions, last: {tries[-1].reason}"
        return Held("given-up", reason, len(tries), tries[-1].status)
    if linear is not None:
        return Held("linear", linear)
    return Held(
        "open",
        tries[-1].reason if tries else None,
        len(tries),
        tries[-1].status if tries else None,
        cut_off=any(entry.blocks for entry in sessions.values()),
    )


@cache
def _runtime(name: str) -> Runtime:
    """Return a runtime; to find one means to read what every installed package offers."""
    return runtimes.get(name)


def _unavailable(point: Point, fault: Outcome, asked: Collection[str]) -> Held:
    if point.platform != device_of(point.platform):  # nodes of a cluster
        return Held("unavailable" if fault.session in asked else "open", fault.reason)
    target = Target(point.platform, point.workload.precision, point.threads)
    reason = _runtime(point.runtime).missing(target)
    return Held("unavailable", reason) if reason else Held("open")
