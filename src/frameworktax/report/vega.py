"""Pictures: specifications filled and drawn; one palette for pages, figures, the paper's layouts.

Drawing is by vl-convert, without a browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Any

from frameworktax.errors import check_suffix, flat, needs, write_text
from frameworktax.report.words import WORDS

Spec = dict[str, Any]
PICTURES = (".svg", ".png", ".pdf")
SCALE = 2.0
"""Pixels of a PNG for each unit of the drawing."""
PADDING = 12


@cache
def template(name: str) -> Spec:
    """Return what a file in ``page/`` holds: a specification with holes, or the look of all."""
    text = files("frameworktax.report").joinpath("page", f"{name}.json").read_text("utf-8")
    spec: Spec = json.loads(text)
    return spec


def filled(name: str, values: Mapping[str, Any]) -> Spec:
    """Return a specification with each hole ``@name`` replaced; ``page.js`` has the same.

    The texts of the values are ``harmless``.
    """
    plain = harmless(values)

    def fill(spec: Any) -> Any:
        if isinstance(spec, dict):
            return {key: fill(item) for key, item in spec.items()}
        if isinstance(spec, list):
            return [fill(item) for item in spec]
        return plain[spec[1:]] if isinstance(spec, str) and spec.startswith("@") else spec

    spec: Spec = fill(template(name))
    return spec


def harmless(data: Any) -> Any:
    """Return data whose texts every format can hold: XML, and with it SVG, has no control signs."""
    if isinstance(data, Mapping):
        return {flat(key): harmless(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [harmless(item) for item in data]
    return flat(data) if isinstance(data, str) else data


def engine() -> Any:
    """Return the package that draws.

    Raises:
        UsageError: it is not installed.
    """
    with needs("reports and figures need vl-convert-python", "report"):
        import vl_convert
    return vl_convert


def svg(spec: Spec) -> str:
    """Return the picture as text; raises UsageError as ``engine`` does."""
    return str(engine().vegalite_to_svg(spec))


def write(spec: Spec, path: Path) -> None:
    """Write the picture; the suffix chooses ``.svg``, ``.png`` or ``.pdf``.

    A specification without a look of its own gets that of all pictures.

    Raises:
        UsageError: another suffix, it cannot be written, or the package that draws is missing.
    """
    check_suffix(path, PICTURES)
    spec = {"config": {**filled("look", WORDS["paper"]), "padding": PADDING}, **spec}
    if path.suffix == ".svg":
        write_text(path, svg(spec))
    elif path.suffix == ".png":
        write_text(path, engine().vegalite_to_png(spec, scale=SCALE))
    else:
        write_text(path, engine().vegalite_to_pdf(spec))


# --- the palette ----------------------------------------------------------------------------------

FAMILIAR: Mapping[str, str] = WORDS["familiar"]
"""Colours that are reserved for a runtime."""
OTHERS: Sequence[str] = WORDS["others"]
SHAPES: Mapping[str, str] = WORDS["shapes"]
UNKNOWN = "not known"
LINE_COLOURS = {line: (fill, ink) for line, (fill, ink, _) in WORDS["lines"].items()}
"""Line of the breakdown → (fill, text on it)."""


def colours(runtimes: Sequence[str]) -> list[str]:
    """Return a colour for each runtime, all different as long as there are enough.

    A familiar runtime has its own in every report; the others get those of ``OTHERS`` in order.
    """
    others = cycle(OTHERS)
    return [FAMILIAR.get(name) or next(others) for name in runtimes]
