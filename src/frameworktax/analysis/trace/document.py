"""A recorded trace as a document: the answer, the bill, the steps, the causes, the notes.

A regime is given only where nothing that the trace leaves open could change it: start-up calls
inside a step, work from before the recording, and the profiler's own cost, which lengthens the
host's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from frameworktax.analysis.estimates import duration, exactly, one_minus, percent, scaled, shifted
from frameworktax.analysis.regime import gpu_regime
from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.analysis.trace.advice import PART, advise
from frameworktax.analysis.trace.bill import FRAME, LINES, STARVED, slowed
from frameworktax.analysis.trace.findings import causes, operators, startup, waits
from frameworktax.records import Estimate, Note, Regime, Run
from frameworktax.stats import mean_interval
from frameworktax.traces import intervals
from frameworktax.traces.intervals import Mask, Ns
from frameworktax.traces.timeline import Step, Timeline

Open = Literal[
    "no-device", "device-missing", "start-up", "work-before-recording", "communication", "profiler"
]
"""Why a trace carries no regime."""
NO_REGIME: dict[Open, str] = {
    "start-up": "for start-up calls inside the steps could change it",
    "work-before-recording": "for work from before the recording could change it",
    "communication": "for communication includes waiting for other devices",
    "profiler": "for the profiler's own cost could change it",
    "device-missing": "for what ran on the device is not known",
    "no-device": "for operators hold kernels and their dispatch alike",
}
NOTES = {
    "trace-cut-off": "the file is not whole: {}; what came before is used",
    "records-malformed": "{} records of the file cannot be read and were left out",
    "records-invalid": "{} records have impossible times and were not counted",
    "records-repeated": "{} records repeat another one exactly and count once",
    "coarse-clock": "this profiler writes times in steps of {} ns",
    "no-device-records": "no record of a device: operators hold kernels and their dispatch alike, "
    "so that neither tax nor regime is known; frameworktax measure separates them",
    "device-missing": "{}: operators hold dispatch and no kernels, and the device's time is not "
    "known; on CUDA and ROCm record kernels too: ProfilerActivity.CUDA, and the right to profile",
    "no-steps": "no step marks: the whole trace is one step, set-up and pauses included; give the "
    "profiler a schedule and call its step() after each, or mark steps with record_function",
    "other-annotations": "not taken as steps: {}; choose with --step REGEX",
    "steps-overlap": "{} step marks overlap another and were left out",
    "no-python-frames": "no Python frames: time of the host between operators is in the remainder; "
    "profile with with_stack=True",
    "under-profiler": "recorded under a profiler, which slows the host: shares show where to look, "
    "walls are no latency",
    "work-before-recording": "devices had work from before the recording for its first {}: where "
    "nothing recorded runs, that time is unknown and not idle",
    "clocks-skewed": "device {} before their launch: its clock was moved by that much",
    "launches-without-kernels": "{} launches have no record on any device: records were lost, "
    "device time is too low",
    "kernels-without-launch": "{} kernels have no launch: what the host did for them is not known",
    "steps-without-device": "{} steps have no record of a device",
    "records-outside-steps": "{} records of a device belong to no step; they count in the device's "
    "total",
}
"""Code → what cannot be trusted, with the number or words that it is about."""
BUSY = ("kernel", "communication", "copies")
"""Lines of the bill in which a device is busy."""
EXPLAINED = ("framework", "python", "launch")
"""Lines of the bill that lie in lines of Python and operators."""
MIN_STEPS = 5
"""Steps from which the share of the device has an interval; fewer are given as they are."""
RECORDED = "as recorded, no interval"


def document(timeline: Timeline, name: str) -> Run:
    """Return the document of one trace; ``name`` is its file's, for the headline."""
    bill, recorded, windows = trace_bill.bill(timeline), timeline.trace, timeline.windows
    starved_by, leaders = causes(timeline, bill)
    steps = timeline.steps()
    doubt = _doubts(timeline)
    ahead = [_host_ahead_ns(timeline, step) for step in steps]
    walls = windows.end_ns - windows.begin_ns
    total = bill.table.sum(axis=0)
    share = _tax_share(bill.table, walls) if len(timeline.work) else None
    regime, no_regime = _regime(timeline, total, share, int(doubt.sum()), steps, ahead)
    trace: dict[str, Any] = {
        "source": "kineto",
        "events": recorded.records,
        "launches": int(timeline.is_launch.sum()),
        "graph_launches": int((timeline.is_launch & timeline.is_graph).sum()),
        "devices": _devices(timeline),
        "wall_ns": int(walls.sum()),
        "busy_ns": _sum(total, *BUSY),
        "tax_share": asdict(share) if share is not None else None,
        **_bill(total, timeline),
        "regime": regime,
        "no_regime": no_regime,
        "operators": operators(timeline, bill),
        "starved_by": starved_by,
        "startup": startup(timeline, bill),
        "waits": waits(timeline, bill),
        "resolution_ns": recorded.resolution_ns,
        "cut": recorded.cut,
        "marked": windows.marked,
        "steps": _steps(timeline, bill.table, leaders, steps, ahead, doubt),
    }
    return Run(
        headline=_headline(trace, name),
        trace=trace,
        advice=advise(timeline, trace),
        notes=tuple(_notes(timeline)),
    )


