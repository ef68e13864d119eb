"""The shard of a new session: it begins with where and by what is measured, and misses no point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from frameworktax import host, runtimes, store
from frameworktax.attribution import best_sampler
from frameworktax.records import Environment, LeftOut, Outcome, Point, Session
from frameworktax.version import __version__


def open_shard(
    folder: Path,
    session: str,
    command: Sequence[str],
    *,
    environment: Environment | None = None,
    writer: type[store.Writer] = store.Writer,
) -> store.Writer:
    """Return a writer for a new session on this host; its first record is the session.

    ``environment`` is looked up where it is not given; ``writer`` opens the shard.

    Raises:
        StoreError: the store cannot be written.
    """
    shard = writer(folder, session)
    shard.write(
        Session(
            session=session,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            command=tuple(command),
            environment=environment or this_environment(),
        )
    )
    return shard


def without_end(shard: Path, points: Iterable[Point]) -> list[Point]:
    """Return the points of which a shard does not say how they ended."""
    records, _ = store.read(shard)
    ended = {r.point for r in records if isinstance(r, Outcome)}
    ended |= {r.point.key() for r in records if isinstance(r, LeftOut)}
    return [point for point in points if point.key() not in ended]


def this_environment() -> Environment:
    """Return what this host is, and its load now."""
    return host.environment(sampler=best_sampler(), packages=runtimes.distributions())
