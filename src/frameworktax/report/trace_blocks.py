"""A trace, and predictions, as blocks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frameworktax.analysis.trace.document import NO_REGIME
from frameworktax.analysis.whatif.request import MEASURED
from frameworktax.errors import flat
from frameworktax.records import Estimate, Prediction
from frameworktax.report.blocks import Block, Cell, Item, Items, Table, right, table
from frameworktax.report.words import factor, has_interval, label, percent, time_text

MEANINGS = {
    "kernel": "a kernel runs",
    "copies": "only copies or memsets run",
    "operators": "own time of operators that compute: kernels and their dispatch alike",
    "framework": "operators: dispatcher, wrappers, what is around kernels",
    "python": "Python frames",
    "launch": "calls of the device's runtime and driver",
    "startup": "memory allocation, loading, compilation: a warm process does not repeat it",
    "device_gap": "devices idle though work is queued: stream order, events, launch latency",
    "wait": "the host in a synchronise, devices idle",
    "unknown": "devices had work from before the recording: busy or idle is not in the file",
    "remainder": "nothing was recorded that explains it",
}
IDLE_MEANINGS = {
    "host_starvation": "the host had not launched yet",
    "dependency": "launched work waited for other work, or for its launch to arrive",
    "synchronise": "the host waited, with nothing left to run",
}
STEPS = 8
"""Steps shown one by one; the document holds all of them."""
LEADERS = 8
NAME_LENGTH = 200
NONE = "–"


def trace_blocks(trace: Mapping[str, Any] | None) -> list[Block]:
    """Return steps, breakdown, causes of idle time, and what is behind them."""
    if not trace:
        return []
    wall = trace["wall_ns"]
    made = [
        steps(trace),
        _parts("Where the time goes", "part", trace["bill_ns"], MEANINGS, wall),
        _parts("Why devices were idle", "cause", trace["idle_ns"] or {}, IDLE_MEANINGS, wall),
        _startup(trace),
        _waits(trace),
        *_starved_by(trace),
        _operators(trace),
        _devices(trace),
    ]
    return [block for block in made if block.rows]


def steps(trace: Mapping[str, Any]) -> Table:
    """Return the first steps, and the median over all."""
    every, has_device = trace["steps"], bool(trace["devices"])
    rows = [_cells(step, *_busy(step), has_device) for step in every[:STEPS]]
    if len(every) > 1:
        middle = {
            key: statistics.median(step[key] for step in every)
            for key in ("wall_ns", "kernels", "copies", "launches")
        }
        busy = statistics.median(_busy(step)[0] for step in every)
        share = statistics.median(_busy(step)[1] or 0.0 for step in every)
        step = {"name": f"median of {len(every)}", "regime": trace["regime"], **middle}
        rows.append(_cells(step, busy, share, has_device))
    heads = ("step", "time", "device busy", "kernels", "copies", "launches")
    why = dict.fromkeys(s.get("no_regime") for s in (*every[:STEPS], trace))
    hint = "; ".join(f"no regime, {NO_REGIME[code]}" for code in why if code in NO_REGIME)
    return table("Steps", [heads[0], *map(right, heads[1:]), "regime"], rows, hint=hint)


def _cells(
    step: Mapping[str, Any], busy: float, share: float | None, has_device: bool
) -> list[Cell]:
    return [
        Cell(cut(step["name"])),
        Cell(time_text(step["wall_ns"])),
        Cell(time_text(busy), note=percent(share)) if has_device else Cell(NONE),
        *(Cell(f"{step[key]:g}") for key in ("kernels", "copies", "launches")),
        Cell(step["regime"] or NONE, style=step["regime"] or ""),
    ]


def _busy(step: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the time in which the device of a step was busy, and its share of the step."""
    busy = float(step["bill_ns"].get("kernel", 0) + step["bill_ns"].get("copies", 0))
    return busy, busy / step["wall_ns"] if step["wall_ns"] else None


def _parts(
    title: str, head: str, parts: Mapping[str, float], meanings: Mapping[str, str], wall: float
) -> Table:
    rows = [
        (label(name), time_text(ns), _share(ns, wall), meanings[name])
        for name, ns in parts.items()
        if name in meanings
    ]
    return table(title, [head, right("time"), right("share"), "meaning"], rows)


def _startup(trace: Mapping[str, Any]) -> Table:
    rows = [
        (
            time_text(c["ns"]),
            time_text(c["in_steps_ns"] or None),
            str(c["calls"]),
            c["kind"],
            cut(c["name"]),
        )
        for c in trace.get("startup", ())[:LEADERS]
    ]
    heads = (right("time"), right("in steps"), right("calls"), "kind", "call")
    return table("Start-up calls", heads, rows)


