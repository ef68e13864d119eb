"""The claims of the paper against numbers: rules from rows to an interval, verdicts from intervals.

A rule takes a part of a claim, as a study file has it, and rows: ours or the paper's, never both.
It returns one number with its interval, or raises ``NotEvaluable``, whose text is the reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np

from frameworktax.analysis.curves import free_batch, free_batch_interval
from frameworktax.analysis.estimates import around, difference
from frameworktax.records import SEED, Estimate
from frameworktax.reproduce import paper
from frameworktax.reproduce.rows import WORDS, NotEvaluable, Row, by_machine, select, values
from frameworktax.reproduce.studies import Claim, Part
from frameworktax.stats import CONFIDENCE, at_confidence, t_quantile

PAIRED = ("model", "batch", "length", "image_size", "width", "depth", "input", "precision")
"""Axes that two points of one pair share, but for those in which ``of`` and ``to`` differ."""
FASTER = 1.15
"""Ratio of two peaks from which on one device is the faster."""
PROXIES = WORDS["proxies"]
"""Count that may predict latency → what it is."""
FEWEST = 5
"""Points below which a rank correlation says nothing."""
DRAWS = 2000
EXCLUDED = 1e-9
"""Share by which a free value is below the measured one that is not free."""

Verdict = Literal["holds", "does-not-hold", "cannot-be-judged"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does-not-hold"
OPEN: Verdict = "cannot-be-judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of a claim, for one combination of its ``each``.

    Attributes:
        says: what was computed, in words.
        unit: of the numbers in text.
        bounds: what ours was compared with.
        ours: None where it could not be computed.
        paper: the same rule on the paper's own numbers; None where it gives none.
        paper_verdict: the verdict of the rule on the paper's own number.
    """

    says: str
    unit: str
    bounds: str
    verdict: Verdict
    reason: str
    ours: Estimate | None = None
    paper: float | None = None
    paper_verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim with its verdict.

    Attributes:
        paper: id of the paper's claim that it is of.
        where: in the paper.
        number: the paper's, as it words it.
    """

    id: str
    study: str
    text: str
    paper: str
    where: str
    number: str
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, Any]:
        """Return the claim as data, ours and the paper's apart; a bound may be infinite."""
        return {
            "id": self.id,
            "study": self.study,
            "text": self.text,
            "verdict": self.verdict,
            "ours": [
                {
                    "what": f.says,
                    "verdict": f.verdict,
                    "bounds": f.bounds,
                    "estimate": None if f.ours is None else asdict(f.ours),
                    "reason": f.reason,
                }
                for f in self.findings
            ],
            "paper": {
                "claim": self.paper,
                "where": self.where,
                "number": self.number,
                "computed": [
                    {"what": f.says, "value": f.paper, "verdict": f.paper_verdict}
                    for f in self.findings
                    if f.paper is not None
                ],
            },
            "reason": self.reason,
        }


def judge(study: str, claim: Claim, ours: Sequence[Row]) -> Judged:
    """Return a claim of a study with its verdict on our rows.

    It holds where all of its parts do, and errs no more often than one of them: a false claim has a
    part that is false. It does not hold where one of its parts does not, so that each has to lie
    outside at 1 − (1 − confidence) / number of parts (Bonferroni).
    """
    theirs = paper.rows(study)
    parts = [p for part in claim.part for p in _each(part)]
    findings = [_finding(p, ours, theirs, len(parts)) for p in parts]
    verdicts = [f.verdict for f in findings]
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
    decisive = [f for f in findings if f.verdict == verdict]
    reason = "; ".join(dict.fromkeys(f.reason for f in decisive[:3]))
    if len(decisive) > 3:
        reason += f"; and {len(decisive) - 3} more"
    printed = paper.claims()[claim.claim]
    return Judged(
        id=claim.id,
        study=study,
        text=claim.text,
        paper=claim.claim,
        where=printed["where"],
        number=claim.number or printed["number"],
        verdict=verdict,
        reason=reason,
        findings=tuple(findings),
    )


