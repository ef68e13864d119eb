"""Latency along one axis: the isotonic curve and the free batch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise, takewhile
from statistics import median

from frameworktax.analysis.estimates import around, difference, exactly
from frameworktax.records import Estimate
from frameworktax.stats import (
    CONFIDENCE,
    at_confidence,
    by_process,
    mean_interval,
    process_interval,
    ratio_interval,
)

FREE = 0.10
"""A batch is free while its latency is within this share of batch 1 (METHOD, section 5)."""
BETWEEN = "ends measured, value interpolated"
Blocks = Mapping[tuple[Hashable, int], float]
"""(process, round) → block median, ns; processes of two sessions have different keys."""


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest in squares."""
    if all(earlier < later for earlier, later in pairwise(values)):
        return [float(value) for value in values]  # as most are: scipy's call costs ten times more
    from scipy.optimize import isotonic_regression  # 0.2 s of import, for curves alone

    nearest: list[float] = isotonic_regression(values).x.tolist()
    return nearest


def free_batch(batches: Sequence[float], latency_ns: Sequence[float]) -> tuple[Estimate, bool]:
    """Return ``free_batch_of`` latencies that have no interval; its own is due to the batches."""
    first = latency_ns[0]
    return free_batch_of(batches, [exactly(ns / first, "latencies alone") for ns in latency_ns[1:]])


def free_batch_interval(
    batches: Sequence[float], columns: Sequence[Blocks], confidence: float = CONFIDENCE
) -> tuple[Estimate | None, bool]:
    """Return ``free_batch_of`` batches that ascend, each with its column of blocks.

    The ratio of every batch to the first has an interval by Student's t over processes, from blocks
    of the same round where there are any, since the host's drift moves both. (None, False) where
    there is no curve: fewer than two batches, or too few blocks for an interval.
    """
    ratios = [ratio_to_first(column, columns[0]) for column in columns[1:]]
    known = [at_confidence(ratio, confidence, logs=True) for ratio in ratios if ratio is not None]
    return free_batch_of(batches, known) if 0 < len(known) == len(ratios) else (None, False)


def free_batch_of(batches: Sequence[float], ratios: Sequence[Estimate]) -> tuple[Estimate, bool]:
    """Return the largest free batch, and whether the largest measured may be free as well.

    Between two measured batches nothing is known of latency but that it does not fall. So the
    interval begins at the last batch up to which the interval of every ratio ends within ``FREE``,
    and ends before the first from which on every one begins beyond it: that one is not free, and no
    part of the interval. Either end errs where that of one ratio does, however many there are.
    Where the largest batch may be free there is no upper end; the largest stands in its place. The
    value is where the isotonic curve, interpolated between logarithms, gets to ``FREE``.

    Args:
        batches: ascending.
        ratios: of the latency of each but the first to that of the first.
    """
    limit = 1 + FREE
    free = len([*takewhile(lambda ratio: ratio.high <= limit, ratios)])
    beyond = len([*takewhile(lambda ratio: ratio.low > limit, reversed(ratios))])
    low, high = batches[free], batches[-max(beyond, 1)]
    # batch 1 is the reference of all: it is 1, no curve is pooled with it, and none falls below it
    curve = [1.0, *(max(1.0, ns) for ns in isotonic([ratio.value for ratio in ratios]))]
    value = min(max(low, _crossing(batches, curve, limit)), high)  # pooling rounds
    found = around(value, 0.0, 0.0, f"{BETWEEN}; {ratios[0].method}", *ratios)
    return found.at(value, low, high), not beyond


def whole_ends(free: Estimate) -> tuple[int, int]:
    """Return the first and the last whole batch size of which either may be the largest free."""
    low = math.floor(free.low + 1e-9)
    return low, max(low, math.ceil(free.high - 1e-9) - 1)


def _crossing(batches: Sequence[float], curve: Sequence[float], limit: float) -> float:
    """Return where a curve that does not fall exceeds a limit, the last batch if nowhere."""
    last = max(i for i, latency in enumerate(curve) if latency <= limit)
    if last == len(curve) - 1:
        return batches[-1]
    part = math.log(limit / curve[last]) / math.log(curve[last + 1] / curve[last])
    return batches[last] * math.exp(part * math.log(batches[last + 1] / batches[last]))


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
        high, low = (process_interval([*side.values()]) for side in (above, below))
        if high is None or low is None:
            return None
        log_ratio = difference(high, low, "ratios of independent blocks")
    return log_ratio.at(*map(math.exp, (log_ratio.value, log_ratio.low, log_ratio.high)))
