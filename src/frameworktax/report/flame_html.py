"""One call from the whole down to symbols, where samples have names.

Nested lists whose items are as wide as their time: they read as lists, print, and need no script;
``page_flame.js`` adds that a box can be looked at alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frameworktax.records import BILL, Measurement
from frameworktax.report.bill_charts import LINE_COLOURS
from frameworktax.report.sections import esc
from frameworktax.report.tables import Family
from frameworktax.report.words import duration, label

LEAST = 0.001
"""Share of the call below which a box is not drawn."""
PLAIN = ("var(--card)", "var(--ink)")

Box = tuple[str, float, str]
"""Name, ns, and the boxes in it as HTML."""


def flames(family: Family) -> str:
    """Return a flame view of every runtime with named samples, at the smallest batch."""
    points = [p for name in family.runtimes if (p := family.at(name, family.batches[0]))]
    named = [m for m in points if m.symbols_ns and m.bill_ns]
    if not named:
        return ""
    views = "".join(_view(m, opened=i == 0) for i, m in enumerate(named))
    return (
        "<h3>The same down to symbols</h3>"
        '<p class="hint">Each box is as wide as its time in a call: the call, lines of the bill, '
        "libraries, symbols. Only the symbols sampled most have names; what is left of a box "
        f"is the others' together. Press a box to see it alone, once more to go back.</p>{views}"
    )


def _view(m: Measurement, *, opened: bool) -> str:
    bill = m.bill_ns or {}
    whole = sum(ns for ns in bill.values() if ns > 0)
    lines = [
        (name, bill[name], _libraries(m, name, whole))
        for name in BILL
        if bill.get(name, 0.0) > LEAST * whole
    ]
    inside = "".join(
        _box(label(name), ns, whole, LINE_COLOURS[name], _row(boxes, ns, whole, LINE_COLOURS[name]))
        for name, ns, boxes in lines
    )
    title = f"{m.runtime}, batch {m.workload.batch}"
    root = _box(title, whole, whole, PLAIN, f"<ul>{inside}</ul>")
    return (
        f'<details class="flame"{" open" if opened else ""}><summary>{esc(title)}</summary>'
        f"<ul>{root}</ul></details>"
    )


def _libraries(m: Measurement, line: str, whole: float) -> list[Box]:
    found: dict[str, list[tuple[str, float]]] = {}
    for name, library, symbol, ns in m.symbols_ns:
        if name == line:
            found.setdefault(library, []).append((symbol, ns))
    boxes = []
    for library, symbols in found.items():
        total = sum(ns for _, ns in symbols)
        leaves = [(symbol, ns, "") for symbol, ns in symbols]
        boxes.append((library, total, _row(leaves, total, whole, LINE_COLOURS[line])))
    return sorted(boxes, key=lambda box: -box[1])


def _row(boxes: Sequence[Box], parent: float, whole: float, colours: tuple[str, str]) -> str:
    """Return boxes side by side; what they leave of their parent stays empty."""
    drawn = [box for box in boxes if box[1] > LEAST * whole]
    if not drawn:
        return ""
    items: Iterable[str] = (_box(name, ns, whole, colours, inner) for name, ns, inner in drawn)
    rest = parent - sum(ns for _, ns, _ in drawn)
    filler = f'<li aria-hidden="true" style="flex-grow:{_grow(rest, whole)}"></li>'
    return f"<ul>{''.join(items)}{filler if rest > LEAST * whole else ''}</ul>"


def _grow(ns: float, whole: float) -> str:
    """Return a width for flex-grow in thousandths: sums below 1 would leave room."""
    return f"{1000 * ns / whole:.3f}"


def _box(name: str, ns: float, whole: float, colours: tuple[str, str], inner: str) -> str:
    fill, ink = colours
    text = f"{name}, {duration(ns)}, {100 * ns / whole:.1f} %"
    return (
        f'<li style="flex-grow:{_grow(ns, whole)}"><span class="box" title="{esc(text)}" '
        f'style="background:{fill};color:{ink}">{esc(text)}</span>{inner}</li>'
    )
