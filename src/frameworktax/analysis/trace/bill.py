"""The bill of a trace: every nanosecond of a step's wall time on exactly one line.

At each moment, the first of these that holds:

    kernel       a kernel runs on some device, none of those that only communicate
    communication  only kernels run that exchange data with other devices, or wait for them
    copies       only copies or memsets run
    unknown      nothing recorded runs, but the device still has work from before the recording
    device_gap   every device is idle though a launched record has not begun: stream order,
                 events, launch latency
    else the host keeps the device waiting, and the line is what the thread that launches the next
    record (after the last one: the thread of the step) is doing, innermost call first:
    wait         it is in a synchronise
    startup     it allocates device memory, loads or compiles code, initialises the device: what a
                 process that is warm does not repeat
    data_loading  it is in a DataLoader, which gives the next batch or waits for a worker's
    launch       it is in another call of the device's runtime or driver
    framework    it is in an operator
    python       it is in a Python frame
    remainder    no rule could place it: nothing was recorded

Without a device the operators hold kernels and their dispatch alike: ``operators`` is the own time
of operators that compute (also any time of an operator on another thread, while that of the step
does nothing that was recorded), ``framework`` the own time of the others. Those are operators that
compute nothing (``METADATA``), and those of a name that spends most of its time in
operators inside it: they choose what computes. A compiled graph always computes.

Causes of idle time are sums of lines: dependency is ``device_gap``, synchronise is ``wait``, host
starvation is the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from frameworktax.traces import intervals
from frameworktax.traces.events import CATEGORIES, COPY_LAUNCHES, HOST_CALLS, Events
from frameworktax.traces.intervals import Index, Mask, Nesting, Ns, nest
from frameworktax.traces.timeline import LOADER, Timeline, groups, is_wait

LINES = (
    *("kernel", "communication", "copies", "operators", "framework", "python", "launch"),
    *("data_loading", "startup", "device_gap", "wait", "unknown", "remainder"),
)
"""In the order they are shown; they add up to the wall."""
STARVED = ("framework", "python", "launch", "data_loading", "startup", "remainder")
MEMORY = (
    *("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cuMemAlloc", "cuMemFree"),
    *("cuMemCreate", "cuMemMap", "cuMemAddressReserve", "cuMemSetAccess", "cuMemRelease"),
    *("hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree"),
)
"""Calls that take device memory from the driver or give it back; torch's allocator keeps it."""
LOADING = (
    *("cuModule", "cuLibrary", "cuLink", "cudaLibrary", "cudaModule", "nvrtc", "hipModuleLoad"),
    *("hiprtc",),
)
COMPILING = re.compile(
    r"torch/_dynamo/convert_frame\.py|torch/_inductor/compile_fx\.py|triton/compiler/compiler\.py"
    r"|dynamo_timed|torch/jit/_trace\.py.*: trace$"
)
"""Python frames and annotations of compilers."""
ANNOTATED = re.compile(f"^{re.escape(LOADER)}|{COMPILING.pattern}")
"""Annotations of what a thread does. Others are names for what its calls do; those of steps end and
begin inside the call of ``profiler.step``."""
LONG_NS = 10_000_000
"""Any other call of the runtime that takes this long while the device is idle initialises or loads
something: launches take microseconds."""
_COMPUTING_NOTHING = (
    "alias as_strided as_strided_ broadcast_to chunk conj contiguous detach detach_ diagonal "
    "empty empty_like empty_strided expand expand_as flatten lift_fresh movedim narrow permute "
    "ravel real reshape resize_ resolve_conj resolve_neg result_type select set_ slice split "
    "split_with_sizes squeeze squeeze_ swapaxes t t_ tensor_split to _to_copy transpose "
    "transpose_ unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze unsqueeze_ view "
    "view_as _reshape_alias _unsafe_view new_empty numpy_T"
)
METADATA = frozenset(f"aten::{name}" for name in _COMPUTING_NOTHING.split()) | {
    "TorchDynamo Cache Lookup",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper Prologue",
}
"""Operators that compute nothing: views, memory without content, and what a compiled function does
before its graph. What a copy inside them takes is that copy's own time."""
COMPILED = "## Call CompiledFxGraph "
"""What the call of a graph that Inductor compiled begins with: its own time are fused loops, of
which there is no record on a CPU, and their wrapper."""
SLOWED_BY_OPERATORS = 2.0
SLOWED_BY_FRAMES = 4.0
"""How much slower the host may be while operators, or Python frames, are recorded: pytorch#82793
has 1.7; small models on a CPU gave 1.2 to 3 and 1.8 to 4.7."""
OPERATOR = CATEGORIES.index("cpu_op")
FRAME = CATEGORIES.index("python_function")
ANNOTATION = CATEGORIES.index("user_annotation")
OPENERS = 16
"""Calls before an annotation of which some open it, as ``__enter__`` of a ``record_function``."""
CALLS = tuple(CATEGORIES.index(c) for c in HOST_CALLS)
NONE = np.zeros(0, np.int64)
NOTHING = nest(NONE, NONE)
_LINE = {name: i for i, name in enumerate(LINES)}


