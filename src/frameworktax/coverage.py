"""Which model runs in which runtime: the matrix that ships with this version, read.

``benchmarks/coverage.py`` makes it (``make coverage``): each cell is one model, shrunk, in one
runtime on a CPU, its outputs compared with eager's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from frameworktax import host, models, runtimes
from frameworktax.errors import StoreError, UsageError, nearest

SCHEMA = "frameworktax.coverage"
VERSION = 1
FILE = "coverage.json"
VERDICTS: Mapping[str, str] = {
    "runs": "outputs equal eager's within the tolerance of the precision",
    "differs": "it runs, and its outputs are not eager's",
    "unproven": "it runs; eager's outputs are such that equality proves nothing",
    "cannot": "it fails, for the reason given",
    "timeout": "not done within the limit of processor time",
    "crashed": "its process ended by a signal or without memory",
}

REORDERED = 1e-4
"""Sums in another order differ by less; more is within tolerance, and worth showing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model in one runtime.

    Attributes:
        verdict: one of ``VERDICTS``.
        reason: why it cannot, or why nothing is proven.
        stopped_by: the operator or feature that stops it, where the error names one.
        difference: largest difference over eager's largest value.
        worst: the element that differs most, both values.
        workload: what was built: only what differs from the model's own size.
        seconds: set-up, binding and three calls.
    """

    model: str
    runtime: str
    verdict: str
    reason: str | None = None
    stopped_by: str | None = None
    difference: float | None = None
    worst: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every cell, and what it was made with."""

    made: str
    cpu: str
    versions: Mapping[str, str]
    limit_s: float
    cells: tuple[Cell, ...]

    @property
    def models(self) -> list[str]:
        """Models in the order they were run."""
        return list(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def runtimes(self) -> list[str]:
        """Runtimes in the order they were run."""
        return list(dict.fromkeys(cell.runtime for cell in self.cells))


def load() -> Matrix:
    """Return the matrix that ships with this version.

    Raises:
        StoreError: the file is not there or damaged: the installation is.
    """
    try:
        data = json.loads(files("frameworktax").joinpath(FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{FILE} cannot be read ({error}); reinstall frameworktax") from error
    return decode(data)


def decode(data: Mapping[str, Any]) -> Matrix:
    """Return a matrix from plain data.

    Raises:
        StoreError: it is no matrix, or of another version.
    """
    if data.get("schema") != SCHEMA or data.get("version") != VERSION:
        raise StoreError(f"{FILE} is no coverage matrix of version {VERSION}; reinstall")
    return Matrix(
        made=data["made"],
        cpu=data["cpu"],
        versions=data["versions"],
        limit_s=data["limit_s"],
        cells=tuple(Cell(**cell) for cell in data["cells"]),
    )


def select(
    matrix: Matrix, model: str | None = None, runtime: str | None = None
) -> tuple[Cell, ...]:
    """Return the cells of one model, one runtime, or all.

    Raises:
        UsageError: there is no such model or runtime in the matrix.
    """
    for asked, known, kind in (
        (model, matrix.models, "model"),
        (runtime, matrix.runtimes, "runtime"),
    ):
        if asked is not None and asked not in known:
            registered = models.names() if kind == "model" else runtimes.names()
            if asked in registered:
                raise UsageError(f"{kind} '{asked}' is not in the matrix; measure it to find out")
            raise UsageError(
                f"unknown {kind} '{asked}'{nearest(asked, known)} (see 'frameworktax list {kind}s')"
            )
    return tuple(
        cell
        for cell in matrix.cells
        if model in (None, cell.model) and runtime in (None, cell.runtime)
    )


def other_versions(matrix: Matrix) -> list[str]:
    """Return where what is installed differs from what the matrix was made with, in words."""
    here = host.libraries()
    return [
        f"{name} {here[name]} here, {version} there"
        for name, version in matrix.versions.items()
        if name in here and _plain(here[name]) != _plain(version)
    ]


def _plain(version: str) -> str:
    return version.partition("+")[0]


def mark(cell: Cell) -> str:
    """Return a cell in a word or a number: what a table shows."""
    far = cell.difference is not None and cell.difference > REORDERED
    if cell.verdict == "differs" or (cell.verdict == "runs" and far):
        return f"{cell.verdict} {cell.difference:.0e}" if cell.difference else cell.verdict
    return cell.verdict


def why(cell: Cell) -> str:
    """Return why a cell does not simply run, in a line."""
    if cell.verdict == "differs" and cell.worst:
        return cell.worst
    stopped = f"{cell.stopped_by}: " if cell.stopped_by else ""
    return f"{stopped}{cell.reason}" if cell.reason else ""


def footnotes(matrix: Matrix, cells: Sequence[Cell]) -> list[str]:
    """Return what must stand under a table: how it was made, and with what."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in tally(cells).items())
    made = f"made {matrix.made} on {matrix.cpu}, models shrunk, {matrix.limit_s:.0f} s a cell"
    lines = [f"{counts}; {made}"]
    other = other_versions(matrix)
    if other:
        lines.append(f"other versions are installed here ({'; '.join(other)}): measure to be sure")
    return lines


def grid(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of model × runtime; empty where a cell was not run."""
    columns = list(dict.fromkeys(cell.runtime for cell in cells))
    marks: dict[str, dict[str, str]] = {}
    for cell in cells:
        marks.setdefault(cell.model, {})[cell.runtime] = mark(cell)
    rows = [[model, *(row.get(name, "") for name in columns)] for model, row in marks.items()]
    return ["model", *columns], rows


def digest(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Return the header and a row for each model: in how many runtimes it runs, which differ."""
    rows = []
    for model in dict.fromkeys(cell.model for cell in cells):
        of_model = [cell for cell in cells if cell.model == model]
        runs = sum(cell.verdict == "runs" for cell in of_model)
        others: dict[str, list[str]] = {}
        for cell in of_model:
            if mark(cell) != "runs":
                others.setdefault(mark(cell), []).append(cell.runtime)
        told = "; ".join(f"{said}: {', '.join(names)}" for said, names in others.items())
        rows.append([model, f"{runs} of {len(of_model)}", told])
    return ["model", "runs in", "elsewhere"], rows


def tally(cells: Iterable[Cell]) -> dict[str, int]:
    """Return how many cells have each verdict, in the order of ``VERDICTS``."""
    verdicts = [cell.verdict for cell in cells]
    return {name: verdicts.count(name) for name in VERDICTS if name in verdicts}
