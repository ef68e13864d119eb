"""What a trace shows beside its bill: what keeps its devices idle, and calls that wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.trace.bill import (
    LINES,
    LOADING,
    MEMORY,
    OPERATOR,
    STARVED,
    Bill,
    Thread,
    computing,
)
from frameworktax.traces import intervals
from frameworktax.traces.intervals import Index, Mask, Ns
from frameworktax.traces.timeline import Timeline, find, groups, is_wait

SHOWN = 20
"""Kept of each kind."""
SHORTEST_NS = 1_000_000
"""Start-up calls of a name that take less together are not listed."""
VIEWS: Mapping[str, Callable[[Thread], Index]] = {
    "python": lambda thread: thread.frame,
    "module": lambda thread: thread.module,
    "operator": lambda thread: thread.operator,
}
"""What a piece of time is put on: per event of a thread, the event of that kind at or around it."""


def operators(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return operators by tax, the time a device idled for them; without a device by own time.

    With a device an operator is the outermost of a nest (what the model's code called), and its
    ``kernel_ns`` is the union of what was launched from inside it, all of its calls together.
    Without one it is each operator: ``self_ns`` is its own time, ``tax_ns`` the same where it does
    not compute, and ``kernel_ns`` is null.
    """
    has_device = bool(len(timeline.work))
    calls: Counter[int] = Counter()
    host: Counter[int] = Counter()
    own: Counter[int] = Counter()
    for thread in bill.threads.values():
        events = thread.events
        counted = (events.category == OPERATOR) & (timeline.windows.of(events.start_ns) >= 0)
        if has_device:
            counted &= thread.operator == np.arange(len(events))
        else:
            # a compiler's own, and those that make a batch, are on their lines of the bill
            counted &= (thread.startup < 0) & ~thread.loading
        name = events.name[counted]
        calls.update(name.tolist())
        start, end = events.start_ns[counted], events.end_ns[counted]
        # A union: aten::sum calls aten::sum.
        host.update({n: intervals.union_ns(start[at], end[at]) for n, at in groups(name)})
        own.update(_totals(name, thread.own_ns[counted]))
    names = timeline.trace.events.names
    busy: dict[int, int] = {}
    if has_device:
        busy = _launched(timeline, bill.threads)
        name, chosen = _on(bill, VIEWS["operator"], (*STARVED, "wait"))
        tax = _totals(name[chosen], bill.charged.ns[chosen])
    else:
        computes = computing(bill.threads, names)
        tax = {n: 0 if computes[n] else ns for n, ns in own.items()}
    found: list[dict[str, Any]] = [
        {
            "name": names[n],
            **({} if has_device else {"self_ns": own[n]}),
            "tax_ns": tax.get(n, 0),
            "calls": calls[n],
            "host_ns": host[n],
            "kernel_ns": busy.get(n, 0) if has_device else None,
        }
        for n in host
    ]
    by = ("tax_ns", "host_ns") if has_device else ("self_ns",)
    return sorted(found, key=lambda one: [one[key] for key in by], reverse=True)[:SHOWN]


def causes(
    timeline: Timeline, bill: Bill
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any] | None]]:
    """Return what kept the device waiting: lines of Python, modules and operators.

    Returns:
        For the whole trace each of the three, most first; and per step what cost it most, of the
        first of the three that the step has: ``{"kind", "name", "ns"}``, None for nothing.
    """
    names, width = timeline.trace.events.names, len(timeline.trace.events.names)
    whole: dict[str, list[dict[str, Any]]] = {}
    leaders: list[dict[str, Any] | None] = [None] * len(timeline.windows.names)
    lines = STARVED if len(timeline.work) else ("framework", "python", "data_loading")
    for kind, view in VIEWS.items():
        name, chosen = _on(bill, view, lines)
        name, step, ns = name[chosen], bill.charged.step[chosen], bill.charged.ns[chosen]
        ranked = sorted(_totals(name, ns).items(), key=lambda item: -item[1])[:SHOWN]
        whole[kind] = [{"name": names[n], "ns": total} for n, total in ranked if total > 0]
        per_step = _totals(step * width + name, ns)
        for key, total in sorted(per_step.items(), key=lambda item: item[1]):  # largest last
            n, leader = divmod(key, width)
            before = leaders[n]
            if total > 0 and (before is None or before["kind"] == kind):
                leaders[n] = {"kind": kind, "name": names[leader], "ns": total}
    return whole, leaders


def _on(bill: Bill, view: Callable[[Thread], Index], lines: Sequence[str]) -> tuple[Ns, Mask]:
    """Return, per charged piece, the name that the view puts it on, and whether it counts.

    It does where it is on one of these lines of the bill and the view has a name for it.
    """
    charged = bill.charged
    name = np.full(len(charged.ns), -1, np.int64)
    for number, thread in bill.threads.items():
        mine = np.flatnonzero(charged.thread == number)
        name[mine] = _names(thread, view, charged.event[mine])
    return name, np.isin(charged.line, [LINES.index(line) for line in lines]) & (name >= 0)


def _names(thread: Thread, view: Callable[[Thread], Index], event: Index) -> Ns:
    """Return, per event of a thread (-1: none), the name that the view puts it on; -1 for none."""
    name = np.full(len(event), -1, np.int64)
    known = np.flatnonzero(event >= 0)
    at = view(thread)[event[known]]
    name[known] = np.where(at >= 0, thread.events.name[at], -1)
    return name