@dataclass(frozen=True)
class Thread:
    """The events of one host thread and how they lie inside each other.

    ``slow`` marks calls of the runtime that took long while every device was idle.
    """

    events: Events
    nesting: Nesting
    slow: Mask

    @cached_property
    def operator(self) -> Index:
        """Return, per event, the outermost operator at or around it, -1 for none."""
        return self.nesting.nearest(self.events.category == OPERATOR, outermost=True)

    @cached_property
    def frame(self) -> Index:
        """Return, per event, the innermost line of Python at or around it, -1 for none."""
        builtin = self.events.named("<built-in", "nn.Module: ")
        return self.nesting.nearest((self.events.category == FRAME) & ~builtin)

    @cached_property
    def module(self) -> Index:
        """Return, per event, the innermost module at or around it, -1 for none."""
        return self.nesting.nearest(
            (self.events.category == FRAME) & self.events.named("nn.Module: ")
        )

    @cached_property
    def line(self) -> Ns:
        """Return, per event, the line of the bill that its own time belongs to on the host."""
        category = self.events.category
        line = np.full(len(category), _LINE["remainder"])
        line[category == OPERATOR] = _LINE["framework"]
        line[category == FRAME] = _LINE["python"]
        called = self.is_call
        line[called] = np.where(is_wait(self.events)[called], _LINE["wait"], _LINE["launch"])
        line[self.loading & (line != _LINE["wait"])] = _LINE["data_loading"]
        line[(self.startup >= 0) & (line != _LINE["wait"])] = _LINE["startup"]
        return line

    @cached_property
    def loading(self) -> Mask:
        """Return, per event, whether it is in a DataLoader, or is one."""
        return self.nesting.nearest(self.events.named(LOADER)) >= 0

    @cached_property
    def is_call(self) -> Mask:
        """Return, per event, whether it is a call of the device's runtime or driver."""
        return np.isin(self.events.category, CALLS)

    @cached_property
    def startup(self) -> Index:
        """Return, per event, the outermost start-up call at or around it, -1 for none."""
        events = self.events
        named = self.is_call & events.named(*MEMORY, *LOADING)
        compiling = ~self.is_call & events.matching(COMPILING)
        return self.nesting.nearest(named | self.slow | compiling, outermost=True)

    @cached_property
    def own_ns(self) -> Ns:
        """Return, per event, its length without the events directly inside it."""
        length = self.nesting.end_ns - self.nesting.start_ns
        inside = np.zeros(len(length) + 1, np.int64)
        np.add.at(inside, self.nesting.parent, length)  # -1, no parent: the spare last entry
        return length - inside[:-1]


@dataclass(frozen=True)
class Charged:
    """Time on the host, in pieces, each charged to an event of a thread (-1: to none) and a line.

    ``step`` is the number of the step; ``thread`` the number of the thread.
    """

    step: Ns
    thread: Ns
    event: Ns
    line: Ns
    start_ns: Ns
    end_ns: Ns

    @cached_property
    def ns(self) -> Ns:
        """Return the length of each piece."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Bill:
    """``table`` is ns by step and line of ``LINES``; ``charged`` the host's part in detail."""

    table: Ns
    charged: Charged
    threads: dict[int, Thread]


