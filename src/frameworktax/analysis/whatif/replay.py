"""Replay of two queues: a host that launches and a device that runs (METHOD, section 9).

    e_i = max(e_{i-1} + h_i, f_{i-Q})                 the host launches kernel i
    s_i = max(e_i + λ, f_prev + g, f_after + g) + δ_i it starts
    f_i = s_i + k_i                                   it ends
    L   = max(f_N, e_N) + sync

``prev`` is the kernel before it on its stream, ``after`` a kernel of another stream that it was
seen to wait for. δ is what the record shows beyond the model, so that the replay of a recorded
step at factor 1 is that step exactly. Every operation is a maximum or a sum of times, hence no
prediction grows when a part gets faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.estimates import exactly
from frameworktax.errors import UsageError
from frameworktax.records import Estimate
from frameworktax.stats import mean_interval
from frameworktax.traces.timeline import Step

Ns = NDArray[np.float64]

RECORDED = "two-queue replay"
QUEUE = 1024
"""Launches that a CUDA queue holds before the host has to wait."""
GAP_NS = 1_000.0
"""Pause between queued kernels that is assumed where none were queued: a host-bound record does not
show it. Whatever is predicted with it has an interval from no pause to twice this one."""
GRAPH_GAPS = (0.0, 0.1, 0.3)
"""Share of the pauses between queued kernels that is left in a graph: least, middle, most of
BERT-base on an H100 (CUDA 13). Between kernels launched one by one the device pauses 1.1 µs."""
GRAPH_LAUNCH_NS = 10_000.0
"""What is left of launching where a graph is replayed: there, latency less span is 7 to 14 µs in
four of six points."""
WAITED_NS = 2_000.0
"""A start this much later than stream and launch allow is attributed to another stream's kernel."""
UNEXPLAINED = 0.25
"""Share of the latency beyond both queues above which they do not explain a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """A call as two queues; arrays over kernels in the order of their launch, ns.

    Attributes:
        host_ns: h, host time from the launch before (or the begin) to this one; 0 for all but the
            first kernel of one launch (a graph).
        kernel_ns: k.
        stream: number of the stream.
        after: the kernel of another stream that this one waits for, -1 for none.
        blocked: whether the host waits for all earlier kernels before this launch.
        extra_ns: δ, signed.
        late_ns: host time beyond the model before this launch, signed: after a wait or a full
            queue.
        launch_ns: λ, from launch to start on an idle device.
        gap_ns: g, between kernels of a stream.
        tail_ns: host time from the last launch to the call's return.
        sync_ns: from the end of both queues to the end of the call, signed.
        depth: Q.
        gap_seen: whether g was measured; assumed otherwise.
    """

    host_ns: Ns
    kernel_ns: Ns
    stream: NDArray[np.int64]
    after: NDArray[np.int64]
    blocked: NDArray[np.bool_]
    extra_ns: Ns
    late_ns: Ns
    launch_ns: float = 0.0
    gap_ns: float = 0.0
    tail_ns: float = 0.0
    sync_ns: float = 0.0
    depth: int = QUEUE
    gap_seen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a replay gives: ``latency_ns`` of the call, launch, start and end of every kernel."""

    latency_ns: float
    launch_ns: Ns
    start_ns: Ns
    end_ns: Ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of the queues.

    Attributes:
        device_speed: factor, 2 = kernels take half.
        host_speed: factor on everything that the host does.
        graphs: replace all launches by one.
    """

    device_speed: float = 1.0
    host_speed: float = 1.0
    graphs: bool = False


def run(queues: Queues) -> Played:
    """Play both queues forward."""
    count = queues.kernel_ns.size
    launch, start, end = np.zeros(count), np.zeros(count), np.zeros(count)
    host, kernel = queues.host_ns.tolist(), queues.kernel_ns.tolist()
    stream, after = queues.stream.tolist(), queues.after.tolist()
    extra, late = queues.extra_ns.tolist(), queues.late_ns.tolist()
    blocked = queues.blocked.tolist()
    free: dict[int, float] = {}
    now = done = 0.0
    ends: list[float] = []
    for i in range(count):
        now += host[i]
        if blocked[i]:
            now = max(now, done)
        if i >= queues.depth:
            now = max(now, ends[i - queues.depth])
        now += late[i]
        ready = now + queues.launch_ns
        if stream[i] in free:
            ready = max(ready, free[stream[i]] + queues.gap_ns)
        if after[i] >= 0:
            ready = max(ready, ends[after[i]] + queues.gap_ns)
        begun = ready + extra[i]
        ended = begun + kernel[i]
        ends.append(ended)
        free[stream[i]] = ended
        done = max(done, ended)
        launch[i], start[i], end[i] = now, begun, ended
    latency = max(done, now + queues.tail_ns) + queues.sync_ns
    return Played(latency_ns=latency, launch_ns=launch, start_ns=start, end_ns=end)


def changed(queues: Queues, change: Change) -> Queues:
    """Return the queues on other machines, or with their launches captured in one graph.

    A faster device shortens kernels, a faster host its own work; the launch latency, the gaps and
    what was unexplained stay. With graphs the host launches once, which takes what one of its
    launches takes at the median, no more than its first one or than ``GRAPH_LAUNCH_NS``; of the
    gaps the middle of ``GRAPH_GAPS`` is left.
    """
    host, late, gap_ns = queues.host_ns, queues.late_ns, queues.gap_ns
    if change.graphs:
        once = np.zeros_like(host)
        launched = host[host > 0]
        if launched.size:
            once[0] = min(float(host[0]), float(np.median(launched)), GRAPH_LAUNCH_NS)
        host, late, gap_ns = once, np.zeros_like(late), GRAPH_GAPS[1] * gap_ns
    return replace(
        queues,
        depth=max(queues.depth, host.size) if change.graphs else queues.depth,
        gap_ns=gap_ns,
        host_ns=host / change.host_speed,
        late_ns=late,
        tail_ns=queues.tail_ns / change.host_speed,
        kernel_ns=queues.kernel_ns / change.device_speed,
    )


def queues_of(step: Step) -> Queues:
    """Return the queues of a recorded step, calibrated so that their replay is the step.

    They are in launch order, one lane for each stream of each device. λ is the median from launch
    to start of kernels that found their stream idle, g the median pause of those whose stream was
    busy beyond their launch, or ``GAP_NS`` where the device never had two kernels queued.

    Raises:
        UsageError: no record of the step has both a launch and a run on a device.
    """
    paired = np.flatnonzero(step.launch_start_ns >= 0)
    if not paired.size:
        raise UsageError(
            f"{step.name}: no kernel with its launch; record host and device activity together"
        )
    order = paired[np.lexsort((step.device_start_ns[paired], step.launch_start_ns[paired]))]
    launch = (step.launch_start_ns[order] - step.begin_ns).astype(float)
    start = (step.device_start_ns[order] - step.begin_ns).astype(float)
    end = (step.device_end_ns[order] - step.begin_ns).astype(float)
    finish = float(max(step.end_ns - step.begin_ns, end.max()))
    waits = (step.waits_ns - step.begin_ns).astype(float)
    lane = (step.device[order] << 32) + step.stream[order]
    by = np.argsort(lane, kind="stable")
    same = lane[by][1:] == lane[by][:-1]
    before = np.full(lane.size, -1, dtype=np.int64)  # the kernel before it on its stream
    before[by[1:][same]] = by[:-1][same]
    # A queue that was seen deeper than it is said to be is deeper.
    waiting = np.arange(launch.size) - np.searchsorted(np.sort(end), launch, side="right")
    depth = max(QUEUE, int(waiting.max()) + 1)
    idle = np.where(before >= 0, end[before], -np.inf) <= launch
    latencies = (start - launch)[idle]
    launch_latency = float(np.median(latencies)) if latencies.size else 0.0
    queued = ~idle & (end[before] >= launch + launch_latency)
    pauses = (start - end[before])[queued]
    gap = float(np.median(pauses)) if pauses.size else GAP_NS
    ready = np.maximum(launch + launch_latency, np.where(before >= 0, end[before] + gap, -np.inf))
    after = _after(lane, start, end, ready)
    ready = np.maximum(ready, np.where(after >= 0, end[after] + gap, -np.inf))
    host, late, blocked = _host(launch, end, waits, depth)
    # The host's own time after the last launch, up to its first wait or to the return; where it
    # waited for the device and no wait was recorded, it is not known and none is assumed.
    later = waits[:, 0][waits[:, 0] >= launch[-1]]
    tail = 0.0 if end.max() > launch[-1] else finish - launch[-1]
    if later.size:
        tail = later.min() - launch[-1]
    made = Queues(
        host_ns=host,
        kernel_ns=end - start,
        stream=lane,
        after=after,
        blocked=blocked,
        extra_ns=start - ready,
        late_ns=late,
        launch_ns=launch_latency,
        gap_ns=gap,
        gap_seen=bool(pauses.size),
        tail_ns=float(tail),
        depth=depth,
    )
    return replace(made, sync_ns=finish - run(made).latency_ns)


def _after(lane: NDArray[np.int64], start: Ns, end: Ns, ready: Ns) -> NDArray[np.int64]:
    """Return for late starters the earlier kernel of another stream that ended last before them.

    A trace shows no dependencies between streams, only that a kernel began later than its launch
    and its own stream explain: the wait is then attributed to what had just ended elsewhere.
    """
    found = np.full(lane.size, -1, dtype=np.int64)
    lanes = {int(name): np.flatnonzero(lane == name) for name in np.unique(lane)}
    if len(lanes) < 2:
        return found
    for i in np.flatnonzero(start - ready > WAITED_NS).tolist():
        best = ready[i]
        for name, members in lanes.items():
            if name == lane[i]:
                continue
            earlier = members[(members < i) & (end[members] <= start[i])]
            if earlier.size and end[earlier].max() > best:
                found[i] = int(earlier[np.argmax(end[earlier])])
                best = end[found[i]]
    return found


def _host(launch: Ns, end: Ns, waits: Ns, depth: int) -> tuple[Ns, Ns, NDArray[np.bool_]]:
    """Return h, what is beyond the model, and where the host waited for the device.

    Where the host waited, in a synchronise or at a full queue, the launch follows the device's end
    and not the launch before it: what it did before the wait is h, what it did after is late.
    """
    host = np.diff(launch, prepend=0.0)
    late = np.zeros_like(host)
    blocked = np.zeros(host.size, dtype=np.bool_)
    done = np.maximum.accumulate(np.concatenate(([-np.inf], end[:-1])))
    for begin, finish in waits:
        i = int(np.searchsorted(launch, finish, side="left"))
        if i < launch.size and (i == 0 or launch[i - 1] <= begin) and done[i] > begin:
            blocked[i] = True
            host[i] = begin - (launch[i - 1] if i else 0.0)
            late[i] = launch[i] - done[i]
    usual = float(np.median(host[host > 0])) if (host > 0).any() else 0.0
    for i in range(depth, launch.size):
        freed = end[i - depth]
        if launch[i - 1] + usual < freed <= launch[i] and not blocked[i]:
            late[i] = launch[i] - freed
            host[i] = usual
    return host, late, blocked


def unexplained(beyond_ns: float, latency_ns: float) -> str | None:
    """Return why two queues do not explain a call, or None where they do."""
    if abs(beyond_ns) <= UNEXPLAINED * latency_ns:
        return None
    return (
        f"{beyond_ns / latency_ns:+.0%} of the latency is in neither queue (a host that waits "
        "inside the call?); measure, do not predict"
    )


def played(queues: Queues, change: Change) -> float:
    """Return the latency of changed queues, ns."""
    return run(changed(queues, change)).latency_ns


def steps_latency(steps: Sequence[Queues], change: Change) -> tuple[Estimate, Estimate]:
    """Return latency before and after the change over at least one recorded step, ns.

    The interval after the change includes the spread between steps, where there are two or more,
    and what the replay does not know: whether launch latency, gaps and unexplained waits shrink
    with the part that gets faster, or stay.
    """
    before = _over([run(q).latency_ns for q in steps], "recorded")
    found = _over([played(q, change) for q in steps], RECORDED)
    others = [played(variant, change) for q in steps for variant in variants(q, change)]
    low, high = min(found.low, *others), max(found.high, *others)
    return before, replace(found, low=low, high=high, method=RECORDED)


def variants(queues: Queues, change: Change) -> list[Queues]:
    """Return the queues as they would also explain the record, for a change to be played on.

    One has everything beyond kernels and launches scaled as its part is: the device's pauses and
    the launch latency with the device, what the host did late and the end of the call with the
    host; a launch latency is partly either's. In a graph nothing waits for a launch, and more of
    the pauses may be left.
    """
    device, host = 1 / change.device_speed, 1 / change.host_speed
    shrunk = replace(
        queues,
        gap_ns=queues.gap_ns * device,
        launch_ns=queues.launch_ns * device * host,
        extra_ns=queues.extra_ns * (0.0 if change.graphs else device),
        late_ns=queues.late_ns * host,
        sync_ns=queues.sync_ns * host,
    )
    gaps = [] if queues.gap_seen else [0.0, 2 * queues.gap_ns]
    if change.graphs:  # of whatever they are here ``changed`` leaves the middle share
        seen = gaps or [queues.gap_ns]
        gaps = [share / GRAPH_GAPS[1] * gap for share in GRAPH_GAPS for gap in seen]
    return [shrunk, *(replace(queues, gap_ns=gap) for gap in gaps)]


def _over(values: Sequence[float], method: str) -> Estimate:
    return mean_interval(values, method) or exactly(values[0], f"{method}, one step")
