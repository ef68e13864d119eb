"""The tables of a trace and of predictions as rows of text, the same in every format."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from frameworktax.analysis.whatif.request import MEASURED
from frameworktax.records import Prediction
from frameworktax.report.words import factor, interval, milliseconds, percent

Rows = list[list[str]]
TRACE_MEANINGS = {
    "kernel": "a kernel runs",
    "copies": "only copies or memsets run",
    "operators": "operators with none inside: kernels and their dispatch alike",
    "framework": "operators: dispatcher, wrappers, what is around kernels",
    "python": "Python frames",
    "launch": "calls of the device's runtime and driver",
    "device_gap": "devices idle though work is queued: stream order, events, launch latency",
    "wait": "the host in a synchronise, devices idle",
    "remainder": "nothing was recorded that explains it",
}
IDLE_MEANINGS = {
    "host_starvation": "the host had not launched yet",
    "dependency": "launched work waited for other work, or for its launch to arrive",
    "synchronise": "the host waited, with nothing left to run",
}
STEPS = 8
"""Steps shown one by one; the slowest are told apart in the document."""
LEADERS = 8
NAME_SIGNS = 200


def shown(name: str) -> str:
    """Return a name from a file as one line without control signs."""
    flat = "".join(c if c.isprintable() else " " for c in name)
    return flat if len(flat) <= NAME_SIGNS else flat[: NAME_SIGNS - 1] + "…"


def steps(trace: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return head and rows of the steps: the first ones and the median over all."""
    head = ["step", "wall ms", "busy ms", "busy", "kernels", "copies", "launches", "regime"]
    every = trace["steps"]
    rows = [_step(step, bool(trace["devices"])) for step in every[:STEPS]]
    if len(every) > 1:
        wall, busy = (statistics.median(value(s) for s in every) for value in (_wall, _busy))
        middle = [
            f"{statistics.median(s[what] for s in every):g}"
            for what in ("kernels", "copies", "launches")
        ]
        share = statistics.median(_busy(s) / _wall(s) if _wall(s) else 0.0 for s in every)
        rows.append(
            [
                f"median of {len(every)}",
                milliseconds(wall),
                milliseconds(busy) if trace["devices"] else "–",
                percent(share) if trace["devices"] else "–",
                *middle,
                str(trace["regime"] or "–"),
            ]
        )
    return head, rows


def _step(step: Mapping[str, Any], has_device: bool) -> list[str]:
    wall, busy = _wall(step), _busy(step)
    return [
        shown(step["name"]),
        milliseconds(wall),
        milliseconds(busy if has_device else None),
        percent(busy / wall if wall and has_device else None),
        str(step["kernels"]),
        str(step["copies"]),
        str(step["launches"]),
        str(step["regime"] or "–"),
    ]


def _wall(step: Mapping[str, Any]) -> float:
    return float(step["wall_ns"])


def _busy(step: Mapping[str, Any]) -> float:
    bill = step["bill_ns"]
    return float(bill.get("kernel", 0) + bill.get("copies", 0))


def bill(trace: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return head and rows of the bill over all steps; the lines add up to the wall."""
    wall = trace["wall_ns"]
    rows = [
        [name.replace("_", " "), milliseconds(ns), _share(ns, wall), TRACE_MEANINGS[name]]
        for name, ns in trace["bill_ns"].items()
        if name in TRACE_MEANINGS
    ]
    return ["line", "ms", "share", "what it is"], rows


def idle(trace: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return head and rows of idle time by cause; empty without a device."""
    if not trace["idle_ns"]:
        return [], []
    wall = trace["wall_ns"]
    rows = [
        [name.replace("_", " "), milliseconds(ns), _share(ns, wall), IDLE_MEANINGS[name]]
        for name, ns in trace["idle_ns"].items()
        if name in IDLE_MEANINGS
    ]
    return ["devices idle", "ms", "share", "because"], rows


def starved_by(trace: Mapping[str, Any]) -> tuple[str, list[str], Rows]:
    """Return what kept the devices waiting: the kind, head and rows of lines or modules."""
    for kind, title in (("python", "line of Python"), ("module", "module")):
        found = trace["starved_by"].get(kind)
        if found:
            rows = [
                [milliseconds(f["ns"]), _share(f["ns"], trace["wall_ns"]), shown(f["name"])]
                for f in found[:LEADERS]
            ]
            return title, ["ms", "share", title], rows
    return "", [], []


def operators(trace: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return head and rows of the operators with most tax."""
    rows = [
        [
            milliseconds(o["tax_ns"]),
            _share(o["tax_ns"], trace["wall_ns"]),
            milliseconds(o["kernel_ns"]),
            str(o["calls"]),
            shown(o["name"]),
        ]
        for o in trace["operators"][:LEADERS]
        if o["tax_ns"]
    ]
    return ["tax ms", "share", "kernel ms", "calls", "operator"], rows


def devices(trace: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return head and rows of the devices."""
    rows = [
        [
            number,
            milliseconds(d["kernel_ns"]),
            milliseconds(d["span_ns"]),
            str(d["kernels"]),
            str(d["copies"]),
            shown(d["name"] or "–"),
        ]
        for number, d in trace["devices"].items()
    ]
    return ["device", "busy ms", "span ms", "kernels", "copies", "name"], rows


def predictions(found: Sequence[Prediction]) -> tuple[list[str], Rows]:
    """Return head and rows of predictions, refusals with their reasons."""
    rows = []
    for p in found:
        if p.reason is not None:
            told = ["refused", "–", shown(p.reason)]
        else:
            gain = factor(p.factor) if p.factor is not None else "–"
            told = [gain, f"{interval(p.latency_ns)} ms", _proof(p)]
        rows.append([p.change, *told, shown(p.subject)])
    return ["change", "faster", "latency", "formula and its error", "from"], rows


def _proof(p: Prediction) -> str:
    if p.formula == MEASURED:
        return p.formula
    errors = p.shown_error
    if not errors or "median" not in errors:
        return f"{p.formula}; never checked"
    return (
        f"{p.formula}; error {100 * errors['median']:.1f} % in the median, "
        f"{100 * errors.get('p95', errors['median']):.1f} % in 95 of 100, "
        f"{errors.get('n', 0):.0f} cases"
    )


def _share(ns: float, wall: float) -> str:
    return f"{100 * ns / wall:.1f} %" if wall else "–"
