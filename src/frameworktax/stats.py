"""Intervals that hold on correlated samples: blocks within processes.

Consecutive calls in one process are correlated, so an interval over single calls is far too
narrow. Here the median of a block of calls is one
value, the median of a process's blocks is one value, and the interval is Student's t over the
processes. The measuring wing stops on these intervals, the reading wing reports them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import truediv
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeVar

from frameworktax.records import Estimate

if TYPE_CHECKING:
    import numpy as np

K = TypeVar("K", bound=Hashable)

CONFIDENCE = 0.95
NORMAL_95 = 1.96
"""Standard deviations on each side that hold 0.95 of a normal distribution."""
UNTIL = 0.03
"""Half-width of the interval, as a share of the value, that a measurement aims at by default."""
MIN_BLOCKS = 5
"""Blocks that a point needs at least, over its processes together (METHOD, section 4)."""
MIN_PROCESSES = 3
"""Fewer processes than this say too little about the spread between processes."""
FURTHER_PROCESSES = 12
"""As many at most are begun where fewer leave an interval wide, unless more were asked for."""
BY_PROCESS, BY_BLOCK = "process-medians-of-block-medians", "block-medians-of-one-process"
"""Methods of ``process_interval``: over processes, or over the blocks of the only one."""
PAIRED = "paired-block-ratios"
"""Method of ``ratio_interval``."""
ONE_PROCESS = ", one process"
"""End of the method of what else was estimated in one process alone."""


def block_medians(
    values: Any, first: np.ndarray, calls: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the median and the sum of each of many blocks, in the unit of the input.

    Blocks of as many calls are sorted together, in a tenth of the time of one after the other.

    Args:
        values: of all blocks, an array or buffer.
        first: shape (blocks,), where each begins in it.
        calls: shape (blocks,), how many values each has; at least one.
    """
    import numpy as np  # 0.1 s of import, needed only where a store is read

    medians, sums = np.empty(len(first)), np.empty(len(first))
    for length in np.unique(calls).tolist():
        at = np.flatnonzero(calls == length)
        for some in np.array_split(at, len(at) * length // 2**20 + 1):
            rows = np.sort(np.asarray(values)[first[some, None] + np.arange(length)], axis=1)
            low, high = rows[:, (length - 1) // 2].astype(float), rows[:, length // 2]
            medians[some] = (low + high) / 2
            sums[some] = rows.sum(axis=1, dtype=float)
    return medians, sums


def stdev(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values.

    ``statistics.stdev`` calculates in fractions, a third of the time of a large report.
    """
    if min(values) == max(values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum([(x - mean) ** 2 for x in values]) / (len(values) - 1))


@cache
def t_quantile(confidence: float, degrees: float) -> float:
    """Return the two-sided Student t quantile for ``degrees`` degrees of freedom."""
    from scipy.special import stdtrit  # 0.1 s of import, needed only once something is measured

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def mean_interval(values: Sequence[float], method: str) -> Estimate | None:
    """Return the mean of independent values with Student's t interval, None below two values."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    half = t_quantile(CONFIDENCE, n - 1) * stdev(values) / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, method=method, n=n)


def process_interval(blocks_by_process: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the interval over process medians of block medians, in the unit of the input.

    That of one process is over its blocks (``BY_BLOCK``) and of that process alone: how much
    processes differ is unknown. Two have one degree of freedom, and their interval is wide. None
    where there are fewer than two values.
    """
    filled = [blocks for blocks in blocks_by_process if blocks]
    if len(filled) == 1:
        return mean_interval(filled[0], BY_BLOCK)
    return mean_interval([median(blocks) for blocks in filled], BY_PROCESS)


def process_intervals(
    values: np.ndarray, group: np.ndarray, process: np.ndarray, groups: int, *, logs: bool = False
) -> list[Estimate | None]:
    """Return ``process_interval`` of many groups at once, of ``logs`` as ``ratio_interval`` does.

    Args:
        values: of a block each, shape (blocks,), sorted by group and process.
        group: number of each block's group, shape (blocks,).
        process: of each block, shape (blocks,).
        groups: how many there are.
        logs: whether the values are logarithms of ratios.
    """
    import numpy as np

    change = np.flatnonzero((np.diff(group) != 0) | (np.diff(process) != 0)) + 1
    first = np.concatenate([[0][: len(group)], change]).astype(np.int64)
    owner = group[first]
    alone = np.bincount(owner, minlength=groups) == 1
    medians, _ = block_medians(values, first, np.diff(first, append=len(group)))
    several, single = ~alone[owner], alone[group]
    x = np.concatenate([medians[several], values[single]])
    of = np.concatenate([owner[several], group[single]])
    n = np.bincount(of, minlength=groups)
    base = np.zeros(groups)
    base[of] = x  # differences from one of them: those of equal values are exactly 0
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(of, x - base[of], groups) / n
        squares = np.bincount(of, (x - base[of] - mean[of]) ** 2, groups)
        half = np.sqrt(squares / (n - 1) / n)
    for count in np.unique(n[n > 1]).tolist():
        half[n == count] *= t_quantile(CONFIDENCE, count - 1)
    ends = np.stack([base + mean, base + mean - half, base + mean + half])
    of_several, of_one = (PAIRED, PAIRED + ONE_PROCESS) if logs else (BY_PROCESS, BY_BLOCK)
    columns = (*(np.exp(ends) if logs else ends), n, alone)
    return [
        Estimate(value=value, low=low, high=high, method=of_one if is_one else of_several, n=count)
        if count > 1
        else None
        for value, low, high, count, is_one in zip(*(c.tolist() for c in columns), strict=True)
    ]


def at_confidence(x: Estimate, confidence: float, *, logs: bool = False) -> Estimate:
    """Return an estimate with the interval that Student's t has at another confidence.

    Its degrees of freedom are ``n`` − 1; of one value it is taken as normal, as that of a count is.
    ``logs``: it is of a ratio's logarithm.
    """
    if confidence == x.confidence:
        return x
    degrees = x.n - 1 if x.n > 1 else math.inf
    by = t_quantile(confidence, degrees) / t_quantile(x.confidence, degrees)
    low, high = (
        x.value * (end / x.value) ** by if logs else x.value + by * (end - x.value)
        for end in (x.low, x.high)
    )
    return replace(x, low=low, high=high, confidence=confidence)


def within_one_process(*estimates: Estimate | None) -> bool:
    """Return whether an interval is of one process: how processes differ is not in it."""
    names = (e.method.replace("-", " ") for e in estimates if e is not None)
    return any("one process" in name for name in names)


def log_ratios(
    a: Mapping[tuple[K, int], float], b: Mapping[tuple[K, int], float]
) -> dict[K, list[float]]:
    """Return process → logs of a / b, of the (process, round) that both have."""
    if not a.keys() <= b.keys():
        a = {key: ns for key, ns in a.items() if key in b}
    logs: dict[K, list[float]] = defaultdict(list)
    for (process, _), ratio in zip(a, map(truediv, a.values(), map(b.__getitem__, a)), strict=True):
        logs[process].append(math.log(ratio))
    return logs


def ratio_interval(
    a: Mapping[tuple[K, int], float], b: Mapping[tuple[K, int], float]
) -> Estimate | None:
    """Return the ratio a / b from blocks measured in the same round.

    Both sides are (process, round) → block median; only keys in both are used, which takes out the
    drift of the host. The interval is exp of Student's t over the processes' median log ratios
    (over the pairs of the only process where there is one). None below two pairs.
    """
    logs = log_ratios(a, b)
    found = process_interval(list(logs.values()))
    if found is None:
        return None
    low, value, high = math.exp(found.low), math.exp(found.value), math.exp(found.high)
    method = PAIRED + ONE_PROCESS * (len(logs) == 1)
    return Estimate(value=value, low=low, high=high, method=method, n=found.n)


def simultaneous(ratios: Sequence[Estimate], among: int = 1) -> list[Estimate]:
    """Return intervals of several ratios that all hold together, in the same order.

    They are all there are, or were chosen by what they are ``among`` more: those to the best of
    several are among the pairs of all.

    Each is taken at 1 − (1 − confidence) / number (Bonferroni), so that the best of 20 runtimes is
    not named for its luck. With the two degrees of freedom of three processes such intervals would
    be 2 to 5 times as wide; so the spread between processes is pooled, by the mean of its
    logarithms (Smyth 2004, section 6.2). A ratio that spreads more than the pool keeps its own, and
    half of the pooled degrees of freedom count: in simulation a side fails in at most 4 % of cases
    where 2.5 % are wanted. Ratios are Student's t of logarithms: of ``ratio_interval``, or inverse.
    """
    known = [ratio for ratio in ratios if ratio.n > 1]
    if len(known) < 2:
        return list(ratios)
    degrees = [ratio.n - 1 for ratio in known]
    variances = [
        ratio.n * (math.log(ratio.high / ratio.value) / t_quantile(ratio.confidence, df)) ** 2
        for ratio, df in zip(known, degrees, strict=True)
    ]
    pooled = _pooled(variances, degrees)
    quantile = partial(t_quantile, degrees=max(*degrees, sum(degrees) / 2))

    def wider(ratio: Estimate, variance: float) -> Estimate:
        confidence = 1 - (1 - ratio.confidence) / max(among, len(known))
        half = quantile(confidence) * math.sqrt(max(variance, pooled) / ratio.n)
        return ratio.at(ratio.value, ratio.value * math.exp(-half), ratio.value * math.exp(half))

    found = map(wider, known, variances)
    return [next(found) if ratio.n > 1 else ratio for ratio in ratios]


def _pooled(variances: Sequence[float], degrees: Sequence[float]) -> float:
    """Return the variance that sample variances have in common, by the mean of their logarithms.

    One of zero is of equal values, as a clock of few digits makes them, and says nothing of it.
    """
    logs = [math.log(v) - log_bias(df) for v, df in zip(variances, degrees, strict=True) if v > 0]
    return math.exp(fmean(logs)) if logs else 0.0


@cache
def log_bias(degrees: float) -> float:
    """Return the mean of the log of a sample variance, less the log of the variance itself."""
    from scipy.special import digamma

    return float(digamma(degrees / 2)) - math.log(degrees / 2)


def by_process(blocks: Mapping[tuple[K, int], float]) -> dict[K, list[float]]:
    """Return process → logs of its blocks, from (process, round) → block median."""
    logs: dict[K, list[float]] = defaultdict(list)
    for (process, _), ns in blocks.items():
        logs[process].append(math.log(ns))
    return logs


def spread(blocks_by_process: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """Return the relative standard deviation (between process medians, within processes).

    Either is None where there is nothing to take it over.
    """
    filled = [blocks for blocks in blocks_by_process if blocks]
    medians = [median(blocks) for blocks in filled]
    between = stdev(medians) / fmean(medians) if len(medians) > 1 else None
    inside = [stdev(blocks) / fmean(blocks) for blocks in filled if len(blocks) > 1]
    return between, math.sqrt(fmean([x * x for x in inside])) if inside else None


def relative_half_width(estimate: Estimate | None) -> float:
    """Return the interval's half-width as a share of the value; infinite where there is none."""
    if estimate is None or estimate.value == 0:
        return math.inf
    return (estimate.high - estimate.low) / 2 / abs(estimate.value)
