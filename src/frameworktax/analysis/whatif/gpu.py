"""What-if answers for a point measured on a GPU, and for the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import propagate
from frameworktax.analysis.whatif import cpu, replay
from frameworktax.analysis.whatif.cpu import REACH, along_line
from frameworktax.analysis.whatif.replay import UNIFORM, Change
from frameworktax.analysis.whatif.request import ZERO, Answer, Refused, WhatIf, batches
from frameworktax.records import Estimate, Measurement

BATCH = "two-queue replay, line over batch"
WIDTH = "two-queue replay, width to width²"
RUNTIME = "two-queue replay, other host time"
SAME_KERNELS = (*cpu.SAME_KERNELS, "cuda-graph")
GRAPHS = ("cuda-graph", "onnxruntime-cuda-graph", "inductor-reduce-overhead")


def change_of(asked: WhatIf) -> Change:
    """Return a change of the machine as the replay takes it."""
    return Change(
        device_speed=asked.device_speed or 1.0,
        host_speed=asked.host_speed or 1.0,
        graphs=asked.graphs or asked.runtime == "cuda-graph",
    )


def unanswerable_from_trace(asked: WhatIf) -> str | None:
    """Return why a trace alone cannot answer, or None."""
    if asked.batch or asked.width or asked.depth:
        return "a trace has one size; record the other size too, or measure the model"
    if asked.runtime and asked.runtime != "cuda-graph":
        return f"the host time of {asked.runtime} is not in a trace; measure the model"
    return None


def refusal(m: Measurement) -> str | None:
    """Return why a GPU point cannot be replayed, or None."""
    if m.latency_ns is None or m.enqueue_ns is None or m.kernel_ns is None or not m.launches:
        return "host time, kernel time and launches are needed; measure with a device profile"
    queues = replay.uniform(
        launches=m.launches,
        host_ns=m.enqueue_ns.value,
        kernel_ns=m.kernel_ns.value,
        span_ns=m.span_ns.value if m.span_ns is not None else None,
        latency_ns=m.latency_ns.value,
    )
    return replay.unexplained(queues.sync_ns, m.latency_ns.value)


def point_latency(m: Measurement, change: Change, host: Estimate | None = None) -> Estimate:
    """Return the latency of a changed GPU point, ns.

    Args:
        m: a point without ``refusal``.
        change: what to change.
        host: host time of another runtime with the same kernels, ns; None keeps its own.

    Raises:
        ValueError: the point cannot be replayed.
    """
    latency, enqueue, kernel = m.latency_ns, m.enqueue_ns, m.kernel_ns
    if latency is None or enqueue is None or kernel is None or not m.launches:
        raise ValueError("this point cannot be replayed; see refusal()")
    launches = m.launches
    # Without a span the gaps are not known; they are then part of ``sync`` and stay.
    span = m.span_ns if m.span_ns is not None else kernel
    base = (latency, enqueue, kernel, span)

    def after(*values: float) -> float:
        queues = replay.uniform(
            launches=launches,
            host_ns=values[1],
            kernel_ns=values[2],
            span_ns=values[3],
            latency_ns=values[0],
        )
        speed = change.host_speed * (values[1] / values[4] if host is not None else 1.0)
        return replay.played(queues, change, speed)

    inputs = (*base, host) if host is not None else base
    return propagate(after, UNIFORM, *inputs)


def answer(m: Measurement, relatives: Sequence[Measurement], asked: WhatIf) -> Answer | Refused:
    """Answer one change from one point; ``relatives`` differ from it in runtime and batch alone."""
    reason = refusal(m)
    if reason is not None:
        return Refused(UNIFORM, reason)
    if (asked.graphs or asked.runtime == "cuda-graph") and m.runtime in GRAPHS:
        return Refused(UNIFORM, f"{m.runtime} replays a graph already")
    if asked.graphs or asked.runtime == "cuda-graph":
        return _replayed(m, change_of(asked))
    if asked.runtime:
        return _runtime(m, relatives, asked.runtime)
    if asked.batch:
        return _batch(m, relatives, asked.batch)
    if asked.width:
        return _width(m, asked.width)
    if asked.depth:
        reason = "on a device depth changes launches and kernels alike; measure two depths"
        return Refused("none", reason)
    return _replayed(m, change_of(asked))


def _replayed(m: Measurement, change: Change, formula: str = UNIFORM) -> Answer:
    return Answer(formula, point_latency(m, change))


def _runtime(m: Measurement, relatives: Sequence[Measurement], name: str) -> Answer | Refused:
    if name not in SAME_KERNELS or m.runtime not in SAME_KERNELS:
        other = name if name not in SAME_KERNELS else m.runtime
        reason = f"{other} runs other kernels; measure, do not predict"
        return Refused(RUNTIME, reason)
    hosts = [o.enqueue_ns for o in batches(relatives, name) if o.enqueue_ns is not None]
    if not hosts:
        reason = f"the host time of {name} is not known; measure it at any batch"
        return Refused(RUNTIME, reason)
    return Answer(RUNTIME, point_latency(m, Change(), host=hosts[0]))


def _batch(m: Measurement, relatives: Sequence[Measurement], batch: int) -> Answer | Refused:
    """Draw a line through the kernel times of measured batches, and replay with what it gives."""
    row = [o for o in batches(relatives, m.runtime) if o.kernel_ns is not None]
    values = [float(o.workload.batch) for o in row]
    kernels = [o.kernel_ns for o in row if o.kernel_ns is not None]
    if len(set(values)) < 2:
        return Refused(BATCH, "a line needs two measured points; give --batch 1,2,4")
    if batch > REACH * max(values):
        reason = (
            f"batch {batch} is more than {REACH:g} times beyond what was measured; "
            "measure nearer to it"
        )
        return Refused(BATCH, reason)
    grown = along_line(values, kernels, float(batch), BATCH)
    return _between(m, grown, BATCH)


def _width(m: Measurement, width: float) -> Answer | Refused:
    """Bound kernel time by its growth with the width and with its square.

    Totals do not show which kernels are matrix products. Where the host bounds the call, both ends
    give one latency, and the answer is sharp.
    """
    if m.kernel_ns is None:
        return Refused(WIDTH, "kernel time is not known")
    kernel = m.kernel_ns.value
    ends = sorted((kernel, kernel * width, kernel * width**2))
    grown = Estimate(
        value=kernel * width, low=ends[0], high=ends[-1], method=WIDTH, n=m.kernel_ns.n
    )
    return _between(m, grown, WIDTH)


def _between(m: Measurement, kernel: Estimate, formula: str) -> Answer | Refused:
    """Replay with another kernel time, the interval from both of its ends."""
    if m.kernel_ns is None or kernel.low <= 0:
        return Refused(formula, ZERO)
    own = m.kernel_ns.value
    found = point_latency(m, Change(kernels=kernel.value / own))
    low = point_latency(m, Change(kernels=kernel.low / own)).value
    high = point_latency(m, Change(kernels=kernel.high / own)).value
    merged = replace(found, low=min(found.low, low), high=max(found.high, high), method=formula)
    return Answer(formula, merged)
