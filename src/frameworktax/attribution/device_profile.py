"""Kernel time on a device: a run of its own under a profile of device activity.

Nothing but device activity is recorded, so there are no host operators to assign kernels to. Calls
are separated on the device itself: a marker kernel, with a synchronise on either side, lies
between two calls, and what ran between two markers belongs to the call between them. No host
clock is compared with the device's clock (they are skewed against each other: kineto#1380).

Records get lost: the profiler garbles the first kernel records of a session, one more with each
session of the process (pytorch#192021), and cuts off what its clock puts outside the session. So
a session begins with markers and calls that do not count and ends with one more call; and each
launch inside a call must have its record inside the same call, or the call is flagged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.attribution.torch_device import MARKER, Device
from frameworktax.clock import REAL, Clock
from frameworktax.errors import TraceError
from frameworktax.records import Note
from frameworktax.traces import intervals
from frameworktax.traces.events import (
    CATEGORIES,
    COPY,
    COPY_LAUNCHES,
    GRAPH_LAUNCHES,
    HOST_CALLS,
    KERNEL,
    KERNEL_LAUNCHES,
    MEMSET,
    MEMSET_LAUNCHES,
    Events,
    Trace,
)

HEAD_MARKERS = 64
"""Kernels sacrificed at the start of a session; the loss was one per earlier session."""
HEAD_CALLS = 2
"""Calls that do not count, so that the device is warm when the first that counts begins."""

Ns = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """What the device did in each call of the profiled run; one entry per call.

    Attributes:
        wall_ns: wall time of the call with its synchronise, under the profiler.
        kernel_ns: union of kernel, copy and memset intervals.
        kernels: kernel records, those of a graph each on its own.
        copies: copy and memset records.
        launches: host calls that launched a kernel, or a whole graph; empty where the profile
            does not hold them.
        enqueued: entries of the launch queue: launches, copies and memsets; likewise.
        lost: launches in all calls whose record is missing.
    """

    wall_ns: tuple[int, ...]
    kernel_ns: tuple[int, ...]
    kernels: tuple[int, ...]
    copies: tuple[int, ...]
    launches: tuple[int, ...]
    enqueued: tuple[int, ...]
    lost: int
    notes: tuple[Note, ...]


def profile_device(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    calls: int = 10,
    clock: Clock = REAL,
    *,
    device: Device,
) -> DeviceRun:
    """Profile ``calls`` calls and return what the device did in each.

    Args:
        call: what is measured; warm.
        synchronize: waits for the call's outputs, as in timing.
        calls: how many count; three more are made.
        clock: to read time from.
        device: what the call runs on.

    Raises:
        TraceError: the profile holds no device activity, or calls cannot be separated in it.
    """
    walls: list[int] = []

    def mark() -> None:
        device.synchronize()
        device.marker()
        device.synchronize()

    def work() -> None:
        for _ in range(HEAD_MARKERS):
            device.marker()
        for _ in range(HEAD_CALLS):
            call()
            synchronize()
        for _ in range(calls):
            mark()
            begin = clock.wall_ns()
            call()
            synchronize()
            walls.append(clock.wall_ns() - begin)
        mark()
        call()
        synchronize()
        device.synchronize()

    trace = device.profile(work)
    return split_calls(trace, tuple(walls), device.index)


def split_calls(trace: Trace, wall_ns: tuple[int, ...], device: int) -> DeviceRun:
    """Take a profile with markers apart; ``wall_ns`` has an entry for each call that counts.

    Raises:
        TraceError: the markers are not there, or more of them than were launched.
    """
    calls = len(wall_ns)
    records = trace.device(device)
    is_marker = records.containing(MARKER)
    markers = _by_start(records.where(is_marker))
    expected = HEAD_MARKERS + calls + 1
    if not len(records):
        raise TraceError("the profile holds no device activity; is CUPTI in use by another tool?")
    if len(markers) > expected:
        raise TraceError("the model itself runs the kernel that marks the borders between calls")
    if len(markers) < calls + 1:
        raise TraceError(f"{expected - len(markers)} marker records were lost; profile again")
    markers = _last(markers, calls + 1)
    work = _by_start(records.where(~is_marker))
    # The border is the marker's interval: what starts after one and before the next is the call's.
    lows, highs = markers.end_ns[:-1], markers.start_ns[1:]
    in_call = _place(work.start_ns, markers.start_ns)
    counted = in_call >= 0
    crossing = int(
        (work.end_ns[counted] > highs[in_call[counted]]).sum()
        + (work.start_ns[counted] < lows[in_call[counted]]).sum()
    )

    def per_call(*categories: str) -> tuple[int, ...]:
        chosen = np.isin(work.category, [CATEGORIES.index(c) for c in categories])
        return _ints(np.bincount(in_call[counted & chosen], minlength=calls))

    run = DeviceRun(
        wall_ns=wall_ns,
        kernel_ns=_ints(intervals.union_within_ns(work.start_ns, work.end_ns, lows, highs)),
        kernels=per_call(KERNEL),
        copies=per_call(COPY, MEMSET),
        launches=(),
        enqueued=(),
        lost=0,
        notes=(),
    )
    everywhere = trace.device()
    launched = _launches(trace, markers)
    unrecorded = 0
    if launched is not None:
        recorded = _pairs(_place(everywhere.start_ns, markers.start_ns), everywhere.correlation)
        unrecorded = len(launched.copies - recorded)
        run = replace(
            run,
            launches=_count(launched.kernels, calls),
            enqueued=_count(launched.kernels | launched.copies, calls),
            lost=len(launched.kernels - recorded),
        )
    elsewhere = int((everywhere.device != device).sum())
    return replace(run, notes=_notes(run, trace, crossing, unrecorded, elsewhere))


@dataclass(frozen=True, slots=True)
class _Launched:
    """(call, correlation) of host calls that enqueued kernels or graphs, and copies or memsets."""

    kernels: set[tuple[int, int]]
    copies: set[tuple[int, int]]


def _launches(trace: Trace, markers: Events) -> _Launched | None:
    """Place launches into calls on the host's clock: between the launches of two markers.

    Returns None where the launch of a marker is not in the profile.
    """
    host = trace.events.of(*HOST_CALLS)
    started = dict(zip(host.correlation.tolist(), host.start_ns.tolist(), strict=True))
    if not all(c in started for c in markers.correlation.tolist()):
        return None
    borders = np.array([started[c] for c in markers.correlation.tolist()], np.int64)
    own = set(markers.correlation.tolist())

    def within(events: Events) -> set[tuple[int, int]]:
        where = _place(events.start_ns, borders)
        # A runtime call and the driver call inside it share a correlation: one launch.
        return {(n, c) for n, c in _pairs(where, events.correlation) if n >= 0 and c not in own}

    return _Launched(
        within(trace.events.launches(*KERNEL_LAUNCHES, *GRAPH_LAUNCHES)),
        within(trace.events.launches(*COPY_LAUNCHES, *MEMSET_LAUNCHES)),
    )


def _notes(
    run: DeviceRun, trace: Trace, crossing: int, unrecorded: int, elsewhere: int
) -> tuple[Note, ...]:
    notes = []
    for what, counts in (("kernels", run.kernels), ("copies", run.copies)):
        if len(set(counts)) > 1:
            text = f"{min(counts)} to {max(counts)} {what} a call: calls are not all the same work"
            notes.append(Note("kernel-counts-differ", text))
    if not run.launches:
        text = "launch calls were not recorded: lost records would go unseen"
        notes.append(Note("launches-unrecorded", text))
    if run.lost:
        text = f"{run.lost} launches have no record inside their call: kernel time is too low"
        notes.append(Note("records-lost", text))
    if unrecorded:
        text = f"{unrecorded} copies or memsets in {len(run.wall_ns)} calls left no record"
        notes.append(Note("copies-unrecorded", text))
    if crossing:
        text = f"{crossing} kernels ran across the border between calls; only parts were counted"
        notes.append(Note("kernels-cross-calls", text))
    if elsewhere:
        text = f"{elsewhere} records are of other devices and were not counted"
        notes.append(Note("other-devices", text))
    if trace.invalid:
        text = f"{trace.invalid} records have impossible times and were not counted"
        notes.append(Note("records-invalid", text))
    if trace.resolution_ns >= 1000 and any(run.kernels):
        text = f"this profiler writes times in steps of {trace.resolution_ns} ns"
        notes.append(Note("coarse-clock", text))
    return tuple(notes)


def _by_start(events: Events) -> Events:
    order = np.argsort(events.start_ns, kind="stable")
    return events.take(order)


def _last(events: Events, n: int) -> Events:
    return events.where(np.arange(len(events)) >= len(events) - n)


def _place(times: Ns, borders: Ns) -> Ns:
    """Return which stretch between two borders each time falls in; -1 before or after all."""
    place = np.searchsorted(borders, times, side="right") - 1
    return np.asarray(np.where(place < len(borders) - 1, place, -1), dtype=np.int64)


def _pairs(calls: Ns, correlations: Ns) -> set[tuple[int, int]]:
    return {
        (n, c) for n, c in zip(calls.tolist(), correlations.tolist(), strict=True) if c >= 0
    }  # fmt: skip


def _count(pairs: set[tuple[int, int]], calls: int) -> tuple[int, ...]:
    return _ints(np.bincount(np.array([n for n, _ in pairs], np.int64), minlength=calls))


def _ints(values: NDArray[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)
