"""Pictures: specifications filled and drawn; one palette for pages, figures, the paper's layouts.

Colours can be distinguished with any of the common colour deficiencies (after Okabe and Ito) and
are legible on white and on near-black. Regimes differ in shape, because colour belongs to the
runtimes. Drawing is by vl-convert, without a browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, check_suffix

Spec = dict[str, Any]
PICTURES = (".svg", ".png", ".pdf")
SCALE = 2.0
"""Pixels of a PNG for each unit of the drawing."""
PAPER = {
    "paper": "white",
    "ink": "#16191d",
    "soft": "#59626e",
    "line": "#e3e6ea",
    "font": "Helvetica Neue, Arial, sans-serif",
}
"""Colours and font on paper; ``page.js`` has those of the page."""
PADDING = 12


@cache
def template(name: str) -> Spec:
    """Return what a file in ``page/`` holds: a specification with holes, or the look of all."""
    text = files("frameworktax.report").joinpath("page", f"{name}.json").read_text("utf-8")
    spec: Spec = json.loads(text)
    return spec


def fill(spec: Any, values: Mapping[str, Any]) -> Any:
    """Return a specification with each hole ``@name`` replaced; ``page.js`` has the same."""
    if isinstance(spec, dict):
        return {key: fill(item, values) for key, item in spec.items()}
    if isinstance(spec, list):
        return [fill(item, values) for item in spec]
    return values[spec[1:]] if isinstance(spec, str) and spec.startswith("@") else spec


def engine() -> Any:
    """Return the package that draws.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(
            "reports and figures need vl-convert-python: pip install 'frameworktax[report]'"
        ) from error
    return vl_convert


def svg(spec: Spec) -> str:
    """Return the picture as text; raises UsageError as ``engine`` does."""
    return str(engine().vegalite_to_svg(spec))


def write(spec: Spec, path: Path) -> None:
    """Write the picture; the suffix chooses ``.svg``, ``.png`` or ``.pdf``.

    A specification without a look of its own gets that of all pictures.

    Raises:
        UsageError: another suffix, or the package that draws is not installed.
    """
    check_suffix(path, PICTURES)
    spec = {"config": {**fill(template("look"), PAPER), "padding": PADDING}, **spec}
    if path.suffix == ".svg":
        path.write_text(svg(spec), encoding="utf-8")
    elif path.suffix == ".png":
        path.write_bytes(engine().vegalite_to_png(spec, scale=SCALE))
    else:
        path.write_bytes(engine().vegalite_to_pdf(spec))


# --- the palette ----------------------------------------------------------------------------------

FAMILIAR = {
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
"""Colours that are reserved for a runtime."""
OTHERS = (
    *("#8c6d31", "#c0504d", "#17a2a2", "#4f8f5b", "#b0643c", "#6f7f2f"),
    *("#2f7f9f", "#9467bd", "#c2568b", "#948a1f", "#6a74c9", "#ad7fa8"),
)
SHAPES = {
    "framework-bound": "circle",
    "mixed": "diamond",
    "compute-bound": "square",
    "memory-bound": "triangle-up",
    "kernel-flat": "triangle-down",
    "not known": "cross",
}
UNKNOWN = "not known"
LINE_COLOURS = {
    "kernel": ("#3f6fa8", "#ffffff"),
    "dispatch": ("#e0702a", "#1a1a1a"),
    "python": ("#f2b134", "#1a1a1a"),
    "allocator": ("#d98cb3", "#1a1a1a"),
    "runtime": ("#b5483a", "#ffffff"),
    "threading": ("#a98467", "#1a1a1a"),
    "system": ("#7a57a0", "#ffffff"),
    "launch": ("#d9c83c", "#1a1a1a"),
    "device_gap": ("#7fb0b8", "#1a1a1a"),
    "wait": ("#9aa3ad", "#1a1a1a"),
    "remainder": ("#cfd4da", "#1a1a1a"),
}
"""Line of the breakdown → (fill, text on it): kernel time is cool, what is paid on top is warm."""


def colours(runtimes: Sequence[str]) -> list[str]:
    """Return a colour for each runtime, all different as long as there are enough.

    A familiar runtime has its own in every report; the others get those of ``OTHERS`` in order.
    """
    others = cycle(OTHERS)
    return [FAMILIAR.get(name) or next(others) for name in runtimes]
