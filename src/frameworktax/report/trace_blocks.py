"""A trace, and predictions, as blocks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frameworktax.analysis.trace.document import BUSY, NO_REGIME, busy_shares
from frameworktax.analysis.whatif.formulas import MEASURED
from frameworktax.errors import cut
from frameworktax.records import Estimate, Prediction
from frameworktax.report.blocks import Block, Cell, Column, Item, Items, Table, listed, right, table
from frameworktax.report.words import NONE, WORDS, factor, has_interval, label, time_text

STEPS = 8
"""Steps shown one by one; the document holds all of them."""
LEADERS = 8
Columns = dict[Column | str, Callable[[Any], str]]
STARTUP: Columns = {
    right("time"): lambda c: time_text(c["ns"]),
    right("in steps"): lambda c: time_text(c["in_steps_ns"] or None),
    right("calls"): lambda c: str(c["calls"]),
    "kind": lambda c: c["kind"],
    "call": lambda c: cut(c["name"]),
}
WAITS: Columns = {
    right("time"): lambda w: time_text(w["ns"]),
    right("calls"): lambda w: str(w["calls"]),
    "operator, call": lambda w: cut(", ".join(filter(None, (w["operator"], w["call"])))),
    "waited for": lambda w: cut(w["waited_for"] or "not in the file"),
    "line of Python": lambda w: cut(w["line"] or NONE),
}
DEVICES: Columns = {
    "device": lambda d: d[0],
    right("busy"): lambda d: time_text(d[1]["kernel_ns"]),
    right("span"): lambda d: time_text(d[1]["span_ns"]),
    right("kernels"): lambda d: str(d[1]["kernels"]),
    right("copies"): lambda d: str(d[1]["copies"]),
    "name": lambda d: cut(d[1]["name"] or NONE),
}


def trace_blocks(trace: Mapping[str, Any] | None) -> list[Block]:
    """Return steps, breakdown, causes of idle time, and what is behind them."""
    if not trace:
        return []
    made = [
        steps(trace),
        _parts("Where the time goes", "part", trace["bill_ns"], WORDS["trace"], trace),
        _parts("Why devices were idle", "cause", trace["idle_ns"] or {}, WORDS["idle"], trace),
        listed("Start-up calls", trace.get("startup", ())[:LEADERS], STARTUP),
        listed(
            "Calls that make the host wait",
            trace.get("waits", ())[:LEADERS],
            WAITS,
            hint="after a step's first launch, so that the host cannot work ahead",
        ),
        *_starved_by(trace),
        _operators(trace),
        listed("Devices", trace["devices"].items(), DEVICES),
    ]
    return [block for block in made if block.rows]


def steps(trace: Mapping[str, Any]) -> Table:
    """Return the first steps, and the median over all."""
    every = trace["steps"]
    rows = [_cells(step, _busy_ns(step), busy_shares(step), trace) for step in every[:STEPS]]
    if len(every) > 1:
        middle = {
            key: statistics.median(step[key] for step in every)
            for key in ("wall_ns", "kernels", "copies", "launches")
        }
        busy = statistics.median(map(_busy_ns, every))
        least, most = map(statistics.median, zip(*map(busy_shares, every), strict=True))
        step = {"name": f"median of {len(every)}", "regime": trace["regime"], **middle}
        rows.append(_cells(step, busy, (least, most), trace))
    heads = map(right, ("time", "device busy", "kernels", "copies", "launches"))
    why = dict.fromkeys(s.get("no_regime") for s in (*every[:STEPS], trace))
    hint = "; ".join(f"no regime, {NO_REGIME[code]}" for code in why if code in NO_REGIME)
    return table("Steps", ["step", *heads, "regime"], rows, hint=hint)


def _cells(
    step: Mapping[str, Any], busy: float, shares: tuple[float, float], trace: Mapping[str, Any]
) -> list[Cell]:
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in shares)
    share = f"{' to '.join(ends)} %" if step["wall_ns"] else NONE
    return [
        Cell(cut(step["name"])),
        Cell(time_text(step["wall_ns"])),
        Cell(time_text(busy), note=share) if trace["devices"] else Cell(NONE),
        *(Cell(f"{step[key]:.15g}") for key in ("kernels", "copies", "launches")),
        Cell(step["regime"] or NONE, style=step["regime"] or ""),
    ]


def _busy_ns(step: Mapping[str, Any]) -> float:
    """Return the time in which the device of a step is known to be busy."""
    return float(sum(step["bill_ns"].get(line, 0) for line in BUSY))


def _parts(
    title: str,
    head: str,
    parts: Mapping[str, float],
    meanings: Mapping[str, str],
    trace: Mapping[str, Any],
) -> Table:
    rows = [
        (label(name), time_text(ns), _share(ns, trace), meanings[name])
        for name, ns in parts.items()
        if name in meanings
    ]
    return table(title, [head, right("time"), right("share"), "meaning"], rows)


def _starved_by(trace: Mapping[str, Any]) -> list[Table]:
    """Return what kept the devices waiting: lines of Python, or modules where none are known.

    Without a device it is where the time passed that is not in operators that compute.
    """
    what, head = "What kept devices waiting", "device idle"
    if trace["idle_ns"] is None:
        what, head = "Time outside operators that compute", "time"
    for kind, title in (("python", "line of Python"), ("module", "module")):
        if found := trace["starved_by"].get(kind):
            columns: Columns = {
                right(head): lambda f: time_text(f["ns"]),
                right("share"): lambda f: _share(f["ns"], trace),
                title: lambda f: cut(f["name"]),
            }
            return [listed(f"{what}, by {title}", found[:LEADERS], columns)]
    return []


def _operators(trace: Mapping[str, Any]) -> Table:
    found = trace["operators"][:LEADERS]
    if trace["idle_ns"] is None:
        most = trace["bill_ns"].get("operators", 0)
        over = any(not o["tax_ns"] and o.get("self_ns", 0) > most for o in found)
        return listed(
            "Operators by own time",
            [operator for operator in found if "self_ns" in operator],  # older documents lack it
            {
                right("own time"): lambda o: time_text(o["self_ns"]),
                right("share"): lambda o: _share(o["self_ns"], trace),
                right("calls"): lambda o: str(o["calls"]),
                "computes": lambda o: "" if o["tax_ns"] else "yes",
                "operator": lambda o: cut(o["name"]),
            },
            hint="own time of all threads together, over the wall time" if over else "",
        )
    return listed(
        "Operators that devices waited for",
        [operator for operator in found if operator["tax_ns"]],
        {
            right("device idle"): lambda o: time_text(o["tax_ns"]),
            right("share"): lambda o: _share(o["tax_ns"], trace),
            right("kernels"): lambda o: time_text(o["kernel_ns"]),
            right("calls"): lambda o: str(o["calls"]),
            "operator": lambda o: cut(o["name"]),
        },
    )


def prediction_blocks(found: Sequence[Prediction]) -> list[Block]:
    """Return what was predicted, and what was refused and why: equal refusals together."""
    groups: dict[tuple[object, ...], list[Prediction]] = defaultdict(list)
    for number, p in enumerate(found):
        groups[(number,) if p.reason is None else (p.change, p.reason)].append(p)
    items = tuple(_item(first, len(others)) for first, *others in groups.values())
    return [Items("What if", items)] if items else []


def _item(p: Prediction, others: int) -> Item:
    """Return the change, what it gives, and from where by which formula; or why it is refused."""
    subject = cut(p.subject) + (f" and {others} more" if others else "")
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


def _share(ns: float, trace: Mapping[str, Any]) -> str:
    return f"{100 * ns / trace['wall_ns']:.1f} %" if trace["wall_ns"] else NONE
