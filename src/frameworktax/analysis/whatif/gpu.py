"""What-if answers for a point measured on a GPU, and for the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.whatif import formulas, queued
from frameworktax.analysis.whatif.queued import Change
from frameworktax.analysis.whatif.request import Answer, Refused, WhatIf, batches
from frameworktax.records import Estimate, Measurement

BATCH = "two-queue replay, line over batch"
WIDTH = "two-queue replay, width to width²"
RUNTIME = "two-queue replay, other host time"
SAME_KERNELS = (*formulas.SAME_KERNELS, "cuda-graph")
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
        return "a trace holds one size; record the other size too, or measure the model"
    if asked.runtime and asked.runtime != "cuda-graph":
        return f"the host time of {asked.runtime} is not in a trace; measure the model"
    return None


def answer(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
) -> Answer | Refused:
    """Answer one change from one point, see ``on_cpu.answer``."""
    reason = queued.refusal(m)
    if reason is not None:
        return Refused(formula=queued.UNIFORM, reason=reason)
    if (asked.graphs or asked.runtime == "cuda-graph") and m.runtime in GRAPHS:
        return Refused(formula=queued.UNIFORM, reason=f"{m.runtime} replays a graph already")
    if asked.graphs or asked.runtime == "cuda-graph":
        return _replayed(m, change_of(asked))
    if asked.runtime:
        return _runtime(m, relatives, asked.runtime)
    if asked.batch:
        return _batch(m, relatives, asked.batch)
    if asked.width:
        return _width(m, asked.width)
    if asked.depth:
        return _depth(m, asked.depth)
    return _replayed(m, change_of(asked))


def _replayed(m: Measurement, change: Change, formula: str = queued.UNIFORM) -> Answer:
    return Answer(formula=formula, latency=queued.point_latency(m, change))


def _runtime(m: Measurement, relatives: Sequence[Measurement], name: str) -> Answer | Refused:
    if name not in SAME_KERNELS or m.runtime not in SAME_KERNELS:
        other = name if name not in SAME_KERNELS else m.runtime
        reason = f"{other} runs other kernels; measure, do not predict"
        return Refused(formula=RUNTIME, reason=reason)
    hosts = [o.enqueue_ns for o in batches(relatives, name) if o.enqueue_ns is not None]
    if not hosts:
        reason = f"the host time of {name} is not known; measure it at any batch"
        return Refused(formula=RUNTIME, reason=reason)
    return Answer(formula=RUNTIME, latency=queued.point_latency(m, Change(), host=hosts[0]))


def _batch(m: Measurement, relatives: Sequence[Measurement], batch: int) -> Answer | Refused:
    """Draw a line through the kernel times of measured batches, and replay with what it gives."""
    row = [o for o in batches(relatives, m.runtime) if o.kernel_ns is not None]
    values = [float(o.workload.batch) for o in row]
    kernels = [o.kernel_ns for o in row if o.kernel_ns is not None]
    if len(set(values)) < 2:
        return Refused(formula=BATCH, reason="a line needs two measured points; give --batch 1,2,4")
    if batch > formulas.REACH * max(values):
        reason = (
            f"batch {batch} is more than {formulas.REACH:g} times beyond what was measured; "
            "measure nearer to it"
        )
        return Refused(formula=BATCH, reason=reason)
    grown = formulas.along_line(values, kernels, float(batch), BATCH)
    return _between(m, grown, BATCH)


def _width(m: Measurement, width: float) -> Answer | Refused:
    """Bound kernel time by its growth with the width and with its square.

    Totals do not tell which kernels are matrix products. Where the host bounds the call, both ends
    give one latency, and the answer is sharp.
    """
    if m.kernel_ns is None:
        return Refused(formula=WIDTH, reason="kernel time is not known")
    kernel = m.kernel_ns.value
    ends = sorted((kernel, kernel * width, kernel * width**2))
    grown = Estimate(
        value=kernel * width, low=ends[0], high=ends[-1], method=WIDTH, n=m.kernel_ns.n
    )
    return _between(m, grown, WIDTH)


def _depth(m: Measurement, depth: float) -> Answer | Refused:
    reason = "on a device depth changes launches and kernels alike; measure two depths"
    return Refused(formula="none", reason=reason)


def _between(m: Measurement, kernel: Estimate, formula: str) -> Answer | Refused:
    """Replay with another kernel time, the interval from both of its ends."""
    if m.kernel_ns is None or kernel.low <= 0:
        return Refused(formula=formula, reason="its interval reaches zero; measure it for longer")
    own = m.kernel_ns.value
    found = queued.point_latency(m, Change(kernels=kernel.value / own))
    low = queued.point_latency(m, Change(kernels=kernel.low / own)).value
    high = queued.point_latency(m, Change(kernels=kernel.high / own)).value
    merged = replace(found, low=min(found.low, low), high=max(found.high, high), method=formula)
    return Answer(formula=formula, latency=merged)
