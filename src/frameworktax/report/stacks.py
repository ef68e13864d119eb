"""Breakdowns as stacks of collapsed text, which flame graph tools and speedscope read.

A stack goes from the point over its modules to a line of the breakdown, or from the line to
libraries and symbols where the point has no layers; its weight is ns in one call. A part below
zero, as noise makes it of waiting, has no width in such a picture and is left out.

Source: github.com/brendangregg/FlameGraph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from frameworktax.analysis.where import OUTSIDE, Node, tree
from frameworktax.errors import UsageError, flat
from frameworktax.records import Measurement, Run, point_name
from frameworktax.report.words import label, lines_of

SUFFIX = ".collapsed"
Stack = tuple[tuple[str, ...], float]
"""Names of frames from the outermost on, ns."""


def stacks(m: Measurement) -> list[Stack]:
    """Return the stacks of a point, none where nothing is known of its time."""
    if m.layers:
        found = [stack for node in tree(m.layers) for stack in _of_module(node, "", ())]
    else:
        found = list(_of_symbols(m))
    return [(frames, ns) for frames, ns in found if ns > 0]


def _of_module(node: Node, above: str, frames: tuple[str, ...]) -> Iterator[Stack]:
    layer = node.own
    path = (node.path or "").removeprefix(above).lstrip(".")
    frames = (*frames, " ".join(part for part in (path, layer.class_) if part) or OUTSIDE)
    for child in node.children:
        yield from _of_module(child, node.path or "", frames)
    for operator in layer.operators:
        inner = (operator.name,) if operator.name else ()
        yield from _of_lines(operator.bill_ns, (*frames, *inner))
    if not layer.operators:
        yield from _of_lines(layer.bill_ns, frames)


def _of_lines(bill: Mapping[str, float], frames: tuple[str, ...]) -> Iterator[Stack]:
    for line, ns in lines_of(bill):
        yield (*frames, label(line)), ns


def _of_symbols(m: Measurement) -> Iterator[Stack]:
    rest = dict(m.bill_ns or {})
    for line, library, symbol, ns in m.symbols_ns:
        rest[line] = rest.get(line, 0.0) - ns
        yield (label(line), library, symbol), ns
    yield from _of_lines(rest, ())


def collapsed(run: Run) -> str:
    """Return a line a stack: frames with semicolons between, and ns.

    Raises:
        UsageError: no point has a breakdown.
    """
    lines = [
        ";".join(flat(name).replace(";", ":") for name in (point_name(m.point), *frames))
        + f" {round(ns)}\n"
        for m in run.measurements
        for frames, ns in stacks(m)
    ]
    if not lines:
        raise UsageError("no point has a breakdown to write; see frameworktax doctor")
    return "".join(lines)
