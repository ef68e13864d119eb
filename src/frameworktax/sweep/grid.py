"""Grids, further points, overrides, exclusions and priorities laid out as points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax import models, runtimes
from frameworktax.errors import UsageError, nearest
from frameworktax.measure.plan import completed
from frameworktax.records import FLOOR, Point, Workload
from frameworktax.sweep.source import Location, Source

if TYPE_CHECKING:
    from frameworktax.sweep.study import Axes, StudyFile

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAX_POINTS = 200_000
FIELDS = {"models": "model", "runtimes": "runtime"}
"""Axes whose field in a record has another name."""
OUTSIDE = ("runtimes", "platform", "threads")
"""Axes of a point that are none of its workload."""
TEXT_AXES = frozenset({"length", "length_mean", "length_sd"})
IMAGE_AXES = frozenset({"image_size", "channels_last"})
FACTOR_AXES = frozenset({"width", "depth"})
Cell = dict[str, Any]
"""Axis → value."""
Cells = dict[tuple[Any, ...], tuple[Cell, Location]]
"""Cells with the table that they come from, each once."""


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
    notes: list[str] = []
    cells: Cells = {}
    tables: list[tuple[Location, Axes, tuple[int, ...]]] = []
    if file.grid is not None:
        tables.append((("grid",), file.grid, DEFAULT_BATCHES))
    tables += [(("point", number), axes, (1,)) for number, axes in enumerate(file.point)]
    for location, axes, batches in tables:
        idle = dict.fromkeys(axes.given())
        for cell in _product(axes.given(), location, source, platforms, batches):
            for axis in cell:
                idle.pop(axis, None)
            cells.setdefault(_identity(cell), (cell, location))
        notes += [
            f"{source.where((*location, axis))} has no effect on these models" for axis in idle
        ]
    for number, override in enumerate(file.override):
        place = ("override", number)
        if not _override(cells, override.given(), override.set.given(), place, source, platforms):
            notes.append(_unmatched(override, place, source, cells))
    before = dict(cells)
    for number, exclude in enumerate(file.exclude):
        matches = _match(exclude.given(), ("exclude", number), source)
        gone = [key for key, (cell, _) in cells.items() if matches(cell)]
        for key in gone:
            del cells[key]
        if not gone:
            notes.append(_unmatched(exclude, ("exclude", number), source, before))
    ranked: list[tuple[Callable[[Cell], bool], int]] = []
    for number, rule in enumerate(file.priority):
        matches = _match(rule.given(), ("priority", number), source)
        ranked.insert(0, (matches, rule.value))  # the last one that matches counts
        if not any(matches(cell) for cell, _ in cells.values()):
            notes.append(_unmatched(rule, ("priority", number), source, cells))
    known = {cell["models"] for cell, _ in cells.values()}
    for name in [name for names in file.study.together for name in names if name not in known]:
        where = source.where(("study", "together"), name)
        notes.append(f"{where}: '{name}' is no model of this study")
    planned: dict[Point, Planned] = {}
    for cell, location in cells.values():
        try:
            point = _point(cell, platforms)
        except UsageError as error:
            raise UsageError(f"{source.where(location)}: {error}") from error
        if point not in planned:
            planned[point] = Planned(
                point=point,
                platform=str(cell["platform"]),
                priority=next((value for matches, value in ranked if matches(cell)), 0),
                location=location,
            )
    if not planned:
        raise UsageError(f"{source.name} holds no point; write [grid] with models and runtimes")
    return tuple(planned.values()), tuple(notes)


def _unmatched(axes: Axes, location: Location, source: Source, cells: Cells) -> str:
    """Return the note that a table matches nothing, with the name that may be the reason."""
    known = {cell["models"] for cell, _ in cells.values()}
    unknown = [name for name in axes.models or () if name not in known]
    hint = "".join(f": no '{name}' is in it{nearest(name, known)}" for name in unknown[:1])
    return f"{source.where(location)} matches no point{hint}"


def _product(
    axes: dict[str, tuple[Any, ...]],
    location: Location,
    source: Source,
    platforms: Mapping[str, str],
    batches: tuple[int, ...],
) -> Iterable[Cell]:
    if "models" not in axes:
        raise UsageError(f'{source.where(location)}: names no models; write models = ["bert-base"]')
    defaults = {"runtimes": ("all",), "batch": batches, "platform": ("local",), "threads": (1,)}
    axes = {"models": axes["models"]} | defaults | axes
    _check_names(axes, location, source, platforms)
    axes["runtimes"] = _written_out(axes["runtimes"], _kind(axes))
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MAX_POINTS:
        raise UsageError(f"{source.where(location)}: {count} points; {MAX_POINTS} at most")
    for values in itertools.product(*axes.values()):
        yield _fitting(dict(zip(axes, values, strict=True)))


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
    info = next((row for row in models.describe_names() if row.name == model), None)
    if info is None:
        return frozenset()  # from a hub or a folder: building it shows which it lacks
    text = frozenset() if info.has_length else TEXT_AXES
    image = frozenset() if info.has_image_size else IMAGE_AXES
    return text | image | (FACTOR_AXES - set(info.factors))


def _identity(cell: Cell) -> tuple[Any, ...]:
    return tuple(sorted(cell.items()))


def _kind(axes: Mapping[str, tuple[Any, ...]]) -> str:
    return "ragged" if "ragged" in axes.get("input", ()) else "dense"


def _written_out(names: Iterable[str], kind: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        every = runtimes.every(kind) if name == "all" else [name]
        found += [one for one in every if one != FLOOR or name != "all"]
    return tuple(dict.fromkeys(found))


def _check_names(
    axes: Mapping[str, tuple[Any, ...]],
    location: Location,
    source: Source,
    platforms: Mapping[str, str],
) -> None:
    """Refuse unknown runtimes and platforms."""
    known = {"runtimes": [*runtimes.names(), "all"], "platform": list(platforms)}
    for axis, names in known.items():
        for name in axes.get(axis, ()):
            if name not in names:
                raise UsageError(
                    f"{source.where((*location, axis), name)}: no {axis.removesuffix('s')} "
                    f"'{name}'{nearest(name, names) or ';'} choose from {', '.join(names)}"
                )


def _match(
    axes: dict[str, tuple[Any, ...]], location: Location, source: Source
) -> Callable[[Cell], bool]:
    """Return whether a cell has one of the values of every axis that is written."""
    if not axes:
        raise UsageError(f"{source.where(location)}: matches everything; name an axis")
    if "runtimes" in axes:
        _check_names({"runtimes": axes["runtimes"]}, location, source, {})
        if "all" in axes["runtimes"]:
            axes = {name: values for name, values in axes.items() if name != "runtimes"}
    return lambda cell: all(cell.get(axis) in values for axis, values in axes.items())


def _override(
    cells: Cells,
    when: dict[str, tuple[Any, ...]],
    new: dict[str, tuple[Any, ...]],
    location: Location,
    source: Source,
    platforms: Mapping[str, str],
) -> bool:
    """Give the cells that match other values on some axes; return whether any did."""
    if not new:
        raise UsageError(f"{source.where(location)}: sets nothing; write set = {{ batch = [1] }}")
    _check_names(new, (*location, "set"), source, platforms)
    if "runtimes" in new:
        new = {**new, "runtimes": _written_out(new["runtimes"], _kind(new))}
    match = _match(when, location, source)
    matching = [(key, cell) for key, (cell, _) in cells.items() if match(cell)]
    for key, cell in matching:
        cells.pop(key, None)
        for values in itertools.product(*new.values()):
            changed = _fitting({**cell, **dict(zip(new, values, strict=True))})
            cells.setdefault(_identity(changed), (changed, location))
    return bool(matching)


def _platform(label: str, device: str) -> str:
    """Return a point's platform: this host's device, or that of nodes with their label."""
    return device if label in ("local", device) or "@" in device else f"{device}@{label}"


def _point(cell: Cell, platforms: Mapping[str, str]) -> Point:
    workload = Workload(
        **{FIELDS.get(axis, axis): value for axis, value in cell.items() if axis not in OUTSIDE}
    )
    return Point(
        workload=completed(workload),
        runtime=cell["runtimes"],
        platform=_platform(cell["platform"], platforms[cell["platform"]]),
        threads=cell["threads"],
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
            where = source.where((*location, "models"), workload.model)
            raise UsageError(f"{where}: {error}") from error


def code_of(planned: Iterable[Planned]) -> tuple[str, ...]:
    """Return every reference to Python code among the models, with the file it would run."""
    found: dict[str, None] = {}
    for name in dict.fromkeys(p.point.workload.model for p in planned):
        if models.is_user_model(name):
            where = name.rpartition(":")[0]
            is_file = where.endswith(".py") or "/" in where
            found[f"{name} ({Path(where).resolve()})" if is_file else name] = None
    return tuple(found)
