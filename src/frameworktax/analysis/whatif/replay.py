"""Replay of two queues: a host that launches and a device that runs (METHOD, section 9).

    e_i = max(e_{i-1} + h_i, f_{i-Q})                 the host launches kernel i
    s_i = max(e_i + λ, f_prev + g, f_after + g) + δ_i it starts
    f_i = s_i + k_i                                   it ends
    L   = max(f_N, e_N) + sync

``prev`` is the kernel before it on its stream, ``after`` a kernel of another stream that it was
seen to wait for. δ is what the record shows beyond the model, so that the replay of a recorded
step at factor 1 is that step exactly. Steps that begin while the device has work of those before
them are replayed as one. Every operation is a maximum or a sum of times, hence no prediction grows
when a part gets faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.estimates import exactly
from frameworktax.errors import UsageError
from frameworktax.records import Estimate
from frameworktax.stats import mean_interval
from frameworktax.traces.intervals import Mask, union_within_ns
from frameworktax.traces.timeline import Step, groups

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
        on_link: kernels and copies that a faster device leaves as they are.
        firsts: kernels with which its steps begin; what is before the first belongs to none.
        loading_ns: what of ``host_ns`` is in a DataLoader, which no graph replaces.
        late_loading_ns: likewise of ``late_ns``.
    """

    host_ns: Ns
    kernel_ns: Ns
    stream: NDArray[np.int64]
    after: NDArray[np.int64]
    blocked: Mask
    extra_ns: Ns
    late_ns: Ns
    launch_ns: float = 0.0
    gap_ns: float = 0.0
    tail_ns: float = 0.0
    sync_ns: float = 0.0
    depth: int = QUEUE
    gap_seen: bool = True
    on_link: Mask | bool = False
    firsts: tuple[int, ...] = (0,)
    loading_ns: Ns | float = 0.0
    late_loading_ns: Ns | float = 0.0

    @property
    def waits_inside(self) -> bool:
        """Return whether the host waits for the device between two launches of a step."""
        return bool(np.delete(self.blocked, self.firsts)[self.firsts[0] :].any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of the queues.

    Attributes:
        device_speed: factor, 2 = kernels take half.
        host_speed: factor on everything that the host does.
        graphs: replace the launches of a step by one.
    """

    device_speed: float = 1.0
    host_speed: float = 1.0
    graphs: bool = False


def run(queues: Queues) -> tuple[Ns, Ns]:
    """Play both queues forward; return how long each step takes, and the end of every kernel."""
    host, kernel = queues.host_ns.tolist(), queues.kernel_ns.tolist()
    stream, after = queues.stream.tolist(), queues.after.tolist()
    extra, late = queues.extra_ns.tolist(), queues.late_ns.tolist()
    blocked = queues.blocked.tolist()
    free: dict[int, float] = {}
    now = done = 0.0
    ends: list[float] = []
    reached = [0.0]
    for i in range(len(kernel)):
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
        ended = ready + extra[i] + kernel[i]
        ends.append(ended)
        free[stream[i]] = ended
        done = max(done, ended)
        reached.append(max(done, now))
    latency = max(done, now + queues.tail_ns) + queues.sync_ns
    borders = [*(reached[i] for i in queues.firsts), latency]
    return np.diff(borders), np.array(ends)


def latency_ns(queues: Queues) -> float:
    """Return the latency of all steps, ns."""
    return float(run(queues)[0].sum())


def changed(queues: Queues, change: Change) -> Queues:
    """Return the queues on other machines, or with their launches captured in one graph.

    A faster device shortens kernels, a faster host its own work; the launch latency, the gaps,
    what was unexplained and what is on a link stay. With graphs the host launches once a step,
    which takes what one of its launches takes at the median, no more than its first one or than
    ``GRAPH_LAUNCH_NS``; of the gaps the middle of ``GRAPH_GAPS`` is left. What the host does in a
    DataLoader stays.
    """
    host, late, gap_ns = queues.host_ns, queues.late_ns, queues.gap_ns
    if change.graphs:
        loading = np.broadcast_to(queues.loading_ns, host.shape)
        once = np.where(np.arange(host.size) < queues.firsts[0], host, loading)
        launched = host[host > 0]
        if launched.size:
            first = np.array(queues.firsts)
            usual = min(float(np.median(launched)), GRAPH_LAUNCH_NS)
            once[first] += np.minimum(host[first] - loading[first], usual)
        host, gap_ns = once, GRAPH_GAPS[1] * gap_ns
        late = np.zeros_like(late) + queues.late_loading_ns
    return replace(
        queues,
        depth=max(queues.depth, host.size) if change.graphs else queues.depth,
        gap_ns=gap_ns,
        host_ns=host / change.host_speed,
        late_ns=late,
        tail_ns=queues.tail_ns / change.host_speed,
        kernel_ns=queues.kernel_ns / np.where(queues.on_link, 1.0, change.device_speed),
    )


def queues_of(step: Step) -> Queues:
    """Return the queues of a recorded step, calibrated so that their replay is the step.

    They are in launch order, one lane for each stream of each device. Records without a launch are
    left out, but for those before all others: they were launched before the step. λ is the median
    from launch to start of kernels that found every stream idle, g the median pause of those whose
    stream was busy beyond their launch, or ``GAP_NS`` where the device never had two queued.

    At least one record has a launch.
    """
    paired = step.launch_start_ns >= 0
    early = ~paired & (step.device_start_ns < step.device_start_ns[paired].min())
    launch_ns = np.where(early, step.begin_ns, step.launch_start_ns)
    order = np.lexsort((step.device_start_ns, launch_ns))
    order = order[(paired | early)[order]]
    launch = (launch_ns[order] - step.begin_ns).astype(float)
    start = (step.device_start_ns[order] - step.begin_ns).astype(float)
    end = (step.device_end_ns[order] - step.begin_ns).astype(float)
    finish = float(max(step.end_ns - step.begin_ns, end.max()))
    waits = (step.waits_ns - step.begin_ns).astype(float)
    # A trace's devices have 32 bits: shifted within them every device is the same.
    lane = (step.device[order].astype(np.int64) << 32) + step.stream[order]
    by = np.argsort(lane, kind="stable")
    same = lane[by][1:] == lane[by][:-1]
    before = np.full(lane.size, -1, dtype=np.int64)  # the kernel before it on its stream
    before[by[1:][same]] = by[:-1][same]
    # A queue that was seen deeper than it is said to be is deeper.
    waiting = np.arange(launch.size) - np.searchsorted(np.sort(end), launch, side="right")
    depth = max(QUEUE, int(waiting.max()) + 1)
    done = np.maximum.accumulate(np.append(-np.inf, end[:-1]))
    latencies = (start - launch)[(done <= launch) & paired[order]]
    launch_latency = float(np.median(latencies)) if latencies.size else 0.0
    queued = (before >= 0) & (end[before] >= launch + launch_latency)
    pauses = (start - end[before])[queued]
    gap = float(np.median(pauses)) if pauses.size else GAP_NS
    ready = np.maximum(launch + launch_latency, np.where(before >= 0, end[before] + gap, -np.inf))
    after = _after(lane, start, end, ready)
    ready = np.maximum(ready, np.where(after >= 0, end[after] + gap, -np.inf))
    host, late, blocked = _host(launch, end, done, waits, depth)
    before = np.append(0.0, launch[:-1])
    ended, (begun, loaded) = before + host, (step.loading_ns - step.begin_ns).T
    loading, late_loading = (
        union_within_ns(begun, loaded, begin.astype(np.int64), finished.astype(np.int64)).astype(
            float
        )
        for begin, finished in ((before, ended), (launch - np.maximum(late, 0.0), launch))
    )
    # The host's own time after the last launch, up to its first wait or to the return; where it
    # waited for the device and no wait was recorded, it is not known and none is assumed.
    later = waits[:, 0][waits[:, 0] >= launch[-1]]
    tail = 0.0 if end.max() > launch[-1] else finish - launch[-1]
    if later.size:
        tail = later.min() - launch[-1]
    firsts = np.searchsorted(launch, step.begins_ns - step.begin_ns)
    firsts = np.unique(np.maximum(firsts, np.count_nonzero(early)))
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
        on_link=step.on_link[order],
        loading_ns=loading,
        late_loading_ns=late_loading,
    )
    made = replace(made, sync_ns=finish - latency_ns(made))
    return replace(made, firsts=tuple(firsts[firsts < launch.size].tolist()))


def _after(lane: NDArray[np.int64], start: Ns, end: Ns, ready: Ns) -> NDArray[np.int64]:
    """Return for late starters the earlier kernel of another stream that ended last before them.

    A trace shows no dependencies between streams, only that a kernel began later than its launch
    and its own stream explain: the wait is then attributed to what had just ended elsewhere.
    """
    found = np.full(lane.size, -1, dtype=np.int64)
    lanes = groups(lane)
    ended = [np.maximum.accumulate(end[members]) for _, members in lanes]
    for i in np.flatnonzero(start - ready > WAITED_NS).tolist():
        best = ready[i]
        for (name, members), reached in zip(lanes, ended, strict=True):
            earlier = min(
                np.searchsorted(members, i), np.searchsorted(reached, start[i], side="right")
            )
            if name != lane[i] and earlier and end[members[earlier - 1]] > best:
                found[i] = members[earlier - 1]
                best = end[found[i]]
    return found


def _host(launch: Ns, end: Ns, done: Ns, waits: Ns, depth: int) -> tuple[Ns, Ns, Mask]:
    """Return h, what is beyond the model, and where the host waited for the device.

    Where the host waited, in a synchronise or at a full queue, the launch follows the device's end
    and not the launch before it: what it did before the wait is h, what it did after is late.
    """
    host = np.diff(launch, prepend=0.0)
    late = np.zeros_like(host)
    blocked = np.zeros(host.size, dtype=np.bool_)
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
    if abs(beyond_ns) <= UNEXPLAINED * latency_ns or not latency_ns:
        return None
    return (
        f"{beyond_ns / latency_ns:+.0%} of the latency is in neither queue (a host that waits "
        "inside the call?); measure, do not predict"
    )


def steps_latency(stretches: Sequence[Queues], change: Change) -> tuple[Estimate, Estimate]:
    """Return the latency of a step after the change, ns, and the latency before over it.

    The intervals include the spread between steps, where there are two or more, and what the
    replay does not know: whether launch latency, gaps, unexplained waits and what is on a link
    shrink with the part that gets faster, or stay.

    Raises:
        UsageError: what was before the steps ends after them, so that they take no time.
    """

    def steps(every: Iterable[Queues]) -> Ns:
        return np.concatenate([run(q)[0] for q in every])

    before, after = steps(stretches), steps(changed(q, change) for q in stretches)
    every = zip(*(variants(q, change) for q in stretches), strict=True)
    others = [float(steps(changed(q, change) for q in one).mean()) for one in every]
    if min(before.mean(), after.mean(), *others) <= 0:
        raise UsageError("the steps end before work that began before them; mark more steps")
    factor = before.mean() / after.mean()
    factors = factor + (before - factor * after) / after.mean()  # of the ratio of two means
    return _over(after, others), _over(factors, [before.mean() / ns for ns in others])


def variants(queues: Queues, change: Change) -> list[Queues]:
    """Return the queues as they would also explain the record, for a change to be played on.

    One has everything beyond kernels and launches scaled as its part is: the device's pauses, the
    launch latency and links with the device, what the host did late and the end of the call with
    the host; a launch latency is partly either's. In a graph nothing waits for a launch. The others
    have the shortest and the longest pauses that may be.
    """
    device, host = 1 / change.device_speed, 1 / change.host_speed
    shrunk = replace(
        queues,
        gap_ns=queues.gap_ns * device,
        launch_ns=queues.launch_ns * device * host,
        kernel_ns=queues.kernel_ns * np.where(queues.on_link, device, 1.0),
        extra_ns=queues.extra_ns * (0.0 if change.graphs else device),
        late_ns=queues.late_ns * host,
        sync_ns=queues.sync_ns * host,
    )
    least, most = (1.0, 1.0) if queues.gap_seen else (0.0, 2.0)
    if change.graphs:  # ``changed`` leaves the middle share
        least *= GRAPH_GAPS[0] / GRAPH_GAPS[1]
        most *= GRAPH_GAPS[2] / GRAPH_GAPS[1]
    return [shrunk, *(replace(queues, gap_ns=of * queues.gap_ns) for of in (least, most))]


def _over(steps: Ns, others: Sequence[float]) -> Estimate:
    """Return the mean of steps with the spread between them, and what else it may be."""
    found = mean_interval(steps.tolist(), RECORDED) or exactly(
        float(steps[0]), f"{RECORDED}, one step"
    )
    return replace(found, low=min(found.low, *others), high=max(found.high, *others))
