"""A recorded timeline put in order: records of the device with their launches, and the steps.

Every reader of traces ends here, whatever the profiler was, and everything that judges a trace
begins here. A record belongs to the step that launched it; only one without a launch is placed by
its own time. Exact duplicates count once. A device whose stamps lie before their launches
(kineto#1380) is shifted by the least that puts none before its launch.

Steps are the marks that the user asks for, else the profiler's own, else marks named ``step 3``,
else the annotation that repeats and launches most.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from frameworktax.errors import UsageError
from frameworktax.traces.events import (
    CATEGORIES,
    COPY,
    GRAPH_LAUNCHES,
    HOST_CALLS,
    KERNEL,
    KERNEL_LAUNCHES,
    STEP,
    Events,
    Trace,
)
from frameworktax.traces.intervals import LIMIT, Mask, Ns, merge, owners, union_within_ns

WHOLE = "whole trace"
LOADER = "enumerate(DataLoader)"
"""What torch's annotation of the next batch begins with."""
STEP_NAME = re.compile(r"^(?:step|iter|iteration)[\W_]{0,2}\d+\b", re.IGNORECASE)
"""``step 3``, ``iteration 12``"""
WARM_UP = re.compile(r"warm[\W_]?up", re.IGNORECASE)
AUTOMATIC = re.compile(
    r"^(?:enumerate\(DataLoader\)|Optimizer\.|nccl:|gloo:|## Call CompiledFxGraph)|compile_id="
)
"""Annotations that torch makes by itself; they repeat, and none is a step."""
COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|ep::(?:inter|intra)node|cross_device_reduce|multimem_|all_?gather"
    r"|reduce_?scatter|all_?to_?all|(?<!warp)(?<!block)all_?reduce",
    re.IGNORECASE,
)
"""Kernels that exchange data with other devices; how long one takes includes waiting for them."""
ACROSS = re.compile(r"HtoD|DtoH|PtoP|HostToDevice|DeviceToHost|M2D|D2M")
"""Copies that leave the device, by the names of CUDA, ROCm and XPU."""
NO_LAUNCH = re.compile(
    r"synchronize|event|iscapturing|attribute|occupancy|malloc|memalloc|hostalloc|free|query"
    r"|propert|instantiate",
    re.IGNORECASE,
)
"""Calls that launch nothing, whatever points to them: CUPTI before 13.1 update 1 gives kernels of a
graph wrong numbers in every session of a process but the first."""
LISTED = 8
"""Annotations that an error or a note names."""
BACKLOG_NS = 100_000
BACKLOG_TIMES = 10
"""A record whose start nothing recorded explains for longer than both, the second in units of the
trace's usual launch latency, found a queue that was not empty when the recording began."""
PREPARED_NS = 10_000_000
"""A copy from or to pageable memory may take this long before the device begins with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Steps in order, none overlapping another.

    Attributes:
        names: as the trace has them.
        begin_ns: on the host.
        end_ns: on the host.
        thread: that holds the mark; -1 where no step is marked.
        device_ns: length of the same step as the device saw it; -1 where it was not recorded.
        marked: the trace has step marks; else the one window is the whole trace.
        overlapping: marks left out because they overlap another.
        others: annotations that repeat and were not taken as steps, with how often.
    """

    names: tuple[str, ...]
    begin_ns: Ns
    end_ns: Ns
    thread: Ns
    device_ns: Ns
    marked: bool = False
    overlapping: int = 0
    others: Mapping[str, int] = field(default_factory=dict)

    def of(self, times: Ns) -> Ns:
        """Return in which window each moment lies, -1 for none."""
        return owners(self.begin_ns, self.end_ns, times)


