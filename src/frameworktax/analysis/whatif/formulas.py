"""Predictions on a CPU, where host and kernels share a thread: latency is their sum.

Each formula gives a ratio, latency after over latency before, with its interval: most of what
moves a latency moves both sides alike. Sources and errors: METHOD, section 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from frameworktax.records import Estimate

SAME_KERNELS = ("eager", "inference-mode", "torchscript")
"""Runtimes that call the kernels that eager calls, in the same order."""
MATRIX = ("gemm", "packing", "convolution")
"""Parts of kernel time that grow with the square of the width: weights are width × width."""
REACH = 2.0
"""How far beyond the largest measured value a line is drawn: as far as it is validated."""


def propagate(function: Callable[..., float], method: str, *inputs: Estimate) -> Estimate:
    """Return ``function`` of independent estimates: half-widths add in squares, each side.

    Args:
        function: of the inputs' values, in order.
        method: of the result.
        inputs: estimates; one input is moved to either end at a time.
    """
    values = [e.value for e in inputs]
    value = function(*values)
    down = up = 0.0
    for i, estimate in enumerate(inputs):
        moved = [
            function(*values[:i], end, *values[i + 1 :]) for end in (estimate.low, estimate.high)
        ]
        # Where the function turns, both ends may lie on one side: then the other side gets nothing.
        down = math.hypot(down, max(0.0, value - min(moved)))
        up = math.hypot(up, max(0.0, max(moved) - value))
    return Estimate(
        value=value,
        low=value - down,
        high=value + up,
        confidence=min(e.confidence for e in inputs),
        method=method,
        n=min(e.n for e in inputs),
    )


def faster_host(tax_share: Estimate, speed: float) -> Estimate:
    """Return the ratio on a host whose overhead takes 1 / speed: T / (speed · L) + K / L."""
    return propagate(lambda s: s / speed + 1 - s, "tax / host speed + kernels", tax_share)


def other_runtime(tax_share: Estimate, warm_over_latency: Estimate) -> Estimate:
    """Return the ratio in a runtime with the same kernels: (K + its warm overhead) / L.

    Args:
        tax_share: of the runtime it starts from.
        warm_over_latency: latency of the width-shrunk twin in the other runtime over L.
    """
    return propagate(
        lambda s, warm: 1 - s + warm, "kernels + warm overhead", tax_share, warm_over_latency
    )


def other_runtime_in_situ(
    tax_share: Estimate, warm_ratio: Estimate, warm_share: Estimate
) -> Estimate:
    """Return the ratio in a runtime with the same kernels, with its tax among real kernels.

    Real kernels evict code and data, so that either runtime costs more than its twin. What that
    adds, T − W, is the runtimes' own, and then scales as their twins do (T · W' / W), or that of
    the operators both of them call, and then stays (T − W + W'). The value is half way; the
    interval reaches to both ends.

    Args:
        tax_share: T / L of the runtime it starts from.
        warm_ratio: W' / W, twin's latency in the other runtime over that in the first.
        warm_share: W / L.
    """
    method = "kernels + tax between warm overheads"

    def own(s: float, ratio: float, warm: float) -> float:
        return 1 - s + s * ratio

    def shared(s: float, ratio: float, warm: float) -> float:
        return 1 - warm + warm * ratio

    inputs = (tax_share, warm_ratio, warm_share)
    found = propagate(lambda *v: (own(*v) + shared(*v)) / 2, method, *inputs)
    values = [e.value for e in inputs]
    ends = (own(*values), shared(*values))
    return replace(found, low=min(found.low, *ends), high=max(found.high, *ends))


def matrix_share(
    detail: Mapping[str, float], flops: int | None = None, macs: int | None = None
) -> float | None:
    """Return the share of kernel time that grows with the square of the width.

    Matrix products, convolutions and their packing, less the part of them that attention takes:
    the products of activations grow with the width alone. Their share is that of the operations,
    1 − 2 · macs / flops, because ``macs`` counts layers with weights only.

    Args:
        detail: parts of kernel time, ns.
        flops: of a call, 2 a multiply-add, attention included.
        macs: of a call, layers with weights only.

    Returns:
        None without kernel time, and where the counts contradict each other: more in layers with
        weights than there is.
    """
    total = sum(detail.values())
    weighted = 2 * macs / flops if flops and macs else 1.0
    if total <= 0 or weighted > 1:
        return None
    return sum(detail.get(name, 0.0) for name in MATRIX) / total * weighted


def wider(tax_share: Estimate, matrix: float, width: float) -> Estimate:
    """Return the ratio at another width: tax + width² × matrix products + width × other kernels.

    Args:
        tax_share: T / L.
        matrix: share of kernel time that grows with the square, see ``matrix_share``.
        width: factor on layer widths.
    """
    growth = width**2 * matrix + width * (1 - matrix)
    return propagate(
        lambda s: s + (1 - s) * growth, "tax + width² × gemm + width × rest", tax_share
    )


def along_line(
    values: Sequence[float], latency: Sequence[Estimate], at: float, method: str
) -> Estimate:
    """Return the latency at another value of an axis, from a line through the measured ones, ns.

    Least squares in relative residuals, so that each point counts alike; through two points the
    line is exact. The interval holds the points' own and, from three points on, the relative
    residual that the line leaves, taken at ``at``.

    Args:
        values: of the axis, at least two different.
        latency: of each, ns.
        at: where to.
        method: of the result.

    Raises:
        ValueError: fewer than two different values.
    """
    if len(set(values)) < 2:
        raise ValueError("a line needs two points")

    def ends(*measured: float) -> float:
        base, slope = line(values, measured)
        return base + slope * at

    found = propagate(ends, method, *latency)
    if len(values) < 3:
        return found
    centres = [e.value for e in latency]
    base, slope = line(values, centres)
    squares = [((base + slope * n) / c - 1) ** 2 for n, c in zip(values, centres, strict=True)]
    left = 2 * math.sqrt(sum(squares) / (len(values) - 2)) * found.value
    return Estimate(
        value=found.value,
        low=found.value - math.hypot(found.value - found.low, left),
        high=found.value + math.hypot(found.high - found.value, left),
        confidence=found.confidence,
        method=method,
        n=found.n,
    )


def line(values: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Return base and slope of the line with least relative residuals."""
    weights = [1 / m**2 for m in measured]
    total = sum(weights)
    centre = sum(w * x for w, x in zip(weights, values, strict=True)) / total
    height = sum(w * y for w, y in zip(weights, measured, strict=True)) / total
    across = sum(w * (x - centre) ** 2 for w, x in zip(weights, values, strict=True))
    along = sum(
        w * (x - centre) * (y - height) for w, x, y in zip(weights, values, measured, strict=True)
    )
    slope = along / across
    return height - slope * centre, slope
