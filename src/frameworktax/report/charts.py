"""The pictures: Vega-Lite specifications in ``page/*.json``, and the numbers that fill them.

A specification has holes, texts that begin with ``@``; ``fill`` puts values into them, once, so
that names from outside stay what they are. The page's script fills ``latency.json`` and
``operations.json`` itself, from the points that the page holds anyway; how such a picture is laid
out (``frame``) comes from here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from frameworktax.analysis.compare.comparison import Change, Comparison
from frameworktax.errors import UsageError, nearest
from frameworktax.records import BILL, Measurement, Run
from frameworktax.report import compare_blocks, vega
from frameworktax.report.families import Family, families
from frameworktax.report.palette import (
    BANDS,
    LINE_COLOURS,
    SHAPES,
    UNKNOWN,
    VERDICTS,
    Spec,
    colours,
)
from frameworktax.report.words import TWIN, duration, interval, label, milliseconds, percent

AXES: dict[str, dict[str, str]] = {
    "batch": {"axis": "batch", "x_title": "batch size"},
    "length": {"axis": "length", "x_title": "length, tokens"},
    "image_size": {"axis": "image size", "x_title": "image size, pixels a side"},
    "width": {"axis": "width", "x_title": "factor on layer widths"},
    "depth": {"axis": "depth", "x_title": "factor on the number of layers"},
    "threads": {"axis": "threads", "x_title": "threads"},
}
"""Axis → its name in a tooltip and under the axis."""
HEIGHT = 340
"""Pixels of ``latency.json``."""
LETTER_WIDTH = 0.0095
"""Share of the drawing's width that a letter of a band's name takes."""
LABEL_GAP = 15
"""Pixels between two names at the ends of lines."""
BAR, THIN_BAR, GROUP_GAP = 38, 15, 16
"""Pixels for a bar, for one of a group, and between groups."""
CHANGES, CHANGE_HEIGHT = 40, 22
"""Points of a comparison that are drawn, those that changed most, and pixels for each."""
FIGURE_WIDTH = 760


@cache
def _specification(name: str) -> Spec:
    text = files("frameworktax.report").joinpath("page", f"{name}.json").read_text("utf-8")
    spec: Spec = json.loads(text)
    return spec


def template(name: str, *, wide: bool = True) -> Spec:
    """Return a specification with its holes, on narrow screens without the layers ``wide-…``."""
    spec = _specification(name)
    if wide or "layer" not in spec:
        return spec
    layers = [one for one in spec["layer"] if not one.get("name", "").startswith("wide-")]
    return {**spec, "layer": layers}


def fill(spec: Any, values: dict[str, Any]) -> Any:
    """Return a specification with each hole ``@name`` replaced; ``charts.js`` has the same."""
    if isinstance(spec, dict):
        return {key: fill(item, values) for key, item in spec.items()}
    if isinstance(spec, list):
        return [fill(item, values) for item in spec]
    return values[spec[1:]] if isinstance(spec, str) and spec.startswith("@") else spec


def _drawn(name: str, values: dict[str, Any], *, wide: bool = True) -> Spec:
    spec: Spec = fill(template(name, wide=wide), values)
    return spec


# --- latency along an axis ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Points that differ in runtime and in one axis alone.

    Attributes:
        axis: a key of ``AXES``.
        title: what they share.
        rows: numbers of the points, one runtime after the other, ascending along the axis.
        free: the free batch size and its text; batch axis only.
    """

    axis: str
    title: str
    rows: tuple[int, ...]
    free: tuple[float, str] | None = None


def slices(shown: Sequence[Family]) -> list[Slice]:
    """Return every line of two points or more that can be drawn; the families' own come first.

    Args:
        shown: families; a point's number counts their measurements one after the other.
    """
    numbered = [m for family in shown for m in family.measurements]
    titles = [family.title for family in shown for _ in family.measurements]
    made: list[Slice] = []
    at = 0
    for family in shown:
        rows = [(at + i, m) for i, m in enumerate(family.measurements)]
        at += len(rows)
        if family.measured:
            found = [(i, m) for i, m in rows if m.latency_ns is not None]
            made.append(_slice("batch", family.title, found, free_of(family)))
    for axis in list(AXES)[1:]:
        groups: dict[object, list[tuple[int, Measurement]]] = {}
        for i, m in enumerate(numbered):
            if m.latency_ns is not None and _along(m, axis):
                groups.setdefault(_others(m, axis), []).append((i, m))
        for found in groups.values():
            if len({_along(m, axis) for _, m in found}) > 1:
                first = found[0][0]
                title = f"batch {numbered[first].workload.batch}, {titles[first]}"
                made.append(_slice(axis, _without(title, numbered[first], axis), found, None))
    return made


