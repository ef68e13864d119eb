"""Latency along one axis: the isotonic curve and the free batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from frameworktax.analysis.resample import draw_latencies, percentile_interval
from frameworktax.records import SEED, Estimate

FREE = 0.10
"""A batch is free while its latency is within this share of batch 1 (METHOD, section 5)."""
METHOD = "isotonic log-interpolated, bootstrap"


def isotonic(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest in squares."""
    if all(earlier < later for earlier, later in pairwise(values)):
        return [float(value) for value in values]  # as most are: scipy's call costs ten times more
    from scipy.optimize import isotonic_regression  # 0.2 s of import, for curves alone

    nearest: list[float] = isotonic_regression(values).x.tolist()
    return nearest


def free_batch(
    batches: Sequence[float], latency_ns: Sequence[float], tolerance: float = FREE
) -> tuple[float, bool]:
    """Return the largest batch whose latency is within ``tolerance`` of the first batch's.

    Args:
        batches: ascending, the first is the one that others are compared with.
        latency_ns: of each.
        tolerance: as a share.

    Returns:
        The batch, interpolated between logarithms on the isotonic curve, and whether the largest
        batch measured is still free, so that the value is a lower bound.
    """
    curve = isotonic(latency_ns)
    limit = curve[0] * (1 + tolerance)
    last = max(i for i, latency in enumerate(curve) if latency <= limit)
    if last == len(curve) - 1:
        return float(batches[-1]), True
    part = math.log(limit / curve[last]) / math.log(curve[last + 1] / curve[last])
    step = math.log(batches[last + 1] / batches[last])
    return batches[last] * math.exp(part * step), False


def free_batch_interval(
    batches: Sequence[float],
    columns: Sequence[Mapping[int, Sequence[float]]],
    tolerance: float = FREE,
    seed: int = SEED,
) -> tuple[Estimate | None, bool]:
    """Return the free batch with its bootstrap interval, and whether it is a lower bound.

    Args:
        batches: ascending, starting at batch 1.
        columns: per batch, process → block medians, ns.
        tolerance: as a share.
        seed: of the bootstrap.

    Returns:
        (None, False) where there is no curve: fewer than two batches, none of them batch 1, or
        too few blocks for an interval.
    """
    enough = all(sum(map(len, column.values())) > 1 for column in columns)
    if len(batches) < 2 or batches[0] != 1 or not enough:
        return None, False
    centres = [
        float(np.mean([np.median(blocks) for blocks in column.values() if blocks]))
        for column in columns
    ]
    value, bound = free_batch(batches, centres, tolerance)
    replicates = np.array(
        [
            free_batch(batches, row, tolerance)[0]
            for row in draw_latencies(columns, seed=seed).tolist()
        ]
    )
    processes = min(sum(1 for blocks in column.values() if blocks) for column in columns)
    return percentile_interval(value, replicates, METHOD, processes), bound
