"""A recorded trace as a document: the answer, the bill, the steps, the causes, the notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.estimates import duration, one_minus, percent
from frameworktax.analysis.regime import gpu_regime
from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.analysis.trace.advice import advise
from frameworktax.analysis.trace.bill import FRAME, LINES, STARVED
from frameworktax.analysis.trace.findings import (
    Judged,
    doubts,
    host_ahead_ns,
    judge,
    startup,
    waits,
)
from frameworktax.analysis.trace.operators import causes, operators
from frameworktax.records import SEED, Estimate, Note, Run
from frameworktax.traces import intervals
from frameworktax.traces.timeline import Step, Timeline

Ns = NDArray[np.int64]
NO_REGIME = {
    "start-up": "for start-up calls inside the steps could change it",
    "work-before-recording": "for work from before the recording could change it",
    "profiler": "for the profiler's own cost could change it",
    "no-device": "for operators hold kernels and their dispatch alike",
}
"""Why a trace carries no regime, in words."""
DRAWS = 1000
MIN_STEPS = 5
"""Steps from which the share of the device has an interval; fewer are given as they are."""


def document(timeline: Timeline, name: str) -> Run:
    """Return the document of one trace; ``name`` is its file's, for the headline."""
    bill, recorded = trace_bill.bill(timeline), timeline.trace
    starved_by, leaders = causes(timeline, bill)
    found = timeline.steps()
    windows = timeline.windows
    doubt = doubts(timeline, windows.begin_ns.tolist(), windows.end_ns.tolist())
    ahead = [host_ahead_ns(timeline, step) for step in found]
    walls = windows.end_ns - windows.begin_ns
    total = bill.table.sum(axis=0)
    share = _tax_share(bill.table, walls) if len(timeline.work) else None
    judged = _judged(timeline, total, share, int(doubt.sum()), found, ahead)
    trace: dict[str, Any] = {
        "source": recorded.source,
        "events": recorded.records,
        "launches": int(timeline.is_launch.sum()),
        "graph_launches": int((timeline.is_launch & timeline.is_graph).sum()),
        "devices": _devices(timeline),
        "wall_ns": int(walls.sum()),
        "busy_ns": _busy(total),
        "tax_share": asdict(share) if share is not None else None,
        **_bill(total, timeline),
        "regime": judged.regime,
        "no_regime": judged.because,
        "operators": operators(timeline, bill),
        "starved_by": starved_by,
        "startup": startup(timeline, bill),
        "waits": waits(timeline, bill),
        "resolution_ns": recorded.resolution_ns,
        "cut": recorded.cut,
        "marked": windows.marked,
        "steps": _steps(timeline, bill.table, leaders, found, ahead, doubt),
    }
    return Run(
        headline=headline(trace, name),
        trace=trace,
        advice=advise(timeline, trace, found),
        notes=tuple(_notes(timeline)),
    )


def headline(trace: dict[str, Any], name: str) -> str:
    """Return the answer in a sentence."""
    steps, wall = trace["steps"], trace["wall_ns"]
    if trace["marked"]:
        median = duration(float(np.median([s["wall_ns"] for s in steps])))
        many = f"{len(steps)} steps of {median}, in the median"
        said = [many if len(steps) > 1 else f"1 step of {median}"]
    else:
        said = [f"one stretch of {duration(wall)}, no steps"]
    if trace["idle_ns"] is not None:
        busy = trace["busy_ns"] / wall if wall else 0.0
        said.append(f"a device is busy {100 * busy:.1f} % of it")
    ahead = [s["host_ahead_ns"] for s in steps if s["host_ahead_ns"] is not None]
    if trace["regime"]:
        said.append(str(trace["regime"]))
    elif trace["no_regime"] in NO_REGIME:
        said.append(f"no regime, {NO_REGIME[trace['no_regime']]}")
    if ahead:
        said.append(f"the host is {duration(min(ahead))} ahead: a faster host gains nothing")
    elif trace["idle_ns"] is None:
        said += _computing(trace)
    else:
        said += _rest(trace)
    return f"{name}: " + "; ".join(said)


def _computing(trace: dict[str, Any]) -> list[str]:
    """Return what a trace without a device says."""
    work, wall = trace["bill_ns"].get("operators", 0), max(1, trace["wall_ns"])
    said = [f"operators that compute take {percent(work / wall)}, their dispatch included"]
    first = next((one for one in trace["operators"] if not one["tax_ns"]), None)
    if first is not None:
        said.append(f"above all {first['name'][:120]}, {percent(first['self_ns'] / wall)}")
    return said


def _rest(trace: dict[str, Any]) -> list[str]:
    """Return what the largest part of a device's idle time is, and whose."""
    first, ns = max(
        ((k, v) for k, v in trace["bill_ns"].items() if k not in ("kernel", "copies")),
        key=lambda item: item[1],
        default=("", 0),
    )
    if not ns:
        return []
    said = [
        f"most of the rest is {first.replace('_', ' ')}, {percent(ns / max(1, trace['wall_ns']))}"
    ]
    inside = [call for call in trace["startup"] if call["in_steps_ns"]]
    if first == "startup" and inside:
        return [*said, f"above all {max(inside, key=lambda c: c['in_steps_ns'])['name'][:120]}"]
    leaders = trace["starved_by"]["python"] or trace["starved_by"]["operator"]
    return [*said, f"above all in {leaders[0]['name'][:120]}"] if leaders else said


