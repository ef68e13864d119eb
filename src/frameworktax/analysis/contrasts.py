"""Is one latency another? Log ratios, what is known of their noise, and many at once.

Two kinds. *Paired*: both sides were measured in one session, so blocks of one round share what the
host did. *Between sessions*: process medians, each block over the calibrator's block of its round
where the host's speed can be taken out; what no session can see of itself is added as a known
variance, measured by ``benchmarks/calibration.py``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

from frameworktax.analysis.drift import relative_spread
from frameworktax.records import Estimate
from frameworktax.stats import MIN_PROCESSES, t_quantile

Blocks = Mapping[tuple[int, int], float]
"""(process, round) → block median, ns."""

SESSION_SD = 0.01
"""Between sessions of one program, beyond its processes and the calibrator."""
UNCALIBRATED_SD = 0.03
"""The same where no calibrator tells what the host did: the host's own drift."""
PROCESS_SD = 0.012
"""Between processes of one program, where too few were measured to tell."""
DRIFT_SD = 0.15
"""How far from one the share of the host's drift can be that reaches a program on the CPU."""
DEVICE_DRIFT_SD = 0.5
"""The same for a program on a device, which may feel all of the host's drift, or none."""
LEAST_SD = 0.001
"""Nothing is told apart below this: block medians of fast calls are equal to the nanosecond."""


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
        drift: log ratio of the calibrators; None where they cannot be compared.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side of a contrast between sessions."""

    blocks: Blocks
    calibrator: Mapping[int, float]

    def processes(self, over_calibrator: bool) -> list[float]:
        """Return per process the median of log block, over its round's calibrator if asked."""
        found: dict[int, list[float]] = defaultdict(list)
        for (process, _), value in self._logs(over_calibrator):
            found[process].append(value)
        return [median(values) for values in found.values()]

    def round_variance(self, over_calibrator: bool) -> tuple[float, float]:
        """Return (variance of the mean, degrees) that the rounds say, common to all processes."""
        by_process: dict[int, dict[int, float]] = defaultdict(dict)
        for (process, round_), value in self._logs(over_calibrator):
            by_process[process][round_] = value
        centred: dict[int, list[float]] = defaultdict(list)
        for rounds in by_process.values():
            centre = median(rounds.values())
            for round_, value in rounds.items():
                centred[round_].append(value - centre)
        moves = [math.exp(median(values)) for values in centred.values()]
        spread = relative_spread(moves)
        return (spread**2 / len(moves), len(moves) - 1.0) if spread else (0.0, 1.0)

    @property
    def calibrated(self) -> bool:
        """Whether every process has a round in which the calibrator ran."""
        processes = {process for process, _ in self.blocks}
        return processes == {p for (p, _), _ in self._logs(True)}

    def _logs(self, over_calibrator: bool) -> list[tuple[tuple[int, int], float]]:
        if not over_calibrator:
            return [(key, math.log(ns)) for key, ns in self.blocks.items()]
        rounds = self.calibrator
        return [
            ((process, round_), math.log(ns / rounds[round_]))
            for (process, round_), ns in self.blocks.items()
            if round_ in rounds
        ]


def between(
    before: Sample, after: Sample, *, on_cpu: bool, same_calibrator: bool = True
) -> Contrast | None:
    """Return the contrast of two sessions; None where a side has no block.

    Args:
        before: one session.
        after: the other.
        on_cpu: the host's drift is taken out; on a device it only widens.
        same_calibrator: False where interpreter or numpy differ: its code is then another.
    """
    if not before.blocks or not after.blocks:
        return None
    calibrated = same_calibrator and before.calibrated and after.calibrated
    drift = None
    if calibrated:
        centres = [median(side.calibrator.values()) for side in (before, after)]
        drift = math.log(centres[1] / centres[0])
    over = calibrated and on_cpu
    a, b = before.processes(over), after.processes(over)
    parts = [side.round_variance(over) for side in (before, after)]
    parts.append((2 * (SESSION_SD if calibrated else UNCALIBRATED_SD) ** 2, math.inf))
    if drift is not None:
        parts.append((((DRIFT_SD if on_cpu else DEVICE_DRIFT_SD) * drift) ** 2, math.inf))
    enough = min(len(a), len(b)) >= MIN_PROCESSES
    return Contrast(
        value=fmean(b) - fmean(a),
        spread=_pooled(a, b) if enough else PROCESS_SD**2,
        degrees=len(a) + len(b) - 2 if enough else math.inf,
        scale=1 / len(a) + 1 / len(b),
        parts=tuple(parts),
        n=min(len(a), len(b)),
        method="process medians of two sessions" + (", over the calibrator" if over else ""),
        drift=drift,
        measured=fmean(after.processes(False)) - fmean(before.processes(False)) if over else None,
    )


def _pooled(a: Sequence[float], b: Sequence[float]) -> float:
    return (variance(a) * (len(a) - 1) + variance(b) * (len(b) - 1)) / (len(a) + len(b) - 2)


def moderate(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Let points of one comparison share what they know of the spread between processes.

    Three processes give a variance two degrees of freedom, with which nothing survives the
    correction for many points. The variances of all points are taken as drawn round a common one,
    and each moves towards it as far as they resemble each other (Smyth 2004, empirical Bayes). The
    common one counts for no more than the degrees of freedom of the other points together.
    """
    told = [c for c in contrasts if c.spread > 0 and math.isfinite(c.degrees)]
    if len(told) < 2:
        return list(contrasts)
    from scipy.special import digamma, polygamma

    logs = [
        math.log(c.spread) - float(digamma(c.degrees / 2)) + math.log(c.degrees / 2) for c in told
    ]
    excess = variance(logs) - fmean(float(polygamma(1, c.degrees / 2)) for c in told)
    total = sum(c.degrees for c in told)
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
    """Return p values that hold the error of the whole family (Holm 1979).

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