def _marks(trace: Trace, launched_ns: Ns, asked: re.Pattern[str] | None) -> Events:
    """Return the marks of steps, none where the trace has no such thing.

    Raises:
        UsageError: nothing matches what was asked for.
    """
    marks = trace.events.of("user_annotation")
    if asked is not None:
        for found in (marks, trace.events.of("cpu_op")):
            matching = found.where(found.matching(asked))
            if len(matching):
                return matching
        raise UsageError(
            f"--step {asked.pattern!r} matches no annotation of the trace; it has "
            + (", ".join(_counted(marks)) or "none")
        )
    own = marks.named(STEP)
    if own.any():
        return marks.where(own)
    numbered = marks.where(marks.matching(STEP_NAME))
    return numbered if len(numbered) else _repeated(marks, launched_ns, trace.resolution_ns)


def _counted(marks: Events) -> dict[str, int]:
    """Return the commonest kinds of marks, with how often each is."""
    counts = Counter({kind: len(own) for kind, own in _kinds(marks).items()})
    return dict(counts.most_common(LISTED))


def _kinds(marks: Events) -> dict[str, Events]:
    """Return marks by their name without its numbers."""
    rows: dict[str, list[Ns]] = defaultdict(list)
    for name, own in groups(marks.name):
        rows[_kind(marks.names[name])].append(own)
    return {kind: marks.where(np.sort(np.concatenate(own))) for kind, own in rows.items()}


def _kind(name: str) -> str:
    return re.sub(r"\d+", "N", name)


def _repeated(marks: Events, launched_ns: Ns, resolution_ns: int) -> Events:
    """Return the marks of one kind that repeats and launches the most records.

    Without a device, the one that takes the most time. Marks of a warm-up are taken only where no
    others repeat.
    """
    kinds, found = _kinds(marks), []
    for kind, chosen in kinds.items():
        if len(chosen) < 2 or AUTOMATIC.search(kind):
            continue
        own, _ = _apart(chosen, resolution_ns)
        first, last = (np.searchsorted(launched_ns, at) for at in (own.start_ns, own.end_ns))
        launches, length = int((last - first).sum()), int((own.end_ns - own.start_ns).sum())
        if not len(launched_ns) or launches:
            found.append((WARM_UP.search(kind) is None, launches, length, kind))
    return kinds[max(found)[-1]] if found else marks.where(np.zeros(len(marks), bool))


def _apart(marks: Events, resolution_ns: int) -> tuple[Events, int]:
    """Return marks in order of which none overlaps another, and how many are left out.

    One around another of its name is left out: it holds what the inner one does not measure.
    Else the first one counts, of two that begin together the longer. Begin and length are rounded
    apart: one that ends by no more than that after the next has begun ends there.
    """
    marks = marks.where(np.lexsort((-marks.end_ns, marks.start_ns)))
    around = np.zeros(len(marks), bool)
    for _, rows in groups(marks.name):
        around[rows[:-1]] = marks.end_ns[rows[:-1]] >= marks.end_ns[rows[1:]]
        around[rows[:-1]] &= marks.start_ns[rows[1:]] < marks.end_ns[rows[:-1]]
    inner = marks.where(~around)
    keep, reached = [], -LIMIT
    for i, (start, end) in enumerate(
        zip(inner.start_ns.tolist(), inner.end_ns.tolist(), strict=True)
    ):
        if start >= reached or (start >= reached - resolution_ns and end > reached):
            keep.append(i)
            reached = end
    kept = inner.where(np.array(keep, np.int64))
    ends = np.minimum(kept.end_ns, np.append(kept.start_ns[1:], LIMIT))
    return replace(kept, end_ns=ends), len(marks) - len(keep)


