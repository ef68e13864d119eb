"""A table of latencies from any tool: one row a point, or one a repeat of it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from frameworktax.errors import UsageError
from frameworktax.integrations.readers.rows import (
    NUMBERS,
    WHOLE,
    WORDS,
    Row,
    Table,
    our_name,
    our_precision,
    text_of,
)

SUFFIXES = (".csv", ".tsv")
UNITS: Mapping[str, float] = WORDS["units"]
LATENCY, KERNEL, IGNORED, REPEATS = (
    set(WORDS["times"][name]) for name in ("latency", "kernel", "ignored", "repeats")
)
OPERATIONS = {"giga_macs": ("macs", 1e9), "gmacs": ("macs", 1e9), "macs": ("macs", 1.0)}
"""Axes that are facts of a model and no axis."""
SPECIAL = ("unit", "axis", "axis_value", "quantity")
WORDS = ("model", "runtime", "precision", "platform")
_Times = tuple[list[float], list[float]]


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
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    table = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        header = [cell.strip() for cell in next(table, [])]
        if not any(header):
            raise UsageError(
                f"{path}: empty; a first line names the columns: model,runtime,batch,ms"
            )
        columns = _Columns(path, header, delimiter)
        for number, line in enumerate(table, start=2):
            if any(map(str.strip, line)):
                columns.add(number, line)
    except csv.Error as error:
        raise UsageError(f"{path}: no table: {error}") from error
    return Table(source=f"{path.name} (a table of latencies)", rows=columns.rows())


class _Columns:
    """What each column of a header means, and the points of the lines below it."""

    def __init__(self, path: Path, header: Sequence[str], delimiter: str) -> None:
        self._path = path
        self._header = header
        self._decimal = "." if delimiter == "," else ","
        words = [re.findall(r"[a-z0-9]+", name.lower().replace("µ", "u")) for name in header]
        plain = ["_".join(each) for each in words]
        self._special = {name: plain.index(name) for name in SPECIAL if name in plain}
        ours = {i: known for i, name in enumerate(header) if (known := our_name(name))}
        times: dict[int, float | None] = {i: _unit(each) for i, each in enumerate(words)}
        times = {i: unit for i, unit in times.items() if unit is not None}
        if "unit" in self._special:  # it stands in each row
            bare = (i for i, each in enumerate(words) if i not in ours and set(each) & LATENCY)
            times |= dict.fromkeys(bare)
        self._times = {i: unit for i, unit in times.items() if not set(words[i]) & IGNORED}
        self._kernel = next((i for i in self._times if set(words[i]) & KERNEL), None)
        others = [i for i in self._times if i != self._kernel]
        if not others:
            raise UsageError(
                f"{path}: no column is a latency with its unit (found {', '.join(header)[:120]}); "
                "name one latency_ms, latency_us or seconds"
            )
        if len(others) > 1:
            names = " and ".join(header[i] for i in others)
            raise UsageError(f"{path}: {names} could each be the latency; leave one of them")
        self._latency = others[0]
        self._ours = {i: known for i, known in ours.items() if i not in self._times}
        understood = {*self._times, *self._ours, *self._special.values()}
        self._foreign = [
            i
            for i, each in enumerate(words)
            if i not in understood and plain[i] not in REPEATS and not set(each) & IGNORED
        ]
        axis = [self._special[name] for name in ("axis", "axis_value") if name in self._special]
        self._own = [*self._ours, *axis]
        self._points: dict[tuple[str, ...], tuple[dict[str, str], dict[str, float]]] = {}
        """Cells of columns that we know → what they say: words, and values of axes."""
        self._samples: dict[tuple[tuple[str, ...], tuple[str | None, ...]], _Times] = {}
        """Cells of columns that we know, and of others → latencies and kernel times, ns."""

    def add(self, number: int, line: Sequence[str]) -> None:
        """Take a line below the header; its number is from 1."""
        if len(line) > len(self._header):
            raise UsageError(
                f"{self._path}: line {number} has {len(line)} cells, the header "
                f"{len(self._header)}; is a name with a comma unquoted?"
            )
        cells = [cell.strip() for cell in line] + [""] * (len(self._header) - len(line))
        own = tuple(cells[i] for i in self._own)
        if own not in self._points:
            self._points[own] = self._point(cells, number)
        foreign = tuple(cells[i] if i < len(line) else None for i in self._foreign)
        latency, kernel = self._samples.setdefault((own, foreign), ([], []))
        value = self._time(cells, self._latency, number)
        quantity = self._special.get("quantity")
        if quantity is not None and set(re.findall(r"[a-z]+", cells[quantity].lower())) & KERNEL:
            kernel.append(value)
            return
        latency.append(value)
        if self._kernel is not None and cells[self._kernel]:
            kernel.append(self._time(cells, self._kernel, number))

    def rows(self) -> tuple[Row, ...]:
        """Return one row a point, repeats together, in the order they first appear."""
        varying = [
            (n, self._header[i])
            for n, i in enumerate(self._foreign)
            if len({foreign[n] for _, foreign in self._samples} - {None}) > 1
        ]
        found: dict[tuple[object, ...], Row] = {}
        for (own, foreign), (latency, kernel) in self._samples.items():
            words, values = self._points[own]
            values, labels = dict(values), []
            for n, name in varying:
                cell = foreign[n] or ""
                if (value := self._float(cell)) is not None:
                    values[name] = value
                elif cell:
                    labels.append(cell)
            facts = {}
            for name in [name for name in values if name.lower() in OPERATIONS]:
                fact, scale = OPERATIONS[name.lower()]
                facts[fact] = round(values.pop(name) * scale)
            row = Row(
                model=words["model"] + (f" ({', '.join(labels)})" if labels else ""),
                runtime=words["runtime"],
                precision=our_precision(words["precision"]),
                platform=words["platform"],
                values=values,
                facts=facts,
            )
            key = (*words.values(), *labels, *values.items(), *facts.items())
            before = found.get(key, row)
            found[key] = replace(
                row,
                latency_ns=(*before.latency_ns, *latency),
                kernel_ns=(*before.kernel_ns, *kernel),
            )
        timed = tuple(row for row in found.values() if row.latency_ns)
        if not timed:
            what = "kernel times and no latencies" if found else "a header and no rows"
            raise UsageError(f"{self._path}: {what}")
        return timed

    def _point(self, cells: Sequence[str], line: int) -> tuple[dict[str, str], dict[str, float]]:
        named = {ours: cells[i] for i, ours in self._ours.items()}
        if {"axis", "axis_value"} <= self._special.keys():
            axis = cells[self._special["axis"]]
            if axis:
                named[our_name(axis) or axis] = cells[self._special["axis_value"]]
        words = {"model": self._path.stem, **dict.fromkeys(WORDS[1:], "unknown")}
        words |= {name: cell for name, cell in named.items() if name in WORDS and cell}
        values = {
            name: self._number(cell, name, line)
            for name, cell in named.items()
            if name not in WORDS and cell
        }
        return words, values

    def _time(self, cells: Sequence[str], at: int, line: int) -> float:
        """Return the time in a cell, ns."""
        unit = self._times[at]
        if unit is None:
            word = cells[self._special["unit"]].lower()
            if word not in UNITS:
                raise UsageError(f"{self._path}: line {line}: no unit '{word}'; write ms, us or s")
            unit = UNITS[word]
        value = self._number(cells[at], self._header[at], line)
        if value <= 0:
            said = f"{self._header[at]} is {cells[at]}; a time is above zero"
            raise UsageError(f"{self._path}: line {line}: {said}")
        return value * unit

    def _number(self, cell: str, name: str, line: int) -> float:
        value = self._float(cell)
        if value is None or (name in NUMBERS and value <= 0):
            raise UsageError(f"{self._path}: line {line}: {name} '{cell[:40]}' is no such number")
        if name in WHOLE and value != int(value):
            raise UsageError(f"{self._path}: line {line}: {name} {cell[:40]} is not whole")
        return value

    def _float(self, cell: str) -> float | None:
        """Return a finite number; a comma is the decimal mark where it does not part columns."""
        try:
            value = float(cell.replace(self._decimal, "."))
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def _unit(words: Sequence[str]) -> float | None:
    """Return the unit that a column's name ends with, where it is that of a time of ours."""
    if not words or words[-1] not in UNITS:
        return None
    rest = set(words[:-1])
    return UNITS[words[-1]] if not rest or rest & (LATENCY | KERNEL) else None
