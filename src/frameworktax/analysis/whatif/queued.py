"""Predictions by replay of two queues: from the totals of a GPU point, or from recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.formulas import propagate
from frameworktax.analysis.whatif.replay import Queues
from frameworktax.errors import UsageError
from frameworktax.records import Estimate, Measurement
from frameworktax.stats import mean_interval
from frameworktax.traces.timeline import Step

UNIFORM = "two-queue replay, equal launches"
RECORDED = "two-queue replay"
UNEXPLAINED = 0.25
"""Share of the latency beyond both queues above which they do not explain a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of the queues.

    ``kernels`` multiplies kernel time (a batch, a width); the speeds divide.
    """

    device_speed: float = 1.0
    host_speed: float = 1.0
    graphs: bool = False
    kernels: float = 1.0


def refusal(m: Measurement) -> str | None:
    """Return why a GPU point cannot be replayed, or None."""
    if m.latency_ns is None or m.enqueue_ns is None or m.kernel_ns is None or not m.launches:
        return "host time, kernel time and launches are needed; measure with a device profile"
    beyond = _queues(m.latency_ns, m.enqueue_ns, m.kernel_ns, m.span_ns, m.launches)
    return unexplained(beyond.sync_ns, m.latency_ns.value)


def unexplained(beyond_ns: float, latency_ns: float) -> str | None:
    """Return why two queues do not explain a call, or None where they do."""
    if abs(beyond_ns) <= UNEXPLAINED * latency_ns:
        return None
    return (
        f"{beyond_ns / latency_ns:+.0%} of the latency is in neither queue (a host that waits "
        "inside the call?); measure, do not predict"
    )


def _queues(
    latency: Estimate, host: Estimate, kernel: Estimate, span: Estimate | None, launches: int
) -> Queues:
    return replay.uniform(
        launches=launches,
        host_ns=host.value,
        kernel_ns=kernel.value,
        span_ns=span.value if span is not None else None,
        latency_ns=latency.value,
    )


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
        return _played(queues, change, speed)

    inputs = (*base, host) if host is not None else base
    return propagate(after, UNIFORM, *inputs)


def _played(queues: Queues, change: Change, host_speed: float) -> float:
    return replay.run(
        replay.changed(
            queues,
            device_speed=change.device_speed / change.kernels,
            host_speed=host_speed,
            graphs=change.graphs,
        )
    ).latency_ns


def queues_of(step: Step) -> Queues:
    """Return the calibrated queues of a recorded step.

    Raises:
        UsageError: no record of the step has both a launch and a run on a device.
    """
    paired = step.launch_start_ns >= 0
    if not paired.any():
        raise UsageError(
            f"{step.name}: no kernel with its launch; record host and device activity together"
        )
    finish = max(step.end_ns, int(step.device_end_ns[paired].max()))
    return replay.recorded(
        launch_ns=step.launch_start_ns[paired],
        start_ns=step.device_start_ns[paired],
        end_ns=step.device_end_ns[paired],
        stream=(step.device[paired] << 32) + step.stream[paired],
        begin_ns=step.begin_ns,
        finish_ns=finish,
        waits_ns=step.waits_ns,
    )


def steps_latency(steps: Sequence[Queues], change: Change) -> tuple[Estimate, Estimate]:
    """Return latency before and after the change over recorded steps, ns.

    The interval after the change holds two things: the spread between steps, where there are two
    or more, and what the replay does not know: whether launch latency, gaps and unexplained waits
    shrink with the part that gets faster, or stay.

    Args:
        steps: calibrated queues, at least one.
        change: what to change.
    """
    before = _over([replay.run(q).latency_ns for q in steps], "recorded")
    after = [_played(q, change, change.host_speed) for q in steps]
    others = [variant for q in steps for variant in variants(q, change)]
    fewest = [_played(q, change, change.host_speed) for q in others]
    found = _over(after, RECORDED)
    low = min(found.low, *fewest)
    high = max(found.high, *fewest)
    widened = Estimate(value=found.value, low=low, high=high, method=RECORDED, n=found.n)
    return before, widened


def variants(queues: Queues, change: Change) -> list[Queues]:
    """Return the queues as they would also explain the record, for a change to be played on."""
    found = [_shrunk(queues, change)]
    if not queues.gap_seen:
        found += [replace(queues, gap_ns=0.0), replace(queues, gap_ns=2 * queues.gap_ns)]
    return found


def _shrunk(queues: Queues, change: Change) -> Queues:
    """Return the queues with everything beyond kernels and launches scaled as its part is.

    The device's pauses and the launch latency with the device, what the host did late and the end
    of the call with the host; a launch latency is partly either's. In a graph nothing waits for
    a launch.
    """
    device, host = change.kernels / change.device_speed, 1 / change.host_speed
    return replace(
        queues,
        gap_ns=queues.gap_ns * device,
        launch_ns=queues.launch_ns * device * host,
        extra_ns=queues.extra_ns * (0.0 if change.graphs else device),
        late_ns=queues.late_ns * host,
        sync_ns=queues.sync_ns * host,
    )


def _over(values: Sequence[float], method: str) -> Estimate:
    found = mean_interval(values, method)
    if found is not None:
        return found
    (only,) = values
    return Estimate(value=only, low=only, high=only, method=f"{method}, one step", n=1)
