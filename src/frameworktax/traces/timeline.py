"""A recorded timeline put in order: records of the device with their launches, and the steps.

Every reader of traces ends here, whatever the profiler was, and everything that judges a trace
begins here. A record belongs to the step that launched it; only one without a launch is placed by
its own time. Exact duplicates count once. A device whose stamps lie before their launches
(kineto#1380) is shifted by the least that puts none before its launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces.intervals import merge
from frameworktax.traces.kineto import (
    CATEGORIES,
    GRAPH_LAUNCHES,
    HOST_CALLS,
    KERNEL,
    Events,
    Trace,
    launches_kernel,
)
from frameworktax.traces.windows import Windows, windows

Ns = NDArray[np.int64]
Mask = NDArray[np.bool_]


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
        events: everything recorded.
        work: records of the devices by start, on the host's clock, duplicates left out.
        call: per record, the host call that launched it, as an index into ``calls``; -1 for none.
        calls: host calls that launched something, one a correlation: the outermost.
        is_launch: per call, it launched a kernel or a graph.
        is_graph: per call, it launched a whole graph.
        windows: the steps.
        duplicates: records left out because they repeat another.
        shift_ns: per device, by how much its stamps were moved.
    """

    events: Events
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
            work = _moved(work, moved)
            by = np.argsort(work.start_ns, kind="stable")
            work, call = work.take(by), call[by]
    count = np.bincount(call[call >= 0], minlength=len(calls))
    graph = calls.named(*GRAPH_LAUNCHES) if len(calls) else np.zeros(0, bool)
    return Timeline(
        events=events,
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
    kernels = launches_kernel(calls) | calls.named(*GRAPH_LAUNCHES)
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


def _moved(work: Events, by_ns: Ns) -> Events:
    columns = {c: getattr(work, c) for c in Events.__slots__}
    columns["start_ns"] = work.start_ns + by_ns
    columns["end_ns"] = work.end_ns + by_ns
    return Events(**columns)
