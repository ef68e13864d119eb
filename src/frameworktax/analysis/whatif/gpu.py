"""What-if answers for a point measured on a GPU, and for the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frameworktax.analysis.estimates import propagate
from frameworktax.analysis.whatif import cpu, replay
from frameworktax.analysis.whatif.cpu import REACH, along_line, check_kernels
from frameworktax.analysis.whatif.replay import UNIFORM, Change, Queues
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
        host_speed=(asked.host_speed or 1.0) * (asked.cpu_speed or 1.0),
        graphs=asked.graphs or asked.runtime == "cuda-graph",
    )


def unanswerable_from_trace(asked: WhatIf) -> str | None:
    """Return why a trace alone cannot answer, or None."""
    if asked.batch or asked.width or asked.depth:
        return "a trace has one size; record the other size too, or measure the model"
    if asked.runtime and asked.runtime != "cuda-graph":
        return f"the host time of {asked.runtime} is not in a trace; measure the model"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A GPU point as the totals of two queues: what a measurement gives in place of a trace."""

    launches: int
    latency_ns: Estimate
    host_ns: Estimate
    kernel_ns: Estimate
    span_ns: Estimate

    def queues(self, latency: float, host: float, kernel: float, span: float) -> Queues:
        """Return queues of equal launches with these totals, ns."""
        return replay.uniform(
            launches=self.launches,
            host_ns=host,
            kernel_ns=kernel,
            span_ns=span,
            latency_ns=latency,
        )

    def measured(self) -> Queues:
        """Return the queues as they were measured."""
        totals = (self.latency_ns, self.host_ns, self.kernel_ns, self.span_ns)
        return self.queues(*(total.value for total in totals))

    def after(self, change: Change, host_ns: Estimate | None = None) -> Estimate:
        """Return the latency after a change, ns.

        Args:
            change: what to change.
            host_ns: host time of another runtime with the same kernels; None keeps its own.
        """

        def played(*values: float) -> float:
            speed = change.host_speed * (values[1] / values[4] if host_ns is not None else 1.0)
            return replay.played(self.queues(*values[:4]), replace(change, host_speed=speed))

        inputs = (self.latency_ns, self.host_ns, self.kernel_ns, self.span_ns)
        others = () if host_ns is None else (host_ns,)
        return propagate(played, UNIFORM, *inputs, *others)


def totals(m: Measurement) -> Totals:
    """Return the totals of a GPU point.

    Raises:
        Refused: it cannot be replayed.
    """
    latency, host, kernel = m.latency_ns, m.enqueue_ns, m.kernel_ns
    if latency is None or host is None or kernel is None or not m.launches:
        reason = "host time, kernel time and launches are needed; measure with a device profile"
        raise Refused(UNIFORM, reason)
    found = Totals(
        launches=m.launches,
        latency_ns=latency,
        host_ns=host,
        kernel_ns=kernel,
        # Without a span the gaps are not known; they are then part of ``sync`` and stay.
        span_ns=m.span_ns if m.span_ns is not None else kernel,
    )
    if beyond := replay.unexplained(found.measured().sync_ns, latency.value):
        raise Refused(UNIFORM, beyond)
    return found


def answers(m: Measurement, relatives: Sequence[Measurement], asked: WhatIf) -> list[Answer]:
    """Answer one change from one point; ``relatives`` differ from it in runtime and batch alone.

    Raises:
        Refused: no formula can.
    """
    point = totals(m)
    change = change_of(asked)
    if change.graphs and m.runtime in GRAPHS:
        raise Refused(UNIFORM, f"{m.runtime} replays a graph already")
    if change.graphs:
        return [Answer(UNIFORM, point.after(change))]
    if asked.runtime:
        return [_runtime(m, point, relatives, asked.runtime)]
    if asked.batch:
        return [_batch(m, point, relatives, asked.batch)]
    if asked.width:
        return [_width(point, asked.width)]
    if asked.depth:
        reason = "on a device depth changes launches and kernels alike; measure two depths"
        raise Refused("none", reason)
    return [Answer(UNIFORM, point.after(change))]


def _runtime(m: Measurement, point: Totals, relatives: Sequence[Measurement], name: str) -> Answer:
    check_kernels(m, name, SAME_KERNELS, RUNTIME)
    _check_names(m, relatives, name)
    hosts = [o.enqueue_ns for o in batches(relatives, name) if o.enqueue_ns is not None]
    if not hosts:
        reason = f"the host time of {name} is not known; measure it at any batch"
        raise Refused(RUNTIME, reason)
    return Answer(RUNTIME, point.after(Change(), hosts[0]))


def _check_names(m: Measurement, relatives: Sequence[Measurement], name: str) -> None:
    """Refuse a runtime that was seen, at any batch, to run other kernels, or another number."""
    own = {o.workload.batch: o.kernel_names for o in (*relatives, m) if o.runtime == m.runtime}
    for other in relatives:
        mine, theirs = own.get(other.workload.batch), other.kernel_names
        if other.runtime == name and mine and theirs and mine != theirs:
            odd = sorted(dict(mine.items() ^ theirs.items()))
            reason = (
                f"{name} runs other kernels here, {len(odd)} differ in name or number "
                f"({odd[0][:60]}); measure, do not predict"
            )
            raise Refused(RUNTIME, reason)


def _batch(m: Measurement, point: Totals, relatives: Sequence[Measurement], batch: int) -> Answer:
    """Draw a line through the kernel times of measured batches, and replay with what it gives."""
    row = [o for o in batches(relatives, m.runtime) if o.kernel_ns is not None]
    values = [float(o.workload.batch) for o in row]
    kernels = [o.kernel_ns for o in row if o.kernel_ns is not None]
    if len(set(values)) < 2:
        raise Refused(BATCH, "a line needs two measured points; give --batch 1,2,4")
    if batch > REACH * max(values):
        reason = (
            f"batch {batch} is more than {REACH:g} times beyond what was measured; "
            "measure nearer to it"
        )
        raise Refused(BATCH, reason)
    return _between(point, along_line(values, kernels, float(batch), BATCH), BATCH)


def _width(point: Totals, width: float) -> Answer:
    """Bound kernel time by its growth with the width and with its square.

    Totals do not show which kernels are matrix products. Where the host bounds the call, both ends
    give one latency, and the answer is sharp.
    """
    kernel = point.kernel_ns.value
    ends = sorted((kernel, kernel * width, kernel * width**2))
    grown = Estimate(
        value=kernel * width, low=ends[0], high=ends[-1], method=WIDTH, n=point.kernel_ns.n
    )
    return _between(point, grown, WIDTH)


def _between(point: Totals, kernel: Estimate, formula: str) -> Answer:
    """Replay with another kernel time, the interval from both of its ends."""
    if kernel.low <= 0:
        raise Refused(formula, ZERO)
    found, low, high = (
        point.after(Change(kernels=ns / point.kernel_ns.value))
        for ns in (kernel.value, kernel.low, kernel.high)
    )
    merged = replace(
        found, low=min(found.low, low.value), high=max(found.high, high.value), method=formula
    )
    return Answer(formula, merged)
