"""Taking old and failed measurements out of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.host.files import atomic_path
from frameworktax.records import Block, Outcome, Record, Session, session_order
from frameworktax.store import shards
from frameworktax.store.read import point_key
from frameworktax.store.write import in_use, stamp_of


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
                kept.append(f"session {session}: its name tells no time; it stays")
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
