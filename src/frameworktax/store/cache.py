"""The cache of a store: exports and compiled code in folders named by content, least used first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.store.write import SUFFIX, in_use

CACHE = "cache"
"""Folder inside a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared model, or what a killed session left: its size, and when it was last used."""

    path: Path
    bytes: int
    used: float


def entries(folder: Path) -> list[Entry]:
    """Return what the cache of a store holds, least recently used first.

    Raises:
        StoreError: the cache is a link: what lies elsewhere is not this store's.
    """
    cache = folder / CACHE
    if cache.is_symlink():
        raise StoreError(f"{cache} is a link; prune the folder that it leads to")
    if not cache.is_dir():
        return []
    return sorted((_entry(path) for path in cache.iterdir()), key=lambda e: (e.used, e.path.name))


def _entry(path: Path) -> Entry:
    """Measure a folder without following links; its files' newest time is that of its use."""
    inside = [path]
    if path.is_dir() and not path.is_symlink():
        inside += path.rglob("*")
    stats = [one.lstat() for one in inside]
    return Entry(
        path=path,
        bytes=sum(s.st_size for s, one in zip(stats, inside, strict=True) if not one.is_dir()),
        used=max(s.st_mtime for s in stats),
    )


def prune_cache(folder: Path, limit_bytes: int, *, dry_run: bool = False) -> list[Entry]:
    """Remove entries, least recently used first, until the rest is within the limit.

    Returns:
        What was removed, or would be.

    Raises:
        StoreError: a session is running, whose files these may be, or there is no removing them.
    """
    running = [shard.name for shard in folder.glob(f"*{SUFFIX}") if in_use(shard)]
    if running:
        raise StoreError(f"session {running[0]} is running; prune the cache once it has ended")
    held = entries(folder)
    gone = oldest(held, limit_bytes)
    for entry in gone if not dry_run else ():
        try:
            if entry.path.is_dir() and not entry.path.is_symlink():
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink()
        except OSError as error:
            raise StoreError(f"cannot remove {entry.path}: {error.strerror}") from error
    return gone


def oldest(held: Sequence[Entry], limit_bytes: int) -> list[Entry]:
    """Return the entries to remove, in their order, so that the rest is within the limit."""
    total = sum(entry.bytes for entry in held)
    gone = []
    for entry in held:
        if total <= limit_bytes:
            break
        gone.append(entry)
        total -= entry.bytes
    return gone
