"""Specifications of pictures: filled with values, and drawn by vl-convert without a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.report.palette import Spec

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
    drawn: str = engine().vegalite_to_svg(spec)
    return drawn


def check(path: Path) -> None:
    """Raise UsageError where the suffix is none of ``PICTURES``."""
    if path.suffix not in PICTURES:
        raise UsageError(f"cannot draw a '{path.suffix}' file; choose {', '.join(PICTURES)}")


def write(spec: Spec, path: Path) -> None:
    """Write the picture; the suffix chooses ``.svg``, ``.png`` or ``.pdf``.

    A specification without a look of its own gets that of all pictures.

    Raises:
        UsageError: another suffix, or the package that draws is not installed.
    """
    check(path)
    spec = {"config": {**fill(template("look"), PAPER), "padding": PADDING}, **spec}
    if path.suffix == ".svg":
        path.write_text(svg(spec), encoding="utf-8")
    elif path.suffix == ".png":
        path.write_bytes(engine().vegalite_to_png(spec, scale=SCALE))
    else:
        path.write_bytes(engine().vegalite_to_pdf(spec))
