"""What bounds a point: the rules of METHOD, section 5, on the ends of the intervals.

On a CPU host and kernels share a thread, so latency is their sum and the tax share decides. On a
GPU they overlap, and ρ, kernel time over latency, decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from frameworktax.analysis.curves import FREE, isotonic
from frameworktax.records import Estimate, Regime
from frameworktax.stats import LINEAR

CPU_FRAMEWORK = 0.5
CPU_COMPUTE = 0.15
GPU_COMPUTE = 0.85
GPU_FRAMEWORK = 0.65
FLAT = 0.1
"""Elasticity under which a latency curve is flat."""
IN_SITU_OVER_WARM = 4.0
"""The most that the tax among real kernels was seen to exceed the twin's warm overhead (METHOD,
section 1: 1.2 to 4 times)."""


def cpu_regime(share: Estimate) -> Regime:
    """Return the regime of a CPU point from its tax share T / L."""
    if share.low > CPU_FRAMEWORK:
        return "framework-bound"
    if share.high < CPU_COMPUTE:
        return "compute-bound"
    return "mixed"


def cpu_regime_from_twin(share: Estimate) -> Regime:
    """Return the regime from warm overhead over latency, which is only a lower figure of T / L.

    The tax lies between the warm overhead and ``IN_SITU_OVER_WARM`` times it; what does not hold
    over that whole range is ``mixed``.
    """
    if share.low > CPU_FRAMEWORK:
        return "framework-bound"
    if share.high * IN_SITU_OVER_WARM < CPU_COMPUTE:
        return "compute-bound"
    return "mixed"


def gpu_regime(rho: Estimate, elasticity: float | None = None) -> Regime:
    """Return the regime of a GPU point.

    Args:
        rho: kernel time over latency.
        elasticity: of latency over batch at this point. High ρ on a flat curve is
            ``kernel-flat``: bandwidth or occupancy, not the framework.
    """
    if rho.low >= GPU_COMPUTE:
        flat = elasticity is not None and elasticity < FLAT
        return "kernel-flat" if flat else "compute-bound"
    if rho.high < GPU_COMPUTE and rho.value < GPU_FRAMEWORK:
        return "framework-bound"
    return "mixed"


def elasticities(values: Sequence[float], latency_ns: Sequence[float | None]) -> list[float | None]:
    """Return d log L / d log n at every point: between its measured neighbours, one-sided at ends.

    Args:
        values: of the axis, ascending and positive.
        latency_ns: None where not measured.
    """
    known = [
        (i, math.log(n), math.log(latency))
        for i, (n, latency) in enumerate(zip(values, latency_ns, strict=True))
        if latency is not None and latency > 0
    ]
    result: list[float | None] = [None] * len(values)
    if len(known) < 2:
        return result
    for k, (i, _, _) in enumerate(known):
        _, n0, l0 = known[max(0, k - 1)]
        _, n1, l1 = known[min(len(known) - 1, k + 1)]
        result[i] = (l1 - l0) / (n1 - n0)
    return result


def flat_to(values: Sequence[float], latency_ns: Sequence[float | None]) -> float | None:
    """Return the largest measured value of an axis whose latency is within 10 % of the first's.

    On the isotonic curve; what a latency curve alone can say, and no proof of a framework bound:
    a device short of bandwidth is flat as well. None below two points.
    """
    known = [(n, v) for n, v in zip(values, latency_ns, strict=True) if v is not None]
    if len(known) < 2:
        return None
    curve = isotonic([v for _, v in known])
    limit = curve[0] * (1 + FREE)
    return max(n for (n, _), v in zip(known, curve, strict=True) if v <= limit)


def linear_from(values: Sequence[float], elasticity: Sequence[float | None]) -> float | None:
    """Return the smallest measured value from which on every elasticity is over ``LINEAR``."""
    found = None
    for n, slope in zip(reversed(values), reversed(elasticity), strict=True):
        if slope is None or slope <= LINEAR:
            break
        found = n
    return found
