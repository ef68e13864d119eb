"""Kernel time of a call from a profile of the device, and how full its kernels make it.

Calls are separated on the device itself: a marker kernel, with a synchronise on either side, lies
between two calls. No host clock is compared with the device's (they are skewed: kineto#1380).

Records get lost: the profiler garbles the first kernel records of a session, one more with each
session of the process (pytorch#192021; CUPTI mended it in 13.1), and cuts off what its clock puts
outside the session. So a session begins with markers and calls that do not count and ends with one
more call; and each launch inside a call must have its record inside the same call, or the call is
flagged. Before them the device spins: while CUPTI starts, an idle device lowers its clocks.

**Launches are found by correlation**: CUDA 13 renames them, and Kineto before May 2026 writes
``INVALID`` for runtime calls newer than CUDA 12.2. A host call that a kernel record of the same
call points to is a launch. One without a record is a lost launch if its name says so, or if the
call in the same place of another call launched. Not lost are a memset of no bytes, which cuBLAS
asks for before many products, and a graph whose kernels point elsewhere, as CUPTI before 13.1
update 1 has it in every session of a process but the first.

How full a kernel makes the device (the paper's table 3) follows from its launch: *SM activity* is
the share of the multiprocessors that get a block, *warp occupancy* resident warps over the most
that fit. Weighted with the time of each kernel and divided by the latency of the call they are what
DCGM calls ``SM_ACTIVE`` and ``SM_OCCUPANCY``. They are upper ends: the last wave of blocks, and
blocks that finish early, leave multiprocessors idle that a counter would see.

Source of the limits: ``cuda_occupancy.h`` of the CUDA toolkit and the table of compute capabilities
in the CUDA programming guide. Kineto's "est. achieved occupancy %" is the same estimate, except
that it gives 0 to a kernel that asked for more shared memory than the default limit of a block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frameworktax.attribution.torch_device import MARKER, TorchDevice
from frameworktax.clock import REAL, Clock
from frameworktax.errors import TraceError
from frameworktax.traces import intervals
from frameworktax.traces.events import (
    CATEGORIES,
    COPY_LAUNCHES,
    GRAPH_LAUNCHES,
    HOST_CALLS,
    KERNEL,
    KERNEL_LAUNCHES,
    MEMSET_LAUNCHES,
    Events,
    Trace,
)
from frameworktax.traces.intervals import LIMIT, Mask, Ns
from frameworktax.traces.timeline import find, is_wait, outermost_first

HEAD_MARKERS = 512
"""Kernels sacrificed at the start of a session: what is lost there grows with the time that the
process has idled."""
HEAD_CALLS = 2
"""Calls that do not count, so that the device is warm when the first that counts begins."""
HEAD_CYCLES = 200_000_000
"""Spun before all that: 0.1 s at 2 GHz, which is as long as a clock takes to rise."""
TO_PAGEABLE = "-> Pageable"
"""In the name of a copy to such memory: ``Memcpy DtoH (Device -> Pageable)``."""
NAME_SIGNS = 120
"""Of a kernel's name; a longer one ends in a check sum of the whole."""

