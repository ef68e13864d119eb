"""A recorded timeline put in order: records of the device with their launches, and the steps.

Every reader of traces ends here, whatever the profiler was, and everything that judges a trace
begins here. A record belongs to the step that launched it; only one without a launch is placed by
its own time. Exact duplicates count once. A device whose stamps lie before their launches
(kineto#1380) is shifted by the least that puts none before its launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces.events import (
    CATEGORIES,
    GRAPH_LAUNCHES,
    HOST_CALLS,
    KERNEL,
    KERNEL_LAUNCHES,
    NOT_LAUNCHES,
    STEP,
    Events,
    Trace,
)
from frameworktax.traces.intervals import merge

Ns = NDArray[np.int64]
Mask = NDArray[np.bool_]
WHOLE = "whole trace"
STEP_NAME = re.compile(r"(?:step|iter|iteration)[\W_]{0,2}\d+\b", re.IGNORECASE)


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
        overlapping: marks left out because they overlap an earlier one.
    """

    names: tuple[str, ...]
    begin_ns: Ns
    end_ns: Ns
    thread: Ns
    device_ns: Ns
    marked: bool
    overlapping: int

    def of(self, times: Ns) -> Ns:
        """Return in which window each moment lies, -1 for none."""
        at = np.searchsorted(self.begin_ns, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end_ns[np.maximum(at, 0)]), at, -1)


def is_step(name: str) -> bool:
    """Return whether a mark with this name stands for a step: ``step 3``, ``iteration 12``."""
    return STEP_NAME.match(name) is not None


def _marks(events: Events) -> Events:
    """Return the marks of steps: the profiler's own, else those that the user named so."""
    marks = events.of("user_annotation")
    own = marks.named(STEP)
    if own.any():
        return marks.where(own)
    chosen = [i for i, name in enumerate(events.names) if is_step(name)]
    return marks.where(np.isin(marks.name, chosen))


def windows(events: Events, work: Events) -> Windows:
    """Return the steps that are marked, or the whole trace as one; ``work`` is on its clock."""
    on_device = events.of("gpu_user_annotation")
    on_device = on_device.where(on_device.named(STEP))
    lengths = {
        on_device.name_of(i): int(on_device.end_ns[i] - on_device.start_ns[i])
        for i in range(len(on_device))
    }
    marks = _marks(events)
    if not len(marks):
        return _whole(events, work)
    marks = marks.take(np.lexsort((marks.end_ns, marks.start_ns)))
    keep, reached = [], None
    for i, (start, end) in enumerate(
        zip(marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True)
    ):
        if reached is None or start >= reached:
            keep.append(i)
            reached = end
    kept = marks.take(np.array(keep, np.int64))
    names = tuple(kept.name_of(i) for i in range(len(kept)))
    return Windows(
        names=names,
        begin_ns=kept.start_ns,
        end_ns=kept.end_ns,
        thread=kept.thread,
        device_ns=np.array([lengths.get(name, -1) for name in names], np.int64),
        marked=True,
        overlapping=len(marks) - len(kept),
    )