def _slice(
    axis: str,
    title: str,
    found: Sequence[tuple[int, Measurement]],
    free: tuple[float, str] | None,
) -> Slice:
    order = list(dict.fromkeys(m.runtime for _, m in found))
    rows = sorted(found, key=lambda row: (order.index(row[1].runtime), _along(row[1], axis)))
    return Slice(axis=axis, title=title, rows=tuple(i for i, _ in rows), free=free)


def _along(m: Measurement, axis: str) -> float:
    """Return a point's value on an axis; 0 where it has no such axis."""
    found = m.threads if axis == "threads" else getattr(m.workload, axis)
    return float(found or 0)


def _others(m: Measurement, axis: str) -> object:
    if axis == "threads":
        return (m.workload, m.platform)
    neutral: dict[str, Any] = {axis: 1}
    return (replace(m.workload, **neutral), m.platform, m.threads)


def _without(title: str, m: Measurement, axis: str) -> str:
    """Drop from a title the value of the axis along which its points differ."""
    value = _along(m, axis)
    said = {
        "length": f"length {value:g}",
        "image_size": f"{value:g} px",
        "width": f"width × {value:g}",
        "depth": f"depth × {value:g}",
        "threads": f"{value:g} thread{'s' if value != 1 else ''}",
    }
    return ", ".join(part for part in title.split(", ") if part != said.get(axis))


def free_of(family: Family) -> tuple[float, str] | None:
    """Return the free batch size of eager, or of the first runtime, with its text; None if none."""
    runtime = "eager" if "eager" in family.runtimes else family.runtimes[0]
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None or curve.free_batch.value <= 1:
        return None
    value = curve.free_batch.value
    bound = "at least " if curve.free_is_lower_bound else ""
    return value, f"{runtime}: free up to {bound}batch {value:.3g}"


def latency_chart(points: Sequence[Measurement], line: Slice, *, wide: bool = True) -> Spec:
    """Return latency against an axis: intervals, regimes by shape, names at the ends of lines.

    Args:
        points: that the slice numbers.
        line: which of them, against what.
        wide: whether there is room for names at the ends of the lines.
    """
    shown = [_point(points[i], line.axis) for i in line.rows]
    laid = frame([points[i] for i in line.rows], line)
    runtimes = list(dict.fromkeys(p["runtime"] for p in shown))
    regimes = [name for name in SHAPES if any(p["regime"] == name for p in shown)]
    last = {p["runtime"]: p["x"] for p in shown}
    values = {
        **AXES[line.axis],
        "points": shown,
        "bands": laid["bands"],
        "ends": [
            {"runtime": name, "x": last[name], "latency": at}
            for name, at in zip(runtimes, laid["ends"], strict=True)
        ],
        "free": [{"x": line.free[0], "text": line.free[1]}] if line.free else [],
        "x_domain": [laid["x"][0], laid["x"][2 if wide else 1]],
        "x_ticks": sorted({p["x"] for p in shown}),
        "y_domain": laid["y"],
        "runtimes": runtimes,
        "colours": colours(runtimes),
        "regimes": regimes,
        "shapes": [SHAPES[name] for name in regimes],
        **latency_looks(wide=wide),
        "legend": {
            "title": None,
            "orient": "top",
            "columns": 4 if wide else 2,
            "symbolType": "stroke",
            "symbolStrokeWidth": 4,
            "symbolOpacity": 1,
        },
    }
    return _drawn("latency", values, wide=wide)


def latency_looks(*, wide: bool = True) -> dict[str, Any]:
    """Return what fills the holes of ``latency.json`` that do not depend on the points."""
    return {
        "legend": None,
        "y_ticks": ticks(1e-6, 1e7),
        "band_names": list(BANDS),
        "band_colours": list(BANDS.values()),
        "regime_columns": 3 if wide else 2,
    }


