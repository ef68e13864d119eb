"""Predictions for a point measured on a CPU, where host and kernels share a thread.

Latency is the sum of both. Each formula gives a ratio, latency after over latency before, with its
interval: most of what moves a latency moves both sides alike. Sources and errors: METHOD,
section 9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.estimates import inverse, product, propagate, quotient
from frameworktax.analysis.whatif.request import ZERO, Answer, Refused, WhatIf, batches
from frameworktax.records import Estimate, Measurement

HOST = "tax / host speed + kernels"
CPU = "latency / CPU speed"
RUNTIME = "kernels + tax between warm overheads"
DEPTH = "line over depth"
SAME_KERNELS = ("eager", "inference-mode", "torchscript")
"""Runtimes that call the kernels that eager calls, in the same order."""
REACH = 2.0
"""How far beyond the largest measured value a line is drawn: as far as it is validated."""
RESIZED = (
    "another batch size or width may run other kernels: predictions were off by up to 59 %; "
    "measure, do not predict"
)
"""METHOD, section 9, has what was tried."""
REUSE = 4.0
"""Uses of a weight a call, multiply-adds over parameters, under which kernels move weights more
than they compute."""


def faster_host(tax_share: Estimate, speed: float) -> Estimate:
    """Return the ratio on a host whose overhead takes 1 / speed: T / (speed · L) + K / L."""
    return propagate(lambda s: s / speed + 1 - s, HOST, tax_share)


def faster_cpu(tax_share: Estimate | None, cpu: float, host: float = 1.0) -> Estimate:
    """Return the ratio on a CPU on which all takes 1 / cpu: T / (cpu · host · L) + K / (cpu · L).

    The interval reaches to kernels that stay as they are: what bounds them may be memory. Without
    a tax share nothing is known to shrink.
    """
    if tax_share is None:
        ends = (1 / (cpu * host), 1 / cpu, 1.0)
        return Estimate(value=1 / cpu, low=min(ends), high=max(ends), method=CPU, n=1)
    found = propagate(lambda s: s / (cpu * host) + (1 - s) / cpu, CPU, tax_share)
    kept = propagate(lambda s: s / (cpu * host) + 1 - s, CPU, tax_share)
    return replace(found, low=min(found.low, kept.low), high=max(found.high, kept.high))


def other_runtime(tax_share: Estimate, warm_ratio: Estimate, warm_share: Estimate) -> Estimate:
    """Return the ratio in a runtime with the same kernels, with its tax among real kernels.

    Real kernels evict code and data, so that either runtime costs more than its twin. What that
    adds, T − W, is the runtimes' own, and then scales as their twins do (T · W' / W), or that of
    the operators both of them call, and then stays (T − W + W'). The value is half way; the
    interval reaches to both ends. Inputs are T / L, W' / W and W / L.
    """

    def ends(s: float, ratio: float, warm: float) -> tuple[float, float]:
        return 1 - s + s * ratio, 1 - warm + warm * ratio

    inputs = (tax_share, warm_ratio, warm_share)
    found = propagate(lambda *v: sum(ends(*v)) / 2, RUNTIME, *inputs)
    own, shared = ends(*(e.value for e in inputs))
    return replace(found, low=min(found.low, own, shared), high=max(found.high, own, shared))


def along_line(
    values: Sequence[float], latency: Sequence[Estimate], at: float, method: str
) -> Estimate:
    """Return the latency at another value of an axis, from a line through the measured ones, ns.

    Least squares in relative residuals, so that each point counts alike; through two points the
    line is exact. The interval includes the points' own and, from three points on, the relative
    residual that the line leaves, taken at ``at``.

    Args:
        values: of the axis, at least two different.
        latency: of each, ns.
        at: where to.
        method: of the result.
    """

    def line(measured: Sequence[float]) -> np.poly1d:
        return np.poly1d(np.polyfit(values, measured, 1, w=1 / np.asarray(measured)))

    found = propagate(lambda *measured: float(line(measured)(at)), method, *latency)
    if len(values) < 3:
        return found
    centres = [e.value for e in latency]
    residuals = line(centres)(values) / centres - 1
    left = 2 * math.sqrt(residuals @ residuals / (len(values) - 2)) * found.value
    return replace(
        found,
        low=found.value - math.hypot(found.value - found.low, left),
        high=found.value + math.hypot(found.high - found.value, left),
    )


def answer(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
) -> Answer:
    """Answer one change from one point.

    Args:
        m: where it starts.
        relatives: points that differ from it in runtime and batch alone, itself included.
        everything: all points of the document.
        asked: one change.

    Raises:
        Refused: no formula can.
    """
    if asked.device_speed or asked.graphs:
        option = "--graphs" if asked.graphs else "--device-speed"
        reason = f"{option} needs a device: this point ran on the CPU; ask --cpu-speed"
        raise Refused("none", reason)
    if asked.runtime:
        return _runtime(m, relatives, asked.runtime)
    if asked.batch or asked.width:
        raise Refused("none", RESIZED)
    if asked.depth:
        return _depth(m, everything, asked.depth)
    share = None if m.bill_method == TWIN else m.tax_share
    if asked.cpu_speed:
        return _scaled(m, faster_cpu(share, asked.cpu_speed, asked.host_speed or 1.0), CPU)
    if share is None or m.bill_method is None:
        reason = f"kernel time of {m.runtime} is not known by sampling; only its twin's bound"
        raise Refused(HOST, reason)
    return _scaled(m, faster_host(share, asked.host_speed or 1.0), HOST)


def _check_reuse(m: Measurement) -> None:
    """Refuse where the size of the weights cannot be changed on paper.

    Where a weight is used about once a call, kernels take the time of moving weights, and that
    jumps when a larger model leaves the cache it was in: twice the depth of an MLP whose weights
    just fitted took four times as long.
    """
    if m.macs and m.parameters and m.macs / m.parameters < REUSE:
        reason = (
            f"each weight is used {m.macs / m.parameters:.2g} times a call: the time is that of "
            "moving weights, which depends on the cache that holds them; measure, do not predict"
        )
        raise Refused(DEPTH, reason)


def _scaled(m: Measurement, ratio: Estimate, formula: str) -> Answer:
    if m.latency_ns is None or ratio.low <= 0:
        raise Refused(formula, ZERO)
    return Answer(formula, product(m.latency_ns, ratio, formula), inverse(ratio))


def check_kernels(m: Measurement, name: str, same: Sequence[str], formula: str) -> None:
    """Refuse a runtime that does not run the kernels of the point's own."""
    for runtime in (name, m.runtime):
        if runtime not in same:
            raise Refused(formula, f"{runtime} runs other kernels; measure, do not predict")


def _runtime(m: Measurement, relatives: Sequence[Measurement], name: str) -> Answer:
    check_kernels(m, name, SAME_KERNELS, RUNTIME)
    if m.tax_share is None or m.latency_ns is None or m.bill_method in (None, TWIN):
        raise Refused(RUNTIME, f"kernel time of {m.runtime} was not sampled")
    own, warm = (
        next((o.warm_overhead_ns for o in batches(relatives, runtime) if o.warm_overhead_ns), None)
        for runtime in (m.runtime, name)
    )
    if own is None or warm is None:
        reason = (
            f"the warm overhead of {m.runtime if own is None else name} is not known; measure "
            f"both at a small batch: --runtimes {m.runtime},{name} --batch 1 --twin all"
        )
        raise Refused(RUNTIME, reason)
    warm_ratio, warm_share = quotient(warm, own, RUNTIME), quotient(own, m.latency_ns, RUNTIME)
    return _scaled(m, other_runtime(m.tax_share, warm_ratio, warm_share), RUNTIME)


def _depth(m: Measurement, everything: Sequence[Measurement], depth: float) -> Answer:
    _check_reuse(m)
    row = sorted(
        (
            o
            for o in everything
            if replace(o.workload, depth=m.workload.depth) == m.workload
            and (o.runtime, o.platform, o.threads) == (m.runtime, m.platform, m.threads)
            and o.latency_ns is not None
        ),
        key=lambda o: o.workload.depth,
    )
    return on_line(
        [o.workload.depth for o in row],
        [o.latency_ns for o in row if o.latency_ns is not None],
        m.workload.depth * depth,
        DEPTH,
        "two values of --depth",
    )


def on_line(
    values: Sequence[float], latency: Sequence[Estimate], at: float, formula: str, need: str
) -> Answer:
    """Return the answer of ``along_line``; ``need`` is what to measure for a second value.

    Raises:
        Refused: there is no line, it is too long, or it reaches zero.
    """
    if len(set(values)) < 2:
        raise Refused(formula, f"a line needs two measured points; give {need}")
    if at > REACH * max(values) or at < min(values) / REACH:
        reason = (
            f"{at:g} is more than {REACH:g} times beyond what was measured "
            f"({min(values):g} to {max(values):g}); measure nearer to it"
        )
        raise Refused(formula, reason)
    found = along_line(values, latency, at, formula)
    if found.low <= 0:
        raise Refused(formula, ZERO)
    return Answer(formula, found)
