"""How far a host's own speed moved in a session, by its calibrator; intervals that include it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median, quantiles, stdev

from frameworktax.records import Estimate
from frameworktax.stats import NORMAL_95

MIN_ROUNDS = 3
"""Rounds of the calibrator below which nothing is said of the host's drift."""
ROBUST_ROUNDS = 6
WIDENED = ", widened by the calibrator's spread"


def relative_spread(rounds: Sequence[float]) -> float:
    """Return the relative standard deviation, 0 below three values.

    From ``ROBUST_ROUNDS`` on it is half the way from the 16th to the 84th percentile: a single
    disturbed round moves no median of blocks either.
    """
    if len(rounds) < MIN_ROUNDS:
        return 0.0
    if len(rounds) < ROBUST_ROUNDS:
        return stdev(rounds) / fmean(rounds)
    cuts = quantiles(rounds, n=100, method="inclusive")
    return (cuts[83] - cuts[15]) / 2 / median(rounds)


def widened(estimate: Estimate | None, drift: float) -> Estimate | None:
    """Add the host's drift to an interval: half-width √(h² + (1.96 · s · value)²).

    All blocks of a session lie in one stretch of a drifting clock, so the spread between processes
    does not include the drift; the calibrator's does. It is not divided by the number of
    rounds: drift is slow, and rounds that follow each other share it. Ratios are not touched.

    Args:
        estimate: from the session's own spread.
        drift: s, the calibrator's relative spread from round to round.
    """
    if estimate is None or not drift:
        return estimate
    extra = NORMAL_95 * drift * estimate.value
    return replace(
        estimate,
        low=estimate.value - math.hypot(estimate.value - estimate.low, extra),
        high=estimate.value + math.hypot(estimate.high - estimate.value, extra),
        method=estimate.method + WIDENED,
    )


def narrowed(estimate: Estimate, drift: float) -> Estimate:
    """Take the host's drift out again, for ratios within one session: ``widened`` undone."""
    extra = NORMAL_95 * drift * estimate.value
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    # rounding alone can bring a difference of squares under zero
    return replace(
        estimate,
        low=estimate.value - math.sqrt(max(0.0, below**2 - extra**2)),
        high=estimate.value + math.sqrt(max(0.0, above**2 - extra**2)),
        method=estimate.method.removesuffix(WIDENED),
    )


def host_drift(rounds: Sequence[float]) -> float | None:
    """Return how far the calibrator moved: range over median of its round medians, a fraction."""
    return (max(rounds) - min(rounds)) / median(rounds) if len(rounds) > 1 else None
