"""The rules of the study files: from rows to one number with an interval, nothing evaluated.

A rule that lacks what it needs raises ``Unjudged``, whose text is the reason that people read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from frameworktax.analysis.curves import free_batch, free_batch_interval
from frameworktax.analysis.drift import narrowed
from frameworktax.records import Estimate
from frameworktax.reproduce import machines, proxies
from frameworktax.reproduce.files import Part
from frameworktax.reproduce.rows import Row, exactly, select
from frameworktax.reproduce.unjudged import Unjudged

PAIRED = ("model", "batch", "length", "image_size", "width", "depth", "input", "precision")
"""Axes that two points of one pair share."""


def evaluate(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return the number that a part of a claim speaks of.

    Args:
        part: of a study file.
        rows: ours, or the paper's; never both.

    Raises:
        Unjudged: a number is missing; the text says which and why.
    """
    return RULES[part.rule](part, rows)


def _one(rows: Sequence[Row], where: Mapping[str, object], quantity: str) -> Estimate:
    return number(_row(rows, where), quantity)


def _row(rows: Sequence[Row], where: Mapping[str, object]) -> Row:
    found = select(rows, where)
    if not found:
        raise Unjudged(f"nothing measured at {told(where)}")
    if len({tuple(sorted(r.at.items(), key=str)) for r in found}) > 1:
        raise Unjudged(f"{told(where)} names {len(found)} points; a rule needs one")
    return found[0]


def number(row: Row, quantity: str) -> Estimate:
    """Return a number of a row.

    Raises:
        Unjudged: it is not there, with the row's own reason.
    """
    if quantity in row.numbers:
        return row.numbers[quantity]
    why = row.reason or f"no {quantity.replace('_', ' ')} was measured"
    raise Unjudged(f"{point_words(row)}: {why}")


def _over(a: Row, b: Row, quantity: str) -> Estimate:
    """Return the ratio of two points; the host's drift moves two of one session alike."""
    x, y = number(a, quantity), number(b, quantity)
    if quantity == "latency" and a.session is not None and a.session == b.session:
        x, y = narrowed(x, a.drift), narrowed(y, b.drift)
    return quotient(x, y)


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """Return a / b of two independent estimates, their relative half-widths added in squares."""
    if a.value <= 0 or b.value <= 0:
        raise Unjudged("a ratio of numbers that are not above zero says nothing")
    spread = math.hypot(_log_half(a), _log_half(b))
    value = a.value / b.value
    return Estimate(
        value=value,
        low=value * math.exp(-spread),
        high=value * math.exp(spread),
        confidence=min(a.confidence, b.confidence),
        method="ratio of independent estimates",
        n=min(a.n, b.n),
    )


def _log_half(x: Estimate) -> float:
    """Return the larger half-width of log x; infinite where the interval reaches zero."""
    if x.low <= 0:
        return math.inf
    return max(math.log(x.high / x.value), math.log(x.value / x.low))


def _value(part: Part, rows: Sequence[Row]) -> Estimate:
    return _one(rows, part.of, part.quantity)


def _ratio(part: Part, rows: Sequence[Row]) -> Estimate:
    return _over(_row(rows, part.of), _row(rows, part.to), part.quantity)


def _mean_reduction(part: Part, rows: Sequence[Row]) -> Estimate:
    """Average over models of 1 − a / b; half-widths of the parts added in squares over n."""
    pairs: list[Estimate] = []
    others = {tuple(r.at.get(axis) for axis in PAIRED): r for r in select(rows, part.to)}
    for row in select(rows, part.of):
        other = others.get(tuple(row.at.get(axis) for axis in PAIRED))
        if other is None:
            raise Unjudged(f"{point_words(row)} has no counterpart at {told(part.to)}")
        pairs.append(_over(row, other, part.quantity))
    if not pairs:
        raise Unjudged(f"nothing measured at {told(part.of)}")
    value = 1 - fmean(p.value for p in pairs)
    below = math.hypot(*(p.high - p.value for p in pairs)) / len(pairs)
    above = math.hypot(*(p.value - p.low for p in pairs)) / len(pairs)
    return Estimate(
        value=value,
        low=value - below,
        high=value + above,
        method="mean of 1 − ratio",
        n=len(pairs),
    )


def _curve(part: Part, rows: Sequence[Row], where: Mapping[str, object]) -> list[Row]:
    found = sorted(
        (r for r in select(rows, where) if r.at.get(part.axis) is not None),
        key=lambda r: r.at[part.axis],
    )
    if len(found) < 2:
        raise Unjudged(f"{told(where)}: fewer than two values of {part.axis}")
    if len({r.at[part.axis] for r in found}) < len(found):
        raise Unjudged(f"{told(where)} names more than one curve")
    return found


def _slope(part: Part, rows: Sequence[Row]) -> Estimate:
    curve = _curve(part, rows, part.of)
    a, b = curve[:2] if part.at == "start" else curve[-2:]
    ratio = _over(b, a, part.quantity)
    step = math.log(b.at[part.axis] / a.at[part.axis])
    ends = (math.log(x) / step if x > 0 else -math.inf for x in (ratio.low, ratio.high))
    low, high = ends
    return Estimate(
        value=math.log(ratio.value) / step,
        low=low,
        high=high,
        method=f"d log / d log from {part.axis} {a.at[part.axis]} to {b.at[part.axis]}",
        n=ratio.n,
    )


