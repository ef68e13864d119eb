"""Blocks as a table: one row a block, every sample, and what is known of its point."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints

from frameworktax.errors import StoreError, check_suffix, needs
from frameworktax.host.cache import atomic_path
from frameworktax.records import Block, Note, Session, Subject, Workload
from frameworktax.stats import block_median
from frameworktax.store import shards
from frameworktax.store.read import Where, point_key, unique
from frameworktax.store.shards import Fault

SUFFIXES = (".parquet", ".csv")
BATCH = 20_000
"""Rows in memory at a time."""
LISTS = ("latency_ns", "enqueue_ns", "first_token_ns")
TYPES: dict[str, type] = {
    **dict.fromkeys(("session", "started", "point", "runtime", "paradigm", "platform"), str),
    "threads": int,
    **{
        name: next(t for t in (bool, str, float, int) if t.__name__ in str(hint))
        for name, hint in get_type_hints(Workload).items()
    },
    "process": int,
    "round": int,
    "median_ns": float,
    **dict.fromkeys(("pipelined_ns", "pipelined_calls", "cpu_ns"), int),
    **dict.fromkeys(LISTS, list),
}
"""Columns in their order; times in ns. What belongs to the point is empty where nothing describes
it."""


def export(folder: Path, path: Path, where: Where | None = None) -> tuple[int, list[Note]]:
    """Write the blocks of a store as a table; the suffix names the format.

    The file appears when it is whole.

    Returns:
        Number of rows, and notes on what was skipped.

    Raises:
        UsageError: no format has this suffix, or what it needs is not installed.
        StoreError: there is no store, or no writing.
    """
    check_suffix(path, SUFFIXES)
    write = _parquet if path.suffix == ".parquet" else _csv
    faults: list[Fault] = []
    try:
        with atomic_path(path) as partial:
            count = write(rows(folder, faults, where), partial)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; name another file") from error
    return count, shards.notes(faults)


def rows(folder: Path, faults: list[Fault], where: Where | None = None) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a store once each, flat, with the columns of ``TYPES``."""
    found = shards.find(folder)
    matches = (where or Where()).matcher()
    started: dict[str, str] = {}
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for record in unique(found, [], lambda _, kind: kind in ("session", "subject")):
        if isinstance(record, Session):
            started[record.session] = record.started
        elif isinstance(record, Subject) and matches(record.point):
            key = record.point.key()
            data = asdict(record.point)
            known[record.session, key] = data.pop("workload") | data | {"paradigm": record.paradigm}
    own = [f.name for f in fields(Block)]
    # without conditions blocks that no subject describes are written too: nothing is left out
    for record in unique(found, faults, lambda _, kind: kind == "block"):
        at = (record.session, point_key(record) or "")
        if isinstance(record, Block) and (where is None or at in known):
            yield {
                **dict.fromkeys(TYPES),
                **known.get(at, {}),
                **{name: getattr(record, name) for name in own},
                "started": started.get(record.session),
                "median_ns": float(block_median(record.latency_ns)),
            }


def _csv(table: Iterator[dict[str, Any]], path: Path) -> int:
    """Write CSV; a list of samples is one cell of JSON."""
    count = 0
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, tuple(TYPES), lineterminator="\n")
        writer.writeheader()
        for row in table:
            count += 1
            lists = {name: json.dumps(row[name]) for name in LISTS if row[name] is not None}
            writer.writerow({name: inert(value) for name, value in (row | lists).items()})
    return count


def inert(value: object) -> object:
    """Return the value; text that a spreadsheet would run gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def _parquet(table: Iterator[dict[str, Any]], path: Path) -> int:
    arrow, parquet = pyarrow()
    kinds = {
        int: arrow.int64(),
        float: arrow.float64(),
        str: arrow.string(),
        bool: arrow.bool_(),
        list: arrow.list_(arrow.int64()),
    }
    schema = arrow.schema([(name, kinds[kind]) for name, kind in TYPES.items()])
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(islice(table, BATCH)):
            writer.write_table(arrow.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


def pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module.

    Raises:
        UsageError: they are not installed.
    """
    with needs("Parquet needs pyarrow (.csv does not)", "parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def measurements(table: Sequence[dict[str, object]], columns: Sequence[str], path: Path) -> None:
    """Write flat rows of measurements as Parquet, with types found from the values.

    Args:
        table: rows with the same columns.
        columns: in their order; one without a value anywhere is one of numbers.
        path: the file.

    Raises:
        UsageError: pyarrow is not installed.
    """
    arrow, parquet = pyarrow()
    kinds = {str: arrow.string(), bool: arrow.bool_(), int: arrow.int64()}
    types = []
    for name in columns:
        found = {type(row[name]) for row in table if row[name] is not None}
        one = found.pop() if len(found) == 1 else float  # whole and broken numbers are numbers
        types.append((name, kinds.get(one, arrow.float64())))
    parquet.write_table(arrow.Table.from_pylist(list(table), arrow.schema(types)), path)
