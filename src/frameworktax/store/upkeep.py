"""Upkeep of stores: is one whole, and taking old measurements out."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from frameworktax.errors import StoreError
from frameworktax.host.cache import atomic_path
from frameworktax.records import (
    RECORDS,
    Block,
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
REFERRING = tuple(
    kind for kind, cls in RECORDS.items() if cls.__annotations__.get("point") == "str"
)
"""Kinds of records that name a point by its key, which a subject of their session describes."""
Pair = tuple[str, str]
"""A session and a point's key."""


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
    faults: list[Fault] = []
    damage: list[str] = []
    seen: dict[tuple[Any, ...], int] = {}
    """Identity of a record → fingerprint of its line."""
    copies: Counter[str] = Counter()
    for shard in found:
        try:
            for record, line in shards.records(shard, faults):
                identity, fingerprint = record_id(record), hash(line.strip())
                if identity not in seen:
                    seen[identity] = fingerprint
                elif seen[identity] == fingerprint:
                    copies[shard.name] += 1
                else:
                    kind, session, *rest = identity
                    of = f" ({', '.join(map(str, rest))})" if rest else ""
                    damage.append(
                        f"{shard.name}: {kind} of session {session}{of} differs from an earlier "
                        "one; the earlier one counts"
                    )
        except StoreError as error:
            damage.append(f"{error} (none of its records is read)")
    lost = [
        f"{fault.shard}: line {fault.line} is no record; what it was is lost"
        for fault in faults
        if fault.kind == "bad"
    ]
    return Health(
        shards=len(found),
        records=dict(Counter(kind for kind, *_ in seen)),
        damage=(*lost, *damage, *_dangling(seen)),
        remarks=(
            *(f"{shard.name}: a session is writing it" for shard in found if in_use(shard)),
            *(
                f"{name}: {count} records are copies of others; they are read once"
                for name, count in copies.items()
            ),
            *(
                f"{fault.shard}: line {fault.line} is torn: its writer was killed, or the copy was "
                "cut; one record at most is lost of it"
                for fault in faults
                if fault.kind == "torn"
            ),
        ),
    )


def _dangling(seen: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a line for each reference to a record that is missing, by identities of records."""
    sessions = {identity[1] for identity in seen if identity[0] == Session.kind}
    of_session = Counter(identity[1] for identity in seen)
    for session, count in of_session.items():
        if session not in sessions:
            yield (
                f"session {session}: {count} records, but not where and how they were made; "
                "its environment is lost"
            )
    described = {identity[1:3] for identity in seen if identity[0] == Subject.kind}
    referring = Counter(identity[:3] for identity in seen if identity[0] in REFERRING)
    for (kind, session, point), count in referring.items():
        said = f"session {session}: {count} {kind} records of"
        if not KEY.fullmatch(point):
            why = "which is no point's key (16 hex digits)"
            yield f"{said} '{point[:40]}', {why}; they are not shown"
        elif (session, point) not in described:
            yield f"{said} point {point}, which nothing describes; they are not shown"


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

    ``now`` has its time zone; ``dry_run`` only says what would go.

    Raises:
        StoreError: there is no store, a shard cannot be read, or there is no writing.
    """
    found = shards.find(folder)
    started: dict[str, str] = {}
    timed: set[Pair] = set()
    failed: set[Pair] = set()
    running: set[str] = set()
    for shard in found:
        busy = in_use(shard)
        for record, _ in shards.records(shard, []):
            started.setdefault(record.session, "")
            if busy:
                running.add(record.session)
            if isinstance(record, Session):
                started[record.session] = record.started
            elif isinstance(record, Block):
                timed.add((record.session, record.point))
            elif isinstance(record, Outcome) and record.status != "ok" and not record.process:
                failed.add((record.session, record.point))
    gone, kept = _old(started, rules, now)
    lost = {pair for pair in failed - timed if rules.failed and pair[0] not in gone}
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


def _old(started: Mapping[str, str], rules: Rules, now: datetime) -> tuple[set[str], list[str]]:
    """Return the sessions that are too old, and lines on those whose age is unknown."""
    order = sorted(started, key=lambda s: session_order(s, started[s]))
    gone: set[str] = set()
    kept = []
    if rules.keep_last is not None:
        gone.update(order[: -rules.keep_last or None])
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
