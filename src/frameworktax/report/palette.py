"""Colours, shapes and holes of the pictures.

Colours are told apart by people with any of the common colour deficiencies (after Okabe and Ito)
and stand on white and on near-black; regimes are told by shape as well, because colour belongs to
the runtimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
UNKNOWN = "not known"
HEIGHT = 340


def colours(runtimes: Sequence[str]) -> list[str]:
    """Return a colour for each runtime; a known one has the same colour in every report."""
    spare = iter(OTHER_COLOURS * (1 + len(runtimes) // len(OTHER_COLOURS)))
    return [RUNTIME_COLOURS[r] if r in RUNTIME_COLOURS else next(spare) for r in runtimes]


def runtime_colour(symbol: str, *, wide: bool, **legend: Any) -> Spec:
    """Return the channel that colours by runtime, with the holes runtimes and colours."""
    return {
        "field": "runtime",
        "type": "nominal",
        "scale": {"domain": "@runtimes", "range": "@colours"},
        "legend": {
            "title": None,
            "orient": "top",
            "columns": 4 if wide else 2,
            "symbolType": symbol,
            **legend,
        },
    }


def fill(template: Any, values: dict[str, Any]) -> Any:
    """Return a template with every text ``@name`` replaced by that value; ``page_charts.js`` too.

    Values are put in once and not looked at again: names from outside stay what they are.
    """
    if isinstance(template, dict):
        return {key: fill(item, values) for key, item in template.items()}
    if isinstance(template, list):
        return [fill(item, values) for item in template]
    if isinstance(template, str) and template.startswith("@"):
        return values[template[1:]]
    return template