def _headline(trace: dict[str, Any], name: str) -> str:
    """Return the answer in a sentence."""
    steps, wall, idle = trace["steps"], trace["wall_ns"], trace["idle_ns"]
    if trace["marked"]:
        median = duration(float(np.median([s["wall_ns"] for s in steps])))
        many = f"{len(steps)} steps of {median}, in the median"
        said = [many if len(steps) > 1 else f"1 step of {median}"]
    else:
        said = [f"one stretch of {duration(wall)}, no steps"]
    if idle is not None:
        least, most = busy_shares(trace)
        known = "" if least == most else f"{100 * least:.1f} to "
        said.append(f"a device is busy {known}{100 * most:.1f} % of it")
        exchanged = _part(trace["bill_ns"].get("communication", 0), wall)
        if exchanged >= PART:
            said.append(f"for {percent(exchanged)} only with communication")
    ahead = [s["host_ahead_ns"] for s in steps]
    if trace["regime"]:
        said.append(str(trace["regime"]))
    elif trace["no_regime"] in NO_REGIME:
        said.append(f"no regime, {NO_REGIME[trace['no_regime']]}")
    if None not in ahead:
        said.append(f"the host is {duration(min(ahead))} ahead: a faster host gains nothing")
    elif trace["no_regime"] == "device-missing":
        pass  # operators do not compute on the host
    elif idle is None:
        work = percent(_part(trace["bill_ns"].get("operators", 0), wall))
        said.append(f"operators that compute take {work}, their dispatch included")
        first = next((one for one in trace["operators"] if not one["tax_ns"]), None)
        begun = trace["bill_ns"].get("startup", 0)
        if begun > trace["bill_ns"].get("operators", 0):
            said.append(f"start-up calls take {percent(_part(begun, wall))}")
        elif first is not None:
            share = percent(_part(first["self_ns"], wall))
            if first["self_ns"] > trace["bill_ns"].get("operators", 0):
                share = f"{duration(first['self_ns'])} of all threads together"
            said.append(f"above all {first['name'][:120]}, {share}")
    else:
        said += _rest(trace)
    return f"{name}: " + "; ".join(said)


