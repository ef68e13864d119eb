"""Latency along one axis: the isotonic curve and the free batch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from frameworktax.analysis.estimates import difference, shifted
from frameworktax.records import Estimate
from frameworktax.stats import by_process, mean_interval, process_interval, ratio_interval

FREE = 0.10
"""A batch is free while its latency is within this share of batch 1 (METHOD, section 5)."""
PAIRED = "isotonic log-interpolated; ratios to batch 1"
Blocks = Mapping[tuple[Hashable, int], float]
"""(process, round) → block median, ns; processes of two sessions have different keys."""


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest in squares."""
    if all(earlier < later for earlier, later in pairwise(values)):
        return [float(value) for value in values]  # as most are: scipy's call costs ten times more
    from scipy.optimize import isotonic_regression  # 0.2 s of import, for curves alone

    nearest: list[float] = isotonic_regression(values).x.tolist()
    return nearest


def free_batch(batches: Sequence[float], latency_ns: Sequence[float]) -> tuple[float, bool]:
    """Return the largest batch whose latency is within ``FREE`` of the first's.

    Batches ascend. The result is interpolated between logarithms on the isotonic curve, and beside
    it stands whether the largest batch is still free, so that the value is a lower bound.
    """
    curve = isotonic(latency_ns)
    return _crossing(batches, curve, curve[0] * (1 + FREE))


def _crossing(batches: Sequence[float], curve: Sequence[float], limit: float) -> tuple[float, bool]:
    """Return where a curve that does not fall exceeds a limit, and whether it nowhere does."""
    last = max(i for i, latency in enumerate(curve) if latency <= limit)
    if last == len(curve) - 1:
        return float(batches[-1]), True
    part = math.log(limit / curve[last]) / math.log(curve[last + 1] / curve[last])
    step = math.log(batches[last + 1] / batches[last])
    return batches[last] * math.exp(part * step), False


def free_batch_interval(
    batches: Sequence[float], columns: Sequence[Blocks]
) -> tuple[Estimate | None, bool]:
    """Return the free batch with its interval, and whether it is a lower bound.

    The ratio of every batch to batch 1 has an interval by Student's t over processes, from blocks
    of the same round where there are any, since the host's drift moves both. The interval of the
    free batch is where the interval of the ratio holds 1 + ``FREE``: it begins where the curve
    through the ratios' high ends gets there, and ends where that through their low ends does.

    Batches ascend from 1, each with its column. (None, False) where there is no curve: fewer than
    two batches, none of them batch 1, or too few blocks for an interval.
    """
    return free_batch_of(batches, [ratio_to_first(column, columns[0]) for column in columns[1:]])


def free_batch_of(
    batches: Sequence[float], ratios: Sequence[Estimate | None]
) -> tuple[Estimate | None, bool]:
    """Return ``free_batch_interval`` from the ratio of every further batch to batch 1."""
    if len(batches) < 2 or batches[0] != 1:
        return None, False
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None, False
    value, bound = free_batch(batches, [1.0, *(r.value for r in known)])
    # batch 1 is the reference of all: it is 1, no curve is pooled with it, and none falls below it
    low, high = (
        _crossing(batches, [1.0, *(max(1.0, end) for end in isotonic(ends))], 1 + FREE)[0]
        for ends in ([r.high for r in known], [r.low for r in known])
    )
    found = Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        method=f"{PAIRED}, {known[0].method}",
        n=min(r.n for r in known),
    )
    return found, bound


def ratio_to_first(blocks: Blocks, first: Blocks) -> Estimate | None:
    """Return the ratio of two points served by the same processes, from their blocks.

    Paired by round where they share two; else by process, where they share two; else the two are
    independent. The method says which.
    """
    if (paired := ratio_interval(blocks, first)) is not None:
        return paired
    above, below = by_process(blocks), by_process(first)
    moves = [median(above[p]) - median(below[p]) for p in above.keys() & below.keys()]
    log_ratio = mean_interval(moves, "paired-process-ratios")
    if log_ratio is None:
        high, low = _level(above), _level(below)
        if high is None or low is None:
            return None
        log_ratio = difference(high, low, "ratios of independent blocks")
    return log_ratio.at(*map(math.exp, (log_ratio.value, log_ratio.low, log_ratio.high)))


def _level(logs: Mapping[Hashable, Sequence[float]]) -> Estimate | None:
    """Return the interval of a side by itself, around the median where it is one process."""
    found = process_interval(list(logs.values()))
    if found is None:
        return None
    return shifted(found, fmean(median(values) for values in logs.values()) - found.value)
