"""The pictures: Vega-Lite specifications in ``page/*.json``, and the numbers that fill them.

A specification has holes, texts that begin with ``@``; ``vega.filled`` puts values into them, once,
so that names from outside stay what they are. What follows from a value alone, such as the text of
a tooltip, the specification computes. Its parameter ``wide`` is whether there is room for names at
the ends of lines and for long legends. The hole ``points`` gets points as flat rows: in a page its
script takes them from the columns that the page holds anyway, elsewhere ``drawn`` makes them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, check_known
from frameworktax.records import BILL, Measurement, Point, Run, point_name
from frameworktax.report import vega
from frameworktax.report.families import Family, families, latency_of
from frameworktax.report.rows import csv_row
from frameworktax.report.vega import LINE_COLOURS, SHAPES, UNKNOWN, Spec, colours
from frameworktax.report.words import (
    WORDS,
    duration,
    free_batch,
    label,
    lines_of,
    milliseconds,
    percent,
    tax,
)

AXES: Mapping[str, Mapping[str, str]] = WORDS["axes"]
"""Axis → its name in a tooltip and under the axis."""
FIELDS = (
    *("model", "runtime", *AXES, "latency_ns", "latency_ns_low", "latency_ns_high"),
    *("tax_share", "bill_method", "regime", "flops"),
)
"""What a picture needs of a point."""
HEIGHT = 340
"""Pixels of ``latency.json``."""
LABEL_GAP = 15
"""Pixels between two names at the ends of lines."""
BAR, THIN_BAR, GROUP_GAP = 38, 15, 16
"""Pixels for a bar, for one of a group, and between groups."""
FIGURE_WIDTH = 760


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What fills a specification.

    Attributes:
        template: its name, that of a file in ``page/``.
        values: hole → value.
        rows: numbers of the points that are drawn, in order.
        axis: a key of ``AXES``, where points are drawn along one.
        title: what the points have in common.
    """

    template: str
    values: dict[str, Any]
    rows: tuple[int, ...] = ()
    axis: str = ""
    title: str = ""


def drawn(picture: Picture, points: Sequence[Measurement] = ()) -> Spec:
    """Return a picture's specification for paper: with a legend of the runtimes in it."""
    shown = [points[i] for i in picture.rows]
    runtimes = list(dict.fromkeys(m.runtime for m in shown))
    values = {
        "points": [{name: row[name] for name in FIELDS} for row in map(csv_row, shown)],
        "runtimes": runtimes,
        "colours": colours(runtimes),
        "legend": {"title": None, "orient": "top", "columns": 4, "symbolType": "stroke"}
        | {"symbolStrokeWidth": 4, "symbolOpacity": 1},
    }
    return vega.filled(picture.template, values | picture.values)


# --- latency along an axis ---------------------------------------------------------------------


def lines(shown: Sequence[Family]) -> list[Picture]:
    """Return latency along every axis; those along the batch size first, one a family.

    A point's number counts the families' measurements one after the other.
    """
    numbered = [m for family in shown for m in family.measurements]
    made: list[Picture] = []
    at = 0
    for family in shown:
        found = [i for i, m in enumerate(family.measurements, at) if m.latency_ns is not None]
        at += len(family.measurements)
        if found:
            made.append(_line(numbered, found, "batch", family.title, free_of(family)))
    for axis in list(AXES)[1:]:
        if len({_along(m, axis) for m in numbered}) < 2:
            continue
        groups: dict[Point, list[int]] = defaultdict(list)
        for i, m in enumerate(numbered):
            if m.latency_ns is not None and _along(m, axis):
                groups[_others(m.point, axis)].append(i)
        for point, found in groups.items():
            if len({_along(numbered[i], axis) for i in found}) > 1:
                name = point_name(point, runtime=False, batch=False, defaults=True)
                name = name.removesuffix(", 1 thread" if axis == "threads" else "")
                title = f"batch {point.workload.batch}, {name}"
                made.append(_line(numbered, found, axis, title, []))
    return made


def _along(m: Measurement, axis: str) -> float:
    """Return a point's value on an axis; 0 where it has no such axis."""
    found = m.threads if axis == "threads" else getattr(m.workload, axis)
    return float(found or 0)


