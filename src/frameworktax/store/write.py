"""Writing a shard: one process, one file, every record whole on disk before ``write`` returns."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import randbits
from typing import Self

from frameworktax.errors import StoreError
from frameworktax.records import STORE_SCHEMA, STORE_VERSION, Record

HEADER = {"schema": STORE_SCHEMA, "version": STORE_VERSION}
FIRST = json.dumps(HEADER, separators=(",", ":")).encode()
SUFFIX = ".jsonl"
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
"""What a name from elsewhere must be before it becomes a file's: no separator, no leading dot."""
STAMP = "%Y%m%dT%H%M%S"
NUMBER = re.compile(r"[0-9a-f]{8}")


class Writer:
    """Appends records to a shard of its own.

    The file is not buffered and each record is one ``write``, so a killed process leaves at most
    one torn line.
    """

    def __init__(self, folder: Path, session: str) -> None:
        """Create the shard.

        Raises:
            StoreError: there is no writing here, the session exists, or its name is no file name.
        """
        if not PLAIN.fullmatch(session):
            raise StoreError(f"'{session[:80]}' cannot name a shard; use letters, digits, - _ .")
        self.session = session
        self.path = folder / f"{session}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
        except FileExistsError as error:
            raise StoreError(
                f"{folder} is a file or holds this session; name another --store"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot write a store in {folder}: {error.strerror}; name another --store"
            ) from error
        self._torn = False
        try:
            self.write(FIRST)
        except StoreError:
            self.close()
            with suppress(OSError):
                self.path.unlink()  # nothing was written: it is no shard
            raise

    def write(self, record: Record | bytes) -> None:
        """Append one record, or a line as another writer wrote it.

        Raises:
            StoreError: it could not be written; the shard holds every earlier record.
        """
        if not isinstance(record, bytes):
            data = {"record": record.kind, **asdict(record)}
            text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
            record = text.encode(errors="replace")  # a path in a command may be no UTF-8
        line = memoryview(b"\n" * self._torn + record + b"\n")
        start = self._file.tell()
        try:
            while line:  # a disk that fills up takes a part of the line, then refuses the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            self._torn = True  # the next record begins a line of its own, even after no cut
            with suppress(OSError):
                self._file.truncate(start)
                self._file.seek(start)
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}; what was written stays, "
                "free space and run the same command again"
            ) from error
        self._torn = False

    def close(self) -> None:
        """Close the shard."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def new_session_id(folder: Path | None = None, now: datetime | None = None) -> str:
    """Return an identity for a run that sorts by time and is unique over machines.

    Args:
        folder: of the store, whose sessions all come before: those of the same second, and those
            of later ones too, where the clock was set back since.
        now: the present, UTC; the clock's if left out.

    Raises:
        StoreError: the store has a session of the last second that there is.
    """
    stamp, number = now or datetime.now(UTC), randbits(31)
    newest = _newest(folder) if folder is not None else None
    if newest is not None:
        last, before = newest
        if last >= stamp.replace(microsecond=0):
            stamp, number = last, before + 1 + randbits(26)
        if number >= 1 << 32:
            try:
                stamp, number = stamp + timedelta(seconds=1), randbits(31)
            except OverflowError as error:
                raise StoreError(
                    f"{folder} holds a session of {stamp:{STAMP}}; remove its file"
                ) from error
    return f"{stamp:{STAMP}}-{number:08x}"


def _newest(folder: Path) -> tuple[datetime, int] | None:
    """Return time and number of the session that comes last in a store."""
    found = [
        (stamp, int(number, 16) if NUMBER.fullmatch(number) else 1 << 32)
        for path in folder.glob(f"*{SUFFIX}")
        for number in [path.stem.partition("-")[2]]
        if (stamp := stamp_of(path.stem))
    ]
    return max(found, default=None)


def stamp_of(session: str) -> datetime | None:
    """Return the time in a session's identity, None where it has none."""
    try:
        return datetime.strptime(session.partition("-")[0], STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
