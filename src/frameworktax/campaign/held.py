"""What a store already holds of a study: measured, tried in vain, or open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from frameworktax import runtimes
from frameworktax.linear import REASON as LINEAR
from frameworktax.records import Attribution, Block, LeftOut, Outcome, Point, Record, Session
from frameworktax.rounds import LAST_ROUNDS, MIN_BLOCKS
from frameworktax.runtimes.base import Target

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

    blocks: int = 0
    rounds: set[int] = field(default_factory=set)
    attributed: bool = False
    ended: bool = False
    fault: Outcome | None = None


def survey(points: Iterable[Point], records: Iterable[Record], attempts: int) -> dict[Point, Held]:
    """Return how each point of a study stands.

    A point is measured once a session holds blocks enough for an interval, and where its time
    goes if that could be told there: a session that was killed half-way leaves both kinds of
    points, and only what is missing is measured again. A point that failed is tried again, in
    ``attempts`` sessions together.

    Args:
        points: of the study.
        records: of the store.
        attempts: sessions in which a point is tried.
    """
    wanted = {point.key(): point for point in points}
    seen: dict[str, dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))
    samplers: dict[str, bool] = {}
    linear: dict[str, str] = {}
    for record in records:
        match record:
            case Session():
                samplers[record.session] = record.environment.sampler is not None
            case Block() if record.point in wanted:
                entry = seen[record.point][record.session]
                entry.blocks += 1
                entry.rounds.add(record.round)
            case Attribution() if record.point in wanted:
                seen[record.point][record.session].attributed = True
            case Outcome() if record.point in wanted:
                entry = seen[record.point][record.session]
                entry.ended |= record.status == "ok"
                entry.attributed |= any(n.code == "not-attributed" for n in record.notes)
                if record.status != "ok" and record.process == 0:
                    entry.fault = record
            case LeftOut() if record.reason.startswith(LINEAR):
                linear[record.point.key()] = record.reason
            case _:
                continue
    return {
        point: _standing(point, seen.get(key, {}), samplers, linear.get(key), attempts)
        for key, point in wanted.items()
    }


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
) -> Held:
    runtime = runtimes.get(point.runtime)
    on_device = point.platform != "cpu"
    for session, entry in sessions.items():
        told = entry.blocks >= MIN_BLOCKS or (entry.ended and len(entry.rounds) >= LAST_ROUNDS)
        expected = runtime.name != runtimes.FLOOR and (
            on_device or (runtime.has_symbols and samplers.get(session, False))
        )
        if told and (entry.attributed or not expected):
            return Held("measured")
    faults = [entry.fault for entry in sessions.values() if entry.fault is not None]
    if faults and faults[-1].status == "unavailable":
        reason = runtime.missing(Target(point.platform, point.workload.precision, point.threads))
        return Held("unavailable", reason) if reason else Held("open")
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