def _point(m: Measurement, axis: str) -> dict[str, Any]:
    estimate = m.latency_ns
    if estimate is None:  # families return measured points only
        raise ValueError("a point without latency cannot be drawn")
    low = estimate.low if estimate.low > 0 else estimate.value  # a log axis has no zero
    return {
        "runtime": m.runtime,
        "x": m.threads if axis == "threads" else getattr(m.workload, axis),
        "latency": estimate.value / 1e6,
        "low": low / 1e6,
        "high": estimate.high / 1e6,
        "regime": m.regime or UNKNOWN,
        "latency_text": f"{interval(estimate)} ms",
        "sample_text": duration(estimate.value / m.workload.batch),
        "tax_text": percent(m.tax_share.value) if m.tax_share else "not measured",
    }


def frame(measurements: Sequence[Measurement], line: Slice) -> dict[str, Any]:
    """Return the layout of a picture of latency.

    Args:
        measurements: the slice's points, in its order.
        line: the slice.

    Returns:
        ``x``: where the axis begins, where it ends on a narrow and on a wide screen; ``y``: the
        same, ms; ``bands``: regimes of the first runtime; ``ends``: where the names at the ends
        of lines are, ms, a runtime each.
    """
    points = [_point(m, line.axis) for m in measurements]
    xs = sorted({p["x"] for p in points})
    runtimes = list(dict.fromkeys(p["runtime"] for p in points))
    low = min(p["low"] for p in points) * 0.9
    high = max(p["high"] for p in points) * 1.12
    left = xs[0] / 1.08
    right = xs[-1] * (xs[-1] / xs[0]) ** 0.2 * 1.4
    return {
        "x": [left, xs[-1] * 1.08, right],
        "y": [low, high],
        "bands": _bands([p for p in points if p["runtime"] == runtimes[0]], left, right),
        "ends": _ends(points, runtimes, low, high),
    }


def _bands(points: Sequence[dict[str, Any]], left: float, right: float) -> list[dict[str, Any]]:
    """Shade the regimes of the first runtime, from halfway to halfway between its values."""
    if all(p["regime"] == UNKNOWN for p in points):
        return []
    xs = [p["x"] for p in points]
    middles = [math.sqrt(a * b) for a, b in pairwise(xs)]
    edges = [left, *middles, min(right, xs[-1] * 1.3)]
    bands: list[dict[str, Any]] = []
    for p, (start, end) in zip(points, pairwise(edges), strict=True):
        if bands and bands[-1]["regime"] == p["regime"]:
            bands[-1]["end"] = end
        elif p["regime"] != UNKNOWN:
            said = p["regime"] if bands else f"{p['runtime']}: {p['regime']}"
            bands.append({"regime": p["regime"], "start": start, "end": end, "said": said})
    whole = math.log(right / left)
    for band in bands:
        # A name that does not fit into its band is left to the shape of the points.
        if len(band["said"]) * LETTER_WIDTH > math.log(band["end"] / band["start"]) / whole:
            band["said"] = ""
    return bands


def _ends(
    points: Sequence[dict[str, Any]], runtimes: Sequence[str], low: float, high: float
) -> list[float]:
    """Return heights of the names at the right ends, ``LABEL_GAP`` apart so that all are read."""
    last = {p["runtime"]: p["latency"] for p in points}
    order = sorted(runtimes, key=lambda name: last[name])
    gap = LABEL_GAP * math.log(high / low) / HEIGHT
    wanted = [math.log(last[name]) for name in order]
    placed = dict(zip(order, spaced(wanted, gap, math.log(low), math.log(high)), strict=True))
    return [math.exp(placed[name]) for name in runtimes]


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart, near those wanted, under ``high``."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + gap) if placed else max(at, low))
    shift = sum(p - w for p, w in zip(placed, wanted, strict=True)) / max(1, len(placed))
    placed = [p - shift for p in placed]
    over = max(0.0, placed[-1] + gap / 2 - high) if placed else 0.0
    return [p - over for p in placed]


