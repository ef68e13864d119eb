"""Where the time of a call goes on a GPU: kernel time and span, from runs of their own.

``analysis.bill`` makes the bill of them:

    latency L ─┬─ kernel K                 union of kernels and copies, from a profile of its own
               ├─ device gap D − K         the device idle although work was queued
               └─ host starvation L − D    the device waiting for the host (or for the first launch
                                           to arrive, or the host for the last synchronise)

L comes from runs without a profiler, D from a backlog. Nothing is clamped: a noisy difference may
be negative and is shown so.

**Kernel time** comes from a profile of device activity and nothing else, so there are no host
operators to assign kernels to. Calls are separated on the device itself: a marker kernel, with a
synchronise on either side, lies between two calls, and what ran between two markers belongs to the
call between them. No host clock is compared with the device's clock (they are skewed against each
other: kineto#1380).

Records get lost: the profiler garbles the first kernel records of a session, one more with each
session of the process (pytorch#192021), and cuts off what its clock puts outside the session. So
a session begins with markers and calls that do not count and ends with one more call; and each
launch inside a call must have its record inside the same call, or the call is flagged.

**Span D** is how long the device takes over a call whose work was all queued before it began,
without a profiler. A spin kernel of known length keeps the device busy while the host enqueues the
call; then the device runs the call's work back to back:

    host     spin · start event · the call's launches · end event · is the start event pending?
    device   spin spin spin spin spin spin spin spin spin │start│ k k k k k k │end│

The span is the time between the two events. It is the device's own only if not one kernel waited
for the host: the spin must still be running, so the *start* event still pending, when the whole
call has been enqueued (a pending end event alone would let the device starve in between).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.attribution.torch_device import MARKER, Device, TorchDevice
from frameworktax.clock import REAL, Clock
from frameworktax.errors import TraceError
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

METHOD = "device-profile"
ATTEMPTS = 3
"""Profiles made at most, where records were lost (pytorch#192021)."""
TIMED_CALLS = 5
"""Calls whose host time sets the length of the spin."""
NOT_BEHIND = 0.5
"""A span below this share of kernel time was not measured on the stream the work ran on."""
CLOCK_DROP = 0.03
"""A device clock that fell by more than this share is noted."""
BUSY_CYCLES = 1_000_000_000
"""About half a second of spinning while clocks are read: an idle device lowers them."""
QUEUE_LIMIT = 900
"""Entries a call may enqueue; the launch queue is about 1,000 deep, and then the host blocks."""
SPIN_FACTOR = 4
"""The spin lasts this many times the host's time over the call, and grows by it."""
MIN_SPIN_NS = 1_000_000
MAX_SPIN_NS = 1_000_000_000
"""A longer spin would trip the watchdog of a device with a display, and cost too much anyway."""
WAITING_SHARE = 0.5
"""A call whose host time grows by this share of what the spin grows by waits for the device."""
CALIBRATION_CYCLES = (400_000, 4_400_000)
HEAD_MARKERS = 64
"""Kernels sacrificed at the start of a session; the loss was one per earlier session."""
HEAD_CALLS = 2
"""Calls that do not count, so that the device is warm when the first that counts begins."""

Notes = list[tuple[str, str]]
Ns = NDArray[np.int64]
Pairs = set[tuple[int, int]]
"""(call, correlation)"""


def attribute_gpu(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    device: str = "cuda:0",
    calls: int = 10,
    *,
    clock: Clock = REAL,
    on: Device | None = None,
    read_clocks: Callable[[], Clocks | None] | None = None,
) -> dict[str, Any]:
    """Measure kernel time and span of a warm call.

    Run it after all timing in the process: a profiler may leave hooks on the launch path.

    Args:
        call: what is measured; its work must be ordered behind torch's current stream.
        synchronize: waits for its outputs.
        device: ``cuda:N``.
        calls: profiled calls, and spans.
        clock: to read time from.
        on: the device's operations; torch's unless given.
        read_clocks: nvidia-smi unless given.

    Returns:
        Fields of ``records.Attribution``, as plain data; notes are (code, text) pairs. What could
        not be measured is empty, and a note says why.
    """
    gpu = TorchDevice(device) if on is None else on
    clocks = read_clocks or (lambda: query_clocks(smi_name(device)))
    notes: Notes = []
    before = _clocks_under_load(gpu, clocks)
    run, why = _profile(call, synchronize, calls, clock, gpu)
    if run is None:
        notes.append(("device-profile-failed", f"kernel time not measured: {why}"))
    else:
        notes += run.notes
    span = measure_span(
        call,
        gpu,
        repeats=calls,
        host_ns=_host_ns(call, synchronize, clock),
        enqueued=max(run.enqueued, default=None) if run else None,
        clock=clock,
    )
    span = _behind(span, run)
    if span.reason is not None:
        notes.append(("span-unavailable", f"device span not measured: {span.reason}"))
    notes += clock_notes(before, _clocks_under_load(gpu, clocks))
    return {
        "method": METHOD,
        "calls": len(run.wall_ns) if run else 0,
        "wall_ns": sum(run.wall_ns) if run else 0,
        "latency_ns": round(median(run.wall_ns)) if run else 0,
        "lost": run.lost if run else 0,
        "kernel_ns": run.kernel_ns if run else (),
        "kernels": run.kernels if run else (),
        "copies": run.copies if run else (),
        "launches": run.launches if run else (),
        "span_ns": span.span_ns,
        "notes": notes,
    }


def _profile(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    calls: int,
    clock: Clock,
    gpu: Device,
) -> tuple[DeviceRun | None, str]:
    """Profile, again where records were lost; return the last, or why there is none."""
    run, why = None, ""
    for _ in range(ATTEMPTS):
        try:
            run = profile_device(call, synchronize, calls, clock, device=gpu)
        except (TraceError, RuntimeError, AssertionError, OSError) as error:
            # torch.profiler raises RuntimeError, or asserts where its build has no CUPTI.
            why = " ".join(str(error).split())[:300] or type(error).__name__
        else:
            if not run.lost:
                break
    return run, why


def _host_ns(call: Callable[[], Any], synchronize: Callable[[], None], clock: Clock) -> int:
    """Return the longest host time until the call returns."""
    longest = 0
    for _ in range(TIMED_CALLS):
        begin = clock.wall_ns()
        call()
        longest = max(longest, clock.wall_ns() - begin)
        synchronize()
    return longest


def _behind(span: SpanRun, run: DeviceRun | None) -> SpanRun:
    """Refuse a span that is shorter than the kernels it should hold."""
    found, kernels = span.median_ns, median(run.kernel_ns) if run and run.kernel_ns else 0
    if found is None or found >= NOT_BEHIND * kernels:
        return span
    text = f"{found / 1e3:.1f} µs for {kernels / 1e3:.1f} µs of kernels: they run on another stream"
    return SpanRun(reason=text)


# --- kernel time ---------------------------------------------------------------------------------


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
    notes: Notes


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
    records = records.take(np.argsort(records.start_ns, kind="stable"))
    is_marker = records.containing(MARKER)
    markers, work = records.where(is_marker), records.where(~is_marker)
    expected = HEAD_MARKERS + calls + 1
    if not len(records):
        raise TraceError("the profile holds no device activity; is CUPTI in use by another tool?")
    if len(markers) > expected:
        raise TraceError("the model itself runs the kernel that marks the borders between calls")
    if len(markers) < calls + 1:
        raise TraceError(f"{expected - len(markers)} marker records were lost; profile again")
    markers = markers.take(np.arange(len(markers))[-calls - 1 :])
    # The border is the marker's interval: what starts after one and before the next is the call's.
    lows, highs = markers.end_ns[:-1], markers.start_ns[1:]
    in_call = _place(work.start_ns, markers.start_ns)
    counted = in_call >= 0

    def per_call(*categories: str) -> tuple[int, ...]:
        chosen = np.isin(work.category, [CATEGORIES.index(c) for c in categories])
        return _per_call(in_call[counted & chosen], calls)

    everywhere = trace.device()
    launched = _launched(trace, markers)
    lost: Pairs = set()
    unrecorded: Pairs = set()
    if launched is not None:
        recorded = _pairs(everywhere, markers.start_ns)
        lost, unrecorded = launched[0] - recorded, launched[1] - recorded
    run = DeviceRun(
        wall_ns=wall_ns,
        kernel_ns=_ints(intervals.union_within_ns(work.start_ns, work.end_ns, lows, highs)),
        kernels=per_call(KERNEL),
        copies=per_call(COPY, MEMSET),
        launches=_count(launched[0], calls) if launched else (),
        enqueued=_count(launched[0] | launched[1], calls) if launched else (),
        lost=len(lost),
        notes=[],
    )
    crossing = int(
        (work.end_ns[counted] > highs[in_call[counted]]).sum()
        + (work.start_ns[counted] < lows[in_call[counted]]).sum()
    )
    elsewhere = int((everywhere.device != device).sum())
    run.notes.extend(_notes(run, trace, crossing, len(unrecorded), elsewhere))
    return run


def _launched(trace: Trace, markers: Events) -> tuple[Pairs, Pairs] | None:
    """Return what enqueued kernels or graphs, and what copies or memsets, in calls.

    Launches are placed on the host's clock: between the launches of two markers. None where the
    launch of a marker is not in the profile.
    """
    host = trace.events.of(*HOST_CALLS)
    started = dict(zip(host.correlation.tolist(), host.start_ns.tolist(), strict=True))
    own = markers.correlation.tolist()
    if not all(c in started for c in own):
        return None
    borders = np.array([started[c] for c in own], np.int64)
    kernels, copies = (
        {(n, c) for n, c in _pairs(trace.events.launches(*names), borders) if c not in own}
        for names in (KERNEL_LAUNCHES + GRAPH_LAUNCHES, COPY_LAUNCHES + MEMSET_LAUNCHES)
    )
    return kernels, copies


def _notes(run: DeviceRun, trace: Trace, crossing: int, unrecorded: int, elsewhere: int) -> Notes:
    notes: Notes = []
    for what, counts in (("kernels", run.kernels), ("copies", run.copies)):
        if len(set(counts)) > 1:
            text = f"{min(counts)} to {max(counts)} {what} a call: calls are not all the same work"
            notes.append(("kernel-counts-differ", text))
    if not run.launches:
        text = "launch calls were not recorded: lost records would go unseen"
        notes.append(("launches-unrecorded", text))
    if run.lost:
        text = f"{run.lost} launches have no record inside their call: kernel time is too low"
        notes.append(("records-lost", text))
    if unrecorded:
        text = f"{unrecorded} copies or memsets in {len(run.wall_ns)} calls left no record"
        notes.append(("copies-unrecorded", text))
    if crossing:
        text = f"{crossing} kernels ran across the border between calls; only parts were counted"
        notes.append(("kernels-cross-calls", text))
    if elsewhere:
        text = f"{elsewhere} records are of other devices and were not counted"
        notes.append(("other-devices", text))
    if trace.invalid:
        text = f"{trace.invalid} records have impossible times and were not counted"
        notes.append(("records-invalid", text))
    if trace.resolution_ns >= 1000 and any(run.kernels):
        text = f"this profiler writes times in steps of {trace.resolution_ns} ns"
        notes.append(("coarse-clock", text))
    return notes


def _place(times: Ns, borders: Ns) -> Ns:
    """Return which stretch between two borders each time falls in; -1 before or after all."""
    place = np.searchsorted(borders, times, side="right") - 1
    return np.asarray(np.where(place < len(borders) - 1, place, -1), dtype=np.int64)


def _pairs(events: Events, borders: Ns) -> Pairs:
    """Return call and correlation of the events that lie between borders.

    A runtime call and the driver call inside it share a correlation: one launch.
    """
    calls = _place(events.start_ns, borders).tolist()
    pairs = zip(calls, events.correlation.tolist(), strict=True)
    return {(n, c) for n, c in pairs if n >= 0 and c >= 0}


def _count(pairs: Pairs, calls: int) -> tuple[int, ...]:
    return _per_call(np.array([n for n, _ in pairs], np.int64), calls)


def _per_call(in_call: Ns, calls: int) -> tuple[int, ...]:
    return _ints(np.bincount(in_call, minlength=calls))


def _ints(values: NDArray[Any]) -> tuple[int, ...]:
    return tuple(values.tolist())


# --- span ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpanRun:
    """Spans of a call, one per repeat; empty, with the reason, where there is none.

    Attributes:
        span_ns: device time from the end of the spin to the end of the call's work.
        spin_ns: the spin as measured, median.
        reason: why there is no span, in one line.
    """

    span_ns: tuple[int, ...] = ()
    spin_ns: int | None = None
    reason: str | None = None

    @property
    def median_ns(self) -> float | None:
        """The median span, None where there is none."""
        return median(self.span_ns) if self.span_ns else None


@dataclass(frozen=True, slots=True)
class _Once:
    covered: bool
    span_ns: int
    spin_ns: int
    host_ns: int


def calibrate(device: Device) -> float:
    """Return cycles per nanosecond of the spin kernel, from events around two lengths of it.

    The difference of two lengths leaves out what launching and the events cost.

    Raises:
        ValueError: a longer spin took no longer; its kernel does not count time here.
    """
    short, long = CALIBRATION_CYCLES
    rates = []
    _spin_ns(device, long)  # clocks rise on the first work after idling
    for _ in range(3):
        took = _spin_ns(device, long) - _spin_ns(device, short)
        if took <= 0:
            raise ValueError("a longer spin kernel took no longer; it cannot be timed here")
        rates.append((long - short) / took)
    return median(rates)


def measure_span(
    call: Callable[[], Any],
    device: Device,
    *,
    repeats: int = 10,
    host_ns: int,
    enqueued: int | None = None,
    max_spin_ns: int = MAX_SPIN_NS,
    clock: Clock = REAL,
) -> SpanRun:
    """Measure the span of a call by backlog.

    Args:
        call: what is measured; warm; its work must be ordered behind the current stream.
        device: what it runs on.
        repeats: spans wanted.
        host_ns: how long the host takes over the call until it returns.
        enqueued: entries of the launch queue a call takes; None if not known.
        max_spin_ns: the longest spin tried.
        clock: to read time from.

    Returns:
        All spans, or the reason why there are none: never some of them.
    """
    if enqueued is not None and enqueued > QUEUE_LIMIT:
        return SpanRun(reason=f"a call takes {enqueued} of about 1,000 places in the launch queue")
    try:
        cycles_per_ns = calibrate(device)
    except ValueError as error:
        return SpanRun(reason=str(error))
    spin_ns = max(MIN_SPIN_NS, SPIN_FACTOR * host_ns)
    before: _Once | None = None
    while spin_ns <= max_spin_ns:
        cycles = round(spin_ns * cycles_per_ns)
        runs = _repeat(call, device, cycles, repeats, clock)
        if all(run.covered for run in runs):
            return SpanRun(
                span_ns=tuple(run.span_ns for run in runs),
                spin_ns=round(median(run.spin_ns for run in runs)),
            )
        now = runs[-1]
        if before and now.host_ns - before.host_ns >= WAITING_SHARE * (
            now.spin_ns - before.spin_ns
        ):
            return SpanRun(reason="the call waits for the device (a synchronise inside the model)")
        before = now
        spin_ns *= SPIN_FACTOR
    longest = max_spin_ns / 1e6
    return SpanRun(reason=f"the host needs longer to enqueue the call than a {longest:g} ms spin")


def _repeat(
    call: Callable[[], Any], device: Device, cycles: int, repeats: int, clock: Clock
) -> list[_Once]:
    """Measure up to ``repeats`` times; the first that is not covered is the last."""
    runs: list[_Once] = []
    while len(runs) < repeats and (not runs or runs[-1].covered):
        runs.append(_once(call, device, cycles, clock))
    return runs


def _once(call: Callable[[], Any], device: Device, cycles: int, clock: Clock) -> _Once:
    before, start, end = device.event(), device.event(), device.event()
    device.synchronize()
    before.record()
    device.spin(cycles)
    start.record()
    begin = clock.wall_ns()
    call()
    end.record()
    covered = not start.query()
    host_ns = clock.wall_ns() - begin
    device.synchronize()
    return _Once(covered, end.since_ns(start), start.since_ns(before), host_ns)


def _spin_ns(device: Device, cycles: int) -> int:
    start, end = device.event(), device.event()
    device.synchronize()
    start.record()
    device.spin(cycles)
    end.record()
    device.synchronize()
    return end.since_ns(start)


# --- clocks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clocks:
    """Device clocks as the driver reports them."""

    sm_mhz: int
    memory_mhz: int


def smi_name(device: str) -> str:
    """Return nvidia-smi's name for the device: its UUID; numbers differ where some are hidden."""
    import torch

    properties = torch.cuda.get_device_properties(torch.device(device))
    uuid = getattr(properties, "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else str(torch.device(device).index or 0)


def query_clocks(name: str) -> Clocks | None:
    """Ask nvidia-smi for the clocks of a device; None where it does not say."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "-i", name, "--query-gpu=clocks.sm,clocks.mem"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_clocks(done.stdout) if done.returncode == 0 else None


def parse_clocks(text: str) -> Clocks | None:
    """Read ``1980, 2619``; None for anything else, as ``[N/A]``."""
    fields = [field.strip() for field in text.strip().split(",")]
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        return None
    return Clocks(int(fields[0]), int(fields[1]))


def clock_notes(before: Clocks | None, after: Clocks | None) -> Notes:
    """Return notes on clocks that fell, or that could not be read."""
    if before is None or after is None:
        return [("clocks-unread", "device clocks could not be read; a drop would go unseen")]
    pairs = (("SM", before.sm_mhz, after.sm_mhz), ("memory", before.memory_mhz, after.memory_mhz))
    return [
        ("clocks-dropped", f"the {what} clock fell from {was} to {now} MHz; let the device cool")
        for what, was, now in pairs
        if now < (1 - CLOCK_DROP) * was
    ]


def _clocks_under_load(gpu: Device, clocks: Callable[[], Clocks | None]) -> Clocks | None:
    gpu.spin(BUSY_CYCLES)
    reading = clocks()
    gpu.synchronize()
    return reading
