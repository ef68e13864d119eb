"""Breakdowns as stacks: boxes of the page, collapsed text for flame graph tools, or speedscope's.

A stack goes from the point over its modules to a line of the breakdown, or from the line to
libraries and symbols where the point has no layers; its weight is ns in one call. A part below
zero, as noise makes it of waiting, has no width in such a picture and is left out.

Source: github.com/brendangregg/FlameGraph; speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from frameworktax.analysis.where import OUTSIDE, Node, source, tree
from frameworktax.errors import UsageError, flat
from frameworktax.records import BILL, Measurement, Run, point_name
from frameworktax.report.vega import LINE_COLOURS
from frameworktax.report.words import label, lines_of

SUFFIX, SPEEDSCOPE = ".collapsed", ".speedscope"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
LEAST = 0.001
"""Share of the call below which a box is not drawn."""
PLAIN = ("var(--card)", "var(--ink)")
COLOURS = {label(line): colours for line, colours in LINE_COLOURS.items()}
Stack = tuple[tuple[str, ...], float]
"""Names of frames from the outermost on, ns."""


def of_layers(m: Measurement) -> list[Stack]:
    """Return the stacks of a point's modules, none where it has no layers."""
    found = (stack for node in tree(m.layers) for stack in _of_module(node, "", ()))
    return [(frames, ns) for frames, ns in found if ns > 0]


def of_symbols(m: Measurement) -> list[Stack]:
    """Return the stacks of a point's named samples, and what no sample names of each line."""
    rest = dict(m.bill_ns or {})
    found: list[tuple[int, tuple[str, ...], float]] = []
    for line, library, symbol, ns in m.symbols_ns:
        if line in BILL:  # a document of another version may have others
            rest[line] = rest.get(line, 0.0) - ns
            found.append((BILL.index(line), (label(line), library, symbol), ns))
    found += [(BILL.index(line), (label(line),), ns) for line, ns in lines_of(rest)]
    found.sort(key=lambda one: (one[0], -one[2]))
    return [(frames, ns) for _, frames, ns in found if ns > 0]


def _of_module(node: Node, above: str, frames: tuple[str, ...]) -> Iterator[Stack]:
    layer = node.own
    path = (layer.path or "").removeprefix(above).lstrip(".")
    name = " ".join(part for part in (path, layer.class_, source(layer)) if part)
    frames = (*frames, name or OUTSIDE)
    for child in node.children:
        yield from _of_module(child, layer.path or "", frames)
    for operator in layer.operators:
        inner = (operator.name,) if operator.name else ()
        yield from _of_lines(operator.bill_ns, (*frames, *inner))
    if not layer.operators:
        yield from _of_lines(layer.bill_ns, frames)


def _of_lines(bill: Mapping[str, float], frames: tuple[str, ...]) -> Iterator[Stack]:
    for line, ns in lines_of(bill):
        yield (*frames, label(line)), ns


def _of_points(run: Run) -> list[tuple[str, list[Stack]]]:
    """Return name and stacks of each point that has any.

    Raises:
        UsageError: no point has a breakdown.
    """
    points = ((point_name(m.point), of_layers(m) or of_symbols(m)) for m in run.measurements)
    found = [(name, stacks) for name, stacks in points if stacks]
    if not found:
        raise UsageError("no point has a breakdown to write; see frameworktax doctor")
    return found


def collapsed(run: Run) -> str:
    """Return a line a stack: frames with semicolons between, and ns.

    Raises:
        UsageError: no point has a breakdown.
    """
    return text_of(
        ((point, *frames), ns) for point, stacks in _of_points(run) for frames, ns in stacks
    )


def text_of(stacks: Iterable[Stack]) -> str:
    """Return a line a stack, for flame graph tools and speedscope."""
    return "".join(
        ";".join(flat(name).replace(";", ":") for name in frames) + f" {round(ns)}\n"
        for frames, ns in stacks
    )


def speedscope(run: Run) -> str:
    """Return a document of speedscope with a profile for each point, in ns.

    Raises:
        UsageError: no point has a breakdown.
    """
    numbers: dict[str, int] = {}
    profiles = []
    for point, stacks in _of_points(run):
        weights = [ns for _, ns in stacks]
        profiles.append(
            {
                "type": "sampled",
                "name": point,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [
                    [numbers.setdefault(name, len(numbers)) for name in frames]
                    for frames, _ in stacks
                ],
                "weights": weights,
            }
        )
    frames = [{"name": name} for name in numbers]
    return json.dumps({"$schema": SCHEMA, "shared": {"frames": frames}, "profiles": profiles})


# --- as boxes of a page ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A box of the flame view, as wide as its time.

    Attributes:
        name: of a module, operator, line of the breakdown, library or symbol.
        ns: its time in a call.
        share: of the call.
        colours: fill, and text on it: those of a line in it and all that is in it.
        inner: boxes in it, those above ``LEAST``; what they leave of it stays empty.
    """

    name: str
    ns: float
    share: float
    colours: tuple[str, str]
    inner: tuple[Box, ...] = ()


def flame(m: Measurement, found: Sequence[Stack]) -> Box:
    """Return a call as boxes, from its stacks."""
    whole = sum(ns for _, ns in found)
    name = f"{m.runtime}, batch {m.workload.batch}"
    return Box(name, whole, 1.0, PLAIN, _boxes(found, whole, PLAIN))


def _boxes(found: Iterable[Stack], whole: float, colours: tuple[str, str]) -> tuple[Box, ...]:
    groups: dict[str, list[Stack]] = defaultdict(list)
    for (first, *rest), ns in (stack for stack in found if stack[0]):
        groups[first].append((tuple(rest), ns))
    boxes = []
    for name, inner in groups.items():
        ns = sum(ns for _, ns in inner)
        own = colours if colours != PLAIN else COLOURS.get(name, PLAIN)
        if ns / whole > LEAST:
            boxes.append(Box(name, ns, ns / whole, own, _boxes(inner, whole, own)))
    return tuple(boxes)
