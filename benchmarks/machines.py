"""Where the tax goes as devices and hosts get faster: recorded or measured calls, replayed.

A call is two queues (``replay``). A faster device shortens kernels, a faster host its own work.
Of each machine it gives the latency, the share of it in which no kernel runs, and how far kernels
may grow before the latency does: the free batch, where kernel time is linear in the batch,
and a lower figure of it where a larger batch fills a device better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frameworktax.analysis.curves import FREE
from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.replay import Change, Queues, variants
from frameworktax.records import Estimate
from frameworktax.traces import intervals

METHOD = "two-queue replay"
MOST = 4096.0
"""Growth of kernel time beyond which nothing is looked for."""
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A call on another machine; the intervals hold what the replay does not know.

    Attributes:
        device_speed: factor on the recorded device.
        host_speed: factor on the recorded host.
        latency_ns: of the call.
        tax_share: share of it in which no kernel runs.
        free_growth: factor by which kernel time may grow within 10 % of the latency.
        is_lower_bound: the latency does not grow up to ``MOST``.
    """

    device_speed: float
    host_speed: float
    latency_ns: Estimate
    tax_share: Estimate
    free_growth: Estimate
    is_lower_bound: bool


def outlook(queues: Queues, *, device_speed: float = 1.0, host_speed: float = 1.0) -> Outlook:
    """Return a call on a machine that is faster by these factors.

    The interval reaches to what the replay gives if launch latency, pauses and unexplained waits
    shrink with the part that gets faster, instead of staying.

    Args:
        queues: of the call as it was recorded.
        device_speed: of kernels.
        host_speed: of everything that the host does.
    """
    change = Change(device_speed=device_speed, host_speed=host_speed)
    all_of = [queues, *variants(queues, change)]

    def over(found: Callable[[Queues], float]) -> Estimate:
        values = [found(q) for q in all_of]
        return Estimate(value=values[0], low=min(values), high=max(values), method=METHOD, n=1)

    def latency(q: Queues) -> float:
        return _played(q, change)[0]

    def share(q: Queues) -> float:
        whole, busy = _played(q, change)
        return 1 - busy / whole

    growth = over(lambda q: _growth(q, change))
    return Outlook(
        device_speed=device_speed,
        host_speed=host_speed,
        latency_ns=over(latency),
        tax_share=over(share),
        free_growth=growth,
        is_lower_bound=growth.value >= MOST,
    )


def _played(queues: Queues, change: Change) -> tuple[float, float]:
    """Return latency and the time in which a kernel runs, ns."""
    there = replay.changed(queues, change)
    steps, ended = replay.run(there)
    start = np.rint(ended - there.kernel_ns).astype(np.int64)
    end = np.rint(ended).astype(np.int64)
    return float(steps.sum()), float(intervals.union_ns(start, end))


def _growth(queues: Queues, change: Change) -> float:
    """Return the factor on kernel time at which the latency is 10 % over what it is."""
    limit = _grown(queues, change, 1.0) * (1 + FREE)
    low, high = 1.0, 2.0
    while _grown(queues, change, high) <= limit:
        low, high = high, 2 * high
        if low >= MOST:
            return MOST
    while high / low > 1 + TOLERANCE:
        middle = math.sqrt(low * high)
        if _grown(queues, change, middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def _grown(queues: Queues, change: Change, kernels: float) -> float:
    return _played(replace(queues, kernel_ns=queues.kernel_ns * kernels), change)[0]


def grid(queues: Queues, devices: Sequence[float], hosts: Sequence[float]) -> list[Outlook]:
    """Return every device with every host, the slowest first."""
    return [
        outlook(queues, device_speed=device, host_speed=host)
        for host in sorted(hosts)
        for device in sorted(devices)
    ]


def uniform(
    *, launches: int, host_ns: float, kernel_ns: float, span_ns: float | None, latency_ns: float
) -> Queues:
    """Return queues of equal launches and equal kernels, which is all that totals can give.

    Args:
        launches: N, kernels and copies of a call.
        host_ns: H, host time until the call returns.
        kernel_ns: K, union of kernels.
        span_ns: D, the same queued back to back; None leaves the gap at zero.
        latency_ns: L; what the queues leave of it, launch latency included, is ``sync_ns``.
    """
    gap = 0.0 if span_ns is None or launches < 2 else (span_ns - kernel_ns) / (launches - 1)
    made = Queues(
        host_ns=np.full(launches, host_ns / launches),
        kernel_ns=np.full(launches, kernel_ns / launches),
        stream=np.zeros(launches, dtype=np.int64),
        after=np.full(launches, -1, dtype=np.int64),
        blocked=np.zeros(launches, dtype=np.bool_),
        extra_ns=np.zeros(launches),
        late_ns=np.zeros(launches),
        gap_ns=gap,
    )
    return replace(made, sync_ns=latency_ns - replay.latency_ns(made))
