"""A session's shard: its first record says where and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from frameworktax import host, store
from frameworktax.attribution import available_samplers
from frameworktax.records import Environment, LeftOut, Outcome, Record, Session
from frameworktax.version import __version__


class Shard(store.Writer):
    """A writer that knows which points were told: measured, failed, or left out."""

    def __init__(self, folder: Path, session: str) -> None:
        super().__init__(folder, session)
        self.told: set[str] = set()

    def write(self, record: Record) -> None:
        """Append one record and flush it."""
        if isinstance(record, Outcome):
            self.told.add(record.point)
        elif isinstance(record, LeftOut):
            self.told.add(record.point.key())
        super().write(record)


def open_shard(folder: Path, session: str, command: Sequence[str]) -> Shard:
    """Return a writer for a new session on this host.

    Raises:
        StoreError: the store cannot be written.
    """
    shard = Shard(folder, session)
    shard.write(
        Session(
            session=session,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            command=tuple(command),
            environment=_environment(),
        )
    )
    return shard


@cache
def _environment() -> Environment:
    """Return what this host is; looked up once, its load is that of the campaign's begin."""
    sampler = next((name for name, usable, _ in available_samplers() if usable), None)
    return host.environment(sampler=sampler)
