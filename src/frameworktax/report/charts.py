"""The pictures as Vega-Lite specifications: latency against batch, and the bill.

The same specifications are drawn in the page and turned into SVG or PNG. Colours are told apart
by people with any of the common colour deficiencies (after Okabe and Ito) and stand on white and
on near-black; regimes are told by shape as well, because colour belongs to the runtimes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from frameworktax.records import Measurement
from frameworktax.report.tables import Family
from frameworktax.report.words import duration, interval, percent

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

RUNTIME_COLOURS = {
    "eager": "#7b8494",
    "inference-mode": "#b8860b",
    "torchscript": "#a05a8c",
    "torchscript-frozen": "#cc79a7",
    "inductor": "#0f7fc4",
    "aot-inductor": "#45b0e6",
    "onnxruntime": "#009e73",
    "openvino": "#d55e00",
    "cuda-graph": "#8a6fd1",
    "onnxruntime-cuda": "#5fae2e",
}
OTHER_COLOURS = ("#8c6d31", "#17a2a2", "#c0504d", "#6f7f2f", "#9467bd", "#ad7fa8")
SHAPES = {
    "framework-bound": "circle",
    "mixed": "diamond",
    "compute-bound": "square",
    "memory-bound": "triangle-up",
    "kernel-flat": "triangle-down",
    "not known": "cross",
}
BANDS = {
    "framework-bound": "#d55e00",
    "mixed": "#e3b341",
    "compute-bound": "#0f7fc4",
    "memory-bound": "#8a6fd1",
    "kernel-flat": "#17a2a2",
}
HEIGHT = 340
LETTER_WIDTH = 0.0095
"""Share of the drawing's width that a letter of a band's name takes."""
LABEL_GAP = 15
"""Pixels between two names at the ends of lines."""


def colours(runtimes: Sequence[str]) -> list[str]:
    """Return a colour for each runtime; a known one has the same colour in every report."""
    spare = iter(OTHER_COLOURS * (1 + len(runtimes) // len(OTHER_COLOURS)))
    return [RUNTIME_COLOURS[r] if r in RUNTIME_COLOURS else next(spare) for r in runtimes]


def _isolated(otherwise: float = 0.1, value: float = 1.0) -> Spec:
    return {"condition": {"param": "isolate", "value": value}, "value": otherwise}


def latency_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return latency against batch on log axes: intervals, regimes by shape, names at the ends.

    Args:
        family: the points.
        wide: whether there is room for names at the ends of the lines.
    """
    points = [_point(m) for m in family.measured]
    batches, runtimes = family.batches, family.runtimes
    ends = [m for r in runtimes if (m := _last(family, r)) is not None]
    low = min(p["low"] for p in points) * 0.9
    high = max(p["high"] for p in points) * 1.12
    right = batches[-1] * (batches[-1] / batches[0]) ** 0.2 * (1.4 if wide else 1.0)
    x = {
        "field": "batch",
        "type": "quantitative",
        "title": "batch size",
        "scale": {
            "type": "log",
            "base": 2,
            "domain": [batches[0] / 1.08, right if wide else batches[-1] * 1.08],
            "nice": False,
        },
        "axis": {"values": batches, "format": "d", "grid": False},
    }
    y = {
        "field": "latency",
        "type": "quantitative",
        "title": "latency of one call, ms",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"values": ticks(low, high), "format": "~g"},
    }
    colour = {
        "field": "runtime",
        "type": "nominal",
        "scale": {"domain": runtimes, "range": colours(runtimes)},
        "legend": {
            "title": None,
            "orient": "top",
            "columns": 4 if wide else 2,
            "symbolType": "stroke",
            "symbolStrokeWidth": 4,
            "symbolOpacity": 1,
        },
    }
    regimes = [name for name in SHAPES if any(p["regime"] == name for p in points)]
    shape = {
        "field": "regime",
        "type": "nominal",
        "scale": {"domain": regimes, "range": [SHAPES[name] for name in regimes]},
        "legend": {"title": None, "orient": "bottom", "columns": 3 if wide else 2},
    }
    layers: list[Spec] = [
        *_bands(family, low, high, right if wide else batches[-1] * 1.08, x, y),
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": colour,
                "opacity": _isolated(0.05, 0.6),
            },
        },
        {
            "mark": {"type": "line", "strokeWidth": 2.5},
            "encoding": {"x": x, "y": y, "color": colour, "opacity": _isolated()},
        },
        {
            "params": [
                {
                    "name": "isolate",
                    "select": {"type": "point", "fields": ["runtime"]},
                    "bind": "legend",
                }
            ],
            "mark": {"type": "point", "filled": True, "size": 85, "stroke": None},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "shape": shape,
                "opacity": _isolated(),
                "tooltip": _tooltip(
                    "runtime", "batch", "latency of", "per sample", "tax", "regime"
                ),
            },
        },
    ]
    if wide:
        layers.append(_end_labels(ends, low, high, x, y, colour))
    layers += _free_rule(family, low, x, y)
    return {
        "$schema": SCHEMA,
        "data": {"values": points},
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": layers,
    }


