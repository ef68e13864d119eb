"""Where in a model the tax arises: its layers put together into a few places.

Layers that differ in a number alone, as those of a stack do, are one place: ``encoder.layer.0–11``.
A layer that pays more than its siblings stays a place of its own. A place that pays much is shown
by the modules inside it, and what it pays by itself.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from frameworktax.analysis.estimates import propagate
from frameworktax.errors import UsageError, counted, nearest
from frameworktax.records import Estimate, Layer, Operator, SourceLine
from frameworktax.stats import (
    CONFIDENCE,
    NORMAL_95,
    ONE_PROCESS,
    at_confidence,
    relative_half_width,
    within_one_process,
)

MOST = 8
"""Places that are shown at most."""
OPENED = 0.15
"""Share of the tax from which a place is shown by what is inside it."""
STANDS_OUT = 1.5
"""Times the median of its siblings from which a layer is a place of its own."""
METHOD = "sum over layers"
OUTSIDE = "outside the model"
NUMBER = re.compile(r"(?<![^\W_])\d+(?![^\W_])")
"""A number that a dot or an underscore keeps apart: modules in a list, nodes of a graph."""
NAMED = 6
"""Numbers that are all named where some between them are missing."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place, its modules included.

    Attributes:
        name: path, numbers of several layers put together; ``""`` is the model itself.
        class_: of the module; empty for what lies outside of all, and for the rest.
        source: ``file:line`` of what is called, empty where not known.
        tax_ns: latency less kernel time of all of it, ns in a call; ``share`` is of the call's tax.
        line: of the breakdown, which most of its tax is.
        alone: whether the modules inside it are left out.
    """

    name: str
    class_: str
    source: str
    tax_ns: Estimate
    share: float
    line: str
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTax:
    """What a layer pays, those inside it included: ns in a call, and its share of the call's tax.

    ``path`` is as ``named_modules`` has it, "" for the whole model; a bound that the lower end of
    the share's 95 % interval breaks is broken.
    """

    path: str
    time_ns: float
    tax_ns: Estimate
    tax_share: float
    tax_share_low: float
    tax_share_high: float


@dataclass(frozen=True, slots=True)
class OperatorSum:
    """An operator in all layers, ns in a call; ``""`` is what no operator was seen at.

    ``share`` is of the tax of the call, most of its tax is ``line`` of the breakdown, and so many
    ``places`` (layers) call it.
    """

    name: str
    kernel_ns: float
    tax_ns: Estimate
    share: float
    line: str
    places: int


@dataclass
class Node:
    """A module with those inside it."""

    own: Layer
    children: list[Node]

    def layers(self) -> list[Layer]:
        """Return the layers of all of it."""
        return [self.own, *(layer for child in self.children for layer in child.layers())]


@dataclass
class _Group:
    """Modules of one shape, alone or with everything below them."""

    nodes: list[Node]
    alone: bool = False

    def layers(self) -> list[Layer]:
        if self.alone:
            return [node.own for node in self.nodes]
        return [layer for node in self.nodes for layer in node.layers()]

    def tax_ns(self) -> float:
        return sum(map(tax_ns, self.layers()))

    def has_inside(self) -> bool:
        return any(node.children for node in self.nodes)


def tax_ns(place: Layer | Operator | SourceLine) -> float:
    """Return what a place costs besides its kernels, ns in a call."""
    return sum(ns for line, ns in place.bill_ns.items() if line != "kernel")


def where(layers: Sequence[Layer]) -> list[Where]:
    """Return the places at which a call's tax arises, most first, the rest together as the last."""
    whole = sum(map(tax_ns, layers))
    if whole <= 0:
        return []
    shared = _shared(layers)
    closed, groups = [], _grouped(tree(layers), shared)
    while groups:
        group = groups.pop()
        if not group.alone and group.has_inside() and group.tax_ns() > OPENED * whole:
            children = [child for node in group.nodes for child in node.children]
            groups += [_Group(group.nodes, alone=True), *_grouped(children, shared)]
        else:
            closed.append(group)
    closed.sort(key=_Group.tax_ns, reverse=True)
    named = min(MOST, sum(group.tax_ns() > 0 for group in closed))
    if named == MOST < len(closed):  # the others are a place as well
        named -= 1
    found = [_place(group, whole, shared) for group in closed[:named]]
    if rest := closed[named:]:
        layers = [layer for group in rest for layer in group.layers()]
        name = counted(len(rest), "other place")
        found.append(_summed(layers, whole, name, shared))
    return found


