"""Several stores as one: every record once, shard by shard, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.host.files import atomic_path
from frameworktax.records import Note
from frameworktax.store import shards
from frameworktax.store.once import Once, named
from frameworktax.store.shards import Fault
from frameworktax.store.write import SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge did.

    Attributes:
        shards: written.
        records: written, each once.
        duplicates: left out, equal to a record that was written.
        conflicts: left out although they differ from the record of the same identity; in words.
        notes: what was no record.
    """

    shards: int
    records: int
    duplicates: int
    conflicts: tuple[str, ...]
    notes: tuple[Note, ...]


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Write a store with every record of the sources, the first of those with one identity.

    Lines are copied as they are, so that fields of a later writer stay.

    Raises:
        StoreError: a source is no store or has another version, the target is not empty, or there
            is no writing it; nothing is left of the target then.
    """
    found = [shard for source in sources for shard in shards.find(source)]
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is there already; name a new folder with -o")
    try:
        with atomic_path(target) as partial:
            partial.mkdir(parents=True)
            merged = _copy(found, partial)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror}; name another -o") from error
    return merged


def _copy(found: Sequence[Path], folder: Path) -> Merged:
    once = Once()
    faults: list[Fault] = []
    conflicts: list[str] = []
    written = records = duplicates = 0
    for shard in found:
        path = _free(folder, shard)
        here = records
        with path.open("wb") as file:
            file.write(shards.FIRST + b"\n")
            for record, line in shards.records(shard, faults):
                match once.add(record, line):
                    case "new":
                        file.write(line.rstrip(b"\n") + b"\n")
                        records += 1
                    case "same":
                        duplicates += 1
                    case "different":
                        conflicts.append(f"{shard}: {named(record)} differs from the one kept")
        if records > here:
            written += 1
        else:
            path.unlink()
    return Merged(
        shards=written,
        records=records,
        duplicates=duplicates,
        conflicts=tuple(conflicts),
        notes=tuple(shards.notes(faults)),
    )


def _free(folder: Path, shard: Path) -> Path:
    """Return a name that no shard of another source took."""
    path, number = folder / f"{shard.stem}{SUFFIX}", 1
    while path.exists():
        number += 1
        path = folder / f"{shard.stem}-{number}{SUFFIX}"
    return path
