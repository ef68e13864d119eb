"""Reading a store: every record once, all of it or the points that are asked for.

``condition`` selects points: ``model=bert-base``, ``batch=1..8``, ``runtime=onnx*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, nearest
from frameworktax.records import (
    Block,
    LeftOut,
    Note,
    Point,
    Record,
    Session,
    Subject,
    Workload,
    record_id,
)
from frameworktax.store import shards
from frameworktax.store.shards import Fault
from frameworktax.store.write import stamp_of

NAMED = re.compile(
    rb'\{"record": ?"[a-z-]+", ?"session": ?"([^"\\]*)", ?"point": ?"([^"\\]*)"'
).match
"""Session and point of a line as every writer begins it."""
BEGINS = tuple(b'{"record":%b"block"' % space for space in (b"", b" "))
"""How a block's line begins, as ``shards.KIND`` has it."""
CLOCK_STEP_S = 2
"""How far a session's clock may be behind its place in the store's order without a note."""
DESCRIBING = (Subject.kind, LeftOut.kind)
"""Kinds of records that say what a point is."""
FIELDS = (
    *(f.name for f in fields(Workload) if f.name != "twin"),
    *(f.name for f in fields(Point) if f.name != "workload"),
)
"""What can be asked for. The twin follows its point, whose bill needs it."""
CONDITIONS = tuple(f"{name}=" for name in FIELDS)
NUMBER = r"[-+]?\d+(?:\.\d+)?"
SPAN = re.compile(rf"({NUMBER})(?:\.\.({NUMBER}))?")
"""A number, or a range of numbers."""
Where = Callable[[Point], bool]
"""Whether a point is asked for."""


def condition(texts: Iterable[str]) -> Where:
    """Return the test of points by ``NAME=VALUE,VALUE`` texts, all of which must hold.

    Raises:
        UsageError: a text has another form, or names no field of a point.
    """
    tests = []
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip()
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not sign or not words:
            raise UsageError(f"--where '{text}' is no condition; write NAME=VALUE,VALUE")
        if name not in FIELDS:
            raise UsageError(
                f"--where {name}: no such field{nearest(name, FIELDS) or ';'} "
                f"choose from {', '.join(FIELDS)}"
            )
        if second := next((word for word in words if word.startswith(CONDITIONS)), None):
            raise UsageError(f"--where '{text}' has two conditions; write --where {second} apart")
        tests.append((name, [_test(word) for word in words]))

    def matches(point: Point) -> bool:
        for name, alternatives in tests:
            holder = point.workload if hasattr(point.workload, name) else point
            if not any(test(getattr(holder, name)) for test in alternatives):
                return False
        return True

    return matches


def _test(word: str) -> Callable[[Any], bool]:
    span = SPAN.fullmatch(word)
    low, high = (float(span[1]), float(span[2] or span[1])) if span else (0.0, 0.0)
    if span and low > high:
        raise UsageError(f"--where {word}: no number lies there; write {span[2]}..{span[1]}")

    def test(value: Any) -> bool:
        if isinstance(value, bool):
            return fnmatchcase(str(value).lower(), word.lower())
        if span and isinstance(value, int | float):
            return low <= value <= high
        return fnmatchcase("none" if value is None else str(value), word)

    return test


def read(folder: Path, where: Where | None = None) -> tuple[list[Record], list[Note]]:
    """Return the records of a store once each, in shard and line order, and notes.

    Args:
        folder: the store, or one shard.
        where: which points; what belongs to others is not parsed, which is how a part of a large
            store is read in little time and memory.

    Raises:
        StoreError: there is no store, it holds no shard, or a shard has another version.
    """
    found = shards.find(folder)
    faults: list[Fault] = []
    wanted, keep = (None, None) if where is None else _selection(found, where)
    first: dict[tuple[Any, ...], Record] = {}
    for shard in found:
        for record, _ in shards.records(shard, faults, wanted):
            if keep is None or keep(record):
                first.setdefault(record_id(record), record)
    records = list(first.values())
    return records, [*shards.notes(faults), *clock_notes(records)]


def read_columns(
    folder: Path, where: Where | None = None, wanted: shards.Wanted | None = None
) -> tuple[list[Any], list[Note]]:
    """Return what ``read`` does, all blocks together as one ``Blocks`` at the end.

    Args:
        folder: the store, or one shard.
        where: as in ``read``.
        wanted: which lines are parsed, where all points are asked for.

    Raises:
        StoreError: as ``read`` does.
    """
    from frameworktax.store.columns import Batch, Blocks  # numpy takes 0.1 s to import

    found = shards.find(folder)
    wanted, keep = (wanted, None) if where is None else _selection(found, where)
    faults: list[Fault] = []
    first: dict[tuple[Any, ...], Record] = {}

    def batches() -> Iterator[Batch]:
        """Yield the blocks, many at a time; the other records are kept as they come."""
        for shard in found:
            begin = 1
            for lines in shards.chunks(shard):
                timed: list[tuple[int, bytes]] = []
                others: list[tuple[int, bytes]] = []
                for one in enumerate(lines, begin):
                    if wanted is None or shards.may_be(one[1], wanted):
                        (timed if one[1].startswith(BEGINS) else others).append(one)
                begin += len(lines)
                batch = Batch.read([line for _, line in timed]) if keep is None else None
                blocks: list[Any] = []
                if batch is not None:
                    yield batch
                else:
                    for number, line in timed:
                        block = shards.compact_block(line)
                        if block is None:
                            others.append((number, line))
                        elif keep is None or keep(block):
                            blocks.append(block)
                    others.sort()
                for record, _ in shards.decoded(shard, others, faults, wanted):
                    if keep is not None and not keep(record):
                        continue
                    if isinstance(record, Block):
                        blocks.append(record)
                    else:
                        first.setdefault(record_id(record), record)
                if blocks:
                    yield Batch.of(blocks)

    columns = Blocks(batches())
    records = list(first.values())
    return [*records, columns], [*shards.notes(faults), *clock_notes(records)]


def _selection(found: Sequence[Path], where: Where) -> tuple[shards.Wanted, Callable[[Any], bool]]:
    """Read which points there are; return which lines and which records belong to those meant."""
    keys: set[bytes] = set()
    meant: set[str] = set()
    for shard in found:
        for record, _ in shards.records(shard, [], lambda _, kind: kind in DESCRIBING):
            if isinstance(record, Subject | LeftOut) and where(record.point):
                keys.add(record.point.key().encode())
                meant.add(record.session)

    def wanted(line: bytes, kind: str) -> bool:
        named = NAMED(line)
        return named is None or named[2] in keys

    known = {None, *(key.decode() for key in keys)}
    return wanted, lambda record: record.session in meant and point_key(record) in known


def point_key(record: Record) -> str | None:
    """Return the key of a record's point; a session and a calibration have none."""
    point = getattr(record, "point", None)
    return point.key() if isinstance(point, Point) else point


def clock_notes(records: Sequence[Record]) -> list[Note]:
    """Return a note for each session that began while its clock stood behind its store's."""
    found = []
    for record in records:
        if not isinstance(record, Session):
            continue
        placed = stamp_of(record.session)
        try:
            began = datetime.fromisoformat(record.started)
        except ValueError:
            continue
        if placed is None or began.tzinfo is None:
            continue
        behind_s = (placed - began).total_seconds()
        if behind_s > CLOCK_STEP_S:
            text = (
                f"session {record.session} began with its clock {behind_s:.0f} s behind an "
                "earlier session; it counts as the newer one"
            )
            found.append(Note("clock-jump", text))
    return found