def _place(group: _Group, whole: float, shared: float) -> Where:
    first = group.nodes[0].own
    return replace(
        _summed(group.layers(), whole, _name([node.own for node in group.nodes]), shared),
        class_=first.class_,
        source=source(first),
        alone=group.alone and group.has_inside(),
    )


def _summed(layers: Sequence[Layer], whole: float, name: str, shared: float) -> Where:
    tax = _estimate(layers, shared)
    line = most_of(*(layer.bill_ns for layer in layers))
    return Where(name, "", "", tax, tax.value / whole, line)


def _name(layers: Sequence[Layer]) -> str:
    """Return the paths of layers of one shape as one."""
    paths = [layer.path for layer in layers if layer.path is not None]
    return numbered(paths) if paths else OUTSIDE


def layer_tax(layers: Sequence[Layer], path: str) -> LayerTax:
    """Return what the layer at a path pays, with those inside it.

    Raises:
        UsageError: there is no such layer, or the call has no tax.
    """
    inside = [
        one
        for one in layers
        if one.path is not None and (not path or f"{one.path}.".startswith(f"{path}."))
    ]
    whole = sum(map(tax_ns, layers))
    if not inside:
        known = [one.path for one in layers if one.path]
        hint = nearest(path, known) or "; give a path as named_modules() has it"
        raise UsageError(f"no layer '{path}' was called{hint}")
    if whole <= 0:
        raise UsageError("the call has no tax that layers could share")
    tax = _estimate(inside, _shared(layers))
    return LayerTax(
        path=path,
        time_ns=sum(one.time_ns.value for one in inside),
        tax_ns=tax,
        tax_share=tax.value / whole,
        tax_share_low=tax.low / whole,
        tax_share_high=tax.high / whole,
    )