def _whole(events: Events, work: Events) -> Windows:
    begin = int(min(events.start_ns.min(), work.start_ns.min(initial=2**62)))
    end = int(max(events.end_ns.max(), work.end_ns.max(initial=-(2**62))))
    return Windows(
        names=(WHOLE,),
        begin_ns=np.array([begin]),
        end_ns=np.array([end]),
        thread=np.array([-1]),
        device_ns=np.array([-1]),
        marked=False,
        overlapping=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a trace; a row is one record of the device, in the order of the launches.

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
        is_graph: launched by the launch of a whole graph.
        is_kernel: a kernel; a copy or memset otherwise.
        waits_ns: when the host was in a synchronise, begin and end, shape (waits, 2), in order.
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
    is_graph: NDArray[np.bool_]
    is_kernel: NDArray[np.bool_]
    waits_ns: Ns

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

    @property
    def events(self) -> Events:
        """Everything recorded."""
        return self.trace.events

    @cached_property
    def is_kernel(self) -> Mask:
        """Return, per record, whether it is a kernel; a copy or memset otherwise."""
        return np.asarray(self.work.category == CATEGORIES.index(KERNEL))

    @cached_property
    def launch_start_ns(self) -> Ns:
        """Return, per record, when its launch began; -1 for none."""
        return _taken(self.calls.start_ns, self.call)

    @cached_property
    def launch_end_ns(self) -> Ns:
        """Return, per record, when its launch ended; -1 for none."""
        return _taken(self.calls.end_ns, self.call)

    @cached_property
    def step_of(self) -> Ns:
        """Return, per record, the number of its step; -1 for none."""
        known = self.call >= 0
        return self.windows.of(np.where(known, self.launch_start_ns, self.work.start_ns))

    @cached_property
    def idle_calls(self) -> int:
        """Return how many launches of kernels or graphs have no record on any device."""
        used = np.zeros(len(self.calls), bool)
        used[self.call[self.call >= 0]] = True
        return int((self.is_launch & ~used).sum())

    def steps(self) -> list[Step]:
        """Return the steps as arrays."""
        start = self.launch_start_ns
        by = np.lexsort((self.work.start_ns, np.where(start >= 0, start, self.work.start_ns)))
        graph = np.zeros(len(self.work), bool)
        known = self.call >= 0
        graph[known] = self.is_graph[self.call[known]]
        of = self.step_of[by]
        grouped = np.argsort(of, kind="stable")
        borders = np.searchsorted(of[grouped], np.arange(len(self.windows.names) + 1))
        rows = [by[grouped[a:b]] for a, b in pairwise(borders.tolist())]
        waits = self._waits()
        in_step = self.windows.of(waits[:, 0])
        return [
            Step(
                name=name,
                begin_ns=int(self.windows.begin_ns[n]),
                end_ns=int(self.windows.end_ns[n]),
                launch_start_ns=start[rows[n]],
                launch_end_ns=self.launch_end_ns[rows[n]],
                device_start_ns=self.work.start_ns[rows[n]],
                device_end_ns=self.work.end_ns[rows[n]],
                stream=self.work.stream[rows[n]],
                device=self.work.device[rows[n]],
                is_graph=graph[rows[n]],
                is_kernel=self.is_kernel[rows[n]],
                waits_ns=waits[in_step == n],
            )
            for n, name in enumerate(self.windows.names)
        ]

    def _waits(self) -> Ns:
        """Return begin and end of every synchronise; a driver's inside a runtime's is the same."""
        calls = self.events.of(*HOST_CALLS)
        calls = calls.where(is_wait(calls))
        start, end = merge(calls.start_ns, calls.end_ns)
        return np.stack((start, end), axis=1)


def groups(values: Ns) -> list[tuple[int, Ns]]:
    """Return each value that occurs, ascending, with the places where it stands."""
    by = np.argsort(values, kind="stable")
    found, first = np.unique(values[by], return_index=True)
    return list(zip(found.tolist(), np.split(by, first[1:])[: len(found)], strict=True))


def is_wait(calls: Events) -> Mask:
    """Return a mask: the host call waits for the device."""
    return calls.containing("synchronize")


def build(trace: Trace) -> Timeline:
    """Put a trace in order."""
    events = trace.events
    work, duplicates = _distinct(events.of("kernel", "gpu_memcpy", "gpu_memset"))
    calls, is_launch = _launching(events, work)
    call = _find(calls.correlation, work.correlation)
    start = _taken(calls.start_ns, call)
    shift: dict[int, int] = {}
    if len(work):
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
            work, call = work.take(by), call[by]
    count = np.bincount(call[call >= 0], minlength=len(calls))
    graph = calls.named(*GRAPH_LAUNCHES) if len(calls) else np.zeros(0, bool)
    return Timeline(
        trace=trace,
        work=work,
        call=call,
        calls=calls,
        is_launch=is_launch,
        is_graph=graph | (count > 1),
        windows=windows(events, work),
        duplicates=duplicates,
        shift_ns=shift,
    )


def _taken(values: Ns, at: Ns) -> Ns:
    if not len(values):
        return np.full(len(at), -1, np.int64)
    return np.where(at >= 0, values[np.maximum(at, 0)], -1)


def _distinct(work: Events) -> tuple[Events, int]:
    """Return records by start, and how many repeat another one in every column."""
    columns = [work.correlation, work.name, work.category, work.stream, work.device]
    by = np.lexsort((*columns, work.end_ns, work.start_ns))
    work = work.take(by)
    same = np.ones(max(0, len(work) - 1), bool)
    for name in ("start_ns", "end_ns", "device", "stream", "category", "name", "correlation"):
        values = getattr(work, name)
        same &= values[1:] == values[:-1]
    keep = np.concatenate((np.ones(min(1, len(work)), bool), ~same))
    return work.where(keep), int(same.sum())


def _launching(events: Events, work: Events) -> tuple[Events, Mask]:
    """Return the calls that launched something, by correlation, and which launched kernels.

    A runtime call and the driver call inside it share a correlation: the outer one stands for
    both. What a recorded kernel points to is a launch whatever its name. Calls without a
    correlation are launches that point nowhere.
    """
    calls = events.of(*HOST_CALLS)
    kernels = calls.named(*KERNEL_LAUNCHES, *GRAPH_LAUNCHES) & ~calls.named(*NOT_LAUNCHES)
    ran = work.where(work.category == CATEGORIES.index(KERNEL)).correlation
    kernels |= np.isin(calls.correlation, ran) & (calls.correlation > 0)
    pointed = np.isin(calls.correlation, work.correlation) & (calls.correlation > 0)
    chosen = kernels | pointed
    calls, kernels = calls.where(chosen), kernels[chosen]
    by = np.lexsort((-calls.end_ns, calls.start_ns, calls.correlation))
    calls, kernels = calls.take(by), kernels[by]
    first = np.ones(len(calls), bool)
    first[1:] = (calls.correlation[1:] != calls.correlation[:-1]) | (calls.correlation[1:] <= 0)
    group = np.cumsum(first) - 1
    launched = np.zeros(int(first.sum()), bool)
    np.logical_or.at(launched, group, kernels)
    return calls.where(first), launched


def _find(sorted_values: Ns, wanted: Ns) -> Ns:
    """Return where each wanted positive value stands in ascending values, -1 if nowhere."""
    if not len(sorted_values):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return np.where((sorted_values[at] == wanted) & (wanted > 0), at, -1)
