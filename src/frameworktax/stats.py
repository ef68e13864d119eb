"""Intervals that hold on correlated samples: blocks within processes.

Consecutive calls in one process are correlated, so an interval over single calls is far too
narrow (coverage 0.24 to 0.43 where 0.95 was asked). Here the median of a block of calls is one
value, the median of a process's blocks is one value, and the interval is Student's t over the
processes. The measuring wing stops on these intervals, the reading wing reports them.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from operator import truediv
from statistics import fmean, median
from typing import TypeVar

from frameworktax.records import Estimate

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
BY_PROCESS, BY_BLOCK = "process-medians-of-block-medians", "block-medians-of-one-process"
"""Methods of ``process_interval``: over processes, or over the blocks of the only one."""
ONE_PROCESS = ", one process"
"""End of the method of what else was estimated in one process alone."""


def block_median(values: Iterable[float]) -> float:
    """Return the one value that a block of calls counts with."""
    return median(values)


def block_medians(blocks: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Return ``block_median`` and the sum of each of many blocks, ns.

    Blocks of as many calls are sorted together, in a tenth of the time of one after the other.
    """
    import numpy as np  # 0.1 s of import, needed only where a store is read

    code = "I" if {getattr(b, "typecode", "") for b in blocks} == {"I"} else "q"
    if code == "q":
        blocks = [array(code, block) for block in blocks]
    calls_of = np.fromiter(map(len, blocks), np.int64, len(blocks))
    order = np.argsort(calls_of, kind="stable")
    medians, sums = np.empty(len(blocks), object), np.empty(len(blocks))
    for numbers in np.split(order, np.flatnonzero(np.diff(calls_of[order])) + 1) if blocks else ():
        calls = int(calls_of[numbers[0]])
        flat = bytearray().join([blocks[i] for i in numbers.tolist()])  # type: ignore[misc] # arrays are buffers
        rows = np.frombuffer(flat, code).reshape(-1, calls)
        rows.sort(axis=1)
        medians[numbers] = rows[:, calls // 2]  # integers of Python, as single medians are
        if calls % 2 == 0:
            pairs = zip(rows[:, calls // 2 - 1].tolist(), medians[numbers].tolist(), strict=True)
            medians[numbers] = [(a + b) / 2 for a, b in pairs]
        sums[numbers] = rows.sum(axis=1, dtype=np.float64)
    return medians.tolist(), sums.tolist()


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


def within_one_process(*estimates: Estimate | None) -> bool:
    """Return whether an interval is of one process: how processes differ is not in it."""
    names = (e.method.replace("-", " ") for e in estimates if e is not None)
    return any("one process" in name for name in names)


def ratio_interval(
    a: Mapping[tuple[K, int], float], b: Mapping[tuple[K, int], float]
) -> Estimate | None:
    """Return the ratio a / b from blocks measured in the same round.

    Both sides are (process, round) → block median; only keys in both are used, which takes out the
    drift of the host. The interval is exp of Student's t over the processes' median log ratios
    (over the pairs of the only process where there is one). None below two pairs.
    """
    if not a.keys() <= b.keys():
        a = {key: ns for key, ns in a.items() if key in b}
    logs: dict[K, list[float]] = defaultdict(list)
    for (process, _), ratio in zip(a, map(truediv, a.values(), map(b.__getitem__, a)), strict=True):
        logs[process].append(math.log(ratio))
    found = process_interval(list(logs.values()))
    if found is None:
        return None
    low, value, high = math.exp(found.low), math.exp(found.value), math.exp(found.high)
    method = "paired-block-ratios" + ONE_PROCESS * (len(logs) == 1)
    return Estimate(value=value, low=low, high=high, method=method, n=found.n)


def simultaneous(ratios: Sequence[Estimate]) -> list[Estimate]:
    """Return intervals of several ratios that all hold together, in the same order.

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
        confidence = 1 - (1 - ratio.confidence) / len(known)
        half = quantile(confidence) * math.sqrt(max(variance, pooled) / ratio.n)
        return ratio.at(ratio.value, ratio.value * math.exp(-half), ratio.value * math.exp(half))

    found = map(wider, known, variances)
    return [next(found) if ratio.n > 1 else ratio for ratio in ratios]


def _pooled(variances: Sequence[float], degrees: Sequence[float]) -> float:
    """Return the variance that sample variances have in common, by the mean of their logarithms."""
    if min(variances) == 0:
        return 0.0
    logs = (math.log(v) - log_bias(df) for v, df in zip(variances, degrees, strict=True))
    return math.exp(fmean(logs))


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