def by_operator(layers: Iterable[Layer]) -> list[OperatorSum]:
    """Return the operators of a call, most tax first; empty where there was no such run.

    What no layer was seen at is in ``""``, so that all add up to the call.
    """
    layers = list(layers)
    if not any(layer.operators for layer in layers):
        return []
    whole, shared = sum(map(tax_ns, layers)), _shared(layers)
    found: dict[str, list[Layer | Operator]] = defaultdict(list)
    for layer in layers:
        for one in layer.operators:
            found[one.name].append(one)
        if not layer.operators:
            found[""].append(layer)
    sums = [
        OperatorSum(
            name=name,
            kernel_ns=sum(part.bill_ns.get("kernel", 0.0) for part in parts),
            tax_ns=_estimate(parts, shared),
            share=sum(map(tax_ns, parts)) / whole if whole else 0.0,
            line=most_of(*(part.bill_ns for part in parts)),
            places=len(parts),
        )
        for name, parts in found.items()
    ]
    return sorted(sums, key=lambda one: -one.tax_ns.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What the modules of one shape pay by themselves, before and after; ns in a call."""

    name: str
    before: Estimate
    after: Estimate
    change: Estimate


def moved(
    before: Sequence[Layer], after: Sequence[Layer], points: int = 1, apart: float = 0.0
) -> list[Moved]:
    """Return where the tax changed, the largest change first, at most ``MOST``.

    Modules of one class whose paths differ in numbers alone are put together; one side may lack
    some. None where a side has no layers. Noise alone makes any change of as many ``points`` in
    5 % of comparisons at most (Bonferroni); the interval of a change is its own.

    Args:
        before: layers of one side, by themselves.
        after: of the other.
        points: that are compared together.
        apart: the standard deviation by which the sides differ as wholes, a share.
    """
    if not (before and after):
        return []
    shapes: dict[tuple[str, ...], tuple[list[Layer], list[Layer]]] = defaultdict(lambda: ([], []))
    for side, layers in enumerate((before, after)):
        for layer in layers:
            shapes[_shape(layer)][side].append(layer)
    confidence = 1 - (1 - CONFIDENCE) / (points * len(shapes))
    found = []
    for (class_, *_), (old, new) in shapes.items():
        a, b = _estimate(old, _shared(before)), _estimate(new, _shared(after))
        whole = NORMAL_95 * apart * max(abs(a.value), abs(b.value))
        common = Estimate(value=0.0, low=-whole, high=whole)
        change = propagate(lambda b, a, whole: b - a + whole, METHOD, b, a, common)
        # a side that lacks the place is an exact zero, and takes no degrees of freedom away
        change = replace(change, n=min(one.n for one in (a, b) if one.n))
        wide = at_confidence(change, confidence)
        if not wide.low <= 0 <= wide.high:
            name = _name(new or old) or class_
            found.append(Moved(name=name, before=a, after=b, change=change))
    return sorted(found, key=lambda one: -abs(one.change.value))[:MOST]


def _shape(layer: Layer) -> tuple[str, ...]:
    """Return what layers that are put together share: class, and path without numbers."""
    return layer.class_, *([] if layer.path is None else NUMBER.split(layer.path))


def tree(layers: Iterable[Layer]) -> list[Node]:
    """Return the outermost modules, the model itself where it was called, and the remainder."""
    nodes: dict[str, Node] = {}
    tops: list[Node] = []
    for layer in layers:
        node = Node(layer, [])
        if layer.path is None:
            tops.append(node)
            continue
        nodes[layer.path] = node
        above = layer.path
        while above:
            above = above.rpartition(".")[0]
            if above in nodes:
                nodes[above].children.append(node)
                break
        else:
            tops.append(node)
    return tops


def _grouped(nodes: Iterable[Node], shared: float) -> list[_Group]:
    """Return nodes of one class whose paths differ in numbers alone together."""
    alike: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    for node in nodes:
        alike[_shape(node.own)].append(node)
    groups = []
    for same in alike.values():
        each = [_estimate(node.layers(), shared) for node in same]
        limit = STANDS_OUT * median(tax.value for tax in each)
        out = [
            node for node, tax in zip(same, each, strict=True) if len(same) > 2 and tax.low > limit
        ]
        groups += [_Group([node]) for node in out]
        groups.append(_Group([node for node in same if node not in out]))
    return groups


def _shared(layers: Iterable[Layer]) -> float:
    """Return the part of half-widths that all layers of a call have in common, as a share.

    It is the latency's, of which each time is a share: no layer's own is less, and the least of
    them stands for it.
    """
    times = [layer.time_ns for layer in layers if layer.time_ns.value > 0]
    return min(map(relative_half_width, times), default=0.0)


def _estimate(layers: Sequence[Layer | Operator], shared: float) -> Estimate:
    """Return the tax of layers, its half-width being that of their time, as a share.

    What layers have in common adds up, what is beyond that in squares.
    """
    value, times = sum(map(tax_ns, layers)), [layer.time_ns for layer in layers]
    halves = [(one.high - one.low) / 2 for one in times]
    common = [min(half, shared * abs(one.value)) for half, one in zip(halves, times, strict=True)]
    own = sum(half**2 - part**2 for half, part in zip(halves, common, strict=True))
    time = sum(one.value for one in times)
    half = math.sqrt(sum(common) ** 2 + own) * abs(value) / time if time > 0 else 0.0
    n = min((one.n for one in times), default=0)
    method = METHOD + ONE_PROCESS * within_one_process(*times)
    return Estimate(value=value, low=value - half, high=value + half, method=method, n=n)


def most_of(*bills: Mapping[str, float]) -> str:
    """Return the line that most of the tax in breakdowns is; empty where there is none."""
    lines: dict[str, float] = defaultdict(float)
    for line, ns in ((line, ns) for bill in bills for line, ns in bill.items()):
        if line != "kernel":
            lines[line] += ns
    return max(lines, key=lambda line: lines[line], default="")


def source(layer: Layer) -> str:
    """Return ``file:line`` of what a layer calls, empty where not known."""
    return f"{layer.file}:{layer.line}" if layer.file else ""


def numbered(paths: Sequence[str]) -> str:
    """Return paths that differ in numbers as one: ``layer.0–11.attention``, ``Add_0,3``."""
    if len(paths) == 1:
        return paths[0]
    texts = NUMBER.split(paths[0])
    columns = zip(*(NUMBER.findall(path) for path in paths), strict=True)
    numbers = [_range(sorted(set(map(int, column)))) for column in columns]
    return "".join(part for pair in zip(texts, [*numbers, ""], strict=True) for part in pair)


def _range(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return str(first)
    if len(numbers) == last - first + 1:
        return f"{first}–{last}"
    return ",".join(map(str, numbers)) if len(numbers) <= NAMED else f"{first}…{last}"