def _devices(timeline: Timeline) -> dict[str, dict[str, Any]]:
    work = timeline.work
    found = {}
    for device in np.unique(work.device).tolist():
        own = work.device == device
        start, end, kernel = work.start_ns[own], work.end_ns[own], timeline.is_kernel[own]
        found[str(device)] = {
            "name": timeline.trace.device_names.get(device),
            "kernel_ns": intervals.union_ns(start, end),
            "span_ns": int(end.max() - start.min()),
            "kernels": int(kernel.sum()),
            "copies": int((~kernel).sum()),
            "streams": len(np.unique(work.stream[own])),
        }
    return found


def _steps(
    timeline: Timeline,
    table: Ns,
    leaders: Sequence[dict[str, Any] | None],
    steps: Sequence[Step],
    ahead: Sequence[int | None],
    doubt: Ns,
) -> list[dict[str, Any]]:
    windows = timeline.windows
    launched = windows.of(timeline.calls.start_ns[timeline.is_launch])
    launches = np.bincount(launched[launched >= 0], minlength=len(windows.names))
    found = []
    for n, step in enumerate(steps):
        start, end = step.device_start_ns, step.device_end_ns
        on_device = int(windows.device_ns[n])
        share = _tax_share(table[n : n + 1], np.array([step.wall_ns])) if len(step) else None
        judged = _judged(timeline, table[n], share, int(doubt[n]), [step], [ahead[n]])
        found.append(
            {
                "name": step.name,
                "wall_ns": step.wall_ns,
                "device_wall_ns": on_device if on_device >= 0 else None,
                "kernel_ns": intervals.union_ns(start, end),
                "span_ns": int(end.max() - start.min()) if len(step) else None,
                "kernels": int(step.is_kernel.sum()),
                "copies": int((~step.is_kernel).sum()),
                "launches": int(launches[n]),
                "devices": {
                    str(d): intervals.union_ns(start[step.device == d], end[step.device == d])
                    for d in np.unique(step.device).tolist()
                },
                **_bill(table[n], timeline),
                "starved_by": leaders[n],
                "host_ahead_ns": ahead[n],
                "regime": judged.regime,
                "no_regime": judged.because,
            }
        )
    return found


def _judged(
    timeline: Timeline,
    row: Ns,
    share: Estimate | None,
    doubt_ns: int,
    steps: Sequence[Step],
    ahead: Sequence[int | None],
) -> Judged:
    """Return the regime of steps; where the host was ahead throughout, of the device's own span.

    Args:
        timeline: of the trace.
        row: the steps' bill.
        share: the steps' tax share, None where nothing ran on a device.
        doubt_ns: idle time of the steps in which unrecorded work may have run.
        steps: themselves.
        ahead: how far the host was ahead in each, ns.
    """
    own = [(step, lead) for step, lead in zip(steps, ahead, strict=True) if len(step)]
    if own and all(lead is not None for _, lead in own):
        start = np.concatenate([step.device_start_ns for step, _ in own])
        end = np.concatenate([step.device_end_ns for step, _ in own])
        span = int(end.max() - start.min())
        return Judged(gpu_regime(_exactly(intervals.union_ns(start, end) / max(1, span))), None)
    if share is None:
        if not len(timeline.work):
            return Judged(None, "no-device")
        return Judged(None, "work-before-recording" if row[LINES.index("unknown")] else None)
    return judge(timeline, row, one_minus(share), doubt_ns)


def _sum(row: Ns, *lines: str) -> int:
    return int(sum(row[LINES.index(line)] for line in lines))


def _busy(row: Ns) -> int:
    return _sum(row, "kernel", "copies")


def _bill(row: Ns, timeline: Timeline) -> dict[str, Any]:
    """Return the lines of a bill, and with a device the causes of its idle time."""
    idle = {
        "host_starvation": _sum(row, *STARVED),
        "dependency": _sum(row, "device_gap"),
        "synchronise": _sum(row, "wait"),
    }
    return {
        "bill_ns": {line: int(ns) for line, ns in zip(LINES, row.tolist(), strict=True) if ns},
        "idle_ns": idle if len(timeline.work) else None,
    }