def bill(timeline: Timeline) -> Bill:
    """Charge every nanosecond of every step to one line."""
    windows, work = timeline.windows, timeline.work
    begin, end = windows.begin_ns, windows.end_ns
    table = np.zeros((len(begin), len(LINES)), np.int64)
    threads = _threads(timeline)
    if len(work):
        step, free_s, free_e = _idle_for_the_host(timeline, table)
        charged = _charge(timeline, threads, step, free_s, free_e)
    else:
        charged = _charge(timeline, threads, np.arange(len(begin)), begin, end)
        computes = computing(threads, timeline.trace.events.names)
        for number, thread in threads.items():  # own time of those that compute is ``operators``
            mine = np.flatnonzero((charged.thread == number) & (charged.line == _LINE["framework"]))
            name = thread.events.name[charged.event[mine]]
            charged.line[mine[computes[name]]] = _LINE["operators"]
    np.add.at(table, (charged.step, charged.line), charged.ns)
    if not len(work):
        _find_elsewhere(table, charged, threads)
    return Bill(table, charged, threads)


def _idle_for_the_host(timeline: Timeline, table: Ns) -> tuple[Ns, Ns, Ns]:
    """Fill in a device's lines, and return (step, start, end) of the time that the host decides."""
    windows, work = timeline.windows, timeline.work
    begin, end = windows.begin_ns, windows.end_ns
    math, kernels = timeline.is_kernel & ~timeline.communicates, timeline.is_kernel
    table[:, _LINE["kernel"]], ran = (
        intervals.union_within_ns(work.start_ns[chosen], work.end_ns[chosen], begin, end)
        for chosen in (math, kernels)
    )
    table[:, _LINE["communication"]] = ran - table[:, _LINE["kernel"]]
    busy_s, busy_e = intervals.merge(work.start_ns, work.end_ns)
    busy = intervals.union_within_ns(busy_s, busy_e, begin, end)
    table[:, _LINE["copies"]] = busy - ran
    idle = intervals.gaps(busy_s, busy_e, window=(int(begin[0]), int(end[-1])))
    step, _, idle_s, idle_e = intervals.overlaps(begin, end, *idle)
    until = timeline.backlog_until_ns  # devices had work from before the recording
    before = until is not None and until > begin[0]
    unseen: tuple[Ns, Ns] = (begin[:1], np.array([until])) if before else (NONE, NONE)
    hidden = intervals.union_within_ns(*unseen, idle_s, idle_e)
    np.add.at(table[:, _LINE["unknown"]], step, hidden)
    known_s, known_e = _without(idle_s, idle_e, *unseen)
    launched = timeline.call >= 0
    start, begun = timeline.launch_end_ns[launched], work.start_ns[launched]
    late = begun > start
    queued = intervals.merge(start[late], begun[late])  # launched, and not begun
    gap = intervals.union_within_ns(*queued, known_s, known_e)
    np.add.at(table[:, _LINE["device_gap"]], windows.of(known_s), gap)
    free_s, free_e = _without(known_s, known_e, *queued)
    return windows.of(free_s), free_s, free_e


def _threads(timeline: Timeline) -> dict[int, Thread]:
    """Return the calls of each host thread; annotations say what it does only in ``ANNOTATED``."""
    events, found = timeline.trace.events, {}
    said = (events.category == ANNOTATION) & events.matching(ANNOTATED)
    on_host = np.flatnonzero(np.isin(events.category, [OPERATOR, FRAME, *CALLS]) | said)
    for number, rows in groups(events.thread[on_host]):
        own = _opened(events.where(on_host[rows]))
        found[number] = Thread(own, nest(own.start_ns, own.end_ns), _slow(own, timeline.work))
    return found


def _opened(events: Events) -> Events:
    """Return a thread's events, annotations beginning when the call that opens them has returned.

    They begin inside it, so that they would end with it.
    """
    by = np.argsort(events.start_ns, kind="stable")
    begun, start = events.start_ns[by], events.start_ns.copy()
    for i in np.flatnonzero(events.category == ANNOTATION).tolist():
        at = int(np.searchsorted(begun, start[i], side="right"))
        ends = events.end_ns[by[max(at - OPENERS, 0) : at]]
        crossing = (ends > start[i]) & (ends < events.end_ns[i])
        start[i] = ends[crossing].max(initial=start[i])
    return replace(events, start_ns=start)


def _slow(events: Events, work: Events) -> Mask:
    """Return which calls took long though the device was idle: neither a wait nor a full queue."""
    length = events.end_ns - events.start_ns
    slow = np.isin(events.category, CALLS) & (length >= LONG_NS) & ~is_wait(events)
    slow &= ~events.named(*COPY_LAUNCHES)  # a copy from or to pageable memory blocks the host
    busy = intervals.union_within_ns(
        work.start_ns, work.end_ns, events.start_ns[slow], events.end_ns[slow]
    )
    slow[slow] = busy < length[slow] / 2
    return slow


