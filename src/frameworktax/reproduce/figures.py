"""The figures in the layout of the paper, ours and theirs side by side, as text for Vega-Lite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworktax.report import vega
from frameworktax.report.vega import Spec, colours
from frameworktax.reproduce import paper
from frameworktax.reproduce.results import Reproduction, StudyResult
from frameworktax.reproduce.rows import AXES, WORDS, Row, select
from frameworktax.reproduce.studies import Panel

Point = dict[str, Any]
"""x, y, low, high and series of what is drawn."""
SIZE = (236, 190)
"""Width and height of one drawing; two stand side by side in a column."""
ALONE = (500, 250)
"""The same of a drawing that stands alone, because one side has no numbers."""
FONT = 14
"""Pixels; a picture of two drawings printed 84 mm wide still has letters of 6 points."""
NAMES, RUNTIMES = WORDS["figures"], WORDS["runtimes"]
QUANTITY_COLOURS = {"latency": "#0f7fc4", "kernel": "#009e73", "tax": "#d55e00"}


def _axes(panel: Panel) -> Spec:
    """Return scales and ticks; the drawing library finds the ends, common to both where it may."""
    linear = {"zero": True}
    log = {"type": "log", "nice": False, "padding": 12}
    is_axis = panel.x in AXES
    return {
        "x_scale": {**log, "base": 2} if is_axis else linear,
        "x_axis": {"format": "d", "grid": False} if is_axis else {"tickCount": 4, "format": ".4~g"},
        "y_scale": linear if panel.linear else log,
        "y_axis": {"tickCount": 5, "format": ".4~g"},
    }


def _colours(panel: Panel, names: list[str]) -> list[str]:
    if len(panel.quantities) > 1:
        by_word = {NAMES[q]: colour for q, colour in QUANTITY_COLOURS.items()}
        return [by_word[name] for name in names]
    runtimes = {shown: name for name, shown in RUNTIMES.items()}
    return colours([runtimes.get(name, name) for name in names])


def points(rows: Sequence[Row], panel: Panel) -> list[Point]:
    """Return what a drawing shows: x, y with its interval in ms, the name of its series."""
    found = []
    for row in select(rows, panel.where):
        for quantity in panel.quantities:
            y = row.numbers.get(quantity)
            x = _x(row, panel.x)
            if y is None or x is None:
                continue
            found.append(
                {
                    "x": x,
                    "y": y.value / 1e6,
                    "low": (y.low if y.low > 0 or panel.linear else y.value) / 1e6,
                    "high": y.high / 1e6,
                    "series": _series(row, panel, quantity),
                }
            )
    return found


def _x(row: Row, name: str) -> float | None:
    if name in AXES:
        value = row.at.get(name)
        return None if value is None else float(value)
    number = row.numbers.get(name)
    return None if number is None else number.value / 1e9


def _series(row: Row, panel: Panel, quantity: str) -> str:
    if len(panel.quantities) > 1:
        return NAMES[quantity]
    said = []
    for axis in panel.series:
        value = row.at.get(axis)
        if axis in ("width", "depth"):
            said.append(f"{axis} ×{value:g}")
        else:
            drawn = paper.models().get(str(value), {}).get("drawn")
            said.append(drawn or RUNTIMES.get(str(value), str(value)))
    return ", ".join(said)


def figure(study: StudyResult) -> Spec | None:
    """Return the Vega-Lite specification of a study's figure; None where it has none to draw."""
    theirs = paper.rows(study.file.name)
    drawn = []
    for panel in study.file.panel:
        ours, printed = points(study.rows, panel), points(theirs, panel)
        if ours or printed:
            drawn.append(_pair(panel, ours, printed))
    return vega.filled("panels", {"panels": drawn}) if drawn else None


def _pair(panel: Panel, ours: list[Point], theirs: list[Point]) -> Spec:
    """Return ours and theirs side by side; the legend and the y title stand in the first."""
    names = list(dict.fromkeys(p["series"] for p in ours + theirs))
    width, height = SIZE if ours and theirs else ALONE
    sides: list[Spec] = []
    for title, mine in (("here", ours), ("in the paper", theirs)):
        if not mine:
            continue
        values = {
            "title": title,
            "width": width,
            "height": height,
            "points": mine,
            "x_title": NAMES.get(panel.x, panel.x),
            "y_title": None if sides else "latency, ms",
            **_axes(panel),
            "names": names,
            "colours": _colours(panel, names),
            "legend": {"title": None, "orient": "top", "columns": 2}
            if len(names) > 1 and not sides
            else None,
        }
        sides.append(vega.filled("panel", values))
    return {
        "title": {"text": panel.title, "anchor": "middle", "fontSize": FONT + 1},
        "hconcat": sides,
        # On logarithms any two fit one axis; a linear one could hide the smaller.
        "resolve": {"scale": {} if panel.linear else {"x": "shared", "y": "shared"}},
    }


def write(
    found: Reproduction, folder: Path, suffixes: Sequence[str] = (".svg", ".png")
) -> list[Path]:
    """Write every figure to a folder and return the files.

    Raises:
        UsageError: the package that draws is not installed, or a file cannot be written.
    """
    written: list[Path] = []
    for study in found.studies:
        if (spec := figure(study)) is not None:
            for suffix in suffixes:
                written.append(folder / f"{study.file.name}{suffix}")
                vega.write(spec, written[-1])
    return written
