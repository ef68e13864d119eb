"""Every point of a run as columns for the page's script, and the lines that can be drawn of them.

Columns keep 10,000 points near a megabyte: texts are told once and then by number, numbers have
six significant digits. More than ``MOST`` are thinned by whole families, so that every line that is
drawn has all of its points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from frameworktax.records import Measurement, Run
from frameworktax.report.charts import free_of
from frameworktax.report.latency_layers import AXES
from frameworktax.report.markdown import csv_rows
from frameworktax.report.tables import Family
from frameworktax.report.words import parity_mark

MOST = 10_000
"""Points that a page holds; a browser sorts and draws so many without a pause."""
DIGITS = 6
TEXTS = ("model", "runtime", "precision", "platform", "status", "regime", "bill_method")
NUMBERS = (
    *("batch", "length", "image_size", "width", "depth", "threads"),
    *("latency_ns", "latency_ns_low", "latency_ns_high"),
    *("tax_share", "tax_share_low", "tax_share_high"),
    *("ratio_to_eager", "ratio_to_eager_low", "ratio_to_eager_high"),
    *("flops", "parameters"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Points that differ in runtime and in one axis alone.

    Attributes:
        axis: a key of ``AXES``.
        title: what they share.
        rows: numbers of the points, one runtime after the other, ascending along the axis.
        free: the free batch and what is said at it; batch axis only.
    """

    axis: str
    title: str
    rows: tuple[int, ...]
    free: tuple[float, str] | None = None


def thinned(shown: Sequence[Family], most: int = MOST) -> list[Family]:
    """Return whole families, evenly spaced in the order given, with ``most`` points or fewer.

    The first one always stays: the headline speaks of it.
    """
    total = sum(len(f.measurements) for f in shown)
    if total <= most:
        return list(shown)
    kept: list[Family] = []
    held = passed = 0
    for family in shown:
        size = len(family.measurements)
        # Keep in step: as large a share of the room is used as of the families is passed.
        if not kept or (held <= most * passed / total and held + size <= most):
            kept.append(family)
            held += size
        passed += size
    return kept


def columns(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return name → numbers, or ``{"of": texts, "at": numbers of texts}``; null is not measured."""
    rows = csv_rows(Run(measurements=tuple(measurements)))
    made: dict[str, Any] = {name: [rounded(row[name]) for row in rows] for name in NUMBERS}
    for name in TEXTS:
        made[name] = _coded([row[name] for row in rows])
    made["outputs"] = _coded([parity_mark(m) for m in measurements])
    return made


def rounded(value: Any) -> Any:
    """Return JSON data with every number to six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _coded(texts: Sequence[object]) -> dict[str, Any]:
    numbers: dict[object, int] = {}
    at = [None if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return {"of": list(numbers), "at": at}


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
            if m.latency_ns is not None and _value(m, axis):
                groups.setdefault(_others(m, axis), []).append((i, m))
        for found in groups.values():
            if len({_value(m, axis) for _, m in found}) > 1:
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
    rows = sorted(found, key=lambda row: (order.index(row[1].runtime), _value(row[1], axis)))
    return Slice(axis=axis, title=title, rows=tuple(i for i, _ in rows), free=free)


def _value(m: Measurement, axis: str) -> float:
    """Return where a point stands; 0 where it has no such axis."""
    found = m.threads if axis == "threads" else getattr(m.workload, axis)
    return float(found or 0)


def _others(m: Measurement, axis: str) -> object:
    if axis == "threads":
        return (m.workload, m.platform)
    neutral: dict[str, Any] = {axis: 1}
    return (replace(m.workload, **neutral), m.platform, m.threads)


def _without(title: str, m: Measurement, axis: str) -> str:
    """Drop from a title the value of the axis along which its points differ."""
    value = _value(m, axis)
    said = {
        "length": f"length {value:g}",
        "image_size": f"{value:g} px",
        "width": f"width × {value:g}",
        "depth": f"depth × {value:g}",
        "threads": f"{value:g} thread{'s' if value != 1 else ''}",
    }
    return ", ".join(part for part in title.split(", ") if part != said.get(axis))