def _others(point: Point, axis: str) -> Point:
    """Return what points share that differ in runtime and along an axis; its name has neither."""
    if axis == "threads":
        return replace(point, runtime="", threads=1)
    neutral: dict[str, Any] = {axis: 1.0 if axis in ("width", "depth") else None}
    return replace(point, runtime="", workload=replace(point.workload, **neutral))


def free_of(family: Family) -> list[dict[str, Any]]:
    """Return the free batch size of eager, or of the first runtime, with its text."""
    curve = family.curve(family.reference)
    if curve is None or curve.free_batch is None or curve.free_batch.value < 2:
        return []
    size = free_batch(curve.free_batch, is_lower_bound=curve.free_is_lower_bound)
    text = f"{family.reference}: free up to batch {size}"
    return [{"x": curve.free_batch.value, "text": text}]


def _line(
    points: Sequence[Measurement],
    found: Sequence[int],
    axis: str,
    title: str,
    free: list[dict[str, Any]],
) -> Picture:
    """Return latency against an axis: intervals, regimes by shape, names at the ends of lines."""
    order = list(dict.fromkeys(points[i].runtime for i in found))
    rows = sorted(found, key=lambda i: (order.index(points[i].runtime), _along(points[i], axis)))
    shown = [points[i] for i in rows]
    xs = sorted({_along(m, axis) for m in shown})
    estimates = [latency_of(m) for m in shown]
    low = min(e.low if e.low > 0 else e.value for e in estimates) * 0.9 / 1e6
    high = max(e.high for e in estimates) * 1.12 / 1e6
    left, right = xs[0] / 1.08, xs[-1] * (xs[-1] / xs[0]) ** 0.2 * 1.4
    ends = {m.runtime: (_along(m, axis), latency_of(m).value / 1e6) for m in shown}
    rising = sorted(order, key=lambda name: ends[name][1])
    gap = LABEL_GAP * math.log(high / low) / HEIGHT
    heights = spaced([math.log(ends[n][1]) for n in rising], gap, math.log(low), math.log(high))
    placed = dict(zip(rising, map(math.exp, heights), strict=True))
    regimes = [name for name in SHAPES if any((m.regime or UNKNOWN) == name for m in shown)]
    values = {
        **AXES[axis],
        "axis": axis,
        "x_begin": left,
        "x_ends": [xs[-1] * 1.08, right],
        "x_ticks": xs,
        "y_domain": [low, high],
        "y_ticks": ticks(low, high),
        "ends": [{"runtime": n, "x": ends[n][0], "latency": placed[n]} for n in order],
        "free": free,
        "regimes": regimes,
        "shapes": [SHAPES[name] for name in regimes],
    }
    return Picture(template="latency", values=values, rows=tuple(rows), axis=axis, title=title)


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart, near those wanted, under ``high``."""
    placed = [max(wanted[0], low)]  # a name stays in the picture
    for at in wanted[1:]:
        placed.append(max(at, placed[-1] + gap))
    shift = sum(p - w for p, w in zip(placed, wanted, strict=True)) / len(placed)
    over = max(0.0, placed[-1] - shift + gap / 2 - high)  # what is below the top stays where it is
    return [p - shift - over for p in placed]


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two positive limits: 1-2-5, finer where that gives under two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for tenths in ((10, 20, 50), range(10, 100, 10), range(10, 100, 5), range(10, 100)):
        every = (float(f"{step * 10.0 ** (power - 1):.6g}") for power in powers for step in tenths)
        found = [t for t in every if low <= t <= high]
        if len(found) > 1:
            break
    return found


# --- the breakdown -----------------------------------------------------------------------------


def bill_chart(family: Family) -> Picture:
    """Return the breakdown at the smallest batch: one stacked bar a runtime, ms, with its tax.

    Below the end of the kernel time is its interval, down to zero at the most.
    """
    points = [m for m in family.smallest if m.bill_ns]
    parts = [(m.bill_ns or {}).values() for m in points]
    values = {
        **_lines(points),
        "height": BAR * len(points),
        "order": [m.runtime for m in points],
        "title": f"latency of one call at batch {family.batches[0]}, ms",
        "least": min(0.0, *(sum(ns for ns in bill if ns < 0) for bill in parts)) / 1e6,
        "longest": max(sum(ns for ns in bill if ns > 0) for bill in parts) / 1e6,
        "whiskers": [
            {"runtime": m.runtime, "start": m.kernel_ns.low / 1e6, "end": m.kernel_ns.high / 1e6}
            for m in points
            if m.kernel_ns is not None
        ],
        "totals": [
            {
                "runtime": m.runtime,
                "start": latency_of(m).value / 1e6,
                "latency": milliseconds(latency_of(m).value),
                "tax": tax(m) if m.tax_share else "",
            }
            for m in points
        ],
    }
    return Picture(template="bill", values=values)


def shares_chart(family: Family) -> Picture:
    """Return the breakdown of every runtime and batch as shares of its latency."""
    points = [m for m in family.measured if m.bill_ns]
    order = list(dict.fromkeys(m.runtime for m in points))
    batches = sorted({m.workload.batch for m in points})
    height = len(order) * (len(batches) * THIN_BAR + GROUP_GAP)
    values = {**_lines(points), "height": height, "order": order, "batches": batches}
    return Picture(template="shares", values=values)


def _lines(points: Sequence[Measurement]) -> dict[str, Any]:
    """Return the lines of breakdowns, and the legend of those that there are."""
    rows = [
        {
            "runtime": m.runtime,
            "batch": m.workload.batch,
            "line": label(name),
            "ms": ns / 1e6,
            "share": ns / latency_of(m).value,
            "percent": percent(ns / latency_of(m).value),
            "time": duration(ns),
            "ink": LINE_COLOURS[name][1],
        }
        for m in points
        for name, ns in lines_of(m.bill_ns or {})
    ]
    used = [name for name in BILL if any(row["line"] == label(name) for row in rows)]
    return {
        "lines": rows,
        "names": [label(name) for name in used],
        "colours": [LINE_COLOURS[name][0] for name in used],
    }


# --- all points --------------------------------------------------------------------------------


def operations_chart(points: Sequence[Measurement]) -> Picture | None:
    """Return FLOPs against latency; None with fewer than two numbers of FLOPs."""
    found = [i for i, m in enumerate(points) if m.flops and m.latency_ns is not None]
    if len({points[i].flops for i in found}) < 2:
        return None
    return Picture(template="operations", values={}, rows=tuple(found))


# --- pictures alone ----------------------------------------------------------------------------

BARS: dict[str, Callable[[Family], Picture]] = {"bill": bill_chart, "shares": shares_chart}
FIGURES = ("latency", *BARS, "operations", *(axis for axis in AXES if axis != "batch"))
"""What can be drawn alone: an axis is latency against it, ``latency`` is that against batch."""


def bars(family: Family) -> list[str]:
    """Return which of ``BARS`` a family has numbers for."""
    batches = {m.workload.batch for m in family.measured if m.bill_ns}
    found = ["bill"] if family.measured and family.batches[0] in batches else []
    return [*found, "shares"] if len(batches) > 1 else found


def figure(run: Run, name: str, path: Path) -> None:
    """Write one of ``FIGURES``: of the first model, or of all points.

    Raises:
        UsageError: no such picture, no numbers for it, another suffix, or no plotting package.
    """
    check_known("figure", name, FIGURES)
    shown = families(run)
    picture = _figure(shown, name)
    if picture is None:
        raise UsageError(f"no numbers for the figure '{name}' in this run")
    spec = drawn(picture, [m for family in shown for m in family.measurements])
    if picture.axis not in ("", "batch"):
        spec["title"] = {"text": picture.title, "anchor": "start", "fontWeight": "normal"}
    vega.write({**spec, "width": FIGURE_WIDTH}, path)


def _figure(shown: Sequence[Family], name: str) -> Picture | None:
    if name == "operations":
        return operations_chart([m for family in shown for m in family.measurements])
    if name in BARS:
        return BARS[name](shown[0]) if shown and name in bars(shown[0]) else None
    axis = "batch" if name == "latency" else name
    return next((line for line in lines(shown) if line.axis == axis), None)