def _each(part: Part) -> list[Part]:
    """Return a part once for every combination of the axes in its ``each``, lists in its ``of``."""
    if not part.each:
        return [part]
    choices = [wanted for axis in part.each if isinstance(wanted := part.of[axis], list)]
    found = []
    for chosen in itertools.product(*choices):
        fixed = dict(zip(part.each, chosen, strict=True))
        update = {
            "of": {**part.of, **fixed},
            "to": {**fixed, **part.to},
            "says": f"{part.says} ({', '.join(map(str, chosen))})",
        }
        found.append(part.model_copy(update=update))
    return found


def _finding(part: Part, ours: Sequence[Row], theirs: Sequence[Row], parts: int) -> Finding:
    bounds = bounds_text(part)
    found, why = _tried(part, ours)
    verdict, reason = OPEN, f"{part.says}: {why}"
    if found is not None:
        verdict = verdict_of(found, part.above, part.below)
        confidence = 1 - (1 - part.confidence) / parts
        sure, _ = _tried(part.model_copy(update={"confidence": confidence}), ours)
        judged = f"across the bound of the claim ({bounds})"
        if verdict == FAILS and (not sure or verdict_of(sure, part.above, part.below) != FAILS):
            verdict = OPEN
            judged = f"outside the bound ({bounds}), as one of {parts} parts may be by chance"
        if verdict == OPEN:
            more = f", or at more values of {part.axis}" * part.rule.startswith("free")
            is_rank = part.rule.startswith("rank")
            judged += ": " + ("too few models" if is_rank else f"measure longer{more}")
        else:
            judged = f"{'as' if verdict == HOLDS else 'where'} the claim asks for {bounds}"
        reason = f"{part.says}: {estimate_text(found, part.unit)}, {judged}"
    # Where the paper gives no number for this part, the claim's own words stand.
    printed, _ = _tried(part, theirs)
    return Finding(
        says=part.says,
        unit=part.unit,
        bounds=bounds,
        verdict=verdict,
        reason=reason,
        ours=found,
        paper=printed.value if printed else None,
        paper_verdict=verdict_of(printed, part.above, part.below) if printed else None,
    )


def _tried(part: Part, rows: Sequence[Row]) -> tuple[Estimate | None, str]:
    """Return the number that a part is about, or why there is none."""
    try:
        return RULES[part.rule](part, rows), ""
    except NotEvaluable as why:
        return None, str(why)


def verdict_of(x: Estimate, above: float | None, below: float | None) -> Verdict:
    """Return whether an interval lies inside the bounds, outside, or across one of them.

    One that ends at a bound reaches it: two counts that rank all models alike differ by 0 (0 to 0),
    and neither is the better.
    """
    if (above is None or x.low > above) and (below is None or x.high < below):
        return HOLDS
    if (above is not None and x.high < above) or (below is not None and x.low > below):
        return FAILS
    return OPEN


# --- rules ----------------------------------------------------------------------------------------


def number(row: Row, part: Part, quantity: str = "") -> Estimate:
    """Return a number of a row, that of the part where no other is named, at its confidence.

    Raises:
        NotEvaluable: it is missing, with the row's own reason.
    """
    quantity = quantity or part.quantity
    if quantity in row.numbers:
        return at_confidence(row.numbers[quantity], part.confidence)
    why = row.reason or f"no {quantity.replace('_', ' ')} was measured"
    raise NotEvaluable(f"{row_text(row)}: {why}")


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """Return a / b of two independent estimates, their relative half-widths added in squares."""
    if a.value <= 0 or b.value <= 0:
        raise NotEvaluable("a ratio of numbers that are not above zero says nothing")
    spread = math.hypot(_log_half(a), _log_half(b))
    value = a.value / b.value
    down, up = (abs(value * math.expm1(move)) for move in (-spread, spread))
    return around(value, down, up, "ratio of independent estimates", a, b)


def _log_half(x: Estimate) -> float:
    """Return the larger half-width of log x; infinite where the interval reaches zero."""
    if x.low <= 0:
        return math.inf
    return max(math.log(x.high / x.value), math.log(x.value / x.low))


def _row(rows: Sequence[Row], where: Mapping[str, object]) -> Row:
    found = select(rows, where)
    if not found:
        raise NotEvaluable(f"nothing measured at {where_text(where)}")
    if len(found) > 1:
        raise NotEvaluable(f"{where_text(where)} names {len(found)} points; a rule needs one")
    return found[0]


