"""A table of latencies from any tool: one row a point, or one a repeat of it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from frameworktax.errors import UsageError
from frameworktax.integrations.readers.rows import (
    NUMBERS,
    WHOLE,
    Row,
    Table,
    our_name,
    our_precision,
    text_of,
)

SUFFIXES = (".csv", ".tsv")
UNITS = {
    "ns": 1.0,
    "nanoseconds": 1.0,
    "us": 1e3,
    "usec": 1e3,
    "microseconds": 1e3,
    "ms": 1e6,
    "msec": 1e6,
    "milliseconds": 1e6,
    "millis": 1e6,
    "s": 1e9,
    "sec": 1e9,
    "secs": 1e9,
    "seconds": 1e9,
}
LATENCY = {"latency", "time", "total", "wall", "duration", "elapsed", "mean", "median", "runtime"}
KERNEL = {"kernel", "kernels", "device", "gpu", "cuda", "busy"}
IGNORED = {"p50", "p90", "p95", "p99", "min", "max", "std", "stdev", "stddev", "sd", "low", "high"}
"""Words in the name of a time that is not the latency of a call."""
REPEATS = {"repeat", "run", "trial", "iteration", "iter", "sample", "rep", "seed", "process"}
OPERATIONS = {"giga_macs": ("macs", 1e9), "gmacs": ("macs", 1e9), "macs": ("macs", 1.0)}
"""Axes that are facts of a model and no axis."""

Line = tuple[int, list[str]]
"""Number of a line, from 1, and its cells."""


def rows(path: Path) -> Table | None:
    """Return a table's rows, None where the name is not that of a table.

    Columns, in any order and case: a time with its unit in its name (``latency_ms``, ``ms``,
    ``time (s)``, ``seconds``) or in a column ``unit``; kernel time likewise (``kernel_ms``);
    model, runtime, precision, platform; batch and other axes as columns of their own, or as
    ``axis`` and ``axis_value``; ``quantity`` telling latencies from kernel times in one column.
    Rows equal in all of it are repeats of one point.

    Raises:
        UsageError: no time, no unit, or a cell that is no number; with its line.
    """
    if path.suffix.lower() not in SUFFIXES or path.is_dir():
        return None
    text = text_of(path)
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)

    def lines() -> Iterator[tuple[int, list[str]]]:
        """Yield the lines that are not blank, with their numbers; millions are never kept."""
        table = csv.reader(io.StringIO(text), delimiter=delimiter)
        for number, line in enumerate(table, start=1):
            if any(map(str.strip, line)):
                yield number, line

    try:
        number, first = next(lines(), (0, []))
        if number != 1:
            raise UsageError(
                f"{path}: empty; a first line names the columns: model,runtime,batch,ms"
            )
        columns = _Columns(path, [cell.strip() for cell in first])
        found = columns.gather(lambda: islice(lines(), 1, None), delimiter)
    except csv.Error as error:
        raise UsageError(f"{path}: no table: {error}") from error
    return Table(source=f"{path.name} (a table of latencies)", rows=found)


class _Columns:
    """What each column of a header means."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._path = path
        self._header = header
        words = [re.findall(r"[a-z0-9]+", name.lower().replace("µ", "u")) for name in header]
        plain = ["_".join(each) for each in words]
        self._ours = {i: ours for i, name in enumerate(header) if (ours := our_name(name))}
        times = {i: unit for i, each in enumerate(words) if (unit := self._unit(each)) is not None}
        self._unit_column = plain.index("unit") if "unit" in plain else None
        if self._unit_column is not None:
            bare = (
                i for i, each in enumerate(words) if i not in self._ours and set(each) & LATENCY
            )
            times |= dict.fromkeys(bare, math.nan)  # the unit stands in each row
        times = {i: unit for i, unit in times.items() if not set(words[i]) & IGNORED}
        self._kernel = next(((i, u) for i, u in times.items() if set(words[i]) & KERNEL), None)
        others = [(i, u) for i, u in times.items() if (i, u) != self._kernel]
        if not others:
            raise UsageError(
                f"{path}: no column is a latency with its unit (found {', '.join(header)[:120]}); "
                "name one latency_ms, latency_us or seconds"
            )
        if len(others) > 1:
            names = " and ".join(header[i] for i, _ in others)
            raise UsageError(f"{path}: {names} could each be the latency; leave one of them")
        self._latency = others[0]
        for i in (self._latency[0], *([self._kernel[0]] if self._kernel else [])):
            self._ours.pop(i, None)
        self._axis = self._at(plain, "axis"), self._at(plain, "axis_value")
        self._quantity = self._at(plain, "quantity")
        special = {*self._axis, self._quantity, self._unit_column, self._latency[0]}
        special |= {self._kernel[0]} if self._kernel else set()
        self._rest = [
            i
            for i in range(len(header))
            if i not in special
            and i not in self._ours
            and plain[i] not in REPEATS
            and i not in times
            and not set(words[i]) & IGNORED
        ]

    @staticmethod
    def _at(names: Sequence[str], name: str) -> int | None:
        return names.index(name) if name in names else None

    @staticmethod
    def _unit(words: Sequence[str]) -> float | None:
        if not words or words[-1] not in UNITS:
            return None
        rest = set(words[:-1])
        return UNITS[words[-1]] if not rest or rest & (LATENCY | KERNEL) else None

    def gather(self, body: Callable[[], Iterable[Line]], delimiter: str) -> tuple[Row, ...]:
        """Return one row a point, repeats together, in the order they first appear.

        Args:
            body: gives the lines below the header, each time from the first.
            delimiter: between cells.
        """
        telling = self._telling(line for _, line in body())
        latency: dict[tuple[object, ...], list[float]] = defaultdict(list)
        kernel: dict[tuple[object, ...], list[float]] = defaultdict(list)
        keys: dict[tuple[str, ...], tuple[object, ...]] = {}
        times = {self._latency[0], *([self._kernel[0]] if self._kernel else [])}
        names = [i for i in range(len(self._header)) if i not in times]
        for number, line in body():
            if len(line) > len(self._header):
                raise UsageError(
                    f"{self._path}: line {number} has {len(line)} cells, the header "
                    f"{len(self._header)}; is a name with a comma unquoted?"
                )
            cells = [*line, *[""] * (len(self._header) - len(line))]
            named = tuple(cells[i] for i in names)
            if (key := keys.get(named)) is None:
                key = keys[named] = self._key(cells, telling, number, delimiter)
            value = self._time(cells, self._latency, number, delimiter)
            if self._quantity is not None and _is_kernel(cells[self._quantity]):
                kernel[key].append(value)
                continue
            latency[key].append(value)
            if self._kernel is not None and cells[self._kernel[0]].strip():
                kernel[key].append(self._time(cells, self._kernel, number, delimiter))
        if not latency:
            what = "kernel times and no latencies" if kernel else "a header and no rows"
            raise UsageError(f"{self._path}: {what}")
        return tuple(self._row(key, latency[key], kernel.get(key, [])) for key in latency)

    def _telling(self, body: Iterable[Sequence[str]]) -> list[int]:
        """Return the foreign columns that are not the same everywhere."""
        first: dict[int, str] = {}
        telling: set[int] = set()
        for line in body if self._rest else ():
            for i in self._rest:
                if i < len(line) and first.setdefault(i, line[i].strip()) != line[i].strip():
                    telling.add(i)
        return sorted(telling)

    def _key(
        self, cells: Sequence[str], telling: Sequence[int], line: int, delimiter: str
    ) -> tuple[object, ...]:
        words: dict[str, str] = {}
        values: dict[str, float] = {}
        labels = []
        named = {ours: cells[i].strip() for i, ours in self._ours.items()}
        axis, at = self._axis
        if axis is not None and at is not None and cells[axis].strip():
            named[our_name(cells[axis]) or cells[axis].strip()] = cells[at].strip()
        for name, cell in named.items():
            if name in NUMBERS or name not in ("model", "runtime", "precision", "platform"):
                if cell:
                    values[name] = self._number(cell, name, line, delimiter)
            else:
                words[name] = cell
        for i in telling:
            cell = cells[i].strip()
            value = _float(cell, delimiter)
            if value is not None:
                values[self._header[i]] = value
            elif cell:
                labels.append(cell)
        return (
            words.get("model") or self._path.stem,
            words.get("runtime") or "unknown",
            our_precision(words.get("precision") or "unknown"),
            words.get("platform") or "unknown",
            tuple(labels),
            tuple(values.items()),
        )

    def _row(self, key: tuple[object, ...], latency: list[float], kernel: list[float]) -> Row:
        model, runtime, precision, platform, labels, pairs = key
        values: dict[str, float] = dict(pairs)  # type: ignore[call-overload] # a key is a mixed tuple
        facts = {}
        for name in [name for name in values if name.lower() in OPERATIONS]:
            fact, scale = OPERATIONS[name.lower()]
            facts[fact] = round(values.pop(name) * scale)
        label = f" ({', '.join(labels)})" if isinstance(labels, tuple) and labels else ""
        return Row(
            model=f"{model}{label}",
            runtime=str(runtime),
            precision=str(precision),
            platform=str(platform),
            values=values,
            latency_ns=tuple(latency),
            kernel_ns=tuple(kernel),
            facts=facts,
        )

    def _time(
        self, cells: Sequence[str], column: tuple[int, float], line: int, delimiter: str
    ) -> float:
        at, unit = column
        if math.isnan(unit):
            word = cells[self._unit_column].strip().lower() if self._unit_column is not None else ""
            if word not in UNITS:
                raise UsageError(f"{self._path}: line {line}: no unit '{word}'; write ms, us or s")
            unit = UNITS[word]
        value = self._number(cells[at], self._header[at], line, delimiter)
        if value <= 0:
            raise UsageError(
                f"{self._path}: line {line}: {self._header[at]} is {cells[at].strip()}; a time is "
                "above zero"
            )
        return value * unit

    def _number(self, cell: str, name: str, line: int, delimiter: str) -> float:
        value = _float(cell.strip(), delimiter)
        if value is None or (name in NUMBERS and value <= 0):
            raise UsageError(f"{self._path}: line {line}: {name} '{cell[:40]}' is no such number")
        if name in WHOLE and value != int(value):
            raise UsageError(f"{self._path}: line {line}: {name} {cell[:40]} is not whole")
        return value


def _is_kernel(quantity: str) -> bool:
    return bool(set(re.findall(r"[a-z]+", quantity.lower())) & KERNEL)


def _float(cell: str, delimiter: str) -> float | None:
    """Return a finite number; a comma is the decimal mark where it does not part the columns."""
    try:
        value = float(cell.replace(",", ".") if delimiter != "," else cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
