"""Grids, further points, exclusions and priorities laid out as points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax import models, runtimes
from frameworktax.api import DEFAULT_BATCHES
from frameworktax.errors import UsageError, nearest
from frameworktax.measure.plan import completed
from frameworktax.records import FLOOR, Point, Workload

if TYPE_CHECKING:
    from frameworktax.sweep.study import Axes, Source, StudyFile

MAX_POINTS = 200_000
TEXT_AXES = frozenset({"length", "length_mean", "length_sd"})
IMAGE_AXES = frozenset({"image_size", "channels_last"})
FACTOR_AXES = frozenset({"width", "depth"})
USUAL = ("precision", "width", "depth", "input", "phase", "channels_last")
"""Axes with a value in every point that has them, so that a table may name it."""
PLAIN = Workload(model="")
Location = Sequence[str | int]
"""A path into the data: ``("exclude", 1, "batch")``."""
Cell = dict[str, Any]
"""Axis → value."""
Values = dict[str, tuple[Any, ...]]
"""Axis → values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A point with its priority, the platform as labelled, and the table it was written in."""

    point: Point
    platform: str = "local"
    priority: int = 0
    location: Location = ()


def expand(
    file: StudyFile, source: Source, platforms: Mapping[str, str]
) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
    """Return the points of a study, each once, and notes on parts of it that have no effect.

    Raises:
        UsageError: an unknown runtime or platform, no point at all.
    """
    layout = _Layout(source, platforms)
    if file.grid is not None:
        layout.add(file.grid, ("grid",), DEFAULT_BATCHES)
    for number, axes in enumerate(file.point):
        layout.add(axes, ("point", number), (1,))
    if not layout.cells:
        raise UsageError(f"{source.name} holds no point; write [grid] with models and runtimes")
    for number, exclude in enumerate(file.exclude):
        matches = layout.matching(exclude, ("exclude", number))
        layout.cells = [row for row in layout.cells if not matches(row[0])]
    rules = [
        (layout.matching(rule, ("priority", number)), rule.value)
        for number, rule in enumerate(file.priority)
    ]
    rules.reverse()  # the last one that matches counts
    for name in dict.fromkeys(itertools.chain(*file.study.together)):
        if name not in layout.models():
            where = source.where(("study", "together"))
            layout.notes.append(f"{where}: '{name}' is no model of this study")
    planned: dict[Point, Planned] = {}
    for cell, location in layout.cells:
        try:
            point = _point(cell, platforms)
        except UsageError as error:
            raise UsageError(f"{source.where(location)}: {error}") from error
        if point not in planned:
            planned[point] = Planned(
                point=point,
                platform=str(cell["platform"]),
                priority=next((value for matches, value in rules if matches(cell)), 0),
                location=location,
            )
    if not planned:
        raise UsageError(f"[[exclude]] leaves no point of {source.name}; let it match fewer")
    return tuple(planned.values()), tuple(layout.notes)


class _Layout:
    """The cells of a study while its tables are applied, one after the other.

    Attributes:
        cells: each with the table that it comes from.
        notes: on tables and axes that have no effect.
    """

    def __init__(self, source: Source, platforms: Mapping[str, str]) -> None:
        self.cells: list[tuple[Cell, Location]] = []
        self.notes: list[str] = []
        self._source = source
        self._known = {"runtimes": [*runtimes.names(), "all"], "platform": list(platforms)}

    def models(self) -> set[str]:
        """Return the models of all cells."""
        return {cell["models"] for cell, _ in self.cells}

    def add(self, table: Axes, location: Location, batches: tuple[int, ...]) -> None:
        """Add the product of a table's axes, with these batches where it names none."""
        given = table.given()
        where = self._source.where(location)
        if "models" not in given:
            raise UsageError(f'{where}: names no models; write models = ["bert-base"]')
        defaults = {"runtimes": ("all",), "batch": batches, "platform": ("local",), "threads": (1,)}
        axes: Values = {"models": given["models"]} | defaults | given
        axes |= {axis: (getattr(PLAIN, axis),) for axis in USUAL if axis not in axes}
        for axis in self._known:
            self._check_names(axis, axes, location)
        kind = "ragged" if "ragged" in axes["input"] else "dense"
        every = [name for name in runtimes.every(kind) if name != FLOOR]
        named = (every if name == "all" else [name] for name in axes["runtimes"])
        axes["runtimes"] = tuple(dict.fromkeys(itertools.chain.from_iterable(named)))
        count = len(self.cells) + math.prod(map(len, axes.values()))
        if count > MAX_POINTS:
            raise UsageError(f"{where}: {count} points; {MAX_POINTS} at most")
        idle = dict.fromkeys(given)
        for values in itertools.product(*axes.values()):
            cell = _fitting(dict(zip(axes, values, strict=True)))
            for axis in cell:
                idle.pop(axis, None)
            self.cells.append((cell, location))
        for axis in idle:
            where = self._source.where((*location, axis))
            self.notes.append(f"{where} has no effect on these models")

    def matching(self, table: Axes, location: Location) -> Callable[[Cell], bool]:
        """Return whether a cell has one of the values of every axis that a table names.

        One that matches no cell gets a note, with the name that may be the reason.
        """
        axes = table.given()
        where = self._source.where(location)
        if not axes:
            raise UsageError(f"{where}: matches everything; name an axis")
        self._check_names("runtimes", axes, location)
        if "all" in axes.get("runtimes", ()):
            del axes["runtimes"]

        def matches(cell: Cell) -> bool:
            return all(cell.get(axis) in values for axis, values in axes.items())

        if not any(matches(cell) for cell, _ in self.cells):
            known = self.models()
            unknown = [name for name in table.models or () if name not in known]
            hint = "".join(f": no '{name}' is in it{nearest(name, known)}" for name in unknown[:1])
            self.notes.append(f"{where} matches no point{hint}")
        return matches

    def _check_names(self, axis: str, axes: Values, location: Location) -> None:
        known = self._known[axis]
        for name in axes.get(axis, ()):
            if name not in known:
                raise UsageError(
                    f"{self._source.where((*location, axis))}: no {axis.removesuffix('s')} "
                    f"'{name}'{nearest(name, known) or ';'} choose from {', '.join(known)}"
                )


