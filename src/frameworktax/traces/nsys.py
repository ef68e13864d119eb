"""Reader of Nsight Systems' SQLite export (``nsys export --type sqlite``).

The file is opened read-only and as immutable, and only plain tables are read: a view or a virtual
table could run anything for ever. Columns that a version does not have read as missing.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from frameworktax.errors import TraceError
from frameworktax.traces.events import CATEGORIES, LIMIT, Columns, Trace
from frameworktax.traces.timeline import is_step

ROWS = 50_000
"""Fetched at a time."""
ANY = "CUPTI_ACTIVITY_KIND_"
TABLES: dict[str, tuple[str, str]] = {
    # table: category, column of the name (a number in StringIds)
    f"{ANY}KERNEL": ("kernel", "demangledName"),
    f"{ANY}GRAPH_TRACE": ("kernel", ""),
    f"{ANY}MEMCPY": ("gpu_memcpy", ""),
    f"{ANY}MEMSET": ("gpu_memset", ""),
    f"{ANY}RUNTIME": ("cuda_runtime", "nameId"),
    "NVTX_EVENTS": ("cpu_op", "textId"),
}
RANGES = (59, 60)
"""Event types of NVTX with a begin and an end: pushed and popped, started and ended."""


def read(path: Path) -> Trace:
    """Read an export.

    Raises:
        TraceError: it cannot be read, or holds no CUDA activity and no ranges.
    """
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    columns = Columns()
    try:
        with closing(sqlite3.connect(uri, uri=True)) as base:
            base.execute("PRAGMA trusted_schema = OFF")
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            tables = _tables(base)
            texts = _pairs(base, tables, "StringIds", "value")
            records = sum(_collect(base, t, tables, texts, columns) for t in TABLES if t in tables)
            names = _pairs(base, tables, "TARGET_INFO_GPU", "name")
    except sqlite3.Error as error:
        raise TraceError(f"{path}: not a whole SQLite export: {error}; export it again") from error
    if not columns:
        raise TraceError(
            f"{path}: no CUDA activity and no NVTX range in it; record with nsys profile "
            "--trace=cuda,nvtx and export with nsys export --type sqlite"
        )
    return columns.trace("nsys", records, device_names=names)


def _tables(base: sqlite3.Connection) -> dict[str, set[str]]:
    """Return plain tables and their columns."""
    found = {}
    rows = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    for name, sql in rows.fetchall():
        wanted = name in TABLES or name in ("StringIds", "TARGET_INFO_GPU")
        if wanted and "VIRTUAL" not in str(sql).upper().split("(")[0]:
            info = base.execute(f'PRAGMA table_info("{name}")').fetchall()
            found[str(name)] = {str(row[1]) for row in info}
    return found


def _collect(
    base: sqlite3.Connection,
    table: str,
    tables: dict[str, set[str]],
    texts: dict[int, str],
    columns: Columns,
) -> int:
    """Append the rows of a table; return how many there are."""
    category, name = TABLES[table]
    has = tables[table]
    if not {"start", "end"} <= has:
        return 0
    own = "text" if "text" in has else "NULL"
    number = f't."{name}"' if name in has else "NULL"
    where = f"WHERE eventType IN {RANGES}" if "eventType" in has else ""
    wanted = ("deviceId", "streamId", "correlationId", "globalTid")
    picked = ", ".join(f't."{c}"' if c in has else "-1" for c in wanted)
    # ``end`` is a word of SQL; a range that never ended has none.
    cursor = base.execute(
        f'SELECT t.start, t."end", {own}, {number}, {picked} FROM {table} t {where}'
    )
    fallback, seen = table.removeprefix(ANY).capitalize(), 0
    while rows := cursor.fetchmany(ROWS):
        good = [r for r in rows if all(map(_is_time, r[:2]))]
        seen += len(rows)
        columns.invalid += len(rows) - len(good)
        if not good:
            continue
        start, end, owns, numbers, device, stream, correlation, thread = zip(*good, strict=True)
        names = [
            text if isinstance(text, str) else texts.get(number, fallback)
            for text, number in zip(owns, numbers, strict=True)
        ]
        columns.add(
            name=columns.name_ids(names),
            category=[_category(category, text) for text in names],
            start_ns=np.array(start, np.int64),
            end_ns=np.array(end, np.int64),
            thread=columns.thread_ids(thread),
            device=list(map(_number, device)),
            stream=list(map(_number, stream)),
            correlation=list(map(_number, correlation)),
        )
    return seen


def _category(category: str, name: str) -> int:
    if category == "cpu_op" and is_step(name):
        category = "user_annotation"
    return CATEGORIES.index(category)


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < LIMIT


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1


def _pairs(
    base: sqlite3.Connection, tables: dict[str, set[str]], table: str, value: str
) -> dict[int, str]:
    """Return id → text of a table, once each; empty where the table or a column is missing."""
    if not {"id", value} <= tables.get(table, set()):
        return {}
    rows = base.execute(f"SELECT id, {value} FROM {table}")
    return {i: text for i, text in rows if isinstance(i, int) and isinstance(text, str)}