def free_value(curve: Sequence[Row], axis: str, quantity: str = "latency") -> tuple[Estimate, bool]:
    """Return the largest free value of any axis, as the free batch is, and whether it is a bound.

    Ours by the bootstrap over blocks, at the synchronised latency; a printed curve has no blocks
    and gets its value alone.

    Args:
        curve: ascending along ``axis``, every point with numbers.
        axis: batch, length, width or depth.
        quantity: of a printed curve.
    """
    first = curve[0].at[axis]
    steps = [row.at[axis] / first for row in curve]
    numbers = [number(row, quantity) for row in curve]
    if all(row.columns for row in curve):
        found, bound = free_batch_interval(steps, [row.columns for row in curve])
        if found is None:
            raise Unjudged("too few blocks for the free value's interval")
    elif any(row.columns for row in curve):
        raise Unjudged("a point of the curve has no blocks")
    else:
        value, bound = free_batch(steps, [x.value for x in numbers])
        found = exactly(value, "isotonic log-interpolated")
    scaled = {name: getattr(found, name) * first for name in ("value", "low", "high")}
    return Estimate(**scaled, method=found.method, n=found.n), bound


def _free(part: Part, rows: Sequence[Row]) -> Estimate:
    found, bound = free_value(_curve(part, rows, part.of), part.axis)
    # beyond the last value measured it is free as well: nothing limits it from above
    return _open(found) if bound else found


def _open(x: Estimate) -> Estimate:
    method = f"{x.method}, at least"
    return Estimate(value=x.value, low=x.low, high=math.inf, method=method, n=x.n)


def _free_ratio(part: Part, rows: Sequence[Row]) -> Estimate:
    a, a_bound = free_value(_curve(part, rows, part.of), part.axis)
    b, b_bound = free_value(_curve(part, rows, part.to), part.axis)
    if a_bound and b_bound:
        raise Unjudged(f"both are free up to the largest {part.axis} measured")
    ratio = quotient(a, b)
    low = 0.0 if b_bound else ratio.low
    high = math.inf if a_bound else ratio.high
    return Estimate(value=ratio.value, low=low, high=high, method=ratio.method, n=ratio.n)


def _spread(part: Part, rows: Sequence[Row]) -> Estimate:
    found = sorted(
        select(rows, part.of), key=lambda row: number(row, part.quantity).value, reverse=True
    )
    if len(found) < 2:
        raise Unjudged(f"{told(part.of)}: fewer than two points to compare")
    return _over(found[0], found[-1], part.quantity)


def _pairs(part: Part, rows: Sequence[Row], proxy: str | None) -> list[tuple[float, float]]:
    found = select(rows, part.of)
    usable = [r for r in found if part.quantity in r.numbers and proxy in r.numbers]
    if proxy is not None and found and not any(proxy in r.numbers for r in found):
        raise Unjudged(f"no {proxy.replace('_', ' ')} counted here")
    return [(r.numbers[part.quantity].value, r.numbers[str(proxy)].value) for r in usable]


def _rank_correlation(part: Part, rows: Sequence[Row]) -> Estimate:
    return proxies.spearman(_pairs(part, rows, part.proxy))


def _rank_advantage(part: Part, rows: Sequence[Row]) -> Estimate:
    return proxies.advantage(_pairs(part, rows, part.proxy), _pairs(part, rows, part.than))


def _free_on_faster(part: Part, rows: Sequence[Row]) -> Estimate:
    curves = {
        name: free_value(_curve(part, mine, part.of), part.axis)[0]
        for name, mine in machines.apart(rows).items()
    }
    return machines.free_on_faster(rows, curves)


def _floor_follows_host(part: Part, rows: Sequence[Row]) -> Estimate:
    points = {
        name: tuple(_one(mine, part.of, q) for q in ("latency", "host", "kernel"))
        for name, mine in machines.apart(rows).items()
    }
    return machines.floor_follows_host(rows, points)


def _not_measured(part: Part, rows: Sequence[Row]) -> Estimate:
    if part.quantity != "latency":
        found = [r.numbers[part.quantity] for r in select(rows, part.of) if r.numbers]
        if len(found) > 1:  # the paper's own numbers
            return quotient(found[-1], found[0])
    raise Unjudged(part.reason)


RULES: dict[str, Callable[[Part, Sequence[Row]], Estimate]] = {
    "value": _value,
    "ratio": _ratio,
    "mean_reduction": _mean_reduction,
    "slope": _slope,
    "free": _free,
    "free_ratio": _free_ratio,
    "spread": _spread,
    "rank_correlation": _rank_correlation,
    "rank_advantage": _rank_advantage,
    "free_on_faster": _free_on_faster,
    "floor_follows_host": _floor_follows_host,
    "not_measured": _not_measured,
}


def told(where: Mapping[str, object]) -> str:
    """Return a selection in words."""
    if not where:
        return "any point"
    return ", ".join(
        f"{axis} {' or '.join(map(str, v)) if isinstance(v, list | tuple) else v}"
        for axis, v in where.items()
    )


def point_words(row: Row) -> str:
    """Return which point a row is, in words."""
    at = row.at
    said = [f"{at['model']} in {at['runtime']}", f"batch {at['batch']}"]
    said += [f"length {at['length']}"] if at.get("length") else []
    said += [f"{name} {at[name]:g}" for name in ("width", "depth") if at.get(name, 1.0) != 1.0]
    said += [str(at["precision"])] if at.get("precision") not in (None, "float32") else []
    return ", ".join(said)
