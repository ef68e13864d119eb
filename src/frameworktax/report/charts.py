"""Latency along an axis: what fills the specification of ``latency_layers.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from frameworktax.records import Measurement
from frameworktax.report.latency_layers import AXES, latency_template
from frameworktax.report.palette import HEIGHT, SHAPES, UNKNOWN, Spec, colours, fill
from frameworktax.report.tables import Family
from frameworktax.report.words import duration, interval, percent

LETTER_WIDTH = 0.0095
"""Share of the drawing's width that a letter of a band's name takes."""
LABEL_GAP = 15
"""Pixels between two names at the ends of lines."""


def latency_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return latency against batch on log axes: intervals, regimes by shape, names at the ends.

    Args:
        family: the points.
        wide: whether there is room for names at the ends of the lines.
    """
    values = latency_values([_point(m) for m in family.measured], free_of(family), wide=wide)
    spec: Spec = fill(latency_template(wide=wide), {**values, **AXES["batch"]})
    return spec


def axis_chart(points: Sequence[Measurement], axis: str, title: str) -> Spec:
    """Return latency against any axis, with its title, for paper.

    Args:
        points: that differ in runtime and in the axis alone, one runtime after the other.
        axis: a key of ``AXES``.
        title: what they share.
    """
    values = latency_values([_point(m, axis) for m in points], None)
    spec: Spec = fill(latency_template(), {**values, **AXES[axis]})
    return {**spec, "title": {"text": title, "anchor": "start", "fontWeight": "normal"}}


def latency_values(
    points: Sequence[dict[str, Any]], free: tuple[float, str] | None, *, wide: bool = True
) -> dict[str, Any]:
    """Return what fills the holes of ``latency_template``, all but the words of the axis.

    Args:
        points: runtime, x, latency, low and high in ms, regime and texts; one runtime after the
            other.
        free: the free batch and what is said at it.
        wide: whether names stand at the ends of the lines.
    """
    xs = sorted({p["x"] for p in points})
    runtimes = list(dict.fromkeys(p["runtime"] for p in points))
    low = min(p["low"] for p in points) * 0.9
    high = max(p["high"] for p in points) * 1.12
    left = xs[0] / 1.08
    right = xs[-1] * (xs[-1] / xs[0]) ** 0.2 * 1.4 if wide else xs[-1] * 1.08
    regimes = [name for name in SHAPES if any(p["regime"] == name for p in points)]
    first = sorted((p for p in points if p["runtime"] == runtimes[0]), key=lambda p: p["x"])
    at_free = [] if free is None else [{"x": free[0], "latency": low * 1.06, "text": free[1]}]
    return {
        "points": list(points),
        "bands": _band_values(first, left, right, low, high),
        "ends": _end_values(points, runtimes, low, high),
        "free": at_free,
        "x_domain": [left, right],
        "x_ticks": xs,
        "y_domain": [low, high],
        "y_ticks": ticks(low, high),
        "runtimes": runtimes,
        "colours": colours(runtimes),
        "regimes": regimes,
        "shapes": [SHAPES[name] for name in regimes],
    }


def _band_values(
    points: Sequence[dict[str, Any]], left: float, right: float, low: float, high: float
) -> list[dict[str, Any]]:
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
        band |= {"low": low, "high": high}
        # A name that does not fit into its band is left to the shape of the points.
        if len(band["said"]) * LETTER_WIDTH > math.log(band["end"] / band["start"]) / whole:
            band["said"] = ""
    return bands


def _point(m: Measurement, axis: str = "batch") -> dict[str, Any]:
    estimate = m.latency_ns
    if estimate is None:  # families hand out measured points only
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


def _end_values(
    points: Sequence[dict[str, Any]], runtimes: Sequence[str], low: float, high: float
) -> list[dict[str, Any]]:
    """Return names at the right ends, pushed apart by ``LABEL_GAP`` so that they stay readable."""
    ends = [
        max((p for p in points if p["runtime"] == name), key=lambda p: p["x"]) for name in runtimes
    ]
    ends.sort(key=lambda p: p["latency"])
    gap = LABEL_GAP * math.log(high / low) / HEIGHT
    placed = spaced([math.log(p["latency"]) for p in ends], gap, math.log(low), math.log(high))
    return [
        {"runtime": p["runtime"], "x": p["x"], "latency": math.exp(at)}
        for p, at in zip(ends, placed, strict=True)
    ]


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart, near those wanted, under ``high``."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + gap) if placed else max(at, low))
    shift = sum(p - w for p, w in zip(placed, wanted, strict=True)) / max(1, len(placed))
    placed = [p - shift for p in placed]
    over = max(0.0, placed[-1] + gap / 2 - high) if placed else 0.0
    return [p - over for p in placed]


def free_of(family: Family) -> tuple[float, str] | None:
    """Return the free batch of eager, or of the first runtime, and how it is told; None if none."""
    runtime = "eager" if "eager" in family.runtimes else family.runtimes[0]
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None or curve.free_batch.value <= 1:
        return None
    value = curve.free_batch.value
    bound = "at least " if curve.free_is_lower_bound else ""
    return value, f"{runtime}: free up to {bound}batch {value:.3g}"


def ticks(low: float, high: float) -> list[float]:
    """Return the 1-2-5 numbers between two positive limits."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [step * 10.0**power for step in (1, 2, 5)]
    return [float(f"{t:.6g}") for t in found if low <= t <= high]
