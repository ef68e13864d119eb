"""The figures in the paper's layout, ours and theirs side by side on the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frameworktax.errors import UsageError
from frameworktax.report import vega
from frameworktax.report.palette import SCHEMA, Spec
from frameworktax.reproduce import paper
from frameworktax.reproduce.drawing import FONT, NAMES, WORDS, Point, drawing
from frameworktax.reproduce.files import Panel
from frameworktax.reproduce.rows import AXES, Row, select
from frameworktax.reproduce.told import Reproduction, Told

UNLIKE = 4.0
"""Factor between ours and theirs from which on a linear axis would hide one of them."""
CONFIG: Spec = {
    "font": "Helvetica Neue, Arial, sans-serif",
    "padding": 8,
    "view": {"stroke": "#c9ced6"},
    "concat": {"spacing": 14},
    "axis": {
        "labelFontSize": FONT,
        "titleFontSize": FONT,
        "titleFontWeight": "normal",
        "gridColor": "#e8ebef",
        "labelColor": "#30363d",
        "titleColor": "#30363d",
    },
    "title": {"fontSize": FONT, "fontWeight": "normal", "color": "#30363d"},
    "legend": {"labelFontSize": FONT, "symbolSize": 90, "symbolOpacity": 1, "labelLimit": 300},
}


def points(rows: Sequence[Row], panel: Panel) -> list[Point]:
    """Return what a drawing shows: x, y with its interval in ms, the name of its series.

    Args:
        rows: ours or the paper's.
        panel: the drawing.
    """
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
        return WORDS[quantity]
    said = []
    for axis in panel.series:
        value = row.at.get(axis)
        if axis in ("width", "depth"):
            said.append(f"{axis} ×{value:g}")
        else:
            said.append(NAMES.get(str(value), str(value)))
    return ", ".join(said)


def figure(told: Told) -> Spec | None:
    """Return the Vega-Lite specification of a study's figure; None where it has none to draw."""
    theirs = paper.rows(told.file.name)
    drawn = []
    for panel in told.file.panel:
        ours, printed = points(told.rows, panel), points(theirs, panel)
        if ours or printed:
            drawn.append(_pair(panel, ours, printed))
    if not drawn:
        return None
    return {"$schema": SCHEMA, "background": "white", "config": CONFIG, "vconcat": drawn}


def _pair(panel: Panel, ours: list[Point], theirs: list[Point]) -> Spec:
    names = list(dict.fromkeys(p["series"] for p in ours + theirs))
    sides: list[Spec] = []
    for title, mine, other in (("here", ours, theirs), ("in the paper", theirs, ours)):
        if not mine:
            continue
        shown = mine + other if alike(panel, mine, other) else mine
        first = not sides
        both = bool(ours and theirs)
        sides.append(
            drawing(panel, mine, shown, names, title, legend=first, y_title=first, beside=both)
        )
    return {
        "title": {"text": panel.title, "anchor": "middle", "fontSize": FONT + 1},
        "hconcat": sides,
        "resolve": {"legend": {"color": "shared", "shape": "shared"}},
    }


def alike(panel: Panel, ours: list[Point], theirs: list[Point]) -> bool:
    """Return whether both fit one axis: any two do on logarithms, few on a linear one."""
    if not theirs or not ours:
        return False
    if not panel.linear:
        return True
    for axis in ("x", "y"):
        a, b = max(p[axis] for p in ours), max(p[axis] for p in theirs)
        if max(a, b) > UNLIKE * min(a, b):
            return False
    return True


def svg(told: Told) -> str | None:
    """Return a study's figure as SVG; None where it has none.

    Raises:
        UsageError: the package that draws is not installed.
    """
    spec = figure(told)
    return None if spec is None else vega.svg(spec)


def write(
    found: Reproduction, folder: Path, suffixes: Sequence[str] = (".svg", ".png")
) -> list[Path]:
    """Write every figure to a folder and return the files.

    Raises:
        UsageError: the package that draws is not installed, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}; name another") from error
    written = []
    for told in found.told:
        spec = figure(told)
        if spec is None:
            continue
        for suffix in suffixes:
            path = folder / f"{told.file.name}{suffix}"
            vega.write(spec, path)
            written.append(path)
    return written