Notes = list[tuple[str, str]]


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
        wait_ns: host time in synchronises, and in copies to pageable memory, between two launches
            of the call; likewise.
        sm_active_ns: kernel time × the share of multiprocessors that get a block, summed over
            kernels; empty where a kernel's launch, or the device, is not described.
        warp_ns: kernel time × warp occupancy, summed over kernels; likewise.
        kernel_names: kernel's name → records in the first call.
        lost: launches in all calls whose record is missing.
    """

    wall_ns: tuple[int, ...] = ()
    kernel_ns: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()
    launches: tuple[int, ...] = ()
    enqueued: tuple[int, ...] = ()
    wait_ns: tuple[int, ...] = ()
    sm_active_ns: tuple[int, ...] = ()
    warp_ns: tuple[int, ...] = ()
    kernel_names: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    notes: Notes = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Warm:
    """A warm call on a device.

    Attributes:
        call: what is measured; its work must be ordered behind torch's current stream.
        synchronize: waits for its outputs, as in timing.
        device: what it runs on.
        clock: to read time from.
    """

    call: Callable[[], Any]
    synchronize: Callable[[], None]
    device: TorchDevice
    clock: Clock = REAL

    def run(self) -> tuple[int, int]:
        """Make a call and wait for its outputs; return its begin and end, ns."""
        begin = self.clock.wall_ns()
        self.call()
        self.synchronize()
        return begin, self.clock.wall_ns()


def profile_device(warm: Warm, calls: int = 10) -> DeviceRun:
    """Profile ``calls`` calls, and three more that do not count, and return what each did.

    Raises:
        TraceError: the profile holds no device activity, or calls cannot be separated in it.
    """
    calling = Calling(warm, calls)
    trace = warm.device.profile(calling)
    markers, work, in_call = separated(trace, calls, warm.device.index)
    # The border is the marker's interval: what starts after one and before the next is the call's.
    lows, highs = markers.end_ns[:-1], markers.start_ns[1:]
    counted = in_call >= 0
    is_kernel = work.category == CATEGORIES.index(KERNEL)
    everywhere = trace.device()
    full = _fullness(trace, work.where(counted & is_kernel), in_call[counted & is_kernel], calls)
    named = work.where(is_kernel & (in_call == 0))
    run = DeviceRun(
        wall_ns=calling.walls_ns(),
        kernel_ns=_ints(intervals.union_within_ns(work.start_ns, work.end_ns, lows, highs)),
        kernels=_per_call(in_call[counted & is_kernel], calls),
        copies=_per_call(in_call[counted & ~is_kernel], calls),
        sm_active_ns=full[0],
        warp_ns=full[1],
        kernel_names=dict(Counter(short_name(named.name_of(i)) for i in range(len(named)))),
        **_host_calls(trace, markers, everywhere),
    )
    crossing = int(
        (work.end_ns[counted] > highs[in_call[counted]]).sum()
        + (work.start_ns[counted] < lows[in_call[counted]]).sum()
    )
    elsewhere = int((everywhere.device != warm.device.index).sum())
    run.notes.extend(_notes(run, trace, crossing, elsewhere))
    return run


def short_name(name: str) -> str:
    """Return a kernel's name, a long one cut, with a check sum that keeps it apart from others."""
    if len(name) <= NAME_SIGNS:
        return name
    return f"{name[:NAME_SIGNS]}#{zlib.crc32(name.encode()):08x}"


@dataclass(slots=True)
class Calling:
    """The calls of a profiled session, with markers around those that count.

    Attributes:
        spans: begin and end of each call that counts.
        marks: readings of the clock just before and after the launch of each marker that borders
            one, one more than there are calls.
    """

    warm: Warm
    calls: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self) -> None:
        """Make them; the first markers and calls are what a profiler may lose."""
        warm = self.warm
        warm.device.spin(HEAD_CYCLES)
        for _ in range(HEAD_MARKERS):
            warm.device.marker()
        for _ in range(HEAD_CALLS):
            warm.run()
        for _ in range(self.calls):
            self._mark()
            self.spans.append(warm.run())
        self._mark()
        warm.run()
        warm.device.synchronize()

    def walls_ns(self) -> tuple[int, ...]:
        """Return how long each took with its synchronise."""
        return tuple(end - begin for begin, end in self.spans)

    def _mark(self) -> None:
        device, now = self.warm.device, self.warm.clock.wall_ns
        device.synchronize()
        before = now()
        device.marker()
        self.marks.append((before, now()))
        device.synchronize()


def separated(trace: Trace, calls: int, device: int) -> tuple[Events, Events, Ns]:
    """Return the records of a device by call.

    Returns:
        The markers that are borders, one more than there are calls; everything else, by start; and
        of each of that its call, -1 outside of all.

    Raises:
        TraceError: the markers are not there, or more of them than were launched.
    """
    records = trace.device(device)
    records = records.where(np.argsort(records.start_ns, kind="stable"))
    is_marker = records.containing(MARKER)
    markers, work = records.where(is_marker), records.where(~is_marker)
    expected = HEAD_MARKERS + calls + 1
    if not len(records):
        raise TraceError("the profile holds no device activity; is CUPTI in use by another tool?")
    if len(markers) > expected:
        raise TraceError("the model itself runs the kernel that marks the borders between calls")
    if len(markers) < calls + 1:
        raise TraceError(f"{expected - len(markers)} marker records were lost; profile again")
    markers = markers.where(np.arange(len(markers))[-calls - 1 :])
    return markers, work, _place(work.start_ns, markers.start_ns)


# --- the host's calls ----------------------------------------------------------------------------