def ticks(low: float, high: float) -> list[float]:
    """Return the 1-2-5 numbers between two positive limits."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [step * 10.0**power for step in (1, 2, 5)]
    return [float(f"{t:.6g}") for t in found if low <= t <= high]


# --- the breakdown -----------------------------------------------------------------------------


def bill_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return the breakdown at the smallest batch: one stacked bar a runtime, ms, with its tax.

    Below the end of the kernel time is its interval, down to zero at the most.
    """
    batch = family.batches[0]
    points = [p for r in family.runtimes if (p := family.at(r, batch)) and p.bill_ns]
    segments = [s for m in points for s in _segments(m)]
    longest = max(s["end"] for s in segments)
    for s in segments:
        fits = s["end"] - s["start"] > longest * (0.075 if wide else 0.16)
        s["shown"] = s["percent"] if fits else ""
    least = min(0.0, *(min(s["start"], s["end"]) for s in segments))
    values = {
        **_lines(segments, wide=wide),
        "height": BAR * len(points),
        "order": [m.runtime for m in points],
        "title": f"latency of one call at batch {batch}, ms",
        "domain": [least, longest * (1.3 if wide else 1.95)],
        "segments": segments,
        "whiskers": [
            {"runtime": m.runtime, "start": m.kernel_ns.low / 1e6, "end": m.kernel_ns.high / 1e6}
            for m in points
            if m.kernel_ns is not None
        ],
        "totals": [_total(m, wide) for m in points],
    }
    return _drawn("bill", values)