def _waits(trace: Mapping[str, Any]) -> Table:
    rows = [
        (
            time_text(w["ns"]),
            str(w["calls"]),
            cut(", ".join(filter(None, (w["operator"], w["call"])))),
            cut(w["waited_for"] or "not in the file"),
            cut(w["line"] or NONE),
        )
        for w in trace.get("waits", ())[:LEADERS]
    ]
    heads = (right("time"), right("calls"), "operator, call", "waited for", "line of Python")
    hint = "between two launches of a step, so that the host cannot work ahead"
    return table("Calls that make the host wait", heads, rows, hint=hint)


def _starved_by(trace: Mapping[str, Any]) -> Iterator[Table]:
    """Yield what kept the devices waiting: lines of Python, or modules where none are known."""
    for kind, title in (("python", "line of Python"), ("module", "module")):
        found = trace["starved_by"].get(kind)
        if found:
            rows = [
                (time_text(f["ns"]), _share(f["ns"], trace["wall_ns"]), cut(f["name"]))
                for f in found[:LEADERS]
            ]
            heads = (right("device idle"), right("share"), title)
            yield table(f"What kept devices waiting, by {title}", heads, rows)
            return


def _operators(trace: Mapping[str, Any]) -> Table:
    if trace["idle_ns"] is None:
        own = [
            (
                time_text(o["self_ns"]),
                _share(o["self_ns"], trace["wall_ns"]),
                str(o["calls"]),
                "" if o["tax_ns"] else "yes",
                cut(o["name"]),
            )
            for o in trace["operators"][:LEADERS]
        ]
        heads = map(right, ("own time", "share", "calls"))
        return table("Operators by own time", [*heads, "computes", "operator"], own)
    rows = [
        (
            time_text(o["tax_ns"]),
            _share(o["tax_ns"], trace["wall_ns"]),
            time_text(o["kernel_ns"]),
            str(o["calls"]),
            cut(o["name"]),
        )
        for o in trace["operators"][:LEADERS]
        if o["tax_ns"]
    ]
    heads = map(right, ("device idle", "share", "kernels", "calls"))
    return table("Operators that devices waited for", [*heads, "operator"], rows)


def _devices(trace: Mapping[str, Any]) -> Table:
    rows = [
        (
            number,
            time_text(d["kernel_ns"]),
            time_text(d["span_ns"]),
            str(d["kernels"]),
            str(d["copies"]),
            cut(d["name"] or NONE),
        )
        for number, d in trace["devices"].items()
    ]
    heads = map(right, ("busy", "span", "kernels", "copies"))
    return table("Devices", ["device", *heads, "name"], rows)


def prediction_blocks(found: Sequence[Prediction]) -> list[Block]:
    """Return what was predicted, and what was refused and why."""
    return [Items("What if", tuple(map(prediction_item, found)))] if found else []


def prediction_item(p: Prediction) -> Item:
    """Return the change, what it gives, and from where by which formula; or why it is refused."""
    subject = cut(p.subject)
    if p.reason is not None:
        return Item(p.change, "refused", f"{subject}: {cut(p.reason)}", style="strong")
    gain = f"{factor(p.factor)} as fast, " if p.factor is not None else ""
    latency = latency_text(p.latency_ns)
    scaled = f"; scales {p.scales}" if p.scales and p.formula != MEASURED else ""
    return Item(p.change, f"{gain}{latency}", f"{subject}: {proof_text(p)}{scaled}", style="strong")


def latency_text(estimate: Estimate | None) -> str:
    """Return ``0.704 ms (0.673 ms to 0.736 ms)``; a dash for None."""
    if estimate is None or not has_interval(estimate):
        return time_text(estimate.value if estimate else None)
    ends = f"{time_text(estimate.low)} to {time_text(estimate.high)}"
    return f"{time_text(estimate.value)} ({ends})"


def proof_text(p: Prediction) -> str:
    """Return the formula of a prediction and the errors that it has shown."""
    if p.formula == MEASURED:
        return p.formula
    errors = p.shown_error
    if not errors or "median" not in errors:
        return f"{p.formula}; never checked against a measurement"
    return (
        f"{p.formula}; its errors so far: {100 * errors['median']:.1f} % at the median, "
        f"{100 * errors.get('p95', errors['median']):.1f} % at the 95th percentile, "
        f"{errors.get('n', 0):.0f} checks"
    )


def cut(name: str) -> str:
    """Return a name from a file as one line without control characters, cut where it is long."""
    line = flat(name)
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 1] + "…"


def _share(ns: float, wall: float) -> str:
    return f"{100 * ns / wall:.1f} %" if wall else NONE
