"""Upkeep of stores: is one whole, and taking old measurements out."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from frameworktax.errors import StoreError
from frameworktax.host.files import atomic_path
from frameworktax.records import (
    Block,
    LeftOut,
    Outcome,
    Record,
    Session,
    Subject,
    record_id,
    session_order,
)
from frameworktax.store import shards
from frameworktax.store.read import point_key
from frameworktax.store.shards import Fault
from frameworktax.store.write import in_use, stamp_of

KEY = re.compile(r"[0-9a-f]{16}")


class Deduplicator:
    """Remembers the identity of every record and a fingerprint of its line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, ...], int] = {}

    def add(self, record: Record, line: bytes) -> Literal["new", "same", "different"]:
        """Return what a record is to those added before; the first one is remembered.

        ``different``: one identity, and lines that are not equal byte by byte.
        """
        identity, fingerprint = record_id(record), hash(line.strip())
        before = self._lines.get(identity)
        if before is None:
            self._lines[identity] = fingerprint
            return "new"
        return "same" if before == fingerprint else "different"


def described(record: Record) -> str:
    """Return a record's identity in words."""
    kind, session, *rest = record_id(record)
    return f"{kind} of session {session}" + (f" ({', '.join(map(str, rest))})" if rest else "")


# --- check ----------------------------------------------------------------------------------------


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
    seen = Deduplicator()
    faults: list[Fault] = []
    damage: list[str] = []
    remarks = [f"{shard.name}: a session is writing it" for shard in found if in_use(shard)]
    kinds: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    references = _References()
    for shard in found:
        try:
            for record, line in shards.records(shard, faults):
                match seen.add(record, line):
                    case "new":
                        kinds[record.kind] += 1
                        references.add(record)
                    case "same":
                        copies[shard.name] += 1
                    case "different":
                        damage.append(
                            f"{shard.name}: {described(record)} differs from an earlier one; "
                            "the earlier one counts"
                        )
        except StoreError as error:
            damage.append(f"{error} (none of its records is read)")
    remarks += [
        f"{name}: {count} records are copies of others; they are read once"
        for name, count in copies.items()
    ]
    remarks += [
        f"{fault.shard}: line {fault.line} is torn: its writer was killed, or the copy was cut; "
        "one record at most is lost of it"
        for fault in faults
        if fault.kind == "torn"
    ]
    lost = [
        f"{fault.shard}: line {fault.line} is no record; what it was is lost"
        for fault in faults
        if fault.kind == "bad"
    ]
    return Health(
        shards=len(found),
        records=dict(kinds),
        damage=(*lost, *damage, *references.dangling()),
        remarks=tuple(remarks),
    )


class _References:
    """What records refer to, and which of it is missing."""

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

    def dangling(self) -> list[str]:
        """Return a line for each reference to a record that is missing."""
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


# --- prune ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What goes; a record goes where one rule says so.

    Attributes:
        keep_last: sessions that stay, the newest.
        older_than: sessions that began before this long ago go.
        failed: points that a session tried and could not time go, so that they are tried again.
    """

    keep_last: int | None = None
    older_than: timedelta | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a prune did, or would do.

    Attributes:
        sessions: that went whole.
        points: failed ones that went, over all sessions.
        records: that went.
        bytes: that the store is smaller by.
        kept: one line for each thing that was to go and stayed, and why.
    """

    sessions: tuple[str, ...]
    points: int
    records: int
    bytes: int
    kept: tuple[str, ...]


def prune(folder: Path, rules: Rules, now: datetime, *, dry_run: bool = False) -> Pruned:
    """Remove what the rules name; a shard is replaced whole or not at all.

    Args:
        folder: the store.
        rules: what goes.
        now: the present, with its time zone.
        dry_run: only say what would go.

    Raises:
        StoreError: there is no store, a shard cannot be read, or there is no writing.
    """
    found = shards.find(folder)
    sessions, failed, running = _survey(found)
    gone, kept = _old(sessions, rules, now)
    lost = {pair for pair in failed if rules.failed and pair[0] not in gone}
    for session in sorted(running & (gone | {session for session, _ in lost})):
        kept.append(f"session {session} is running; prune it once it has ended")
    gone -= running
    lost = {pair for pair in lost if pair[0] not in running}

    def goes(record: Record) -> bool:
        return record.session in gone or (record.session, point_key(record)) in lost

    records = size = 0
    for shard in found:
        count = sum(goes(record) for record, _ in shards.records(shard, []))
        if count:
            records += count
            size += _rewrite(shard, goes, dry_run=dry_run)
    return Pruned(
        sessions=tuple(sorted(gone)),
        points=len(lost),
        records=records,
        bytes=size,
        kept=tuple(kept),
    )


Pair = tuple[str, str]
"""A session and a point's key."""


def _survey(found: Sequence[Path]) -> tuple[dict[str, str], set[Pair], set[str]]:
    """Return session → when it says it started, what failed, and the sessions that run."""
    sessions: dict[str, str] = {}
    timed: set[Pair] = set()
    failed: set[Pair] = set()
    running: set[str] = set()
    for shard in found:
        busy = in_use(shard)
        for record, _ in shards.records(shard, []):
            sessions.setdefault(record.session, "")
            if busy:
                running.add(record.session)
            if isinstance(record, Session):
                sessions[record.session] = record.started
            elif isinstance(record, Block):
                timed.add((record.session, record.point))
            elif isinstance(record, Outcome) and record.status != "ok" and not record.process:
                failed.add((record.session, record.point))
    return sessions, failed - timed, running


def _old(sessions: dict[str, str], rules: Rules, now: datetime) -> tuple[set[str], list[str]]:
    order = sorted(sessions, key=lambda s: session_order(s, sessions[s]))
    gone: set[str] = set()
    kept = []
    if rules.keep_last is not None:
        gone.update(order[: max(0, len(order) - rules.keep_last)])
    if rules.older_than is not None:
        for session in order:
            began = stamp_of(session)
            if began is None:
                kept.append(f"session {session}: its name has no time; it stays")
            elif began < now - rules.older_than:
                gone.add(session)
    return gone, kept


def _rewrite(shard: Path, goes: Callable[[Record], bool], *, dry_run: bool) -> int:
    """Leave only what stays in a shard; return by how many bytes it is smaller."""
    before = shard.stat().st_size
    lines = [line.rstrip(b"\n") for record, line in shards.records(shard, []) if not goes(record)]
    after = len(shards.FIRST) + 1 + sum(len(line) + 1 for line in lines) if lines else 0
    if dry_run:
        return before - after
    try:
        if not lines:
            shard.unlink()
            return before
        with atomic_path(shard) as partial, partial.open("xb") as file:
            file.writelines(line + b"\n" for line in (shards.FIRST, *lines))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(
            f"cannot write {shard}: {error.strerror}; nothing of it is lost"
        ) from error
    return before - after
