"""A store: a folder of append-only JSON-lines shards, one per writing process.

The first line of a shard is ``{"schema": "frameworktax.store", "version": 1}``; each further line
is one record (``records.RECORDS``), flushed when written, so a killed process loses at most the
line it was writing. A reader skips a torn last line and says so, and drops the second of two
records with the same identity, so that copying one store's shards into another gives a valid one.
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from frameworktax.errors import StoreError
from frameworktax.records import (
    RECORDS,
    STORE_SCHEMA,
    STORE_VERSION,
    Note,
    Record,
    record_id,
    to_json,
)

HEADER = {"schema": STORE_SCHEMA, "version": STORE_VERSION}


class Writer:
    """Appends records to a shard of its own."""

    def __init__(self, folder: Path, session: str) -> None:
        self.path = folder / f"{session}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise StoreError(
                f"{folder} is a file or holds this session; name another --store"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot write a store in {folder}: {error.strerror}; name another --store"
            ) from error
        self._line(HEADER)

    def _line(self, data: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}; what was written stays, "
                "free space and run the same command again"
            ) from error

    def write(self, record: Record) -> None:
        """Append one record and flush it."""
        self._line(to_json(record))

    def close(self) -> None:
        """Close the shard."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read(folder: Path) -> tuple[list[Record], list[Note]]:
    """Return every record of a store once, in shard and line order, and notes on what was skipped.

    Raises:
        StoreError: the folder does not exist, holds no shard, or a shard has another version.
    """
    if folder.is_file():
        shards = [folder]
    elif folder.is_dir():
        shards = sorted(folder.glob("*.jsonl"))
    else:
        raise StoreError(f"no store at {folder}; measure with --store {folder} first")
    if not shards:
        raise StoreError(f"{folder} holds no results (*.jsonl); measure with --store {folder}")
    seen: set[tuple[Any, ...]] = set()
    records: list[Record] = []
    notes: list[Note] = []
    for shard in shards:
        for record in _read_shard(shard, notes):
            identity = record_id(record)
            if identity not in seen:
                seen.add(identity)
                records.append(record)
    return records, notes


def _read_shard(shard: Path, notes: list[Note]) -> Iterator[Record]:
    try:
        lines = shard.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"cannot read {shard}: {error.strerror}") from error
    header = _parse(lines[0])
    if header is None or header.get("schema") != STORE_SCHEMA:
        raise StoreError(f"{shard} is not a frameworktax store; name the folder of --store")
    if header.get("version") != STORE_VERSION:
        raise StoreError(
            f"{shard} has store version {header.get('version')}, this program reads "
            f"{STORE_VERSION}; use the frameworktax that wrote it"
        )
    last = len(lines) - 1
    for number, line in enumerate(lines[1:], start=1):
        if not line:
            continue
        data = _parse(line)
        record = None if data is None else _record(data)
        if record is not None:
            yield record
        elif data is not None and data.get("schema") == STORE_SCHEMA:
            continue  # shards may be concatenated
        elif number == last:
            notes.append(Note("torn-line", f"{shard.name}: last line is torn and was skipped"))
        else:
            notes.append(
                Note("bad-line", f"{shard.name}: line {number + 1} is no record and was skipped")
            )


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _record(data: dict[str, Any]) -> Record | None:
    cls = RECORDS.get(str(data.get("record")))
    if cls is None:
        return None
    try:
        record = decode(cls, {k: v for k, v in data.items() if k != "record"})
    except (TypeError, ValueError):
        return None
    return typing.cast(Record, record)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def decode(hint: Any, value: Any) -> Any:
    """Return JSON data as the annotated type: dataclasses, tuples, mappings, plain values.

    Raises:
        TypeError: the data has another shape than the annotation.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(a for a in args if a is not type(None)), value)
    if origin is typing.Literal:
        if value not in args:
            raise TypeError(f"{value!r} is none of {args}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, got {type(value).__name__}")
        if len(args) == 2 and args[1] is Ellipsis:
            if args[0] is int:
                return _integers(value)
            return tuple(decode(args[0], v) for v in value)
        if len(value) != len(args):
            raise TypeError(f"expected {len(args)} values, got {len(value)}")
        return tuple(decode(a, v) for a, v in zip(args, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, got {type(value).__name__}")
        return {str(k): decode(args[1], v) for k, v in value.items()}
    if is_dataclass(hint):
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, got {type(value).__name__}")
        hints = _hints(typing.cast(type, hint))
        known = {f.name for f in fields(hint)}
        # A field this version does not know is left out: a newer minor writer stays readable.
        return typing.cast(type, hint)(
            **{k: decode(hints[k], v) for k, v in value.items() if k in known}
        )
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or isinstance(value, bool)):
        if hint is bool and isinstance(value, bool):
            return value
        raise TypeError(f"expected {hint.__name__}, got {type(value).__name__}")
    return value


def _integers(value: list[Any]) -> tuple[int, ...]:
    if not all(type(v) is int for v in value):
        raise TypeError("expected integers")
    return tuple(value)


def new_session_id() -> str:
    """Return an identity for a run that sorts by time and is unique over machines."""
    from datetime import UTC, datetime

    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"
