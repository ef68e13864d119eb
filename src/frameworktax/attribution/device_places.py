"""Which module and operator of a model a device's time belongs to.

Kernels are joined to the host calls that launched them by correlation, and launches to modules by
the host's clock: a launch belongs to the module that was entered last. The profile's host clock may
count from another moment; markers whose launches were stamped on both clocks give the difference.

Each call is one stretch of ``records.Places``; what is counted are nanoseconds:

- ``kernel``: the time of each kernel, copy and memset, of the module that launched it.
- ``device_gap``: the time that the device was idle before a kernel, of the module that launched
  that kernel: it made the device wait. Before the first kernel of a call it counts from the call's
  begin. Starvation and gaps of the breakdown are split by this; what comes after the last kernel
  belongs to no module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from frameworktax.attribution.device_profile import HEAD_CALLS, Calling, Warm, separated
from frameworktax.attribution.layers import OUTSIDE, ModuleClock, by_place
from frameworktax.attribution.torch_device import TorchDevice
from frameworktax.clock import REAL, Clock
from frameworktax.errors import TraceError
from frameworktax.traces.events import HOST_CALLS, Events, Trace
from frameworktax.traces.intervals import LIMIT, Ns, merge, owners
from frameworktax.traces.timeline import find, groups, outermost_first, taken

Ticks = Mapping[tuple[int, str, str], int]
"""(module, operator, line of the bill) → ns, the module ``OUTSIDE`` for none."""
Innermost = Callable[[Sequence[int]], list[int]]
"""Times on the modules' clock → module that each fell in."""


def place_calls(
    trace: Trace,
    device: int,
    marks: Sequence[tuple[int, int]],
    begins: Sequence[int],
    innermost: Innermost,
) -> list[Ticks]:
    """Return where the device's time of each call belongs.

    Args:
        trace: a profile with markers before, between and after the calls; host operators in it
            name the operators.
        device: number of the device in the profile.
        marks: readings of the modules' clock just before and after the launch of each marker that
            borders a call, one more than there are calls.
        begins: when each call began, on the modules' clock.
        innermost: module by time.

    Raises:
        TraceError: markers were lost, or the two clocks of the host do not agree.
    """
    markers, every, in_call = separated(trace, len(begins), device)
    host = trace.events.of(*HOST_CALLS)
    host = host.where(outermost_first(host))
    offset = clock_offset(host, find(host.correlation, markers.correlation), marks)
    rows = find(host.correlation, every.correlation)
    launched, operators = taken(host.start_ns, rows), _operators(trace.events, host, rows)
    stretches: list[Ticks] = []
    for call, begin in enumerate(begins):
        own = np.flatnonzero(in_call == call)
        work, known = every.where(own), rows[own] >= 0
        modules = np.full(len(work), OUTSIDE)
        modules[known] = innermost((launched[own[known]] + offset).tolist())
        ticks: Counter[tuple[int, str, str]] = Counter()
        idle = _idle_before(work, launched[own], begin - offset)
        for i, row in enumerate(own.tolist()):
            where = int(modules[i]), operators[row]
            ticks[(*where, "kernel")] += int(work.end_ns[i] - work.start_ns[i])
            ticks[(*where, "device_gap")] += int(idle[i])
        stretches.append({key: ns for key, ns in ticks.items() if ns})
    return stretches


def clock_offset(host: Events, rows: Ns, marks: Sequence[tuple[int, int]]) -> int:
    """Return the modules' clock less the profile's host clock, ns.

    A marker's launch lies between the two readings around it; every marker narrows the difference.

    Raises:
        TraceError: launches of markers are missing, or no difference fits all of them.
    """
    if not len(rows) or rows.min() < 0 or len(rows) != len(marks):
        raise TraceError(
            "launches of markers were not recorded; the host's clocks cannot be joined"
        )
    low = max(before - int(host.start_ns[r]) for r, (before, _) in zip(rows, marks, strict=True))
    high = min(after - int(host.end_ns[r]) for r, (_, after) in zip(rows, marks, strict=True))
    if low > high:
        raise TraceError(f"the host's two clocks drift by {(low - high) / 1e3:.1f} µs in a profile")
    return (low + high) // 2


def _idle_before(work: Events, launched: Ns, begin: int) -> Ns:
    """Return how long the device was idle before each record; ``begin`` is on the host's clock.

    Host and device clocks are not compared: the first record counts from the call's begin to its
    launch.
    """
    idle = np.zeros(len(work), np.int64)
    if not len(work):
        return idle
    starts, ends = merge(work.start_ns, work.end_ns)
    first = np.searchsorted(work.start_ns, starts)  # records are in the order of their starts
    idle[first[1:]] = starts[1:] - ends[:-1]
    if launched[0] >= 0:
        idle[0] = launched[0] - begin
    return idle


def _operators(events: Events, host: Events, rows: Ns) -> list[str]:
    """Return, per launch, the name of the outermost host operator around it, "" for none."""
    operators = events.of("cpu_op")
    operators = operators.where(np.lexsort((-operators.end_ns, operators.start_ns)))
    at, thread = taken(host.start_ns, rows), taken(host.thread, rows)
    names = [""] * len(rows)
    for number, own in groups(operators.thread):
        reached = np.append(-LIMIT, np.maximum.accumulate(operators.end_ns[own])[:-1])
        outer = operators.where(own[operators.start_ns[own] >= reached])
        launches = np.flatnonzero(thread == number)
        around = owners(outer.start_ns, outer.end_ns, at[launches])
        for i, one in zip(launches.tolist(), around.tolist(), strict=True):
            names[i] = outer.name_of(one) if one >= 0 else ""
    return names


def attribute_device_modules(
    call: Callable[[], Any],
    root: Any,
    synchronize: Callable[[], None],
    device: TorchDevice,
    *,
    by: str = "module",
    calls: int = 10,
    clock: Clock = REAL,
) -> dict[str, Any]:
    """Return which module and operator a device's time belongs to, as fields of ``records.Places``.

    Args:
        call: what to run, warm.
        root: the ``torch.nn.Module`` that it calls.
        synchronize: waits for its outputs.
        device: what it runs on.
        by: ``module``, or ``operator``: host operators are recorded as well, which makes the host
            slower, so that only kernel time by operator is the breakdown's.
        calls: that count.
        clock: to read time from.

    Raises:
        TraceError: the profile does not hold what is needed.
    """
    calling = Calling(Warm(call, synchronize, device, clock), calls)
    with ModuleClock(root, clock.wall_ns) as modules:
        trace = device.profile(calling, by == "operator")
    begins, walls = [begin for begin, _ in calling.spans], calling.walls_ns()
    stretches = place_calls(trace, device.index, calling.marks, begins, modules.innermost)
    # Calls of modules are those of one call, times the calls that count.
    share = calls / (calls + HEAD_CALLS + 1)
    found = by_place(modules.modules(), stretches)
    return {
        **found,
        "method": by,
        "calls": calls,
        "latency_ns": round(median(walls)),
        "wall_ns": sum(walls),
        "modules": tuple({**one, "calls": round(one["calls"] * share)} for one in found["modules"]),
        "notes": (),
    }