def _fitting(cell: Cell) -> Cell:
    """Leave out the axes that this model does not have: one grid may hold texts and images."""
    missing = set(_lacks(cell["models"]))
    if cell.get("input", "dense") != "ragged":
        missing |= {"length_mean", "length_sd"}
    if cell.get("phase", "forward") != "generate":
        missing |= {"new_tokens", "kv_cache"}
    return {axis: value for axis, value in cell.items() if axis not in missing}


@cache
def _lacks(model: str) -> frozenset[str]:
    """Return the axes a model does not have, as far as its name shows."""
    if models.is_user_model(model):
        return TEXT_AXES | {"image_size"} | FACTOR_AXES
    info = models.describe_name(model)
    if info is None:
        return frozenset()  # from a hub or a folder: building it shows which it lacks
    text = frozenset() if info.has_length else TEXT_AXES
    image = frozenset() if info.has_image_size else IMAGE_AXES
    return text | image | (FACTOR_AXES - set(info.factors))


def _point(cell: Cell, platforms: Mapping[str, str]) -> Point:
    """Return a cell as a point; elsewhere is elsewhere: its points are points of their own."""
    axes = dict(cell)
    names = ("models", "runtimes", "platform", "threads")
    model, runtime, label, threads = (axes.pop(name) for name in names)
    device = platforms[label]
    return Point(
        workload=completed(Workload(model=model, **axes)),
        runtime=runtime,
        platform=device if label in ("local", device) else f"{device}@{label}",
        threads=threads,
    )


def check_models(planned: Iterable[Planned], source: Source) -> None:
    """Refuse models that do not exist and axes that they do not have; builds and runs nothing.

    Raises:
        UsageError: with the line of the study.
    """
    for workload, location in {
        replace(p.point.workload, batch=1): p.location for p in planned
    }.items():
        try:
            models.check(workload)
        except UsageError as error:
            where = source.where((*location, "models"))
            raise UsageError(f"{where}: {error}") from error


def code_of(planned: Iterable[Planned]) -> tuple[str, ...]:
    """Return every reference to Python code among the models, with the file it would run."""
    found: dict[str, None] = {}
    for name in dict.fromkeys(p.point.workload.model for p in planned):
        if models.is_user_model(name):
            file = models.file_of(name)
            found[name if file is None else f"{name} ({file.resolve()})"] = None
    return tuple(found)


def shipped(points: Iterable[Point]) -> dict[str, str]:
    """Return the files of the user's own models among points, with their source.

    A file goes alone: what it imports must be installed on the nodes, as must a model that is
    named by its package. A folder, or an ONNX file, must be at one path on all of them.

    Raises:
        UsageError: a file cannot be read, or it has no place on a node.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(point.workload.model for point in points):
        prefix, _, data = name.partition(":")
        if prefix in ("onnx", "hf") and not Path(data).is_absolute() and Path(data).exists():
            raise UsageError(
                f"{name} is not sent to the nodes; put it at one path on all of them and here, and "
                f"name that from the root: {prefix}:/path/to/{Path(data).name}"
            )
        where = models.file_of(name)
        if where is None:
            continue
        if where.is_absolute() or ".." in where.parts:
            raise UsageError(
                f"{where} cannot be sent to a node; go to its folder and name it from there"
            )
        try:
            found[str(where)] = where.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {where} to send it to a node: {error}") from error
    return found
