"""A recorded trace as a document: the answer, the bill, the steps, who is behind the tax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.analysis.estimates import duration, percent
from frameworktax.analysis.regime import CPU_FRAMEWORK, gpu_regime
from frameworktax.analysis.resample import DRAWS, percentile_interval
from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.analysis.trace import notes as trace_notes
from frameworktax.analysis.trace import operators as trace_operators
from frameworktax.analysis.trace.bill import LINES, STARVED, Bill
from frameworktax.records import SEED, Estimate, Regime, Run
from frameworktax.traces import intervals
from frameworktax.traces.events import Recorded
from frameworktax.traces.timeline import Timeline

Ns = NDArray[np.int64]
MIN_STEPS = 5
"""Steps from which the share of the device has an interval; fewer are given as they are."""


def document(recorded: Recorded, timeline: Timeline, name: str) -> Run:
    """Return the document of one trace.

    Args:
        recorded: what the reader found.
        timeline: the same in order.
        name: of the file, for the headline.
    """
    bill = trace_bill.bill(timeline)
    steps = _steps(timeline, bill)
    walls = timeline.windows.end_ns - timeline.windows.begin_ns
    total = bill.table.sum(axis=0)
    share = _tax_share(bill, walls) if len(timeline.work) else None
    trace: dict[str, Any] = {
        "source": recorded.source,
        "events": recorded.records,
        "launches": int(timeline.is_launch.sum()),
        "graph_launches": int((timeline.is_launch & timeline.is_graph).sum()),
        "devices": _devices(recorded, timeline),
        "wall_ns": int(walls.sum()),
        "busy_ns": _busy(total),
        "tax_share": _plain(share),
        "bill_ns": _lines(total),
        "idle_ns": _idle(total) if len(timeline.work) else None,
        "regime": _regime(share, total),
        "operators": trace_operators.operators(timeline, bill),
        "starved_by": trace_operators.causes(timeline, bill),
        "resolution_ns": recorded.trace.resolution_ns,
        "cut": recorded.cut,
        "marked": timeline.windows.marked,
        "steps": steps,
    }
    return Run(
        headline=headline(trace, name), trace=trace, notes=trace_notes.notes(recorded, timeline)
    )


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


def _devices(recorded: Recorded, timeline: Timeline) -> dict[str, dict[str, Any]]:
    work = timeline.work
    found = {}
    for device in np.unique(work.device).tolist():
        own = work.device == device
        start, end, kernel = work.start_ns[own], work.end_ns[own], timeline.is_kernel[own]
        found[str(device)] = {
            "name": recorded.device_names.get(device),
            "kernel_ns": intervals.union_ns(start, end),
            "span_ns": int(end.max() - start.min()),
            "kernels": int(kernel.sum()),
            "copies": int((~kernel).sum()),
            "streams": len(np.unique(work.stream[own])),
        }
    return found


def _steps(timeline: Timeline, bill: Bill) -> list[dict[str, Any]]:
    leaders = trace_operators.leaders(timeline, bill)
    windows = timeline.windows
    launches = np.bincount(
        _inside(windows.of(timeline.calls.start_ns[timeline.is_launch])),
        minlength=len(windows.names),
    )
    found = []
    for n, step in enumerate(timeline.steps()):
        table, start, end = bill.table[n], step.device_start_ns, step.device_end_ns
        share = _point((_busy(table) / step.wall_ns) if step.wall_ns else None)
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
                "bill_ns": _lines(table),
                "idle_ns": _idle(table) if len(timeline.work) else None,
                "starved_by": leaders[n] or None,
                "regime": gpu_regime(share) if share and len(step) else None,
            }
        )
    return found


def _inside(steps: Ns) -> Ns:
    return steps[steps >= 0]


def _lines(table: Ns) -> dict[str, int]:
    return {line: int(ns) for line, ns in zip(LINES, table.tolist(), strict=True) if ns}


def _busy(table: Ns) -> int:
    return int(table[LINES.index("kernel")] + table[LINES.index("copies")])


def _idle(table: Ns) -> dict[str, int]:
    return {
        "host_starvation": int(sum(table[LINES.index(line)] for line in STARVED)),
        "dependency": int(table[LINES.index("device_gap")]),
        "synchronise": int(table[LINES.index("wait")]),
    }


def _tax_share(bill: Bill, walls: Ns) -> Estimate | None:
    """Return the share of the wall in which no device was busy; an interval from 5 steps on."""
    busy = bill.table[:, [LINES.index("kernel"), LINES.index("copies")]].sum(axis=1)
    if not walls.sum():
        return None
    value = 1 - float(busy.sum() / walls.sum())
    if len(walls) < MIN_STEPS:
        return _point(value)
    rng = np.random.default_rng(SEED)
    drawn = np.array(
        [
            1 - busy[rows].sum() / max(1, walls[rows].sum())
            for rows in (rng.integers(0, len(walls), len(walls)) for _ in range(DRAWS))
        ]
    )
    return percentile_interval(value, drawn, "steps (bootstrap)", len(walls))


def _point(value: float | None) -> Estimate | None:
    if value is None:
        return None
    return Estimate(value=value, low=value, high=value, method="as recorded, no interval", n=1)


def _regime(share: Estimate | None, total: Ns) -> Regime | None:
    """Return what bounds the trace; without a device only what the operators cannot hide."""
    if share is not None:
        return gpu_regime(Estimate(value=1 - share.value, low=1 - share.high, high=1 - share.low))
    least = sum(int(total[LINES.index(line)]) for line in ("framework", "python"))
    return "framework-bound" if least > CPU_FRAMEWORK * max(1, int(total.sum())) else None


def _plain(share: Estimate | None) -> dict[str, Any] | None:
    if share is None:
        return None
    names: Sequence[str] = ("value", "low", "high", "confidence", "method", "n")
    return {name: getattr(share, name) for name in names}
