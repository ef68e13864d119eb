"""Pictures as files: specifications drawn by vl-convert, which needs no browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.report.palette import Spec

PICTURES = (".svg", ".png", ".pdf")
SCALE = 2.0
"""Pixels of a PNG for each unit of the drawing."""
PAPER = {
    "font": "Helvetica Neue, Arial, sans-serif",
    "view": {"stroke": None},
    "padding": 12,
    "axis": {
        "labelColor": "#59626e",
        "titleColor": "#59626e",
        "titleFontWeight": "normal",
        "gridColor": "#e3e6ea",
        "domainColor": "#e3e6ea",
        "tickColor": "#e3e6ea",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titlePadding": 10,
    },
    "axisY": {"labelColor": "#16191d"},
    "legend": {"labelFontSize": 12, "symbolFillColor": "#59626e", "columnPadding": 16},
    "text": {"color": "#59626e"},
}
"""Look of pictures on white."""


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

    Raises:
        UsageError: another suffix, or the package that draws is not installed.
    """
    check(path)
    if path.suffix == ".svg":
        path.write_text(svg(spec), encoding="utf-8")
    elif path.suffix == ".png":
        path.write_bytes(engine().vegalite_to_png(spec, scale=SCALE))
    else:
        path.write_bytes(engine().vegalite_to_pdf(spec))