def _totals(keys: Ns, ns: Ns) -> dict[int, int]:
    """Return the sum of each key's times, keys ascending."""
    found, group = np.unique(keys, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, group, ns)
    return dict(zip(found.tolist(), total.tolist(), strict=True))


def _launched(timeline: Timeline, threads: dict[int, Thread]) -> dict[int, int]:
    """Return, by name of the outermost operator around the launch, the union of device time."""
    name = np.full(len(timeline.calls), -1, np.int64)
    for thread in threads.values():
        event = np.flatnonzero(thread.is_call)
        call = find(timeline.calls.correlation, thread.events.correlation[event])
        name[call[call >= 0]] = _names(thread, VIEWS["operator"], event[call >= 0])
    known = (timeline.call >= 0) & (timeline.step_of >= 0)
    of = name[timeline.call[known]]
    work = timeline.work.where(known)
    return {
        number: intervals.union_ns(work.start_ns[rows], work.end_ns[rows])
        for number, rows in groups(of)
    }


# --- calls that keep the host ------------------------------------------------------------------


def startup(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return calls that a warm process does not repeat, by name, the longest first.

    For each its ``kind`` (memory, loading, compilation, initialisation), how many calls, their
    length together, and of that what lies inside steps.
    """
    steps = timeline.windows.begin_ns, timeline.windows.end_ns
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for thread in bill.threads.values():
        outermost = np.flatnonzero(thread.startup == np.arange(len(thread.events)))
        for i in outermost.tolist():
            events, name = thread.events, thread.events.name_of(i)
            start, end = int(events.start_ns[i]), int(events.end_ns[i])
            known = found[_kind(name, is_call=bool(thread.is_call[i])), name]
            known[0] += 1
            known[1] += end - start
            known[2] += int(intervals.union_within_ns([start], [end], *steps).sum())
    rows: list[dict[str, Any]] = [
        {"name": name, "kind": kind, "calls": calls, "ns": ns, "in_steps_ns": inside}
        for (kind, name), (calls, ns, inside) in found.items()
        if ns >= SHORTEST_NS
    ]
    return sorted(rows, key=lambda row: row["ns"], reverse=True)[:SHOWN]


def _kind(name: str, *, is_call: bool) -> str:
    if not is_call:
        return "compilation"
    if name.startswith(MEMORY):
        return "memory"
    # the first launch of a kernel loads its code
    return "loading" if name.startswith(LOADING) or "Launch" in name else "initialisation"


def waits(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return calls of a step that made the host wait for what it launched, the longest first.

    They are synchronises, and copies that return when they are done. Before the first launch of a
    step none counts, after its last one only those inside an operator, as of ``loss.item()``:
    others are how steps are timed.

    Returns:
        For each operator, line of Python and call: how often, for how long, and what the longest
        one waited for: the record that ended last in it; None where that is not in the file.
    """
    windows, work = timeline.windows, timeline.work
    launches = np.sort(timeline.calls.start_ns[timeline.is_launch])
    blocking = timeline.calls.correlation[timeline.call[timeline.blocks_host]]
    busy = intervals.merge(work.start_ns, work.end_ns)
    found: dict[tuple[str | None, str | None, str], list[tuple[int, str | None]]] = {}
    for thread in bill.threads.values():
        events = thread.events
        waiting = thread.is_call & (
            is_wait(events) | (np.isin(events.correlation, blocking) & (events.correlation > 0))
        )
        outer = thread.nesting.nearest(waiting, outermost=True) == np.arange(len(events))
        step = windows.of(events.start_ns)
        first = np.searchsorted(launches, windows.begin_ns[step])
        last = np.searchsorted(launches, windows.end_ns[step])
        inside = (step >= 0) & (first < np.searchsorted(launches, events.start_ns))
        # the harness's own synchronise is in no operator; that of a last ``.item()`` is
        inside &= (np.searchsorted(launches, events.end_ns) < last) | (thread.operator >= 0)
        for i in np.flatnonzero(waiting & outer & inside).tolist():
            start, end = int(events.start_ns[i]), int(events.end_ns[i])
            key = (_at(thread, thread.operator, i), _at(thread, thread.frame, i), events.name_of(i))
            found.setdefault(key, []).append((end - start, _waited_for(timeline, busy, start, end)))
    rows: list[dict[str, Any]] = [
        {
            "operator": operator,
            "line": line,
            "call": call,
            "calls": len(times),
            "ns": sum(ns for ns, _ in times),
            "waited_for": max(times, key=lambda one: one[0])[1],
        }
        for (operator, line, call), times in found.items()
    ]
    return sorted(rows, key=lambda row: row["ns"], reverse=True)[:SHOWN]


def _at(thread: Thread, view: NDArray[Any], event: int) -> str | None:
    return thread.events.name_of(int(view[event])) if view[event] >= 0 else None


def _waited_for(timeline: Timeline, busy: tuple[Ns, Ns], start: int, end: int) -> str | None:
    """Return the record that ended last in a wait; None where most of it saw nothing recorded."""
    covered = int(intervals.union_within_ns(*busy, [start], [end])[0])
    unseen = end - start - covered
    if unseen > timeline.late_ns and unseen > (end - start) / 2:
        return None
    work = timeline.work
    ended = np.flatnonzero((work.end_ns > start) & (work.end_ns <= end))
    return work.name_of(int(ended[np.argmax(work.end_ns[ended])])) if len(ended) else None
