"""Is one latency another? Log ratios, what is known of their noise, and many at once.

Here of two sides measured in one session: blocks of one round share what the host did. Of two
sessions: ``between_sessions``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

from frameworktax.records import Estimate
from frameworktax.stats import MIN_PROCESSES, t_quantile

Blocks = Mapping[tuple[int, int], float]
"""(process, round) → block median, ns."""

PROCESS_SD = 0.012
"""Between processes of one program, where too few were measured for an estimate."""
LEAST_SD = 0.001
"""Noise is never less than this: block medians of fast calls are equal to the nanosecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A log ratio and its variance in parts.

    Attributes:
        value: log (after / before).
        spread: variance of one independent value (a process), log scale.
        degrees: of freedom of ``spread``; infinite where it is known from elsewhere.
        scale: factor on ``spread`` that makes it the variance of ``value``.
        parts: further (variance, degrees of freedom) of ``value``.
        n: independent values on the smaller side.
        method: how it was got.
        drift: log ratio of the host, from calibrators; None where they cannot be compared.
        measured: log (after / before) before the host's drift was taken out; None where it was not.
    """

    value: float
    spread: float
    degrees: float
    scale: float
    parts: tuple[tuple[float, float], ...]
    n: int
    method: str
    drift: float | None = None
    measured: float | None = None

    @property
    def variance(self) -> float:
        """The variance of ``value``, never under ``LEAST_SD`` squared."""
        return self.spread * self.scale + sum(part for part, _ in self.parts) + LEAST_SD**2

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance (Satterthwaite 1946), at most a million."""
        parts = [(self.spread * self.scale, self.degrees), *self.parts]
        lost = sum(part**2 / degrees for part, degrees in parts if part)
        return min(1e6, self.variance**2 / lost) if lost else 1e6


def paired(before: Blocks, after: Blocks) -> Contrast | None:
    """Return the contrast of two sides measured in one session; None below two common blocks.

    Log ratios of blocks with the same process number and round, their median per process. With
    fewer than ``MIN_PROCESSES`` processes it is taken over the blocks, and ``PROCESS_SD`` stands
    for what they cannot show.
    """
    ratios: dict[int, list[float]] = defaultdict(list)
    for key in before.keys() & after.keys():
        ratios[key[0]].append(math.log(after[key] / before[key]))
    values = [median(found) for found in ratios.values()]
    parts = []
    method = "paired blocks of one session"
    processes = len(ratios)
    if processes < MIN_PROCESSES:
        values = [value for found in ratios.values() for value in found]
        parts.append((2 * PROCESS_SD**2 / max(1, processes), math.inf))
        method += ", too few processes"
    if len(values) < 2:
        return None
    return Contrast(
        value=fmean(values),
        spread=variance(values),
        degrees=len(values) - 1,
        scale=1 / len(values),
        parts=tuple(parts),
        n=len(values),
        method=method,
    )


def moderate(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Let points of one comparison share what they know of the spread between processes.

    Three processes give a variance two degrees of freedom, with which nothing survives the
    correction for many points. The variances of all points are taken as drawn round a common one,
    and each moves towards it as far as they resemble each other (Smyth 2004, empirical Bayes). The
    common one counts for no more than the degrees of freedom of the other points together.
    """
    varied = [c for c in contrasts if c.spread > 0 and math.isfinite(c.degrees)]
    if len(varied) < 2:
        return list(contrasts)
    from scipy.special import digamma, polygamma

    logs = [
        math.log(c.spread) - float(digamma(c.degrees / 2)) + math.log(c.degrees / 2) for c in varied
    ]
    excess = variance(logs) - fmean(float(polygamma(1, c.degrees / 2)) for c in varied)
    total = sum(c.degrees for c in varied)
    prior = 2 * _trigamma_inverse(excess) if excess > 0 else math.inf
    shift = digamma(prior / 2) - math.log(prior / 2) if math.isfinite(prior) else 0.0
    common = math.exp(fmean(logs) + float(shift))
    moderated = []
    for c in contrasts:
        if not math.isfinite(c.degrees):
            moderated.append(c)
            continue
        weight = min(prior, total - c.degrees if c.spread > 0 else total)
        degrees = c.degrees + weight
        spread = (c.degrees * c.spread + weight * common) / degrees
        moderated.append(replace(c, spread=spread, degrees=degrees))
    return moderated


def _trigamma_inverse(value: float) -> float:
    """Return y with trigamma(y) = value, by Newton's method on its reciprocal (Smyth 2004)."""
    from scipy.special import polygamma

    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, y))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, y))
        y += step
        if abs(step) < 1e-8 * y:
            break
    return y


def ratio(contrast: Contrast, confidence: float = 0.95) -> Estimate:
    """Return after / before with its interval."""
    half = t_quantile(confidence, contrast.freedom) * math.sqrt(contrast.variance)
    return Estimate(
        value=math.exp(contrast.value),
        low=math.exp(contrast.value - half),
        high=math.exp(contrast.value + half),
        confidence=confidence,
        method=contrast.method,
        n=contrast.n,
    )


def p_value(contrast: Contrast) -> float:
    """Return how often a ratio at least this far from one comes of noise alone, either way."""
    from scipy.special import stdtr

    t = abs(contrast.value) / math.sqrt(contrast.variance)
    return float(2 * stdtr(contrast.freedom, -t))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that bound the error over all points together (Holm 1979).

    Step-down Bonferroni: valid however the points depend on each other, as points of one session
    do, and never weaker than Bonferroni.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted
