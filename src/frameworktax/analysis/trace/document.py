"""A recorded trace as a document: the answer, the bill, the steps, the causes, the notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.estimates import duration, one_minus, percent
from frameworktax.analysis.regime import CPU_FRAMEWORK, gpu_regime
from frameworktax.analysis.resample import DRAWS, percentile_interval
from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.analysis.trace.bill import FRAME, LINES, STARVED
from frameworktax.analysis.trace.operators import causes, operators
from frameworktax.records import SEED, Estimate, Note, Regime, Run
from frameworktax.traces import intervals
from frameworktax.traces.timeline import Timeline

Ns = NDArray[np.int64]
MIN_STEPS = 5
"""Steps from which the share of the device has an interval; fewer are given as they are."""


def document(timeline: Timeline, name: str) -> Run:
    """Return the document of one trace; ``name`` is its file's, for the headline."""
    bill, recorded = trace_bill.bill(timeline), timeline.trace
    starved_by, leaders = causes(timeline, bill)
    steps = _steps(timeline, bill.table, leaders)
    walls = timeline.windows.end_ns - timeline.windows.begin_ns
    total = bill.table.sum(axis=0)
    share = _tax_share(bill.table, walls) if len(timeline.work) else None
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
        "regime": _regime(share, total),
        "operators": operators(timeline, bill),
        "starved_by": starved_by,
        "resolution_ns": recorded.resolution_ns,
        "cut": recorded.cut,
        "marked": timeline.windows.marked,
        "steps": steps,
    }
    return Run(headline=headline(trace, name), trace=trace, notes=tuple(_notes(timeline)))


def headline(trace: dict[str, Any], name: str) -> str:
    """Return the answer in a sentence."""
    steps = trace["steps"]
    if trace["marked"]:
        what = f"{len(steps)} step{'s' if len(steps) != 1 else ''} of"
        wall = duration(float(np.median([s["wall_ns"] for s in steps])))
    else:
        what, wall = "one stretch of", duration(trace["wall_ns"])
    said = [f"{what} {wall}{', in the median' if len(steps) > 1 else ''}"]
    if trace["idle_ns"] is not None:
        busy = trace["busy_ns"] / trace["wall_ns"] if trace["wall_ns"] else 0.0
        said.append(f"a device is busy {100 * busy:.1f} % of it")
    if trace["regime"]:
        said.append(str(trace["regime"]))
    first, ns = max(
        ((k, v) for k, v in trace["bill_ns"].items() if k not in ("kernel", "copies")),
        key=lambda item: item[1],
        default=("", 0),
    )
    if ns and trace["wall_ns"]:
        share = percent(ns / trace["wall_ns"])
        said.append(f"most of the rest is {first.replace('_', ' ')}, {share}")
    leaders = trace["starved_by"]["python"] or trace["starved_by"]["operator"]
    if leaders:
        said.append(f"above all in {leaders[0]['name'][:120]}")
    return f"{name}: " + "; ".join(said)


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
    timeline: Timeline, table: Ns, leaders: Sequence[dict[str, Any] | None]
) -> list[dict[str, Any]]:
    windows = timeline.windows
    launched = windows.of(timeline.calls.start_ns[timeline.is_launch])
    launches = np.bincount(launched[launched >= 0], minlength=len(windows.names))
    found = []
    for n, step in enumerate(timeline.steps()):
        start, end = step.device_start_ns, step.device_end_ns
        share = _exactly(_busy(table[n]) / step.wall_ns) if step.wall_ns else None
        on_device = int(windows.device_ns[n])
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
                "regime": gpu_regime(share) if share and len(step) else None,
            }
        )
    return found


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
    """Return the share of the wall in which no device was busy; an interval from 5 steps on."""
    if not walls.sum():
        return None
    busy = table[:, [LINES.index("kernel"), LINES.index("copies")]].sum(axis=1)
    value = 1 - float(busy.sum() / walls.sum())
    if len(walls) < MIN_STEPS:
        return _exactly(value)
    rng = np.random.default_rng(SEED)
    drawn = np.array(
        [
            1 - busy[rows].sum() / max(1, walls[rows].sum())
            for rows in (rng.integers(0, len(walls), len(walls)) for _ in range(DRAWS))
        ]
    )
    return percentile_interval(value, drawn, "steps (bootstrap)", len(walls))


def _exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, method="as recorded, no interval", n=1)


def _regime(share: Estimate | None, total: Ns) -> Regime | None:
    """Return what bounds the trace; without a device only what the operators cannot hide."""
    if share is not None:
        return gpu_regime(one_minus(share))
    least = _sum(total, "framework", "python")
    return "framework-bound" if least > CPU_FRAMEWORK * max(1, int(total.sum())) else None


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
            "the tax is a lower figure",
        )
    if not windows.marked:
        note(
            "no-steps",
            "no step marks: the whole trace is one step, set-up and pauses included; call "
            "profiler.step() after each",
        )
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
    return skewed + [Note(code, f"{count} {text}") for count, code, text in counted if count]


def _crossed(timeline: Timeline) -> int:
    """Return how many kernels begin before an earlier one on the same known stream has ended."""
    work = timeline.work.where(timeline.is_kernel & (timeline.work.stream >= 0))
    work = work.take(np.lexsort((work.start_ns, work.stream, work.device)))
    same = (work.stream[1:] == work.stream[:-1]) & (work.device[1:] == work.device[:-1])
    return int((same & (work.start_ns[1:] < work.end_ns[:-1])).sum())
