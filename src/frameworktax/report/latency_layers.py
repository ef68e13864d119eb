"""Latency along an axis as a Vega-Lite specification with holes.

``charts.py`` fills them for paper, ``page_charts.js`` in the page: one drawing for both.
"""

from __future__ import annotations

from frameworktax.report.palette import BANDS, HEIGHT, SCHEMA, Spec, runtime_colour

AXES: dict[str, dict[str, str]] = {
    "batch": {"axis": "batch", "x_title": "batch size"},
    "length": {"axis": "length", "x_title": "length, tokens"},
    "image_size": {"axis": "image size", "x_title": "image size, pixels a side"},
    "width": {"axis": "width", "x_title": "factor on layer widths"},
    "depth": {"axis": "depth", "x_title": "factor on the number of layers"},
    "threads": {"axis": "threads", "x_title": "threads"},
}
"""Axis → what a tooltip and the axis say."""


def latency_template(*, wide: bool = True, legend: bool = True) -> Spec:
    """Return the chart with a hole ``@name`` for each of ``latency_values`` and of an axis."""
    x = {
        "field": "x",
        "type": "quantitative",
        "title": "@x_title",
        "scale": {"type": "log", "base": 2, "domain": "@x_domain", "nice": False},
        "axis": {"values": "@x_ticks", "format": "~g", "grid": False},
    }
    y = {
        "field": "latency",
        "type": "quantitative",
        "title": "latency of one call, ms",
        "scale": {"type": "log", "domain": "@y_domain", "nice": False},
        "axis": {"values": "@y_ticks", "format": "~g"},
    }
    colour = runtime_colour("stroke", wide=wide, symbolStrokeWidth=4, symbolOpacity=1)
    if not legend:
        colour["legend"] = None
    shape = {
        "field": "regime",
        "type": "nominal",
        "scale": {"domain": "@regimes", "range": "@shapes"},
        "legend": {"title": None, "orient": "bottom", "columns": 3 if wide else 2},
    }
    tooltip = [
        {"field": field, "type": "nominal", "title": title}
        for field, title in (
            ("runtime", "runtime"),
            ("x", "@axis"),
            ("latency_text", "latency"),
            ("sample_text", "per sample"),
            ("tax_text", "tax"),
            ("regime", "regime"),
        )
    ]
    layers: list[Spec] = [
        *_bands(x, y),
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
            "mark": {"type": "point", "filled": True, "size": 85, "stroke": None},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "shape": shape,
                "opacity": _isolated(),
                "tooltip": tooltip,
            },
        },
        *([_end_labels(x, y, colour)] if wide else []),
        *_free_rule(x, y),
    ]
    return {
        "$schema": SCHEMA,
        "params": [{"name": "isolate", "value": []}],
        "data": {"values": "@points"},
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": layers,
    }


def _bands(x: Spec, y: Spec) -> list[Spec]:
    place = {
        "x": {**x, "field": "start"},
        "x2": {"field": "end"},
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
    }
    return [
        {
            "data": {"values": "@bands"},
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
            "data": {"values": "@bands"},
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


def _end_labels(x: Spec, y: Spec, colour: Spec) -> Spec:
    return {
        "data": {"values": "@ends"},
        "mark": {"type": "text", "align": "left", "dx": 10, "fontWeight": 600, "fontSize": 12},
        "encoding": {
            "x": x,
            "y": y,
            "text": {"field": "runtime"},
            "color": colour,
            "opacity": _isolated(),
        },
    }


def _free_rule(x: Spec, y: Spec) -> list[Spec]:
    at = {"values": "@free"}
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


def _isolated(otherwise: float = 0.1, value: float = 1.0) -> Spec:
    test = "!length(isolate) || indexof(isolate, datum.runtime) >= 0"
    return {"condition": {"test": test, "value": value}, "value": otherwise}