def _over(a: Row, b: Row, part: Part) -> Estimate:
    return quotient(number(a, part), number(b, part))


def _mean_reduction(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return the mean over pairs of 1 − a / b; half-widths of the pairs added in squares over n."""
    differs = {axis for axis in part.of.keys() & part.to.keys() if part.of[axis] != part.to[axis]}
    paired = [axis for axis in PAIRED if axis not in differs]
    pairs: list[Estimate] = []
    others = {tuple(r.at.get(axis) for axis in paired): r for r in select(rows, part.to)}
    for row in select(rows, part.of):
        other = others.get(tuple(row.at.get(axis) for axis in paired))
        if other is None:
            raise NotEvaluable(f"{row_text(row)} has no counterpart at {where_text(part.to)}")
        pairs.append(_over(row, other, part))
    if not pairs:
        raise NotEvaluable(f"nothing measured at {where_text(part.of)}")
    below = math.hypot(*(p.high - p.value for p in pairs)) / len(pairs)
    above = math.hypot(*(p.value - p.low for p in pairs)) / len(pairs)
    return around(1 - fmean(p.value for p in pairs), below, above, "mean of 1 − ratio", *pairs)


def _curve(part: Part, rows: Sequence[Row], where: Mapping[str, object]) -> list[Row]:
    found = sorted(
        (r for r in select(rows, where) if r.at.get(part.axis) is not None),
        key=lambda r: r.at[part.axis],
    )
    if len(found) < 2:
        raise NotEvaluable(f"{where_text(where)}: fewer than two values of {part.axis}")
    if len({r.at[part.axis] for r in found}) < len(found):
        raise NotEvaluable(f"{where_text(where)} names more than one curve")
    return found


def _slope(part: Part, rows: Sequence[Row]) -> Estimate:
    curve = _curve(part, rows, part.of)
    a, b = curve[:2] if part.at == "start" else curve[-2:]
    ratio = _over(b, a, part)
    step = math.log(b.at[part.axis] / a.at[part.axis])
    low, high = (math.log(x) / step if x > 0 else -math.inf for x in (ratio.low, ratio.high))
    method = f"d log / d log from {part.axis} {a.at[part.axis]} to {b.at[part.axis]}"
    return replace(ratio.at(math.log(ratio.value) / step, low, high), method=method)


def _growth_ratio(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return how much more one curve rises than another between their last two values."""
    a, b = (_curve(part, rows, where)[-2:] for where in (part.of, part.to))
    if [row.at[part.axis] for row in a] != [row.at[part.axis] for row in b]:
        raise NotEvaluable(f"the two curves end at other values of {part.axis}")
    rises = [difference(number(end, part), number(begin, part), "rise") for begin, end in (a, b)]
    return quotient(*rises)


def free_value(
    curve: Sequence[Row], axis: str, confidence: float = CONFIDENCE
) -> tuple[Estimate, bool]:
    """Return the largest free value along an axis, and whether it is a lower bound.

    Ours with its interval, from blocks, at the synchronised latency; a printed curve has no blocks
    and gets its value alone. The curve ascends, and every point of it has numbers.
    """
    at = [row.at[axis] for row in curve]
    if not any(row.columns for row in curve):
        known = [row.numbers["latency"].value for row in curve if "latency" in row.numbers]
        if len(known) == len(curve):
            return free_batch(at, known)
    if not all(row.columns for row in curve):
        raise NotEvaluable("a point of the curve has no blocks")
    found, bound = free_batch_interval(at, [row.columns for row in curve], confidence)
    if found is None:
        raise NotEvaluable("too few blocks for the free value's interval")
    return found, bound


def _free(part: Part, rows: Sequence[Row], where: Mapping[str, object] | None = None) -> Estimate:
    """Return a free value with the upper end that it has; beyond the last one nothing limits it."""
    curve = _curve(part, rows, part.of if where is None else where)
    x, bound = free_value(curve, part.axis, part.confidence)
    return replace(x, high=math.inf if bound else x.high * (1 - EXCLUDED))


def _free_ratio(part: Part, rows: Sequence[Row]) -> Estimate:
    a, b = _free(part, rows), _free(part, rows, part.to)
    if math.isinf(a.high) and math.isinf(b.high):
        raise NotEvaluable(f"both are free up to the largest {part.axis} measured")
    return replace(a, value=a.value / b.value, low=a.low / b.high, high=a.high / b.low)


def _spread(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return the largest ratio of two points; its ends are the largest of any two.

    Which point is the slowest may be open. That some ratio is as large may be the chance of one of
    many, so that the lower end is of intervals that hold together (Bonferroni).
    """
    found = select(rows, part.of)
    if len(found) < 2:
        raise NotEvaluable(f"{where_text(part.of)}: fewer than two points to compare")
    every = [_over(a, b, part) for a, b in itertools.permutations(found, 2)]
    confidence = 1 - 2 * (1 - part.confidence) / len(every)
    together = [at_confidence(ratio, confidence, logs=True) for ratio in every]
    largest = max(every, key=lambda ratio: ratio.value)
    return largest.at(largest.value, max(r.low for r in together), max(r.high for r in every))


def _pairs(part: Part, rows: Sequence[Row], proxy: str | None) -> list[tuple[float, float]]:
    found = select(rows, part.of)
    if proxy is None or (found and not any(proxy in row.numbers for row in found)):
        raise NotEvaluable(f"no {str(proxy).replace('_', ' ')} counted here")
    return pairs_of(found, proxy, part.quantity)


def _rank_advantage(part: Part, rows: Sequence[Row]) -> Estimate:
    better, worse = (_pairs(part, rows, proxy) for proxy in (part.proxy, part.than))
    if any((part.proxy in r.numbers) != (part.than in r.numbers) for r in select(rows, part.of)):
        raise NotEvaluable("the two counts are not there for the same points")
    return advantage(better, worse, part.confidence)


def _several(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return machine → its rows; raises NotEvaluable for one machine."""
    found = by_machine(rows)
    if len(found) < 2:
        raise NotEvaluable(
            "one machine in the store; copy the files of several stores into one folder"
        )
    return found


def _free_on_faster(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return the share of pairs of machines whose faster device has the larger free value.

    A pair whose peaks are alike, or whose free values no interval separates, does not count.
    """
    machines = _several(rows)
    free = {name: _free(part, mine) for name, mine in machines.items()}
    # By the first of two sources that knows them all: they count in different ways.
    known = {name: mine[0].at["peaks"] for name, mine in machines.items()}
    sources = [{name: both[source] for name, both in known.items()} for source in (0, 1)]
    peaks = next((found for found in sources if None not in found.values()), None)
    if peaks is None:
        raise NotEvaluable("the peaks of these devices are not known from one source")
    agree: dict[tuple[str, str], bool] = {}
    for a, b in itertools.combinations(free, 2):
        slow, fast = sorted((a, b), key=lambda name: peaks[name])
        # what is free at 16 is freer than what is not free at 16
        low, high = sorted((free[slow], free[fast]), key=lambda x: x.value)
        is_apart = low.value < high.value and low.high <= high.low
        if peaks[fast] / peaks[slow] >= FASTER and is_apart:
            agree[slow, fast] = high is free[fast]
    return share(agree, part.confidence)


def _floor_follows_host(part: Part, rows: Sequence[Row]) -> Estimate:
    """Return the share of pairs of machines whose batch-1 latency goes with host time.

    For each pair: is the ratio of latencies nearer, in logarithms, to that of host times than to
    that of kernel times? A pair whose two ratios are alike does not count, nor one whose latencies
    lie half way within the intervals.
    """
    points = {
        name: tuple(number(_row(mine, part.of), part, q) for q in ("latency", "host", "kernel"))
        for name, mine in _several(rows).items()
    }
    agree: dict[tuple[str, str], bool] = {}
    for a, b in itertools.combinations(points, 2):
        ratios = [quotient(x, y) for x, y in zip(points[a], points[b], strict=True)]
        latency, host, kernel = (math.log(ratio.value) for ratio in ratios)
        beyond = latency - (host + kernel) / 2
        noise = math.hypot(*(w * _log_half(r) for w, r in zip((1, 0.5, 0.5), ratios, strict=True)))
        if abs(host - kernel) >= math.log(FASTER) and abs(beyond) > noise:
            agree[(b, a) if host > kernel else (a, b)] = (beyond > 0) == (host > kernel)
    return share(agree, part.confidence)


def share(agree: Mapping[tuple[str, str], bool], confidence: float = CONFIDENCE) -> Estimate:
    """Return the share of pairs of machines that agree, with Wilson's interval.

    ``agree`` has (the lower, the higher) by one quantity → whether the other has that order, too.
    Pairs share machines and are not independent: in a random order of the other quantity two pairs
    with one machine in the same place have the correlation 1/3, in opposite places −1/3. They
    count as the independent ones whose share has the same variance, which for all pairs is that of
    Kendall's τ (Kendall 1938): the 21 pairs of seven machines count as 10.
    """
    if not agree:
        raise NotEvaluable("no two machines differ enough to judge")
    n = len({name for pair in agree for name in pair})
    two = itertools.permutations(agree, 2)
    shared = sum((a == c) + (b == d) - (a == d) - (b == c) for (a, b), (c, d) in two) / 3
    pairs = min(1.0, len(agree) / (len(agree) + shared)) * len(agree)
    value, z2 = fmean(agree.values()), t_quantile(confidence, math.inf) ** 2
    middle = (value + z2 / (2 * pairs)) / (1 + z2 / pairs)
    spread = math.sqrt(z2 * value * (1 - value) / pairs + (z2 / (2 * pairs)) ** 2)
    half = spread / (1 + z2 / pairs)
    # 0 and 1 are ends of their intervals, but for rounding
    low, high = min(value, middle - half), max(value, middle + half)
    method = "share of pairs of machines, Wilson by Kendall's variance"
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method, n=n)


RULES: dict[str, Callable[[Part, Sequence[Row]], Estimate]] = {
    # of one point
    "value": lambda part, rows: number(_row(rows, part.of), part),
    # of one point to another
    "ratio": lambda part, rows: _over(_row(rows, part.of), _row(rows, part.to), part),
    # over the pairs that share every axis but the runtime and what ``of`` and ``to`` set apart
    "mean_reduction": _mean_reduction,
    "slope": _slope,  # d log latency / d log axis between the first two values, or the last two
    "growth_ratio": _growth_ratio,  # rise between the last two values, of one curve to another's
    "free": _free,  # largest value of an axis within 10 % of its first value's latency
    "free_ratio": _free_ratio,  # of one curve's to another's
    "spread": _spread,  # largest over smallest among the points
    # Spearman's, of latency with a proxy
    "rank_correlation": lambda p, rows: spearman(_pairs(p, rows, p.proxy), p.confidence),
    "rank_advantage": _rank_advantage,  # how much higher it is for one proxy than for another
    "free_on_faster": _free_on_faster,
    "floor_follows_host": _floor_follows_host,
}


# --- how well a count predicts latency ------------------------------------------------------------


def _rhos(pairs: np.ndarray) -> np.ndarray:
    """Return Spearman's ρ of every set in (sets, points, 2); nan where one side does not vary."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=1)
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    x, y = ranks[..., 0], ranks[..., 1]
    size = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    with np.errstate(invalid="ignore"):  # 0 / 0
        found: np.ndarray = (x * y).sum(axis=1) / size
    return found


def spearman(pairs: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Estimate:
    """Return Spearman's rank correlation with its interval over models.

    Fisher's z with the variance (1 + ρ²/2) / (n − 3) of Bonett and Wright (2000). A perfect order
    has no such variance; its open end is that of the largest correlation short of it that n points
    can have, one pair of neighbours exchanged.

    Raises:
        NotEvaluable: fewer than ``FEWEST`` points, or one side is the same everywhere.
    """
    n = len(pairs)
    if n < FEWEST:
        raise NotEvaluable(f"{n} points; a rank correlation needs {FEWEST}")
    rho = float(_rhos(np.array([pairs], dtype=float))[0])
    if math.isnan(rho):
        raise NotEvaluable("the count is the same for every point")
    perfect = abs(rho) > 1 - 1e-12
    based = math.copysign(1 - 12 / (n * (n * n - 1)), rho) if perfect else rho
    half = t_quantile(confidence, math.inf) * math.sqrt((1 + based**2 / 2) / (n - 3))
    # A perfect order lies beyond the interval around ``based``, and is its closed end.
    low = min(rho, math.tanh(math.atanh(based) - half))
    high = max(rho, math.tanh(math.atanh(based) + half))
    method = "Spearman, Fisher's z with Bonett and Wright's variance"
    return Estimate(value=rho, low=low, high=high, confidence=confidence, method=method, n=n)


def advantage(
    better: Sequence[tuple[float, float]],
    worse: Sequence[tuple[float, float]],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Return how much higher one proxy's rank correlation is, by a bootstrap over models.

    Both have (latency, count) of the same points.
    """
    value = spearman(better).value - spearman(worse).value
    a, b = np.array(better), np.array(worse)
    draws = np.random.default_rng(SEED).integers(0, len(a), size=(DRAWS, len(a)))
    found = _rhos(a[draws]) - _rhos(b[draws])
    outside = (1 - confidence) / 2
    low, high = np.quantile(found[~np.isnan(found)], [outside, 1 - outside]).tolist()
    method = "difference of Spearman's rank correlations, bootstrap over models"
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method, n=len(a))


def proxies(rows: Sequence[Row], where: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return every proxy's rank correlation with latency, over all points and in each regime.

    Of each its ``proxy``, ``regime``, number of points ``n`` and ``rho``; null where it cannot be
    computed, and ``reason`` says why.
    """
    chosen = [row for row in select(rows, where) if "latency" in row.numbers]
    found = []
    for regime in ("all", *values(chosen, "regime")):
        mine = [r for r in chosen if regime in ("all", r.at.get("regime"))]
        for proxy in PROXIES:
            pairs = pairs_of(mine, proxy)
            one = {"proxy": proxy, "regime": regime, "n": len(pairs)}
            try:
                one |= {"rho": spearman(pairs), "reason": None}
            except NotEvaluable as why:
                one |= {"rho": None, "reason": str(why) if pairs else "not counted here"}
            found.append(one)
    return found


def pairs_of(
    rows: Sequence[Row], proxy: str, quantity: str = "latency"
) -> list[tuple[float, float]]:
    """Return (quantity, count) of the rows that have both."""
    return [
        (row.numbers[quantity].value, row.numbers[proxy].value)
        for row in rows
        if quantity in row.numbers and proxy in row.numbers
    ]


# --- as text --------------------------------------------------------------------------------------


def where_text(where: Mapping[str, object]) -> str:
    """Return a selection in words."""
    if not where:
        return "any point"
    return ", ".join(
        f"{axis} {' or '.join(map(str, v)) if isinstance(v, list | tuple) else v}"
        for axis, v in where.items()
    )


def row_text(row: Row) -> str:
    """Return which point a row is, by the runtime's part in the paper."""
    at = row.at
    parts = [f"{at['model']} in {at['runtime']}", f"batch {at['batch']}"]
    parts += [f"length {at['length']}"] if at.get("length") else []
    parts += [f"{name} {at[name]:g}" for name in ("width", "depth") if at.get(name, 1.0) != 1.0]
    parts += [str(at["precision"])] if at.get("precision") not in (None, "float32") else []
    return ", ".join(parts)


def estimate_text(x: Estimate, unit: str = "") -> str:
    """Return ``1.23 (1.10 to 1.36)``; a count stands alone."""
    if x.low == x.high == x.value:
        return value_text(x.value, unit)
    if math.isinf(x.high) and x.low > 0:  # free as far as it was measured
        return f"at least {value_text(x.value, unit)} (from {value_text(x.low, unit)})"
    ends = f"{value_text(x.low, unit)} to {value_text(x.high, unit)}"
    return f"{value_text(x.value, unit)} ({ends})"


def value_text(value: float, unit: str = "") -> str:
    """Return a number with three significant digits, a share as per cent."""
    if not math.isfinite(value):
        return "no bound"
    return f"{100 * value:.3g} %" if unit == "%" else f"{value:.3g}"


def bounds_text(part: Part) -> str:
    """Return the bounds of a rule in words."""
    bounds = {"more than": part.above, "less than": part.below}
    known = ((words, bound) for words, bound in bounds.items() if bound is not None)
    return " and ".join(f"{words} {value_text(bound, part.unit)}" for words, bound in known)
