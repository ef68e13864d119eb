"""Who is behind the tax of a trace: operators, lines of Python and modules, by idle time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.trace.bill import LINES, OPERATOR, STARVED, Bill, Charged, Thread
from frameworktax.traces import intervals
from frameworktax.traces.nesting import Index
from frameworktax.traces.timeline import Timeline, groups

Ns = NDArray[np.int64]
SHOWN = 20
"""Leaders kept in a document."""


def operators(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return operators by tax: time the device idled, or the host spent around others, for them.

    An operator is the outermost of a nest (what the model's code called). Its ``kernel_ns`` is the
    union of what was launched from inside it, all of its calls together; without a device it is
    null, and ``tax_ns`` is the own time of operators around others.
    """
    cpu_only = not len(timeline.work)
    lines = ("framework",) if cpu_only else (*STARVED, "wait")
    tax = _sums(bill, lines, lambda thread: thread.operator)
    calls, host = _calls(timeline, bill.threads)
    busy = {} if cpu_only else _launched(timeline, bill.threads)
    found: list[dict[str, Any]] = [
        {
            "name": timeline.events.names[name],
            "tax_ns": tax.get(name, 0),
            "calls": calls[name],
            "host_ns": host[name],
            "kernel_ns": None if cpu_only else busy.get(name, 0),
        }
        for name in calls
    ]
    found.sort(key=lambda o: (o["tax_ns"], o["host_ns"]), reverse=True)
    return found[:SHOWN]


def causes(timeline: Timeline, bill: Bill, step: int | None = None) -> dict[str, list[Any]]:
    """Return what kept the device waiting: lines of Python, modules and operators, most first.

    Args:
        timeline: the trace.
        bill: of it.
        step: of this step alone.
    """
    views: dict[str, Callable[[Thread], Index]] = {
        "python": lambda thread: thread.frame,
        "module": lambda thread: thread.module,
        "operator": lambda thread: thread.operator,
    }
    lines = ("framework", "python") if not len(timeline.work) else STARVED
    result = {}
    for what, view in views.items():
        sums = _sums(bill, lines, view, step)
        ranked = sorted(sums.items(), key=lambda item: -item[1])[:SHOWN]
        result[what] = [
            {"name": timeline.events.names[name], "ns": ns} for name, ns in ranked if ns > 0
        ]
    return result


def leaders(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return, per step, the line of Python, module or operator that cost it most starvation.

    The first of the three that the trace has: ``{"kind", "name", "ns"}``, or nothing.
    """
    lines = ("framework", "python") if not len(timeline.work) else STARVED
    chosen = np.isin(bill.charged.line, [LINES.index(line) for line in lines])
    result: list[dict[str, Any]] = [{} for _ in timeline.windows.names]
    views: tuple[tuple[str, Callable[[Thread], Index]], ...] = (
        ("python", lambda thread: thread.frame),
        ("module", lambda thread: thread.module),
        ("operator", lambda thread: thread.operator),
    )
    width = len(timeline.events.names)
    for kind, view in views:
        name = _names(bill, view)
        counted = chosen & (name >= 0)
        key, group = np.unique(
            bill.charged.step[counted] * width + name[counted], return_inverse=True
        )
        total = np.zeros(len(key), np.int64)
        np.add.at(total, group, bill.charged.ns[counted])
        for at in np.argsort(total, kind="stable").tolist():  # the largest is written last
            step = int(key[at] // width)
            if total[at] > 0 and result[step].get("kind", kind) == kind:
                leader = timeline.events.names[int(key[at] % width)]
                result[step] = {"kind": kind, "name": leader, "ns": int(total[at])}
    return result


def _names(bill: Bill, view: Callable[[Thread], Index]) -> Ns:
    """Return, per charged piece, the name of the event that the view puts it on; -1 for none."""
    charged = bill.charged
    name = np.full(len(charged.ns), -1, np.int64)
    for number, thread in bill.threads.items():
        mine = np.flatnonzero((charged.thread == number) & (charged.event >= 0))
        if len(mine):
            at = view(thread)[charged.event[mine]]
            name[mine] = np.where(at >= 0, thread.events.name[np.maximum(at, 0)], -1)
    return name


def _sums(
    bill: Bill,
    lines: tuple[str, ...],
    view: Callable[[Thread], Index],
    step: int | None = None,
) -> dict[int, int]:
    charged: Charged = bill.charged
    name = _names(bill, view)
    chosen = np.isin(charged.line, [LINES.index(line) for line in lines]) & (name >= 0)
    if step is not None:
        chosen &= charged.step == step
    names, group = np.unique(name[chosen], return_inverse=True)
    total = np.zeros(len(names), np.int64)
    np.add.at(total, group, charged.ns[chosen])
    return dict(zip(names.tolist(), total.tolist(), strict=True))


def _calls(timeline: Timeline, threads: dict[int, Thread]) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by name, how often outermost operators were called in steps, and for how long."""
    calls: dict[int, int] = {}
    host: dict[int, int] = {}
    for thread in threads.values():
        outermost = (thread.events.category == OPERATOR) & (
            thread.operator == np.arange(len(thread.operator))
        )
        outermost &= timeline.windows.of(thread.events.start_ns) >= 0
        names, group = np.unique(thread.events.name[outermost], return_inverse=True)
        total = np.zeros(len(names), np.int64)
        length = thread.events.end_ns[outermost] - thread.events.start_ns[outermost]
        np.add.at(total, group, length)
        for name, n, ns in zip(
            names.tolist(), np.bincount(group).tolist(), total.tolist(), strict=True
        ):
            calls[name] = calls.get(name, 0) + n
            host[name] = host.get(name, 0) + ns
    return calls, host


def _launched(timeline: Timeline, threads: dict[int, Thread]) -> dict[int, int]:
    """Return, by name of the outermost operator around the launch, the union of device time."""
    name = np.full(len(timeline.calls), -1, np.int64)
    for number, thread in threads.items():
        mine = np.flatnonzero(timeline.calls.thread == number)
        doing = thread.nesting.stretches()
        if not len(mine) or not len(doing.start_ns):
            continue
        at = np.searchsorted(doing.start_ns, timeline.calls.start_ns[mine], side="right") - 1
        owner = np.where(at >= 0, doing.owner[np.maximum(at, 0)], -1)
        around = np.where(owner >= 0, thread.operator[np.maximum(owner, 0)], -1)
        name[mine] = np.where(around >= 0, thread.events.name[np.maximum(around, 0)], -1)
    known = (timeline.call >= 0) & (timeline.step_of >= 0)
    of = name[timeline.call[known]]
    work = timeline.work.where(known)
    return {
        number: intervals.union_ns(work.start_ns[rows], work.end_ns[rows])
        for number, rows in groups(of)
    }
