"""A session's shard: its first record says where and how it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from frameworktax import host, runtimes, store
from frameworktax.attribution import available_samplers
from frameworktax.errors import Fault
from frameworktax.records import Environment, LeftOut, Outcome, Point, Record, Session, Subject
from frameworktax.store.write import PLAIN, SUFFIX
from frameworktax.version import __version__


class Shard(store.Writer):
    """A writer that knows which points were told: measured, failed, or left out."""

    def __init__(self, folder: Path, session: str) -> None:
        super().__init__(folder, session)
        self.session = session
        self.told: set[str] = set()

    def write(self, record: Record) -> None:
        """Append one record and flush it."""
        if isinstance(record, Outcome):
            self.told.add(record.point)
        elif isinstance(record, LeftOut):
            self.told.add(record.point.key())
        super().write(record)

    def tell(self, points: Iterable[Point], status: Fault, reason: str) -> None:
        """Write how points ended that nothing was said of yet."""
        for point in points:
            if point.key() in self.told:
                continue
            paradigm = runtimes.get(point.runtime).paradigm
            self.write(Subject(session=self.session, point=point, paradigm=paradigm))
            self.write(
                Outcome(
                    session=self.session,
                    point=point.key(),
                    process=0,
                    status=status,
                    reason=reason,
                )
            )


def shard_of(folder: Path, session: str) -> Path:
    """Return where the records of a session lie, if it has any; what is no name leads nowhere."""
    return folder / f"{session if PLAIN.fullmatch(session) else 'none'}{SUFFIX}"


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
    return host.environment(sampler=sampler, packages=runtimes.distributions())
