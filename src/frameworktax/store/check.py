"""Is a store whole? What is damaged in it, and what that costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.records import LeftOut, Record, Session, Subject
from frameworktax.store import shards
from frameworktax.store.once import Once, named
from frameworktax.store.shards import Fault
from frameworktax.store.write import in_use

KEY = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a check found.

    Attributes:
        shards: how many files.
        records: how many of each kind, each counted once.
        damage: one line each: where, what, and what is lost by it.
        remarks: what costs nothing: copies, sessions that run.
    """

    shards: int
    records: Mapping[str, int]
    damage: tuple[str, ...]
    remarks: tuple[str, ...]


def check(folder: Path) -> Health:
    """Read every line of a store.

    Raises:
        StoreError: there is no store, or it holds no shard.
    """
    found = shards.find(folder)
    once = Once()
    faults: list[Fault] = []
    damage: list[str] = []
    remarks = [f"{shard.name}: a session is writing it" for shard in found if in_use(shard)]
    kinds: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    tie = _Ties()
    for shard in found:
        try:
            for record, line in shards.records(shard, faults):
                match once.add(record, line):
                    case "new":
                        kinds[record.kind] += 1
                        tie.add(record)
                    case "same":
                        copies[shard.name] += 1
                    case "different":
                        damage.append(
                            f"{shard.name}: {named(record)} differs from an earlier one; "
                            "the earlier one counts"
                        )
        except StoreError as error:
            damage.append(f"{error} (none of its records is read)")
    remarks += [
        f"{name}: {count} records are copies of others; they are read once"
        for name, count in copies.items()
    ]
    return Health(
        shards=len(found),
        records=dict(kinds),
        damage=(*map(_told, faults), *damage, *tie.loose()),
        remarks=tuple(remarks),
    )


def _told(fault: Fault) -> str:
    if fault.kind == "torn":
        return f"{fault.shard}: line {fault.line} is torn; one record at most is lost"
    return f"{fault.shard}: line {fault.line} is no record; what it was is lost"


class _Ties:
    """What records refer to, and whether it is there."""

    def __init__(self) -> None:
        self._sessions: set[str] = set()
        self._described: set[tuple[str, str]] = set()
        self._of_session: Counter[str] = Counter()
        self._of_point: Counter[tuple[str, str, str]] = Counter()

    def add(self, record: Record) -> None:
        if isinstance(record, Session):
            self._sessions.add(record.session)
            return
        self._of_session[record.session] += 1
        if isinstance(record, Subject):
            self._described.add((record.session, record.point.key()))
        elif not isinstance(record, LeftOut) and (point := getattr(record, "point", None)):
            self._of_point[record.kind, record.session, point] += 1

    def loose(self) -> list[str]:
        """Return in words what refers to something that is not there."""
        found = [
            f"session {session}: {count} records, but not where and how they were made; "
            "its environment is lost"
            for session, count in self._of_session.items()
            if session not in self._sessions
        ]
        for (kind, session, point), count in self._of_point.items():
            if not KEY.fullmatch(point):
                found.append(
                    f"session {session}: {count} {kind} records of '{point[:40]}', which is no "
                    "point's key (16 hex digits); they are not shown"
                )
            elif (session, point) not in self._described:
                found.append(
                    f"session {session}: {count} {kind} records of point {point}, which nothing "
                    "describes; they are not shown"
                )
        return found
