"""One drawing of a panel as a Vega-Lite specification: axes, intervals, names."""

from __future__ import annotations

from typing import Any

from frameworktax.report.charts import ticks
from frameworktax.report.palette import Spec, colours
from frameworktax.reproduce.files import Panel
from frameworktax.reproduce.rows import AXES

Point = dict[str, Any]
"""x, y, low, high and series of what is drawn."""
SIZE = (236, 190)
"""Width and height of one drawing; two stand side by side in a column."""
ALONE = (500, 250)
"""The same of a drawing that stands alone, because one side has no numbers."""
FONT = 14
"""Pixels; a picture of two drawings printed 84 mm wide still has letters of 6 points."""
NEAR = 0.15
"""Share of an axis within which two names would lie on each other."""
WORDS = {
    "latency": "total latency",
    "kernel": "kernel time",
    "tax": "framework tax",
    "macs": "giga-MACs",
    "batch": "batch size",
    "length": "length",
}
NAMES = {
    "bert-base": "BERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
    "funnel": "Funnel",
    "mobilebert": "MobileBERT",
    "squeezebert": "SqueezeBERT",
    "resnet-18": "ResNet-18",
    "resnet-34": "ResNet-34",
    "resnet-50": "ResNet-50",
    "resnet-101": "ResNet-101",
    "mobilenet-v2": "MobileNetV2",
    "vit-base": "ViT",
    "poolformer": "PoolFormer",
    "eager": "PyTorch",
    "torchscript": "TorchScript",
    "onnxruntime": "ONNX Runtime",
    "cuda-graph": "CUDA graphs",
    "nested": "nested tensors",
}
QUANTITY_COLOURS = {"latency": "#0f7fc4", "kernel": "#009e73", "tax": "#d55e00"}
SPREAD = ("#0f7fc4", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#8a6fd1", "#17a2a2", "#6f7f2f")


def drawing(
    panel: Panel,
    mine: list[Point],
    shown: list[Point],
    names: list[str],
    title: str,
    *,
    legend: bool,
    y_title: bool,
    beside: bool,
) -> Spec:
    """Return one drawing.

    Args:
        panel: its layout.
        mine: what is drawn.
        shown: what its axes have room for: with the other drawing's points where both fit.
        names: every series of the pair, so that both drawings use the same colours.
        title: whose numbers they are.
        legend: whether the legend stands here.
        y_title: whether the axis has its title here.
        beside: whether another drawing stands beside it.
    """
    x = {"field": "x", "type": "quantitative", **_x_axis(panel, shown)}
    y = {"field": "y", "type": "quantitative", **_y_axis(panel, shown, y_title)}
    colour: Spec = {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": names, "range": _colours(panel, names)},
        "legend": {"title": None, "orient": "top", "columns": 2} if legend else None,
    }
    if panel.mark == "label" or len(names) < 2:
        colour["legend"] = None
    interval = {"mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5}}
    layers: list[Spec] = [
        {
            **interval,
            "encoding": {
                "x": x,
                "y": {**y, "field": "low"},
                "y2": {"field": "high"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    if panel.mark == "line":
        line = {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": colour},
        }
        layers.insert(0, line)
    else:
        layers += _labels(mine, shown, x, y)
    width, height = SIZE if beside else ALONE
    return {
        "title": title,
        "width": width,
        "height": height,
        "data": {"values": mine},
        "layer": layers,
    }


def _labels(mine: list[Point], shown: list[Point], x: Spec, y: Spec) -> list[Spec]:
    """Return the names beside points, towards the middle; below where another is close above."""
    wide = max(p["x"] for p in shown) - min(p["x"] for p in shown) or 1.0
    tall = max(p["y"] for p in shown) or 1.0
    middle = min(p["x"] for p in shown) + wide / 2
    named: dict[tuple[bool, bool], list[Point]] = {}
    for p in mine:
        close = [q for q in mine if abs(q["x"] - p["x"]) < NEAR * wide and q is not p]
        below = any(0 <= q["y"] - p["y"] < NEAR * tall for q in close)
        named.setdefault((p["x"] > middle, below), []).append(p)
    return [
        {
            "data": {"values": values},
            "mark": {
                "type": "text",
                "align": "right" if right else "left",
                "dx": 3 - 6 * right,
                "dy": 13 if below else -9,
                "fontSize": FONT - 2,
            },
            "encoding": {"x": x, "y": y, "text": {"field": "series"}},
        }
        for (right, below), values in named.items()
    ]


def _x_axis(panel: Panel, shown: list[Point]) -> Spec:
    title = WORDS.get(panel.x, panel.x)
    if panel.x not in AXES:
        top = max(p["x"] for p in shown)
        return {
            "title": title,
            "scale": {"domain": [0, top * 1.15], "nice": False},
            "axis": {"tickCount": 4, "format": ".4~g"},
        }
    at = sorted({p["x"] for p in shown})
    every = [v for i, v in enumerate(at) if len(at) < 6 or not i % 2]
    return {
        "title": title,
        "scale": {"type": "log", "base": 2, "domain": [at[0] / 1.1, at[-1] * 1.1], "nice": False},
        "axis": {"values": every, "format": "d", "grid": False},
    }


def _y_axis(panel: Panel, shown: list[Point], named: bool) -> Spec:
    title = "latency, ms" if named else None
    if panel.linear:
        top = max(p["high"] for p in shown) * 1.12
        low = min(0.0, min(p["low"] for p in shown))
        return {
            "title": title,
            "scale": {"domain": [low, top], "nice": False},
            "axis": {"tickCount": 5, "format": ".4~g"},
        }
    low, high = min(p["low"] for p in shown) * 0.85, max(p["high"] for p in shown) * 1.18
    at = ticks(low, high)
    if len(at) > 7:
        at = [t for t in at if f"{t:e}"[0] == "1"]
    return {
        "title": title,
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"values": at, "format": "~g"},
    }


def _colours(panel: Panel, names: list[str]) -> list[str]:
    if len(panel.quantities) > 1:
        by_word = {WORDS[q]: colour for q, colour in QUANTITY_COLOURS.items()}
        return [by_word[name] for name in names]
    if panel.series == ("runtime",):
        runtimes = {shown: name for name, shown in NAMES.items()}
        return colours([runtimes.get(name, name) for name in names])
    return [SPREAD[i % len(SPREAD)] for i in range(len(names))]