def _without(s: Ns, e: Ns, other_s: Ns, other_e: Ns) -> tuple[Ns, Ns]:
    """Return the parts of disjoint ascending intervals outside others, themselves disjoint."""
    if not len(s):
        return s, e
    open_s, open_e = intervals.gaps(other_s, other_e, window=(int(s[0]), int(e[-1])))
    _, _, left, right = intervals.overlaps(s, e, open_s, open_e)
    return left, right


def _charge(
    timeline: Timeline, threads: dict[int, Thread], step: Ns, start: Ns, end: Ns
) -> Charged:
    """Charge host time to what the responsible thread was doing."""
    who = _responsible(timeline, threads, step, end)
    parts: list[tuple[Index, ...]] = []
    for number in np.unique(who).tolist():
        chosen = who == number
        s, e = start[chosen], end[chosen]
        nesting = threads[number].nesting if number in threads else NOTHING
        begun, ended, innermost = nesting.stretches()
        mine, theirs, left, right = intervals.overlaps(s, e, begun, ended)
        owner = innermost[theirs]
        line = np.full(len(mine), _LINE["remainder"])
        if (known := owner >= 0).any():
            line[known] = threads[number].line[owner[known]]
        parts.append((step[chosen][mine], np.full(len(mine), number), owner, line, left, right))
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)] if parts else [NONE] * 6
    return Charged(*columns)


def _responsible(timeline: Timeline, threads: dict[int, Thread], step: Ns, end: Ns) -> Ns:
    """Return, per idle stretch, the thread that launches the next record, else the step's own."""
    work, windows = timeline.work, timeline.windows
    busiest = max(threads, key=lambda n: len(threads[n].events), default=-1)
    own = np.where(windows.thread >= 0, windows.thread, busiest)[step]
    launched = timeline.call >= 0
    if not launched.any():
        return own
    begins = work.start_ns[launched]
    thread = timeline.calls.thread[timeline.call[launched]]
    next_one = np.searchsorted(begins, end, side="left")
    known = next_one < len(begins)
    at = np.minimum(next_one, len(begins) - 1)
    known &= begins[at] < windows.end_ns[step]
    return np.where(known, thread[at], own)


def computing(threads: dict[int, Thread], names: Sequence[str]) -> Mask:
    """Return, by number of its name, whether an operator computes in its own time."""
    own, length = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    for thread in threads.values():
        chosen = thread.events.category == OPERATOR
        name, nesting = thread.events.name[chosen], thread.nesting
        np.add.at(own, name, thread.own_ns[chosen])
        start, end = nesting.start_ns[chosen], nesting.end_ns[chosen]
        for number, at in groups(name):  # once where it calls its own name, as aten::sort does
            length[number] += intervals.union_ns(start[at], end[at])
    metadata = np.array([name in METADATA for name in names], bool)
    compiled = np.array([name.startswith(COMPILED) for name in names], bool)
    return np.asarray((2 * own >= length) & ~metadata | compiled)


def _find_elsewhere(table: Ns, charged: Charged, threads: dict[int, Thread]) -> None:
    """Move time in which only another thread was in an operator to that line: a pool's thread."""
    bare = np.flatnonzero(charged.line == _LINE["remainder"])
    bare = bare[np.argsort(charged.start_ns[bare], kind="stable")]
    every = [t.events.where(t.events.category == OPERATOR) for t in threads.values()]
    if not every:
        return
    starts = np.concatenate([e.start_ns for e in every])
    ends = np.concatenate([e.end_ns for e in every])
    mine, _, left, right = intervals.overlaps(
        charged.start_ns[bare], charged.end_ns[bare], *intervals.merge(starts, ends)
    )
    step = charged.step[bare][mine]
    np.add.at(table[:, _LINE["operators"]], step, right - left)
    np.subtract.at(table[:, _LINE["remainder"]], step, right - left)


def slowed(timeline: Timeline) -> float:
    """Return how much slower the profiler may have made the host, at most."""
    category = timeline.trace.events.category
    if (category == FRAME).any():
        return SLOWED_BY_FRAMES
    return SLOWED_BY_OPERATORS if (category == OPERATOR).any() else 1.0
