"""A store as columns: one median a block in place of its samples, in little time and memory.

A large store is read by two processes or more, each a run of shards; what crosses over are arrays
of numbers and the lines of other records, never pickles.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from frameworktax.records import Note, Record, Subject, record_id
from frameworktax.stats import block_median
from frameworktax.store import shards
from frameworktax.store.decode import DECODERS, BlockRow
from frameworktax.store.read import clock_notes
from frameworktax.store.shards import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The blocks of a store, each once, sorted by group, process and round.

    Attributes:
        groups: (session, point's key) pairs; ``group`` is an index into them.
        group: shape (blocks,), like the three below.
        process: of the point.
        median_ns: of the latencies.
        calls: how many latencies there are.
        subjects: by session and point's key.
        records: sessions, calibrations and outcomes that are not ``ok``, each once.
        notes: what was skipped.
    """

    groups: tuple[tuple[str, str], ...]
    group: np.ndarray
    process: np.ndarray
    median_ns: np.ndarray
    calls: np.ndarray
    subjects: Mapping[tuple[str, str], Subject]
    records: tuple[Record, ...]
    notes: tuple[Note, ...]


@dataclass(slots=True)
class Rows:
    """Blocks as they are read, repeated ones too, and what stands between them.

    ``pairs`` holds (session, point's key), ``group`` is an index into it. ``described`` holds the
    same for the lines of ``subjects``: making keys is work that each process does for its part.
    """

    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    group: array[int] = field(default_factory=lambda: array("q"))
    process: array[int] = field(default_factory=lambda: array("q"))
    round: array[int] = field(default_factory=lambda: array("q"))
    calls: array[int] = field(default_factory=lambda: array("q"))
    median_ns: array[float] = field(default_factory=lambda: array("d"))
    described: list[tuple[str, str]] = field(default_factory=list)
    subjects: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    NUMBERS = ("group", "process", "round", "calls", "median_ns")


def read_rows(found: Iterable[Path]) -> Rows:
    """Read shards in their order."""
    rows = Rows()
    pairs, group, median_ns = rows.pairs, rows.group.append, rows.median_ns.append
    process, round_, calls = rows.process.append, rows.round.append, rows.calls.append
    for shard in found:
        for record, line in shards.scan(shard, rows.faults, None, ROW_DECODERS):
            if type(record) is BlockRow:
                group(pairs.setdefault((record.session, record.point), len(pairs)))
                process(record.process)
                round_(record.round)
                calls(len(record.latency_ns))
                median_ns(block_median(record.latency_ns))
            elif type(record) is Subject:
                rows.described.append((record.session, record.point.key()))
                rows.subjects.append(line)
            else:
                rows.others.append(line)
    return rows


def _unwanted(line: bytes) -> object:
    return shards.UNWANTED


def _failure(line: bytes) -> object:
    return shards.UNWANTED if b'"status":"ok"' in line else DECODERS["outcome"](line)


ROW_DECODERS = {
    **DECODERS,
    "block": msgspec.json.Decoder(BlockRow).decode,
    "outcome": _failure,
    **dict.fromkeys(("attribution", "parity", "left-out"), _unwanted),
}


def columns(folder: Path, processes: int | None = None) -> Columns:
    """Read a store as columns; attributions and parities are passed over.

    Args:
        folder: the store, or one shard.
        processes: to read with; as many as a store of this size and this machine call for.

    Raises:
        StoreError: there is no store, it holds no shard, or a shard has another version.
    """
    from frameworktax.store.parallel import read_parts

    return joined(read_parts(shards.find(folder), processes))


def joined(parts: Sequence[Rows]) -> Columns:
    """Put parts together, each block once: the first one read."""
    pairs: dict[tuple[str, str], int] = {}
    numbers: dict[str, list[np.ndarray]] = {name: [] for name in Rows.NUMBERS}
    for part in parts:
        place = [pairs.setdefault(pair, len(pairs)) for pair in part.pairs]
        for name in Rows.NUMBERS:
            numbers[name].append(np.asarray(getattr(part, name)))
        numbers["group"][-1] = np.array(place, np.int64)[numbers["group"][-1]]
    whole = {name: np.concatenate(values) for name, values in numbers.items()}
    key = ("round", "process", "group")
    order = np.lexsort([whole[name] for name in key])  # stable: the first one read stays first
    whole = {name: values[order] for name, values in whole.items()}
    first = np.ones(len(order), bool)
    first[1:] = np.any([np.diff(whole[name]) != 0 for name in key], axis=0)
    records = _others(line for part in parts for line in part.others)
    return Columns(
        groups=tuple(pairs),
        group=whole["group"][first],
        process=whole["process"][first],
        median_ns=whole["median_ns"][first],
        calls=whole["calls"][first],
        subjects=_subjects(parts),
        records=records,
        notes=(
            *shards.notes(fault for part in parts for fault in part.faults),
            *clock_notes(records),
        ),
    )


def _subjects(parts: Iterable[Rows]) -> dict[tuple[str, str], Subject]:
    found: dict[tuple[str, str], Subject] = {}
    for part in parts:
        for pair, line in zip(part.described, part.subjects, strict=True):
            subject = None if pair in found else shards.one(line)
            if isinstance(subject, Subject):
                found[pair] = subject
    return found


def _others(lines: Iterable[bytes]) -> tuple[Record, ...]:
    found: dict[tuple[object, ...], Record] = {}
    for line in lines:
        record = shards.one(line)
        if record is not None:
            found.setdefault(record_id(record), record)
    return tuple(found.values())
