"""The bootstrap for blocks within processes: resample processes, then blocks inside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from frameworktax.records import SEED, Estimate

DRAWS = 1000


def draw_latencies(
    columns: Sequence[Mapping[int, Sequence[float]]], draws: int = DRAWS, seed: int = SEED
) -> np.ndarray:
    """Return bootstrap replicates of the latency of several points served by the same processes.

    A replicate picks processes with replacement, the same for every point (what belongs to a
    process moves all of its points alike), and then blocks with replacement inside each; its
    value is the mean over processes of the median over blocks.

    Args:
        columns: per point, process → block medians, ns. A process missing from a point counts
            only where it is present; replicates that lose a point altogether are dropped.
        draws: number of replicates.
        seed: of the generator.

    Returns:
        Array of shape (at most ``draws``, points), ns.
    """
    rng = np.random.default_rng(seed)
    processes = sorted({p for column in columns for p, blocks in column.items() if blocks})
    picks = rng.integers(0, len(processes), size=(draws, len(processes)))
    result = np.empty((draws, len(columns)))
    for j, column in enumerate(columns):
        # [process, slot, draw]: a process picked twice gets two independent sets of blocks
        table = np.full((len(processes), len(processes), draws), np.nan)
        for i, process in enumerate(processes):
            blocks = np.asarray(column.get(process, ()), dtype=float)
            if blocks.size:
                chosen = rng.integers(0, blocks.size, size=(len(processes), draws, blocks.size))
                table[i] = np.median(blocks[chosen], axis=2)
        slots = np.arange(len(processes))
        values = table[picks, slots, np.arange(draws)[:, None]]
        present = ~np.isnan(values)
        count = present.sum(axis=1)
        total = np.where(present, values, 0.0).sum(axis=1)
        result[:, j] = np.divide(total, count, out=np.full(draws, np.nan), where=count > 0)
    return result[~np.isnan(result).any(axis=1)]


def percentile_interval(
    value: float, replicates: np.ndarray, method: str, n: int, confidence: float = 0.95
) -> Estimate:
    """Return ``value`` with the percentile interval of its replicates, widened to contain it."""
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    return Estimate(
        value=value,
        low=min(float(low), value),
        high=max(float(high), value),
        confidence=confidence,
        method=method,
        n=n,
    )
