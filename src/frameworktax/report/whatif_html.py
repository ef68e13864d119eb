"""The sliders of the page: what each point needs for ``page_whatif.js`` to predict from it.

What does not move with a slider is decided here, by the code that answers `explain`: refusals,
the share of matrix products, the kind of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from frameworktax.analysis.whatif import cpu as on_cpu
from frameworktax.analysis.whatif import formula_errors as shown
from frameworktax.analysis.whatif import formulas, queued
from frameworktax.analysis.whatif import gpu as on_device
from frameworktax.analysis.whatif.request import Refused, WhatIf, batches
from frameworktax.records import FLOOR, Estimate, Measurement, Point, Run, device_of, point_name
from frameworktax.report.sections import esc

SUBJECTS = 200
"""Points that the page can start from; more make a list that nobody reads."""
CONTROLS = (
    ("hostSpeed", "cpu", "Host speed", "what the framework does gets faster, kernels stay"),
    ("machine", "device", "Device and host speed", "two queues, replayed together"),
    ("batch", "all", "Batch size", "a line through the measured ones"),
    ("width", "all", "Layer width", "matrix products grow with its square"),
    ("depth", "cpu", "Number of layers", "a line through the measured depths"),
)
"""Change, where it can be asked, its name and what is assumed."""
DOUBLINGS = 2
"""Sliders reach from a quarter to four times."""


def numbers(estimate: Estimate | None) -> list[float] | None:
    """Return value, low and high."""
    return None if estimate is None else [estimate.value, estimate.low, estimate.high]


def data(run: Run) -> dict[str, Any]:
    """Return the subjects, the smallest batch of each model and runtime, and formulas' errors."""
    told = [m for m in run.measurements if m.latency_ns is not None and m.runtime != FLOOR]
    related: dict[Point, list[Measurement]] = {}
    alike: dict[tuple[object, ...], list[Measurement]] = {}
    for m in told:
        related.setdefault(m.point.family(), []).append(m)
        alike.setdefault(_shape(m), []).append(m)
    first: dict[Point, Measurement] = {}
    for m in told:
        key = m.point.without_batch()
        if key not in first or m.workload.batch < first[key].workload.batch:
            first[key] = m
    subjects = [_subject(m, related[m.point.family()], alike[_shape(m)]) for m in first.values()]
    errors = {
        name: {**found, "refused": shown.distrust(found)} for name, found in shown.table().items()
    }
    return {"subjects": subjects[:SUBJECTS], "shown": errors}


def _shape(m: Measurement) -> tuple[object, ...]:
    """Return what points share that differ in width or depth alone."""
    return (replace(m.workload, width=1, depth=1), m.platform, m.threads, m.runtime)


def _subject(
    m: Measurement, relatives: Sequence[Measurement], alike: Sequence[Measurement]
) -> dict[str, Any]:
    on_host = device_of(m.platform) == "cpu"
    found: dict[str, Any] = {
        "name": point_name(m.point),
        "onCpu": on_host,
        "batch": m.workload.batch,
        "width": m.workload.width,
        "depth": m.workload.depth,
        "latency": numbers(m.latency_ns),
        "batches": _row(batches(relatives, m.runtime), lambda o: o.workload.batch),
        "depths": _row(
            [o for o in alike if o.workload.width == m.workload.width], lambda o: o.workload.depth
        ),
        "widths": _row(
            [o for o in alike if o.workload.depth == m.workload.depth], lambda o: o.workload.width
        ),
    }
    if on_host:
        asked = on_cpu.answer(m, relatives, relatives, WhatIf(host_speed=1.0))
        return found | {
            "share": numbers(m.tax_share),
            "unshared": asked.reason if isinstance(asked, Refused) else None,
            "streams": on_cpu.streams(m),
            "matrix": formulas.matrix_share(m.kernel_detail_ns or {}, m.flops, m.macs),
        }
    replays = m.runtime in on_device.GRAPHS
    captured = next(
        (o for o in relatives if o.runtime == "cuda-graph" and o.workload == m.workload), None
    )
    return found | {
        "refusal": queued.refusal(m),
        "graphs": f"{m.runtime} replays a graph already" if replays else None,
        "captured": numbers(captured.latency_ns) if captured and captured is not m else None,
        "launches": m.launches,
        "enqueue": numbers(m.enqueue_ns),
        "kernel": numbers(m.kernel_ns),
        "span": numbers(m.span_ns),
    }


def _row(
    points: Sequence[Measurement], value: Callable[[Measurement], float]
) -> list[dict[str, Any]]:
    return [
        {
            "at": value(o),
            "latency": numbers(o.latency_ns),
            "kernel": numbers(o.kernel_ns),
            "kind": on_cpu.kind(o),
        }
        for o in sorted(points, key=value)
    ]


def section(subjects: Sequence[dict[str, Any]]) -> str:
    """Return the controls; nothing where there is nothing to start from."""
    if not subjects:
        return ""
    options = "".join(f'<option value="{i}">{esc(s["name"])}' for i, s in enumerate(subjects))
    rows = "".join(_control(*control) for control in CONTROLS)
    return (
        '<section aria-labelledby="what-if"><h2 id="what-if">What if</h2>'
        '<p class="hint">Each change is answered alone, from the point chosen, with the formulas '
        "of <code>frameworktax explain</code>; a formula that has not earned trust refuses.</p>"
        '<form id="whatif"><p class="pick"><label for="whatif-subject">Start from</label>'
        f'<select id="whatif-subject">{options}</select>'
        f'<button type="reset">Reset</button></p>{rows}</form>'
        "<noscript><p>The sliders need JavaScript.</p></noscript></section>"
    )


def _control(change: str, where: str, name: str, assumed: str) -> str:
    inputs = {
        "machine": _slider("deviceSpeed", "Device speed")
        + _slider("queueSpeed", "Host speed")
        + '<label class="check"><input type="checkbox" id="graphs"> Launches in one graph</label>',
        "batch": '<label for="batch">Batch size</label><input type="range" id="batch" min="1" '
        'max="2" step="1" value="1"><output for="batch"></output>',
    }.get(change) or _slider(change, name)
    return (
        f'<div class="change" data-change="{change}" data-on="{where}"><div>{inputs}'
        f"<small>{esc(assumed)}</small></div>"
        f'<p data-answer="{change}" aria-live="polite"><b></b><small></small></p></div>'
    )


def _slider(name: str, label: str) -> str:
    return (
        f'<label for="{name}">{esc(label)}</label><input type="range" id="{name}" data-scale="log" '
        f'min="-{DOUBLINGS}" max="{DOUBLINGS}" step="0.05" value="0"><output for="{name}"></output>'
    )