def busy_shares(part: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the most that a device is busy, as shares of the wall.

    They differ by the time in which devices had work from before the recording.

    Args:
        part: a step, or the whole trace.
    """
    lines = part["bill_ns"]
    busy = sum(lines.get(line, 0) for line in BUSY)
    unknown = lines.get("unknown", 0)
    return _part(busy, part["wall_ns"]), _part(busy + unknown, part["wall_ns"])


def _part(ns: int, wall_ns: int) -> float:
    """Return a time as a share of the wall; a trace without length has no part."""
    return ns / wall_ns if wall_ns else 0.0


def _rest(trace: dict[str, Any]) -> list[str]:
    """Return what the largest part of a device's idle time is, and whose."""
    lines = {line: ns for line, ns in trace["bill_ns"].items() if line not in BUSY}
    first = max(lines, key=lambda line: lines[line], default=None)
    if first is None:
        return []
    share = percent(_part(lines[first], trace["wall_ns"]))
    said = f"most of the rest is {first.replace('_', ' ')}, {share}"
    inside = [call for call in trace["startup"] if call["in_steps_ns"]]
    if first == "startup" and inside:
        return [said, f"above all {max(inside, key=lambda c: c['in_steps_ns'])['name'][:120]}"]
    if first not in EXPLAINED:
        return [said]  # no line of Python and no operator was open in it
    leaders = trace["starved_by"]["python"] or trace["starved_by"]["operator"]
    return [said, f"above all in {leaders[0]['name'][:120]}"] if leaders else [said]


def _devices(timeline: Timeline) -> dict[str, dict[str, Any]]:
    work = timeline.work
    found = {}
    for device in np.unique(work.device).tolist():
        own = work.device == device
        found[str(device)] = {
            "name": timeline.trace.device_names.get(device),
            **_ran(work.start_ns[own], work.end_ns[own], timeline.is_kernel[own]),
            "streams": len(np.unique(work.stream[own])),
        }
    return found


def _ran(start: Ns, end: Ns, is_kernel: Mask) -> dict[str, int | None]:
    return {
        "kernel_ns": intervals.union_ns(start, end),
        "span_ns": int(end.max() - start.min()) if len(start) else None,
        "kernels": int(is_kernel.sum()),
        "copies": int((~is_kernel).sum()),
    }


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
        regime, no_regime = _regime(timeline, table[n], share, int(doubt[n]), [step], [ahead[n]])
        found.append(
            {
                "name": step.name,
                "wall_ns": step.wall_ns,
                "device_wall_ns": on_device if on_device >= 0 else None,
                **_ran(start, end, step.is_kernel),
                "launches": int(launches[n]),
                "devices": {
                    str(d): intervals.union_ns(start[step.device == d], end[step.device == d])
                    for d in np.unique(step.device).tolist()
                },
                **_bill(table[n], timeline),
                "starved_by": leaders[n],
                "host_ahead_ns": ahead[n],
                "regime": regime,
                "no_regime": no_regime,
            }
        )
    return found


def _sum(row: Ns, *lines: str) -> int:
    return int(sum(row[LINES.index(line)] for line in lines))


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


# --- the regime ---------------------------------------------------------------------------------


def _regime(
    timeline: Timeline,
    row: Ns,
    tax_share: Estimate | None,
    doubt_ns: int,
    steps: Sequence[Step],
    ahead: Sequence[int | None],
) -> tuple[Regime | None, Open | None]:
    """Return the regime of steps, or why there is none.

    ``row`` is the steps' bill, ns by line of ``LINES``; in ``doubt_ns`` of idle time unrecorded
    work may have run, besides the line ``unknown``. Where the host was ahead in all steps, the
    regime is of the device's span.
    """
    if None not in ahead:
        start = np.concatenate([step.device_start_ns for step in steps])
        end = np.concatenate([step.device_end_ns for step in steps])
        span = int(end.max() - start.min())
        busy = _part(intervals.union_ns(start, end), span)
        regime = gpu_regime(exactly(busy, RECORDED))
        exchanged = _part(_sum(row, "communication"), span)
        if gpu_regime(exactly(busy - exchanged, RECORDED)) != regime:
            return None, "communication"
        return regime, None
    wall, startup_ns, unknown = int(row.sum()), _sum(row, "startup"), _sum(row, "unknown")
    if tax_share is None:
        if not len(timeline.work):
            return None, "device-missing" if _missing(timeline) else "no-device"
        return None, "work-before-recording" if unknown else None
    if startup_ns > wall / 2:
        return None, "start-up"  # what is left is no picture of a warm step
    seen = unseen = one_minus(tax_share)
    if unknown:  # the interval is what of it may be busy, and no noise
        seen, unseen = exactly(seen.low, RECORDED), exactly(seen.high, RECORDED)
    more = _part(doubt_ns, wall)
    host = _sum(row, *STARVED) - startup_ns
    others: dict[Open, Estimate] = {
        "start-up": _without(seen, wall, startup_ns),
        "work-before-recording": shifted(unseen, more),
        "communication": shifted(seen, -_part(_sum(row, "communication"), wall)),
        "profiler": _without(seen, wall, host * (1 - 1 / slowed(timeline))),
    }
    regime = gpu_regime(seen)
    because = next((why for why, other in others.items() if gpu_regime(other) != regime), None)
    return (regime if because is None else None), because


def _without(share: Estimate, wall: int, part: float) -> Estimate:
    """Return a share of the wall as it is without a part of the wall, which is not all of it."""
    return scaled(share, wall / (wall - part))


def _missing(timeline: Timeline) -> str:
    """Return what a trace without records of a device has of one; empty for nothing."""
    unread = [f"{count} records of {name}" for name, count in timeline.trace.unread.items()]
    if unread:
        return f"{' and '.join(unread)} are not read, and there are no others of a device"
    lost = int(timeline.lost.sum())
    return f"{lost} launches, and no record of what they ran" if lost else ""


def _host_ahead_ns(timeline: Timeline, step: Step) -> int | None:
    """Return how far the host was ahead of the device throughout a step; None where it was not.

    The least time from a launch's return to the start of its work, where that is far beyond the
    usual launch latency: the device never waited for the host, and a faster host gains nothing.
    It waits where the step goes on after the end of its work.
    """
    if not len(step) or not (step.launch_start_ns >= 0).all():
        return None
    if step.end_ns - int(step.device_end_ns.max()) > timeline.late_ns:
        return None
    least = int((step.device_start_ns - step.launch_end_ns).min())
    return least if least > timeline.late_ns else None


def _doubts(timeline: Timeline) -> Ns:
    """Return, per step, idle time in which unrecorded work may have run, line ``unknown`` apart.

    Before the first launch or synchronise of the recording, and after a launch whose kernels were
    lost.
    """
    work, begin, end = timeline.work, timeline.windows.begin_ns, timeline.windows.end_ns
    first, last = int(begin[0]), int(end[-1])
    seen_s, seen_e = work.start_ns, work.end_ns
    if (until := timeline.backlog_until_ns) is not None and until > first:
        seen_s, seen_e = np.append(seen_s, first), np.append(seen_e, until)
    idle = intervals.gaps(seen_s, seen_e, (first, last))
    known = timeline.known_from_ns
    lost = int(timeline.calls.start_ns[timeline.lost].min(initial=2**62))
    before = intervals.union_within_ns(*idle, begin, np.clip(known, begin, end))
    return before + intervals.union_within_ns(*idle, np.clip(max(lost, known), begin, end), end)


def _tax_share(table: Ns, walls: Ns) -> Estimate | None:
    """Return the share of the wall in which no device was busy; an interval from 5 steps on.

    Time in which devices had work from before the recording is left out of both, and the interval
    reaches from all of it busy to all of it idle.
    """
    busy = table[:, [LINES.index(line) for line in BUSY]].sum(axis=1)
    unknown = table[:, LINES.index("unknown")]
    seen = walls - unknown
    if not seen.sum():
        return None
    share = 1 - float(busy.sum() / seen.sum())
    found = exactly(share, RECORDED)
    if len(walls) >= MIN_STEPS:
        steps = share + (seen - busy - share * seen) / seen.mean()  # of the ratio of two means
        found = mean_interval(steps.tolist(), "steps (Student's t)") or found
    whole = float(walls.sum())
    low = 1 - float((busy + unknown).sum()) / whole
    high = 1 - float(busy.sum()) / whole
    return replace(found, low=min(found.low, low), high=max(found.high, high))


# --- what cannot be trusted ---------------------------------------------------------------------


def _notes(timeline: Timeline) -> list[Note]:
    """Return what is to know of the file, its devices and the host."""
    trace, windows, has_device = timeline.trace, timeline.windows, bool(len(timeline.work))
    listed = ", ".join(f"{n} ({count})" for n, count in windows.others.items())
    found: list[tuple[str, object]] = [
        ("trace-cut-off", trace.cut),
        ("records-malformed", trace.malformed),
        ("records-invalid", trace.invalid),
        ("records-repeated", timeline.duplicates),
        ("coarse-clock", trace.resolution_ns if trace.resolution_ns >= 1000 and has_device else 0),
        *(_of_devices(timeline) if has_device else []),
        ("device-missing", "" if has_device else _missing(timeline)),
        ("no-device-records", not has_device and not _missing(timeline)),
        ("no-steps", not windows.marked),
        ("other-annotations", listed if windows.marked else ""),
        ("steps-overlap", windows.overlapping),
        ("no-python-frames", not (timeline.trace.events.category == FRAME).any()),
        ("under-profiler", True),
    ]
    return [Note(code, NOTES[code].format(value)) for code, value in found if value]


def _of_devices(timeline: Timeline) -> list[tuple[str, object]]:
    steps, until = len(timeline.windows.names), timeline.backlog_until_ns
    empty = steps - len(np.unique(timeline.step_of[timeline.step_of >= 0]))
    backlog = until - int(timeline.windows.begin_ns[0]) if until is not None else 0
    return [
        ("work-before-recording", duration(backlog) if backlog > 0 else ""),
        *(
            ("clocks-skewed", f"{device} stamps kernels up to {ns} ns")
            for device, ns in timeline.shift_ns.items()
        ),
        ("launches-without-kernels", int(timeline.lost.sum())),
        ("kernels-without-launch", int(((timeline.call < 0) & timeline.is_kernel).sum())),
        ("steps-without-device", f"{empty} of {steps}" if empty else ""),
        ("records-outside-steps", int((timeline.step_of < 0).sum())),
    ]
