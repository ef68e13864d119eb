"""A trace and predictions as sections of the report; every name from the file is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frameworktax.records import Prediction
from frameworktax.report import trace_words
from frameworktax.report.sections import esc, table


def trace_section(trace: Mapping[str, Any] | None) -> str:
    """Return the trace as tables; empty where the document has none."""
    if not trace:
        return ""
    what, head, rows = trace_words.starved_by(trace)
    parts = [
        _table("Steps, and the median over all", *trace_words.steps(trace)),
        _table("The bill over all steps; its lines add up to the wall", *trace_words.bill(trace)),
        _table("Why devices were idle", *trace_words.idle(trace)),
        _table(f"What kept the devices waiting, by {what}", head, rows),
        _table("Operators by tax, not by time", *trace_words.operators(trace)),
        _table("Devices", *trace_words.devices(trace)),
    ]
    return f"<section><h2>The trace</h2>{''.join(parts)}</section>"


def predictions_section(found: Sequence[Prediction]) -> str:
    """Return what was predicted, and what was refused and why."""
    if not found:
        return ""
    rows = _table("Predicted, not measured", *trace_words.predictions(found))
    return f"<section><h2>What if</h2>{rows}</section>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = [[esc(cell) for cell in row] for row in rows]
    return table(esc(caption), [esc(h) for h in head], cells, words=True)
