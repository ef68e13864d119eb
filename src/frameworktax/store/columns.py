"""A store as columns: one median a block in place of its samples, in little time and memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frameworktax.records import Block, Note, Record, Subject, record_id
from frameworktax.stats import block_medians
from frameworktax.store import shards
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


def columns(folder: Path) -> Columns:
    """Read a store, or one shard, as columns; attributions and parities are passed over.

    Raises:
        StoreError: there is no store, it holds no shard, or a shard has another version.
    """
    faults: list[Fault] = []
    groups: dict[tuple[str, str], int] = {}
    group, process, round_, calls = array("q"), array("q"), array("q"), array("q")
    median_ns = array("d")
    subjects: dict[tuple[str, str], Subject] = {}
    others: dict[tuple[object, ...], Record] = {}
    record: Any
    for shard in shards.find(folder):
        latencies = []
        for record, _ in shards.records(shard, faults, _wanted, shards.COMPACT):
            if record.kind == Block.kind:
                group.append(groups.setdefault((record.session, record.point), len(groups)))
                process.append(record.process)
                round_.append(record.round)
                calls.append(len(record.latency_ns))
                latencies.append(record.latency_ns)
            elif type(record) is Subject:
                known = subjects.setdefault((record.session, record.point.key()), record)
                if record.final and not known.final:
                    subjects[record.session, record.point.key()] = record
            else:
                others.setdefault(record_id(record), record)
        median_ns.extend(block_medians(latencies)[0])
    order = _first_of_each(group, process, round_)
    records = tuple(others.values())
    return Columns(
        groups=tuple(groups),
        group=np.asarray(group)[order],
        process=np.asarray(process)[order],
        median_ns=np.asarray(median_ns)[order],
        calls=np.asarray(calls)[order],
        subjects=subjects,
        records=records,
        notes=(*shards.notes(faults), *clock_notes(records)),
    )


def _wanted(line: bytes, kind: str) -> bool:
    if kind == "outcome":
        return b'"status":"ok"' not in line
    return kind in ("block", "subject", "session", "calibration")


def _first_of_each(*key: array[int]) -> np.ndarray:
    """Return the indices that sort by the key's columns, of equal rows the first one only."""
    order = np.lexsort([np.asarray(column) for column in reversed(key)])  # stable
    first = np.ones(len(order), bool)
    first[1:] = np.any([np.diff(np.asarray(column)[order]) != 0 for column in key], axis=0)
    return order[first]
