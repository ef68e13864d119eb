"""How well a count predicts latency: rank correlations with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frameworktax.records import SEED, Estimate
from frameworktax.reproduce.rows import NotEvaluable, Row, select, values
from frameworktax.stats import NORMAL_95

PROXIES = {
    "flops": "FLOPs",
    "full_macs": "MACs, all of them (half the FLOPs)",
    "macs": "MACs as the paper counts: linear and convolution layers",
    "parameters": "parameters",
    "layers": "depth in layers",
    "operators": "operators",
    "launches": "kernel launches",
}
FEWEST = 5
"""Points below which a rank correlation says nothing."""
DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The rank correlation of latency with a count, over the points of one regime or of all.

    ``rho`` is None where it cannot be computed; ``reason`` says why.
    """

    proxy: str
    regime: str
    n: int
    rho: Estimate | None
    reason: str | None = None


def _rhos(pairs: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation of every set; nan where one side does not vary.

    Args:
        pairs: (sets, points, 2).
    """
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=1)
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    x, y = ranks[..., 0], ranks[..., 1]
    size = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    with np.errstate(invalid="ignore"):  # 0 / 0
        found: np.ndarray = (x * y).sum(axis=1) / size
    return found


def spearman(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Return Spearman's rank correlation with its 95 % interval over models.

    Fisher's z with the variance (1 + ρ²/2) / (n − 3) of Bonett and Wright (2000). A perfect order
    has no such variance; its open end is that of the largest correlation short of it that n points
    can have, one pair of neighbours exchanged.

    Args:
        pairs: (latency, count) of each point.

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
    half = NORMAL_95 * math.sqrt((1 + based**2 / 2) / (n - 3))
    low, high = math.tanh(math.atanh(based) - half), math.tanh(math.atanh(based) + half)
    method = "Spearman, Fisher's z with Bonett and Wright's variance"
    # A perfect order lies beyond the interval around ``based``, and is its closed end.
    return Estimate(value=rho, low=min(low, rho), high=max(high, rho), method=method, n=n)


def advantage(
    better: Sequence[tuple[float, float]], worse: Sequence[tuple[float, float]]
) -> Estimate:
    """Return how much higher one proxy's rank correlation is, by a bootstrap over models.

    Args:
        better: (latency, count) of each point by one proxy.
        worse: the same points by the other.
    """
    if len(better) != len(worse):
        raise NotEvaluable("the two counts are not there for the same points")
    value = spearman(better).value - spearman(worse).value
    a, b = np.array(better), np.array(worse)
    draws = np.random.default_rng(SEED).integers(0, len(a), size=(DRAWS, len(a)))
    found = _rhos(a[draws]) - _rhos(b[draws])
    low, high = np.percentile(found[~np.isnan(found)], [2.5, 97.5])
    return Estimate(
        value=value,
        low=float(low),
        high=float(high),
        method="difference of Spearman's rank correlations, bootstrap over models",
        n=len(a),
    )


def table(rows: Sequence[Row], where: Mapping[str, object]) -> list[Proxy]:
    """Return every proxy's rank correlation with latency, over all points and in each regime."""
    chosen = [row for row in select(rows, where) if "latency" in row.numbers]
    found = []
    for regime in ("all", *values(chosen, "regime")):
        mine = [r for r in chosen if regime in ("all", r.at.get("regime"))]
        for proxy in PROXIES:
            pairs = pairs_of(mine, proxy)
            rho: Estimate | None = None
            reason: str | None = None
            try:
                rho = spearman(pairs)
            except NotEvaluable as why:
                reason = str(why) if pairs else "not counted here"
            found.append(Proxy(proxy=proxy, regime=regime, n=len(pairs), rho=rho, reason=reason))
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
