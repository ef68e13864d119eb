"""The bill of a trace: every nanosecond of a step's wall time on exactly one line.

At each moment, the first of these that holds:

    kernel       a kernel runs on some device
    copies       only copies or memsets run
    device_gap   every device is idle though a launched record has not begun: stream order,
                 events, launch latency
    else the host keeps the device waiting, and the line is what the thread that launches the next
    record (after the last one: the thread of the step) is doing, innermost call first:
    wait         it is in a synchronise
    launch       it is in another call of the device's runtime or driver
    framework    it is in an operator
    python       it is in a Python frame
    remainder    no rule could place it: nothing was recorded

Without a device the operators hold kernels and their dispatch alike: ``operators`` is time in
operators with none inside them (also on another thread, while that of the step does nothing that
was recorded), ``framework`` the own time of operators around others.

Causes of idle time are sums of lines: dependency is ``device_gap``, synchronise is ``wait``, host
starvation is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces import intervals
from frameworktax.traces.events import CATEGORIES, HOST_CALLS, Events
from frameworktax.traces.nesting import Index, Nesting, Stretches, nest
from frameworktax.traces.timeline import Timeline, groups, is_wait

Ns = NDArray[np.int64]
LINES = (
    "kernel",
    "copies",
    "operators",
    "framework",
    "python",
    "launch",
    "device_gap",
    "wait",
    "remainder",
)
"""In the order they are shown; they add up to the wall."""
STARVED = ("framework", "python", "launch", "remainder")
OPERATOR = CATEGORIES.index("cpu_op")
FRAME = CATEGORIES.index("python_function")
CALLS = tuple(CATEGORIES.index(c) for c in HOST_CALLS)
NOTHING = Stretches(*(np.zeros(0, np.int64) for _ in range(3)))
_LINE = {name: i for i, name in enumerate(LINES)}


@dataclass(frozen=True)
class Thread:
    """The events of one host thread and how they lie inside each other."""

    events: Events
    nesting: Nesting

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
        called = np.isin(category, CALLS)
        line[called] = np.where(is_wait(self.events)[called], _LINE["wait"], _LINE["launch"])
        return line

    @cached_property
    def leaf(self) -> NDArray[np.bool_]:
        """Return, per event, whether it is an operator with none inside it."""
        is_operator = self.events.category == OPERATOR
        lasting = self.nesting.end_ns > self.nesting.start_ns
        inner = self.nesting.parent[is_operator & lasting]
        around = np.zeros(len(is_operator) + 1, bool)
        around[inner] = True  # -1, no parent, marks the spare last entry
        return np.asarray(is_operator & ~around[:-1])


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
        busy_s, busy_e = intervals.merge(work.start_ns, work.end_ns)
        kernels = timeline.is_kernel
        table[:, _LINE["kernel"]] = intervals.union_within_ns(
            work.start_ns[kernels], work.end_ns[kernels], begin, end
        )
        busy = intervals.union_within_ns(busy_s, busy_e, begin, end)
        table[:, _LINE["copies"]] = busy - table[:, _LINE["kernel"]]
        step, _, idle_s, idle_e = _idle(busy_s, busy_e, begin, end)
        queued_s, queued_e = _queued(timeline)
        gap = intervals.union_within_ns(queued_s, queued_e, idle_s, idle_e)
        np.add.at(table[:, _LINE["device_gap"]], step, gap)
        free_s, free_e = _without(idle_s, idle_e, queued_s, queued_e)
        step = windows.of(free_s)
        charged = _charge(timeline, threads, step, free_s, free_e)
    else:
        charged = _charge(timeline, threads, np.arange(len(begin)), begin, end)
        _tell_leaves(charged, threads)
    np.add.at(table, (charged.step, charged.line), charged.ns)
    if not len(work):
        _find_elsewhere(table, charged, threads)
    return Bill(table, charged, threads)


def _threads(timeline: Timeline) -> dict[int, Thread]:
    events, found = timeline.events, {}
    codes = [CATEGORIES.index(c) for c in ("cpu_op", "python_function", "user_annotation")]
    on_host = np.flatnonzero(np.isin(events.category, [*codes, *CALLS]))
    for number, rows in groups(events.thread[on_host]):
        own = events.take(on_host[rows])
        found[number] = Thread(own, nest(own.start_ns, own.end_ns))
    return found


def _idle(busy_s: Ns, busy_e: Ns, begin: Ns, end: Ns) -> tuple[Ns, Ns, Ns, Ns]:
    """Return where no device is busy inside the windows, with the number of the window."""
    low, high = int(begin[0]), int(end[-1])
    idle_s, idle_e = intervals.gaps(busy_s, busy_e, window=(low, max(low, high)))
    return intervals.overlaps(begin, end, idle_s, idle_e)


def _queued(timeline: Timeline) -> tuple[Ns, Ns]:
    """Return when something launched had not begun, merged."""
    known = timeline.call >= 0
    start, end = timeline.launch_end_ns[known], timeline.work.start_ns[known]
    late = end > start
    return intervals.merge(start[late], end[late])


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
        doing, line, first, last = NOTHING, np.array([_LINE["remainder"]]), e[-1], e[-1]
        if number in threads:
            found = threads[number].nesting.stretches()
            if len(found.owner):
                doing, line = found, threads[number].line
                first, last = doing.start_ns[0], doing.end_ns[-1]
        # Before the first and after the last event of the thread nothing is known of it.
        mine, theirs, left, right = intervals.overlaps(
            s,
            e,
            np.concatenate(([min(s[0], first)], doing.start_ns, [last])),
            np.concatenate(([first], doing.end_ns, [max(e[-1], last)])),
        )
        owner = np.concatenate(([-1], doing.owner, [-1]))[theirs]
        line = np.where(owner >= 0, line[owner], _LINE["remainder"])
        parts.append((step[chosen][mine], np.full(len(mine), number), owner, line, left, right))
    empty = np.zeros(0, np.int64)
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)] if parts else [empty] * 6
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


def _tell_leaves(charged: Charged, threads: dict[int, Thread]) -> None:
    for number, thread in threads.items():
        mine = (charged.thread == number) & (charged.event >= 0)
        leaf = np.zeros(len(mine), bool)
        leaf[mine] = thread.leaf[charged.event[mine]]
        charged.line[leaf] = _LINE["operators"]


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
