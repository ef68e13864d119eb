"""What-if answers for a point measured on a GPU: the two queues of ``replay``, by their totals.

Totals show no single launches, so that all N of them are taken as equal. The replay of equal
launches ends when the slower queue does, and needs no playing:

    f = max(H + K / N, H / N + D)

with H host time, K kernel time, D the kernels queued back to back (their gaps, D − K, stay). What
the latency has beyond that is ``sync`` and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import propagate
from frameworktax.analysis.whatif import cpu, replay
from frameworktax.analysis.whatif.cpu import check_kernels, on_line
from frameworktax.analysis.whatif.replay import Change
from frameworktax.analysis.whatif.request import ZERO, Answer, Refused, WhatIf, batches
from frameworktax.records import Estimate, Measurement

UNIFORM = "two-queue replay, equal launches"
BATCH = "two-queue replay, line over batch"
WIDTH = "two-queue replay, width to width²"
RUNTIME = "two-queue replay, other host time"
SAME_KERNELS = (*cpu.SAME_KERNELS, "cuda-graph")
GRAPHS = ("cuda-graph", "onnxruntime-cuda-graph", "inductor-reduce-overhead")
Totals = tuple[Estimate, Estimate, Estimate, Estimate]
"""Latency, host time, kernel time and span of a call, ns."""


def change_of(asked: WhatIf) -> Change:
    """Return a change of the machine as the replay takes it."""
    return Change(
        device_speed=asked.device_speed or 1.0,
        host_speed=(asked.host_speed or 1.0) * (asked.cpu_speed or 1.0),
        graphs=asked.graphs or asked.runtime == "cuda-graph",
    )


def totals(m: Measurement) -> Totals:
    """Return the totals of a GPU point.

    Raises:
        Refused: it cannot be replayed.
    """
    latency, host, kernel = m.latency_ns, m.enqueue_ns, m.kernel_ns
    if latency is None or host is None or kernel is None or not m.launches:
        reason = "host time, kernel time and launches are needed; measure with a device profile"
        raise Refused(UNIFORM, reason)
    # without a span the gaps are not known; they are then part of ``sync`` and stay
    span = m.span_ns if m.span_ns is not None else kernel
    sync_ns = latency.value - _queues_ns(Change(), m.launches, host.value, kernel.value, span.value)
    if beyond := replay.unexplained(sync_ns, latency.value):
        raise Refused(UNIFORM, beyond)
    return latency, host, kernel, span


def _queues_ns(change: Change, launches: int, host: float, kernel: float, span: float) -> float:
    """Return when both queues of equal launches have ended, ns."""
    host = host / change.host_speed
    first = host / launches
    shorter = kernel / (change.device_speed / change.kernels)
    gaps = span - kernel if launches > 1 else 0.0
    return max((first if change.graphs else host) + shorter / launches, first + shorter + gaps)


def _after(m: Measurement, change: Change, host_ns: Estimate | None = None) -> Estimate:
    """Return the latency after a change, ns; ``host_ns`` is the host time of another runtime."""
    launches = m.launches or 0  # ``totals`` refuses a point without

    def played(latency: float, host: float, kernel: float, span: float, *other: float) -> float:
        sync_ns = latency - _queues_ns(Change(), launches, host, kernel, span)
        after = other[0] if other else host
        return _queues_ns(change, launches, after, kernel, span) + sync_ns

    return propagate(played, UNIFORM, *totals(m), *([] if host_ns is None else [host_ns]))


def answer(m: Measurement, relatives: Sequence[Measurement], asked: WhatIf) -> Answer:
    """Answer one change from one point; ``relatives`` differ from it in runtime and batch alone.

    Raises:
        Refused: no formula can.
    """
    kernel = totals(m)[2]
    change = change_of(asked)
    if change.graphs:
        if m.runtime in GRAPHS:
            raise Refused(UNIFORM, f"{m.runtime} replays a graph already")
        return Answer(UNIFORM, _after(m, change))
    if asked.runtime:
        return Answer(RUNTIME, _after(m, change, _host_of(asked.runtime, m, relatives)))
    if asked.batch:
        row = [o for o in batches(relatives, m.runtime) if o.kernel_ns is not None]
        values = [float(o.workload.batch) for o in row]
        kernels = [o.kernel_ns for o in row if o.kernel_ns is not None]
        found = on_line(values, kernels, float(asked.batch), BATCH, "--batch 1,2,4")
        return _with_kernels(m, found.latency, BATCH)
    if asked.width:
        # totals do not show which kernels are matrix products; where the host bounds the call,
        # both ends give one latency
        grown = [kernel.value * asked.width**power for power in (0, 1, 2)]
        wider = replace(kernel, value=grown[1], low=min(grown), high=max(grown))
        return _with_kernels(m, wider, WIDTH)
    if asked.depth:
        reason = "on a device depth changes launches and kernels alike; measure two depths"
        raise Refused("none", reason)
    return Answer(UNIFORM, _after(m, change))


def _host_of(name: str, m: Measurement, relatives: Sequence[Measurement]) -> Estimate:
    """Return the host time of another runtime, at the smallest batch that has one, ns.

    Refused where it was seen, at any batch, to run other kernels, or another number of them.
    """
    check_kernels(m, name, SAME_KERNELS, RUNTIME)
    own = {o.workload.batch: o.kernel_names for o in (*relatives, m) if o.runtime == m.runtime}
    others = batches(relatives, name)
    for other in others:
        mine, theirs = own.get(other.workload.batch), other.kernel_names
        if mine and theirs and mine != theirs:
            odd = sorted(dict(mine.items() ^ theirs.items()))
            reason = (
                f"{name} runs other kernels here, {len(odd)} differ in name or number "
                f"({odd[0][:60]}); measure, do not predict"
            )
            raise Refused(RUNTIME, reason)
    hosts = [other.enqueue_ns for other in others if other.enqueue_ns is not None]
    if not hosts:
        reason = f"the host time of {name} is not known; measure it at any batch"
        raise Refused(RUNTIME, reason)
    return hosts[0]


def _with_kernels(m: Measurement, kernel: Estimate, formula: str) -> Answer:
    """Replay with another kernel time, ns, the interval from both of its ends."""
    if kernel.low <= 0:
        raise Refused(formula, ZERO)
    own = totals(m)[2].value
    found, low, high = (
        _after(m, Change(kernels=ns / own)) for ns in (kernel.value, kernel.low, kernel.high)
    )
    merged = replace(
        found, low=min(found.low, low.value), high=max(found.high, high.value), method=formula
    )
    return Answer(formula, merged)