def _host_calls(trace: Trace, markers: Events, records: Events) -> dict[str, Any]:
    """Return what the host did in each call, by its clock: between the launches of two markers.

    Fields of ``DeviceRun``; none where the launch of a marker is not in the profile.
    """
    host = trace.events.of(*HOST_CALLS)
    host = host.where(outermost_first(host))
    rows = find(host.correlation, markers.correlation)
    if (rows < 0).any():
        return {}
    borders = host.start_ns[rows]
    calls = len(borders) - 1
    host = host.where(~np.isin(host.correlation, markers.correlation))
    host = host.where(np.argsort(host.start_ns, kind="stable"))
    in_call = _place(host.start_ns, borders)
    host, in_call = host.where(in_call >= 0), in_call[in_call >= 0]
    waits = is_wait(host)
    recorded = (host.correlation > 0) & ~waits
    records = records.where(~records.containing(MARKER))
    # Such a copy returns when it is done; the synchronise behind it has nothing left to wait for.
    blocking = records.correlation[records.containing(TO_PAGEABLE)]
    holding = waits | np.isin(host.correlation, blocking[blocking > 0])
    is_kernel = records.category == CATEGORIES.index(KERNEL)
    of_call = _place(records.start_ns, markers.start_ns)
    # A correlation of a call as one number; a runtime's and its driver's are the same.
    every = np.unique(np.append(host.correlation, records.correlation))
    pair = in_call * len(every) + np.searchsorted(every, host.correlation)
    there = of_call * len(every) + np.searchsorted(every, records.correlation)
    kernels, count = np.unique(there[is_kernel], return_counts=True)
    ran = recorded & np.isin(pair, kernels)
    copied = recorded & np.isin(host.correlation, records.correlation[~is_kernel])
    is_graph = host.launching(*GRAPH_LAUNCHES)
    says_launch = host.launching(*KERNEL_LAUNCHES) | is_graph
    says_copy = host.launching(*COPY_LAUNCHES, *MEMSET_LAUNCHES)
    missed = _missed(host, in_call, ~says_launch & ~says_copy & ~waits, ran, calls)
    is_copy = (copied | _missed(host, in_call, says_copy, copied, calls)) & ~ran
    numbered = host.correlation >= 0
    launches, copies, graphs = (
        np.unique(pair[chosen & numbered])
        for chosen in (ran | says_launch | missed, is_copy, is_graph)
    )
    # Kernels that point to no launch, or to one that launches a single kernel.
    strays = kernels[~np.isin(kernels, graphs) & ((count > 1) | ~np.isin(kernels, launches))]
    lost = np.setdiff1d(launches, there)
    lost = lost[~(np.isin(lost, graphs) & np.isin(lost // len(every), strays // len(every)))]
    queued, at = host.start_ns[ran | copied], in_call[ran | copied]
    first, last = np.full(calls, LIMIT), np.full(calls, -1)
    np.minimum.at(first, at, queued)
    np.maximum.at(last, at, queued)
    inside = holding & (host.start_ns > first[in_call]) & (host.start_ns < last[in_call])
    waited = intervals.union_within_ns(
        host.start_ns[inside], host.end_ns[inside], borders[:-1], borders[1:]
    )
    return {
        "launches": _per_call(launches // len(every), calls),
        "enqueued": _per_call(np.union1d(launches, copies) // len(every), calls),
        "lost": len(lost),
        "wait_ns": _ints(waited),
    }


def _missed(host: Events, in_call: Ns, chosen: Mask, found: Mask, calls: int) -> Mask:
    """Return which of the chosen calls left no record, although the same call elsewhere did.

    Calls of the model are the same work: the n-th host call of a name in one of them does what the
    n-th does in another. Nothing is concluded where their numbers differ.
    """
    missed = np.zeros(len(host), bool)
    for name in np.unique(host.name[chosen & found]).tolist():
        rows = np.flatnonzero(chosen & (host.name == name))
        counts = np.bincount(in_call[rows], minlength=calls)
        if len(set(counts.tolist())) == 1:
            places = rows.reshape(calls, -1)
            missed[places[:, found[places].any(axis=0)]] = True
    return missed & ~found


def _notes(run: DeviceRun, trace: Trace, crossing: int, elsewhere: int) -> Notes:
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
    if crossing:
        text = f"{crossing} kernels ran across the border between calls; only parts were counted"
        notes.append(("kernels-cross-calls", text))
    if elsewhere:
        text = f"{elsewhere} records are of other devices and were not counted"
        notes.append(("other-devices", text))
    if trace.invalid:
        text = f"{trace.invalid} records have impossible times and were not counted"
        notes.append(("records-invalid", text))
    return notes


# --- how full the device is -----------------------------------------------------------------------


def _fullness(
    trace: Trace, kernels: Events, in_call: Ns, calls: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, per call, SM activity and warp occupancy times kernel time, ns; empty if unknown.

    Kernels of several streams that overlap are added up: together they fill more of the device.
    """
    devices = {int(d): limits_of(trace.properties.get(int(d), {})) for d in set(kernels.device)}
    places = (kernels.start_ns.tolist(), kernels.device.tolist(), kernels.stream.tolist())
    shares: list[tuple[float, float]] = []
    known: dict[Any, tuple[float, float]] = {}  # kernels are many, and launched in few ways
    for place in zip(*places, strict=True):
        shape, limits = trace.shapes.get(place), devices[place[1]]
        if shape is None or limits is None:
            return (), ()
        if (shape, limits) not in known:
            launch = Launch(*shape)
            known[shape, limits] = sm_activity(launch, limits), warp_occupancy(launch, limits)
        shares.append(known[shape, limits])
    took = kernels.end_ns - kernels.start_ns
    sums = np.zeros((calls, 2))
    np.add.at(sums, in_call, took[:, None] * np.array(shares).reshape(-1, 2))
    active, warps = np.rint(sums).astype(np.int64).T
    return _ints(active), _ints(warps)


# --- arithmetic -----------------------------------------------------------------------------------


def _place(times: Ns, borders: Ns) -> Ns:
    """Return which stretch between two borders each time falls in; -1 before or after all."""
    return intervals.owners(borders[:-1], borders[1:], times)


def _per_call(in_call: Ns, calls: int) -> tuple[int, ...]:
    return _ints(np.bincount(in_call, minlength=calls))


def _ints(values: NDArray[Any]) -> tuple[int, ...]:
    return tuple(values.tolist())


# --- how full a kernel makes the device, from its launch ------------------------------------------

WARP = 32
"""Threads; 64 on some AMD devices, whose limits are not known here."""
SIDES = 4
"""Parts of a multiprocessor, each with its share of the registers."""
REGISTERS_AT_ONCE = 256
"""Registers are given to warps in such portions."""
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""Blocks of a multiprocessor at most, by compute capability; 32 on the others from 5.0 on."""


class Limits(NamedTuple):
    """What a multiprocessor holds at once; a NamedTuple because a profile has one a device."""

    multiprocessors: int
    threads: int
    registers: int
    shared_bytes: int
    capability: tuple[int, int]


class Launch(NamedTuple):
    """How one kernel was launched; ``registers`` are those of a thread."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int


def limits_of(properties: Mapping[str, Any]) -> Limits | None:
    """Return the limits from an entry of a trace's ``deviceProperties``; None if it lacks some."""
    names = (
        "numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor", "computeMajor", "computeMinor",
    )  # fmt: skip
    found = [properties.get(name) for name in names]
    numbers = [value for value in found if isinstance(value, int)]
    if len(numbers) < len(found) or numbers[0] < 1 or properties.get("warpSize", WARP) != WARP:
        return None
    multiprocessors, threads, registers, shared_bytes, major, minor = numbers
    return Limits(multiprocessors, threads, registers, shared_bytes, (major, minor))


def blocks_at_once(launch: Launch, limits: Limits) -> int:
    """Return how many blocks of a kernel a multiprocessor holds at once; 0 if not even one."""
    warps = -(-launch.threads // WARP)
    found = [BLOCKS.get(limits.capability, 32), limits.threads // WARP // warps]
    if launch.registers:
        each = _up(launch.registers * WARP, REGISTERS_AT_ONCE)
        found.append(SIDES * (limits.registers // SIDES // each) // warps)
    # From compute capability 8.0 on a block takes 1 KiB more than it asks for.
    modern = limits.capability >= (8, 0)
    shared = launch.shared_bytes + (1024 if modern else 0)
    if shared:
        found.append(limits.shared_bytes // _up(shared, 128 if modern else 256))
    return min(found)


def sm_activity(launch: Launch, limits: Limits) -> float:
    """Return the share of the multiprocessors that get a block of the kernel."""
    return min(1.0, launch.blocks / limits.multiprocessors)  # further blocks wait their turn


def warp_occupancy(launch: Launch, limits: Limits) -> float:
    """Return the kernel's resident threads over the most that the device holds."""
    resident = min(launch.blocks / limits.multiprocessors, blocks_at_once(launch, limits))
    return resident * launch.threads / limits.threads


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
