"""What a trace shows beside its bill: start-up calls, calls that make the host wait, the regime.

A regime is given only where nothing that the trace leaves open could change it: start-up calls
inside a step, work from before the recording, and the profiler's own cost, which lengthens the
host's part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.regime import gpu_regime
from frameworktax.analysis.trace.bill import (
    FRAME,
    LINES,
    LOADING,
    MEMORY,
    OPERATOR,
    STARVED,
    Bill,
    Thread,
)
from frameworktax.records import Estimate, Regime
from frameworktax.traces import intervals
from frameworktax.traces.timeline import Step, Timeline, is_wait

Ns = NDArray[np.int64]
SHOWN = 20
"""Kept of each kind."""
SHORTEST_NS = 1_000_000
"""Start-up calls of a name that take less together are not listed."""
SLOWED_BY_OPERATORS = 2.0
SLOWED_BY_FRAMES = 4.0
"""How much slower the host may be while operators, or Python frames, are recorded: pytorch#82793
has 1.7; small models on a CPU gave 1.2 to 3 and 1.8 to 4.7."""
Open = Literal["no-device", "start-up", "work-before-recording", "profiler"]
"""Why a trace carries no regime."""


def startup(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return calls that a warm process does not repeat, by name, the longest first.

    Returns:
        For each its ``kind`` (memory, loading, compilation, initialisation), how many calls, their
        length together, and of that what lies inside steps.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for thread in bill.threads.values():
        outermost = np.flatnonzero(thread.startup == np.arange(len(thread.events)))
        for i in outermost.tolist():
            events, name = thread.events, thread.events.name_of(i)
            start, end = int(events.start_ns[i]), int(events.end_ns[i])
            known = found[_kind(name, is_call=bool(thread.is_call[i])), name]
            known[0] += 1
            known[1] += end - start
            inside = timeline.windows.of(events.start_ns[i : i + 1])[0] >= 0
            known[2] += (end - start) * int(inside)
    rows = [
        {"name": name, "kind": kind, "calls": calls, "ns": ns, "in_steps_ns": inside}
        for (kind, name), (calls, ns, inside) in found.items()
        if ns >= SHORTEST_NS
    ]
    return sorted(rows, key=lambda row: -int(str(row["ns"])))[:SHOWN]


def _kind(name: str, *, is_call: bool) -> str:
    if not is_call:
        return "compilation"
    if name.startswith(MEMORY):
        return "memory"
    # the first launch of a kernel loads its code
    return "loading" if name.startswith(LOADING) or "Launch" in name else "initialisation"


def waits(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    """Return calls between two launches of a step that made the host wait, the longest first.

    They are synchronises, and copies that return when they are done. A synchronise before the
    first launch of a step or after its last one is left out: that is how steps are timed.

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
        inside &= np.searchsorted(launches, events.end_ns) < last
        for i in np.flatnonzero(waiting & outer & inside).tolist():
            start, end = int(events.start_ns[i]), int(events.end_ns[i])
            key = (_at(thread, thread.operator, i), _at(thread, thread.frame, i), events.name_of(i))
            found.setdefault(key, []).append((end - start, _waited_for(timeline, busy, start, end)))
    rows = [
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
    return sorted(rows, key=lambda row: -int(str(row["ns"])))[:SHOWN]


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


def host_ahead_ns(timeline: Timeline, step: Step) -> int | None:
    """Return how far the host was ahead of the device throughout a step; None where it was not.

    The least time from a launch's return to the start of its work, where that is far beyond the
    usual launch latency: the device never waited for the host, and a faster host gains nothing.
    """
    launched = step.launch_start_ns >= 0
    if not len(step) or not launched.all():
        return None
    least = int((step.device_start_ns - step.launch_end_ns).min())
    return least if least > timeline.late_ns else None


@dataclass(frozen=True, slots=True)
class Judged:
    """A regime, or why there is none."""

    regime: Regime | None
    because: Open | None


def judge(timeline: Timeline, row: Ns, rho: Estimate, doubt_ns: int) -> Judged:
    """Return the regime of a step or of all of them, where the trace carries one.

    Args:
        timeline: of the trace.
        row: ns by line of ``LINES``.
        rho: time in which a device was busy, over wall time.
        doubt_ns: idle time in which unrecorded work may have run, besides the line ``unknown``.
    """
    if not len(timeline.work):
        return Judged(None, "no-device")
    wall = int(row.sum())
    line = {name: int(ns) for name, ns in zip(LINES, row.tolist(), strict=True)}
    host = sum(line[name] for name in STARVED) - line["startup"]
    seen = rho
    if line["unknown"]:  # its interval is what of it may be busy, and no noise
        seen = replace(rho, value=rho.low, high=rho.low)
    unseen = replace(rho, value=rho.high, low=rho.high) if line["unknown"] else rho
    others: dict[Open, Estimate] = {
        "start-up": _shifted(seen, factor=_over(wall, line["startup"])),
        "work-before-recording": _shifted(unseen, more=doubt_ns / max(1, wall)),
        "profiler": _shifted(seen, factor=_over(wall, host * (1 - 1 / slowed(timeline)))),
    }
    if line["startup"] > wall / 2:
        return Judged(None, "start-up")  # what is left is no picture of a warm step
    regime = gpu_regime(seen)
    because = next((why for why, other in others.items() if gpu_regime(other) != regime), None)
    return Judged(regime if because is None else None, because)


def slowed(timeline: Timeline) -> float:
    """Return how much slower the profiler may have made the host, at most."""
    category = timeline.events.category
    if (category == FRAME).any():
        return SLOWED_BY_FRAMES
    return SLOWED_BY_OPERATORS if (category == OPERATOR).any() else 1.0


def doubts(timeline: Timeline, begin: Sequence[int], end: Sequence[int]) -> Ns:
    """Return, per window, idle time in which unrecorded work may have run, line ``unknown`` apart.

    Before the first launch or synchronise of the recording, and after a launch whose kernels were
    lost.
    """
    work, b, e = timeline.work, np.asarray(begin, np.int64), np.asarray(end, np.int64)
    seen_s, seen_e = work.start_ns, work.end_ns
    if (until := timeline.backlog_until_ns) is not None and until > b[0]:
        seen_s, seen_e = np.append(seen_s, b[0]), np.append(seen_e, until)
    idle_s, idle_e = intervals.gaps(seen_s, seen_e, (int(b[0]), int(max(e[-1], b[0]))))
    known = timeline.known_from_ns
    lost = int(timeline.calls.start_ns[timeline.lost].min(initial=2**62))
    before = intervals.union_within_ns(idle_s, idle_e, b, np.clip(known, b, e))
    return before + intervals.union_within_ns(idle_s, idle_e, np.clip(max(lost, known), b, e), e)


def _over(wall: int, part: float) -> float:
    """Return by how much a share grows when a part of the whole goes away."""
    return wall / (wall - part) if part < wall else float(wall)


def _shifted(share: Estimate, *, factor: float = 1.0, more: float = 0.0) -> Estimate:
    value, low, high = (
        min(1.0, end * factor + more) for end in (share.value, share.low, share.high)
    )
    return replace(share, value=value, low=low, high=high)