def windows(
    trace: Trace, work: Events, launched_ns: Ns, asked: re.Pattern[str] | None = None
) -> Windows:
    """Return the steps that are marked, or the whole trace as one.

    Args:
        trace: everything recorded.
        work: records of the devices, on the host's clock.
        launched_ns: when records were launched, ascending.
        asked: what the names of steps match; None chooses.

    Raises:
        UsageError: nothing matches what was asked for.
    """
    events = trace.events
    on_device = events.of("gpu_user_annotation")
    on_device = on_device.where(on_device.named(STEP))
    lengths = {  # each stream of a device has a mark of its own
        on_device.names[name]: int(on_device.end_ns[own].max() - on_device.start_ns[own].min())
        for name, own in groups(on_device.name)
    }
    marks = _marks(trace, launched_ns, asked)
    if not len(marks):
        begin = min(events.start_ns.min(), work.start_ns.min(initial=LIMIT))
        end = max(events.end_ns.max(), work.end_ns.max(initial=-LIMIT))
        unknown = np.array([-1])
        return Windows(
            names=(WHOLE,),
            begin_ns=np.array([begin]),
            end_ns=np.array([end]),
            thread=unknown,
            device_ns=unknown,
        )
    kept, overlapping = _apart(marks, trace.resolution_ns)
    names = tuple(kept.name_of(i) for i in range(len(kept)))
    own, often = set(map(_kind, names)), Counter(names)
    others = _counted(events.of("user_annotation"))
    return Windows(
        names=names,
        begin_ns=kept.start_ns,
        end_ns=kept.end_ns,
        thread=kept.thread,
        device_ns=np.array([lengths.get(n, -1) if often[n] == 1 else -1 for n in names], np.int64),
        marked=True,
        overlapping=overlapping,
        others={n: count for n, count in others.items() if n not in own and count > 1},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a trace, or several; a row is one record of the device, in launch order.

    Rows are ordered by ``launch_start_ns``, rows of one launch (the kernels of a graph) and rows
    without one by ``device_start_ns``. All times stand on one clock: a device whose stamps lie
    before their launches has been shifted.

    Attributes:
        name: as the trace has it, ``ProfilerStep#6``; ``whole trace`` where no step is marked.
        begin_ns: of the step on the host.
        end_ns: of the step on the host.
        launch_start_ns: of the host call that launched the record; -1 where the trace has none.
        launch_end_ns: likewise.
        device_start_ns: of the kernel, copy or memset on the device.
        device_end_ns: likewise.
        stream: on which it ran, -1 where unknown.
        device: on which it ran, -1 where unknown.
        is_kernel: a kernel; a copy or memset otherwise.
        waits_ns: when the host was in a synchronise, or in a copy that found the device busy and
            returned when it was done, begin and end, shape (waits, 2), in order.
        on_link: it communicates with other devices, or copies from or to the host.
        begins_ns: when each step in it begins: of several, and where earlier work comes first.
        loading_ns: when the host was in a DataLoader, as ``waits_ns``.
    """

    name: str
    begin_ns: int
    end_ns: int
    launch_start_ns: Ns
    launch_end_ns: Ns
    device_start_ns: Ns
    device_end_ns: Ns
    stream: Ns
    device: Ns
    is_kernel: Mask
    waits_ns: Ns
    on_link: Mask
    begins_ns: Ns
    loading_ns: Ns

    def __len__(self) -> int:
        return len(self.device_start_ns)

    @property
    def wall_ns(self) -> int:
        """Wall time of the step on the host."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A trace in order.

    Attributes:
        trace: everything recorded.
        work: records of the devices by start, on the host's clock, duplicates left out.
        call: per record, the host call that launched it, as an index into ``calls``; -1 for none.
        calls: host calls that launched something, one a correlation: the outermost.
        is_launch: per call, it launched a kernel or a graph.
        is_graph: per call, it launched a whole graph.
        windows: the steps.
        duplicates: records left out because they repeat another.
        shift_ns: per device, by how much its stamps were moved.
    """

    trace: Trace
    work: Events
    call: Ns
    calls: Events
    is_launch: Mask
    is_graph: Mask
    windows: Windows
    duplicates: int
    shift_ns: Mapping[int, int]

    @cached_property
    def is_kernel(self) -> Mask:
        """Return, per record, whether it is a kernel; a copy or memset otherwise."""
        return np.asarray(self.work.category == CATEGORIES.index(KERNEL))

    @cached_property
    def communicates(self) -> Mask:
        """Return, per record, whether it is a kernel that exchanges data with other devices."""
        return self.is_kernel & self.work.matching(COMMUNICATION)

    @cached_property
    def on_link(self) -> Mask:
        """Return, per record, whether it communicates, or copies from or to the host."""
        return self.communicates | (~self.is_kernel & self.work.matching(ACROSS))

    @cached_property
    def launch_start_ns(self) -> Ns:
        """Return, per record, when its launch began; -1 for none."""
        return taken(self.calls.start_ns, self.call)

    @cached_property
    def launch_end_ns(self) -> Ns:
        """Return, per record, when its launch ended; -1 for none."""
        return taken(self.calls.end_ns, self.call)

    @cached_property
    def queued_ns(self) -> Ns:
        """Return, per record, when its launch began; without one when it began itself."""
        return np.where(self.call >= 0, self.launch_start_ns, self.work.start_ns)

    @cached_property
    def step_of(self) -> Ns:
        """Return, per record, the number of its step; -1 for none."""
        return self.windows.of(self.queued_ns)

    @cached_property
    def lost(self) -> Mask:
        """Return, per call, whether it launched kernels or a graph of which there is no record.

        Where no record has a launch, as in a file without correlations, that is not known of any.
        """
        known = self.call[self.call >= 0]
        used = np.full(len(self.calls), bool(len(self.call)) and not len(known))
        used[known] = True
        return np.asarray(self.is_launch & ~used)

    @cached_property
    def lag_ns(self) -> Ns:
        """Return, per record, how long after its launch had returned it began; -1 without one.

        A copy that returns when it is done was launched at its begin, and prepared for. What begins
        before its launch has returned waited for nothing: 0.
        """
        launched = np.where(
            self.blocks_host, self.launch_start_ns + PREPARED_NS, self.launch_end_ns
        )
        return np.where(self.call >= 0, np.maximum(self.work.start_ns - launched, 0), -1)

    @cached_property
    def blocks_host(self) -> Mask:
        """Return, per record, whether it is a copy whose call returned when it was done.

        CUDA names the memory, ``Device -> Pageable``, and waits for pageable memory, and for any
        memory of the host in calls that are not ``…Async``: what else is done by then, as a memset,
        was just fast. Other makers name no memory.
        """
        work, call = self.work, self.call
        inside = (call >= 0) & (work.end_ns <= self.launch_end_ns)
        waits = ~work.containing("->") | work.containing("Pageable")
        if len(self.calls):
            waits |= self.on_link & ~self.calls.containing("Async")[call]
        return np.asarray(inside & (work.category == CATEGORIES.index(COPY)) & waits)

    @cached_property
    def late_ns(self) -> int:
        """Return the lag from which on a record has waited in a queue and not only for its launch.

        The usual launch latency is the median of records that found their stream idle, the first
        of each stream left out.
        """
        found = []
        for rows in self._streams():
            own = rows[self.call[rows] >= 0]
            before, after = own[:-1], own[1:]
            found.append(self.lag_ns[after][self.work.end_ns[before] <= self.launch_end_ns[after]])
        usual = np.concatenate(found) if found else np.zeros(0, np.int64)
        return max(BACKLOG_NS, BACKLOG_TIMES * int(np.median(usual)) if len(usual) else 0)

    @cached_property
    def backlog_until_ns(self) -> int | None:
        """Return until when devices had work from before the recording; None where none shows.

        A stream shows it where its first record began far later than its launch and neither a
        launch nor recorded work explains why, or where its first records have no launch while
        others have one.
        """
        return max((*self._backlog[0], *self._backlog[1]), default=None)

    @cached_property
    def _backlog(self) -> tuple[list[int], list[int]]:
        """Return ends of records without a launch, and begins of those that waited for others."""
        recorded: list[int] = []
        unseen: list[int] = []
        if not (self.call >= 0).any():
            return recorded, unseen
        busy_s, busy_e = merge(self.work.start_ns, self.work.end_ns)
        for rows in self._streams():
            launched = np.flatnonzero(self.call[rows] >= 0)
            first = int(launched[0]) if len(launched) else len(rows)
            if first:
                recorded.append(int(self.work.end_ns[rows[:first]].max()))
            if first < len(rows):
                row = rows[first]
                start, end = self.launch_start_ns[row : row + 1], self.work.start_ns[row : row + 1]
                if self.lag_ns[row] > self.late_ns:
                    explained = int(union_within_ns(busy_s, busy_e, start, end)[0])
                    if self.lag_ns[row] - explained > self.late_ns:
                        unseen.append(int(end[0]))
        return recorded, unseen

    @cached_property
    def known_from_ns(self) -> int:
        """Return from when on an idle device is known to have had nothing to do.

        Before the first launch, or the end of the first synchronise, work from before the
        recording may have run unseen.
        """
        ends = [*self._waits[:1, 1].tolist(), *self.calls.start_ns[self.is_launch].tolist()]
        known = min(ends, default=int(self.windows.begin_ns[0]))
        return max(known, self.backlog_until_ns or known)

    def _streams(self) -> list[Ns]:
        """Return the records of each stream, by start."""
        both = np.stack((self.work.device.astype(np.int64), self.work.stream))
        return [rows for _, rows in groups(np.unique(both, axis=1, return_inverse=True)[1].ravel())]

    def steps(self) -> list[Step]:
        """Return the steps as arrays."""
        begin = self.windows.begin_ns.tolist()
        return [self._step(np.array([n]), begin[n]) for n in range(len(begin))]

    def stretches(self) -> list[Step]:
        """Return steps that begin while devices are idle, each with those after it that do not.

        What lies between them is in it, and before the first one what devices have done since they
        were last idle. Steps that launched nothing are left out, and those for which that is not
        known.

        Raises:
            UsageError: no step is left.
        """
        by, at = self._in_order
        steps = np.unique(self.step_of[self.call >= 0])
        steps = steps[steps >= 0]
        if not len(steps):
            raise UsageError(
                "no kernel with its launch in a step; record host and device activity together"
            )
        begin = self.windows.begin_ns[steps]
        ended = np.append(-LIMIT, np.maximum.accumulate(self.work.end_ns[by]))
        idle = np.sort(np.concatenate((at, begin)))
        idle = idle[ended[np.searchsorted(at, idle)] <= idle]
        idle = idle[idle >= max(self._backlog[1], default=-LIMIT)]
        before = np.searchsorted(idle, begin, side="right") - 1
        known = before >= 0
        if not known.any():
            raise UsageError(
                "devices have work that is not in the recording until the last step begins; record "
                "from an idle device (synchronise first)"
            )
        steps, begin, since = steps[known], begin[known], idle[before[known]]
        first = np.union1d(0, np.flatnonzero(since == begin))
        own = np.split(steps, first[1:])
        return [self._step(n, int(ns), early=True) for n, ns in zip(own, since[first], strict=True)]

    @cached_property
    def _in_order(self) -> tuple[Ns, Ns]:
        """Return records in the order of their launch, and when, in that order."""
        by = np.lexsort((self.work.start_ns, self.queued_ns))
        return by, self.queued_ns[by]

    def _step(self, numbers: Ns, begin: int, *, early: bool = False) -> Step:
        """Return steps as one, from a moment on, with what lies between them.

        With ``early`` records without a launch are those from that moment on that began before all
        others: they were launched before the recording.
        """
        work, windows, (by, at) = self.work, self.windows, self._in_order
        end = int(windows.end_ns[numbers[-1]])
        low, high = np.searchsorted(at, (begin, end))
        rows, waits = by[low:high], self._held
        if early:
            rows = rows[self.call[rows] >= 0]
            alone = (self.call < 0) & (work.start_ns >= begin)
            alone &= work.start_ns < work.start_ns[rows].min()
            rows = np.concatenate((np.flatnonzero(alone), rows))
        return Step(
            name=windows.names[numbers[0]],
            begin_ns=begin,
            end_ns=end,
            launch_start_ns=self.launch_start_ns[rows],
            launch_end_ns=self.launch_end_ns[rows],
            device_start_ns=work.start_ns[rows],
            device_end_ns=work.end_ns[rows],
            stream=work.stream[rows],
            device=work.device[rows],
            is_kernel=self.is_kernel[rows],
            waits_ns=waits[(waits[:, 0] >= begin) & (waits[:, 0] < end)],
            on_link=self.on_link[rows],
            begins_ns=windows.begin_ns[numbers],
            loading_ns=self._loading,
        )

    @cached_property
    def _waits(self) -> Ns:
        """Return begin and end of every synchronise; a driver's inside a runtime's is the same."""
        calls = self.trace.events.of(*HOST_CALLS)
        calls = calls.where(is_wait(calls))
        start, end = merge(calls.start_ns, calls.end_ns)
        return np.stack((start, end), axis=1)

    @cached_property
    def _loading(self) -> Ns:
        """Return begin and end of what threads that launch did in a DataLoader."""
        events = self.trace.events
        loads = events.where(events.named(LOADER) & np.isin(events.thread, self.calls.thread))
        return np.stack(merge(loads.start_ns, loads.end_ns), axis=1)

    @cached_property
    def _held(self) -> Ns:
        """Return begin and end of all that made the host wait for earlier work of a device.

        A copy to pageable memory does, as ``tensor.cpu()`` makes one: it returns when it is done,
        so that the synchronise after it has nothing left to wait for.
        """
        behind = self.blocks_host.copy()
        for _, rows in groups(self.work.device):
            ended = np.maximum.accumulate(np.append(-LIMIT, self.work.end_ns[rows]))[:-1]
            behind[rows] &= ended > self.launch_start_ns[rows]
        start, end = self.launch_start_ns[behind], self.launch_end_ns[behind]
        waits = self._waits
        both = merge(np.append(waits[:, 0], start), np.append(waits[:, 1], end))
        return np.stack(both, axis=1)


def groups(values: Ns) -> list[tuple[int, Ns]]:
    """Return each value that occurs, ascending, with the places where it stands."""
    by = np.argsort(values, kind="stable")
    found, first = np.unique(values[by], return_index=True)
    return list(zip(found.tolist(), np.split(by, first[1:])[: len(found)], strict=True))


def is_wait(calls: Events) -> Mask:
    """Return a mask: the host call waits for the device."""
    return calls.containing("synchronize")


def build(trace: Trace, step: re.Pattern[str] | None = None) -> Timeline:
    """Put a trace in order.

    Args:
        trace: as a reader returns it.
        step: what the names of steps match; None chooses.

    Raises:
        UsageError: no annotation matches ``step``.
    """
    events = trace.events
    work, duplicates = _distinct(trace.device())
    calls, is_launch = _launching(events, work)
    call = find(calls.correlation, work.correlation)
    _find_graphs(work, call, calls)
    call[_strays(work, call, calls)] = -1
    start = taken(calls.start_ns, call)
    shift: dict[int, int] = {}
    moved = np.zeros(len(work), np.int64)
    for device in np.unique(work.device).tolist():
        chosen = (work.device == device) & (call >= 0)
        early = int((start[chosen] - work.start_ns[chosen]).max(initial=0))
        if early > trace.resolution_ns:
            shift[device] = early
            moved[work.device == device] = early
    if shift:
        work = replace(work, start_ns=work.start_ns + moved, end_ns=work.end_ns + moved)
        by = np.argsort(work.start_ns, kind="stable")
        work, call = work.where(by), call[by]
    count = np.bincount(call[call >= 0], minlength=len(calls))
    return Timeline(
        trace=trace,
        work=work,
        call=call,
        calls=calls,
        is_launch=is_launch,
        is_graph=calls.named(*GRAPH_LAUNCHES) | (count > 1),
        windows=windows(trace, work, np.sort(taken(calls.start_ns, call)[call >= 0]), step),
        duplicates=duplicates,
        shift_ns=shift,
    )


def taken(values: Ns, at: Ns) -> Ns:
    """Return the values at these places, -1 where the place is -1."""
    return np.append(values, -1)[at]


def _distinct(work: Events) -> tuple[Events, int]:
    """Return records by start, and how many repeat another one in every column."""
    names = ("correlation", "name", "category", "stream", "device", "end_ns", "start_ns")
    work = work.where(np.lexsort([getattr(work, name) for name in names]))
    columns = [getattr(work, name) for name in names]
    keep = np.ones(len(work), bool)
    keep[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return work.where(keep), int((~keep).sum())


def _launching(events: Events, work: Events) -> tuple[Events, Mask]:
    """Return the calls that launched something, by correlation, and which launched kernels.

    A runtime call and the driver call inside it share a correlation: the outer one stands for
    both. What a recorded kernel points to is a launch whatever its name, but for those that are
    known to launch nothing. Calls without a correlation are launches that point nowhere.
    """
    calls = events.of(*HOST_CALLS)
    calls = calls.where(calls.containing("launch") | ~calls.matching(NO_LAUNCH))
    kernels = calls.launching(*KERNEL_LAUNCHES, *GRAPH_LAUNCHES)
    ran = work.where(work.category == CATEGORIES.index(KERNEL)).correlation
    kernels |= np.isin(calls.correlation, ran) & (calls.correlation > 0)
    pointed = np.isin(calls.correlation, work.correlation) & (calls.correlation > 0)
    chosen = kernels | pointed
    calls, kernels = calls.where(chosen), kernels[chosen]
    by = outermost_first(calls)
    calls, kernels = calls.where(by), kernels[by]
    first = np.ones(len(calls), bool)
    first[1:] = (calls.correlation[1:] != calls.correlation[:-1]) | (calls.correlation[1:] <= 0)
    return calls.where(first), np.logical_or.reduceat(kernels, np.flatnonzero(first))


def _find_graphs(work: Events, call: Ns, calls: Events) -> None:
    """Give records that point to no call to graphs without records, where those are as many.

    In order; not where one would run before its launch.
    """
    rows = np.flatnonzero((call < 0) & (work.correlation > 0))
    number, first, group = np.unique(work.correlation[rows], return_index=True, return_inverse=True)
    used = np.bincount(call[call >= 0], minlength=len(calls))
    graphs = np.flatnonzero(calls.named(*GRAPH_LAUNCHES) & (used == 0))
    graphs = graphs[np.argsort(calls.start_ns[graphs], kind="stable")]
    by = np.argsort(first, kind="stable")
    if (
        len(number) == len(graphs)
        and (work.start_ns[rows[first[by]]] >= calls.start_ns[graphs]).all()
    ):
        of_group = np.empty_like(graphs)
        of_group[by] = graphs
        call[rows] = of_group[group]


def _strays(work: Events, call: Ns, calls: Events) -> Mask:
    """Return the kernels of which several point to a call that launches one: a graph's, wrongly."""
    is_kernel = (call >= 0) & (work.category == CATEGORIES.index(KERNEL))
    count = np.bincount(call[is_kernel], minlength=len(calls) + 1)
    of_one = calls.launching(*KERNEL_LAUNCHES) & ~calls.containing("MultiDevice")
    many = np.append(of_one, False) & (count > 1)  # -1, no call: the last
    return np.asarray(is_kernel & many[call])


def outermost_first(calls: Events) -> Ns:
    """Return an order by correlation, a runtime's call before the driver's inside it."""
    return np.lexsort((-calls.end_ns, calls.start_ns, calls.correlation))


def find(sorted_values: Ns, wanted: Ns) -> Ns:
    """Return where each wanted positive value stands in ascending values, -1 if nowhere."""
    at = np.searchsorted(sorted_values, wanted)
    return np.where((np.append(sorted_values, -1)[at] == wanted) & (wanted > 0), at, -1)