def shares_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return the breakdown of every runtime and batch as shares of its latency."""
    points = [m for m in family.measured if m.bill_ns]
    segments = [s for m in points for s in _segments(m)]
    for s in segments:
        s["start"], s["end"] = s["start"] / s["total"], s["end"] / s["total"]
    order = list(dict.fromkeys(m.runtime for m in points))
    batches = sorted({m.workload.batch for m in points})
    values = {
        **_lines(segments, wide=wide),
        "height": len(order) * (len(batches) * THIN_BAR + GROUP_GAP),
        "order": order,
        "batches": batches,
        "segments": segments,
        "names": [{"runtime": m.runtime, "batch": m.workload.batch, "start": 0} for m in points],
    }
    return _drawn("shares", values)


def _segments(m: Measurement) -> list[dict[str, Any]]:
    """Return the lines of a breakdown end to end, ms; one below zero goes to the left of zero."""
    upto = below = 0.0
    total = m.latency_ns.value if m.latency_ns else math.nan
    made = []
    for name in BILL:
        ns = (m.bill_ns or {}).get(name)
        if not ns:
            continue
        start = upto if ns > 0 else below
        upto, below = upto + max(ns, 0.0), below + min(ns, 0.0)
        made.append(
            {
                "runtime": m.runtime,
                "batch": m.workload.batch,
                "line": label(name),
                "start": start / 1e6,
                "end": (start + ns) / 1e6,
                "middle": (start + ns / 2) / 1e6,
                "total": total / 1e6,
                "percent": percent(ns / total),
                "time": duration(ns),
                "ink": LINE_COLOURS[name][1],
            }
        )
    return made


def _total(m: Measurement, wide: bool) -> dict[str, Any]:
    total = m.latency_ns.value if m.latency_ns else math.nan
    least = "≥ " if m.bill_method == TWIN else ""
    unit, what = (" ms", " tax") if wide else ("", "")
    share = f", {least}{percent(m.tax_share.value)}{what}" if m.tax_share else ""
    return {
        "runtime": m.runtime,
        "start": total / 1e6,
        "text": f"{milliseconds(total)}{unit}{share}",
    }


def _lines(segments: Sequence[dict[str, Any]], *, wide: bool) -> dict[str, Any]:
    """Return the legend of the lines that are drawn."""
    used = [name for name in BILL if any(s["line"] == label(name) for s in segments)]
    return {
        "lines": [label(name) for name in used],
        "colours": [LINE_COLOURS[name][0] for name in used],
        "columns": 6 if wide else 2,
    }


# --- all points, and two results ---------------------------------------------------------------


def operations_chart(measurements: Sequence[Measurement]) -> Spec | None:
    """Return FLOPs against latency; None with fewer than two numbers of FLOPs."""
    points = [
        {
            "model": m.workload.model,
            "runtime": m.runtime,
            "batch": m.workload.batch,
            "flops": m.flops / 1e9,
            "latency": m.latency_ns.value / 1e6,
            "regime": m.regime or UNKNOWN,
        }
        for m in measurements
        if m.flops and m.latency_ns is not None
    ]
    if len({p["flops"] for p in points}) < 2:
        return None
    runtimes = list(dict.fromkeys(str(p["runtime"]) for p in points))
    values = {"points": points, "runtimes": runtimes, "colours": colours(runtimes), "columns": 4}
    return _drawn("operations", values)


def changes_chart(comparison: Comparison, *, wide: bool = True) -> Spec | None:
    """Return after over before of each point on a log axis; None where no point has a ratio."""
    drawable = [c for c in comparison.points if c.ratio is not None and c.ratio.low > 0]
    if not drawable:
        return None
    most = sorted(drawable, key=_factor, reverse=True)[:CHANGES]
    shown = [c for c in comparison.points if any(c is one for one in most)]
    names = [name for name in VERDICTS if any(c.verdict == name for c in shown)]
    values = {
        "points": [_change(c, comparison.metric) for c in shown],
        "height": CHANGE_HEIGHT * len(shown),
        "label_limit": 330 if wide else 120,
        "title": f"{comparison.metric}, after over before",
        "verdicts": names,
        "colours": [VERDICTS[name] for name in names],
        "columns": 4 if wide else 2,
    }
    return _drawn("changes", values)


def _factor(change: Change) -> float:
    """Return how far from no change a point is, either way."""
    value = change.ratio.value if change.ratio is not None else 1.0
    return max(value, 1 / value)


def _change(change: Change, metric: str) -> dict[str, object]:
    ratio = change.ratio
    if ratio is None:  # only points with a ratio are drawn
        raise ValueError("a point without a ratio cannot be drawn")
    return {
        "point": compare_blocks.change_name(change),
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": change.verdict,
        "before": compare_blocks.value(change.before, metric),
        "after": compare_blocks.value(change.after, metric),
        "change": compare_blocks.change_text(change),
        "said": compare_blocks.verdict(change),
    }


# --- pictures alone ----------------------------------------------------------------------------

BARS: dict[str, Callable[..., Spec]] = {"bill": bill_chart, "shares": shares_chart}
FIGURES = ("latency", *BARS, "operations", *(axis for axis in AXES if axis != "batch"))
"""What can be drawn alone: an axis is latency against it, ``latency`` is that against batch."""


def bars(family: Family) -> list[str]:
    """Return which of ``BARS`` a family has numbers for."""
    batches = {m.workload.batch for m in family.measured if m.bill_ns}
    found = ["bill"] if family.measured and family.batches[0] in batches else []
    return [*found, "shares"] if len(batches) > 1 else found


def figure(run: Run, name: str, path: Path) -> None:
    """Write one picture: of the first model, or of all points.

    Args:
        run: the document.
        name: one of ``FIGURES``.
        path: its suffix chooses ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        UsageError: no such picture, no numbers for it, another suffix, or no plotting package.
    """
    if name not in FIGURES:
        raise UsageError(f"no figure '{name}'{nearest(name, FIGURES)}; have {', '.join(FIGURES)}")
    vega.check(path)
    spec = _figure(families(run), name)
    if spec is None:
        raise UsageError(f"no numbers for the figure '{name}' in this run")
    vega.write({**spec, "width": FIGURE_WIDTH, "background": "white", "config": vega.PAPER}, path)


def _figure(shown: Sequence[Family], name: str) -> Spec | None:
    measurements = [m for family in shown for m in family.measurements]
    if name == "operations":
        return operations_chart(measurements)
    if name in BARS:
        return BARS[name](shown[0]) if shown and name in bars(shown[0]) else None
    axis = "batch" if name == "latency" else name
    line = next((line for line in slices(shown) if line.axis == axis), None)
    if line is None:
        return None
    spec = latency_chart(measurements, line)
    if axis == "batch":
        return spec
    return {**spec, "title": {"text": line.title, "anchor": "start", "fontWeight": "normal"}}