def _bands(family: Family, low: float, high: float, right: float, x: Spec, y: Spec) -> list[Spec]:
    """Shade the regimes of the first runtime, from halfway to halfway between its batch sizes."""
    points = [m for m in family.measured if m.runtime == family.runtimes[0]]
    points = sorted(points, key=lambda m: m.workload.batch)
    if not any(m.regime for m in points):
        return []
    batches = [m.workload.batch for m in points]
    middles = [math.sqrt(a * b) for a, b in pairwise(batches)]
    edges = [family.batches[0] / 1.08, *middles, min(right, batches[-1] * 1.3)]
    bands: list[dict[str, Any]] = []
    for m, (start, end) in zip(points, pairwise(edges), strict=True):
        if bands and bands[-1]["regime"] == m.regime:
            bands[-1]["end"] = end
        elif m.regime:
            said = f"{m.runtime}: {m.regime}" if not bands else m.regime
            bands.append({"regime": m.regime, "start": start, "end": end, "said": said})
    whole = math.log(right / edges[0])
    for band in bands:
        band |= {"low": low, "high": high}
        # A name that does not fit into its band is left to the shape of the points.
        if len(band["said"]) * LETTER_WIDTH > math.log(band["end"] / band["start"]) / whole:
            band["said"] = ""
    place = {
        "x": {**x, "field": "start"},
        "x2": {"field": "end"},
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
    }
    return [
        {
            "data": {"values": bands},
            "mark": {"type": "rect", "tooltip": None},
            "encoding": {
                **place,
                "fill": {
                    "field": "regime",
                    "type": "nominal",
                    "scale": {"domain": list(BANDS), "range": list(BANDS.values())},
                    "legend": None,
                },
                "fillOpacity": {"value": 0.13},
            },
        },
        {
            "data": {"values": bands},
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "top",
                "dx": 5,
                "dy": 5,
                "fontSize": 11,
                "fontStyle": "italic",
            },
            "encoding": {
                "x": place["x"],
                "y": {**y, "field": "high"},
                "text": {"field": "said", "type": "nominal"},
            },
        },
    ]


def _tooltip(*names: str) -> list[Spec]:
    fields = {"latency of": "latency_text", "per sample": "sample_text", "tax": "tax_text"}
    return [
        {"field": fields.get(name, name), "title": name.replace("latency of", "latency")}
        for name in names
    ]


def _point(m: Measurement) -> dict[str, Any]:
    estimate = m.latency_ns
    if estimate is None:  # families hand out measured points only
        raise ValueError("a point without latency cannot be drawn")
    low = estimate.low if estimate.low > 0 else estimate.value  # a log axis has no zero
    return {
        "runtime": m.runtime,
        "batch": m.workload.batch,
        "latency": estimate.value / 1e6,
        "low": low / 1e6,
        "high": estimate.high / 1e6,
        "regime": m.regime or "not known",
        "latency_text": f"{interval(estimate)} ms",
        "sample_text": duration(estimate.value / m.workload.batch),
        "tax_text": percent(m.tax_share.value) if m.tax_share else "not measured",
    }


def _last(family: Family, runtime: str) -> Measurement | None:
    points = [m for m in family.measured if m.runtime == runtime]
    return max(points, key=lambda m: m.workload.batch, default=None)


def _end_labels(
    ends: Sequence[Measurement], low: float, high: float, x: Spec, y: Spec, colour: Spec
) -> Spec:
    """Names at the right ends, pushed apart by ``LABEL_GAP`` so that they stay readable."""
    per_pixel = math.log(high / low) / HEIGHT
    order = sorted(ends, key=lambda m: _point(m)["latency"])
    wanted = [math.log(_point(m)["latency"]) for m in order]
    placed = spaced(wanted, LABEL_GAP * per_pixel, math.log(low), math.log(high))
    values = [
        {"runtime": m.runtime, "batch": m.workload.batch, "latency": math.exp(at)}
        for m, at in zip(order, placed, strict=True)
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "text", "align": "left", "dx": 10, "fontWeight": 600, "fontSize": 12},
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "runtime"},
            "color": colour,
            "opacity": _isolated(),
        },
    }


def spaced(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending positions at least ``gap`` apart, near those wanted, under ``high``."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + gap) if placed else max(at, low))
    shift = sum(p - w for p, w in zip(placed, wanted, strict=True)) / max(1, len(placed))
    placed = [p - shift for p in placed]
    over = max(0.0, placed[-1] + gap / 2 - high) if placed else 0.0
    return [p - over for p in placed]


def _free_rule(family: Family, low: float, x: Spec, y: Spec) -> list[Spec]:
    runtime = "eager" if "eager" in family.runtimes else family.runtimes[0]
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None or curve.free_batch.value <= 1:
        return []
    value = curve.free_batch.value
    bound = "at least " if curve.free_is_lower_bound else ""
    text = f"{runtime}: free up to {bound}batch {value:.3g}"
    at = {"values": [{"batch": value, "latency": low * 1.06, "text": text}]}
    return [
        {
            "data": at,
            "mark": {"type": "rule", "strokeDash": [3, 4], "opacity": 0.7},
            "encoding": {"x": x},
        },
        {
            "data": at,
            "mark": {"type": "text", "align": "left", "dx": 6, "baseline": "bottom"},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]


def ticks(low: float, high: float) -> list[float]:
    """Return the 1-2-5 numbers between two positive limits."""
    found = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [step * 10.0**power for step in (1, 2, 5)]
    return [float(f"{t:.6g}") for t in found if low <= t <= high]