def _tax_share(table: Ns, walls: Ns) -> Estimate | None:
    """Return the share of the wall in which no device was busy; an interval from 5 steps on.

    Time in which devices had work from before the recording is left out of both, and the interval
    reaches from all of it busy to all of it idle.
    """
    busy = table[:, [LINES.index("kernel"), LINES.index("copies")]].sum(axis=1)
    unknown = table[:, LINES.index("unknown")]
    seen = walls - unknown
    if not seen.sum():
        return None
    value = 1 - float(busy.sum() / seen.sum())
    if len(walls) < MIN_STEPS:
        found = _exactly(value)
    else:
        rng = np.random.default_rng(SEED)
        drawn = np.array(
            [
                1 - busy[rows].sum() / max(1, seen[rows].sum())
                for rows in (rng.integers(0, len(walls), len(walls)) for _ in range(DRAWS))
            ]
        )
        ends = [float(end) for end in np.percentile(drawn, [2.5, 97.5])]
        found = Estimate(
            value=value,
            low=min(ends[0], value),
            high=max(ends[1], value),
            method="steps (bootstrap)",
            n=len(walls),
        )
    whole = float(walls.sum())
    low = 1 - float((busy + unknown).sum()) / whole
    high = 1 - float(busy.sum()) / whole
    return replace(found, low=min(found.low, low), high=max(found.high, high))


def _exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, method="as recorded, no interval", n=1)


# --- what cannot be trusted ---------------------------------------------------------------------


def _notes(timeline: Timeline) -> list[Note]:
    """Return the trust notes of a trace: of the file, of the devices, of the host."""
    trace, windows, found = timeline.trace, timeline.windows, []

    def note(code: str, text: str) -> None:
        found.append(Note(code, text))

    if trace.cut:
        note("trace-cut-off", f"the file is not whole: {trace.cut}; what came before is used")
    if trace.malformed:
        text = f"{trace.malformed} records of the file cannot be read and were left out"
        note("records-malformed", text)
    if trace.invalid:
        text = f"{trace.invalid} records have impossible times and were not counted"
        note("records-invalid", text)
    if timeline.duplicates:
        text = f"{timeline.duplicates} records repeat another one exactly and count once"
        note("records-repeated", text)
    if trace.resolution_ns >= 1000 and len(timeline.work):
        note("coarse-clock", f"this profiler writes times in steps of {trace.resolution_ns} ns")
    if len(timeline.work):
        found += _device_notes(timeline)
    else:
        note(
            "no-device-records",
            "no record of a device: operators hold kernels and their dispatch alike, so that "
            "neither tax nor regime is known; frameworktax measure separates them",
        )
    if not windows.marked:
        note(
            "no-steps",
            "no step marks: the whole trace is one step, set-up and pauses included; call "
            "profiler.step() after each",
        )
    elif windows.others:
        listed = ", ".join(f"{n} ({count})" for n, count in windows.others.items())
        note("other-annotations", f"not taken as steps: {listed}; choose with --step REGEX")
    if windows.overlapping:
        text = f"{windows.overlapping} step marks overlap another and were left out"
        note("steps-overlap", text)
    if not (timeline.events.category == FRAME).any():
        note(
            "no-python-frames",
            "no Python frames: time of the host between operators is in the remainder; profile "
            "with with_stack=True",
        )
    note(
        "under-profiler",
        "recorded under a profiler, which slows the host: shares show where to look, walls are "
        "no latency",
    )
    return found


def _device_notes(timeline: Timeline) -> list[Note]:
    steps = len(timeline.windows.names)
    alone = int(((timeline.call < 0) & timeline.is_kernel).sum())
    empty = steps - len(np.unique(timeline.step_of[timeline.step_of >= 0]))
    outside = int((timeline.step_of < 0).sum())
    crossed = _crossed(timeline)
    until = timeline.backlog_until_ns
    begin = int(timeline.windows.begin_ns[0])
    backlog = []
    if until is not None and until > begin:
        text = (
            f"devices had work from before the recording for its first {duration(until - begin)}: "
            "where nothing recorded runs, that time is unknown and not idle"
        )
        backlog.append(Note("work-before-recording", text))
    counted = (
        (
            timeline.idle_calls,
            "launches-without-kernels",
            "launches have no record on any device: records were lost, device time is too low",
        ),
        (
            alone,
            "kernels-without-launch",
            "kernels have no launch: what the host did for them is not known",
        ),
        (empty, "steps-without-device", f"of {steps} steps have no record of a device"),
        (
            outside,
            "records-outside-steps",
            "records of a device belong to no step; they count in the device's total",
        ),
        (
            crossed,
            "kernels-overlap",
            "kernels begin before the one ahead of them on their stream has ended",
        ),
    )
    skewed = [
        Note(
            "clocks-skewed",
            f"device {device} stamps kernels up to {ns} ns before their launch: its clock was "
            "moved by that much",
        )
        for device, ns in timeline.shift_ns.items()
    ]
    kept = [Note(code, f"{count} {text}") for count, code, text in counted if count]
    return backlog + skewed + kept


def _crossed(timeline: Timeline) -> int:
    """Return how many kernels begin before an earlier one on the same known stream has ended."""
    work = timeline.work.where(timeline.is_kernel & (timeline.work.stream >= 0))
    work = work.take(np.lexsort((work.start_ns, work.stream, work.device)))
    same = (work.stream[1:] == work.stream[:-1]) & (work.device[1:] == work.device[:-1])
    return int((same & (work.start_ns[1:] < work.end_ns[:-1])).sum())
