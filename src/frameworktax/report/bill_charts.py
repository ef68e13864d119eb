"""The bill as stacked bars, in ms at the smallest batch and as shares at every batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from frameworktax.records import BILL, Measurement
from frameworktax.report.palette import SCHEMA, Spec
from frameworktax.report.tables import Family
from frameworktax.report.words import TWIN, duration, label, milliseconds, percent

LINE_COLOURS = {
    "kernel": ("#3f6fa8", "#ffffff"),
    "dispatch": ("#e0702a", "#1a1a1a"),
    "python": ("#f2b134", "#1a1a1a"),
    "allocator": ("#d98cb3", "#1a1a1a"),
    "runtime": ("#b5483a", "#ffffff"),
    "threading": ("#a98467", "#1a1a1a"),
    "system": ("#7a57a0", "#ffffff"),
    "launch": ("#d9c83c", "#1a1a1a"),
    "device_gap": ("#7fb0b8", "#1a1a1a"),
    "wait": ("#9aa3ad", "#1a1a1a"),
    "remainder": ("#cfd4da", "#1a1a1a"),
}
"""Bill line → (fill, text on it): kernel time is cool, what is paid on top of it is warm."""

BAR = 38
THIN_BAR = 15
GROUP_GAP = 16
"""Pixels for a bar, for one of a group, and between groups."""


def bill_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return the bill at the smallest batch: one stacked bar a runtime, ms, with its tax share.

    The whisker at the end of the kernel time is its interval.
    """
    batch = family.batches[0]
    points = [p for r in family.runtimes if (p := family.at(r, batch)) and p.bill_ns]
    segments = [s for m in points for s in _segments(m)]
    longest = max(s["end"] for s in segments)
    used = [line for line in BILL if any(s["line"] == label(line) for s in segments)]
    order = [m.runtime for m in points]
    y = {
        "field": "runtime",
        "type": "nominal",
        "sort": order,
        "title": None,
        "axis": {"labelFontSize": 12, "labelFontWeight": 600, "domain": False, "ticks": False},
    }
    x = {
        "field": "start",
        "type": "quantitative",
        "title": f"latency of one call at batch {batch}, ms",
        "scale": {"domain": [0, longest * (1.3 if wide else 1.95)], "nice": False},
        "axis": {"tickCount": 6, "format": "~g"},
    }
    for s in segments:
        s["shown"] = (
            s["percent"] if s["end"] - s["start"] > longest * (0.075 if wide else 0.16) else ""
        )
    whiskers = [
        {"runtime": m.runtime, "start": m.kernel_ns.low / 1e6, "end": m.kernel_ns.high / 1e6}
        for m in points
        if m.kernel_ns is not None
    ]
    totals = [_total(m, wide) for m in points]
    middle = {**x, "field": "middle"}
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": BAR * len(order),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "encoding": {"y": y},
        "layer": [
            {
                "data": {"values": segments},
                "mark": {"type": "bar", "height": {"band": 0.72}},
                "encoding": {
                    "x": x,
                    "x2": {"field": "end"},
                    "color": _line_colours(used, 6 if wide else 2),
                    "tooltip": _bill_tooltip(),
                },
            },
            {
                "data": {"values": segments},
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "x": middle,
                    "text": {"field": "shown"},
                    "color": {"field": "ink", "type": "nominal", "scale": None},
                },
            },
            {
                "data": {"values": whiskers},
                "mark": {"type": "rule", "strokeWidth": 2, "color": "#111111"},
                "encoding": {"x": x, "x2": {"field": "end"}},
            },
            {
                "data": {"values": totals},
                "mark": {"type": "text", "align": "left", "dx": 7, "fontSize": 12},
                "encoding": {"x": x, "text": {"field": "text"}},
            },
        ],
    }


def shares_chart(family: Family, *, wide: bool = True) -> Spec:
    """Return the bill of every runtime and batch as shares of its latency."""
    points = [m for m in family.measured if m.bill_ns]
    segments = [s for m in points for s in _segments(m)]
    for s in segments:
        s["start"], s["end"] = s["start"] / s["total"], s["end"] / s["total"]
    used = [line for line in BILL if any(s["line"] == label(line) for s in segments)]
    order = list(dict.fromkeys(m.runtime for m in points))
    batches = sorted({m.workload.batch for m in points})
    y = {
        "field": "runtime",
        "type": "nominal",
        "sort": order,
        "title": None,
        "scale": {"paddingInner": 0.14},
        "axis": {
            "labelFontSize": 12,
            "labelFontWeight": 600,
            "domain": False,
            "ticks": False,
            "labelPadding": 26,
        },
    }
    names = [{"runtime": m.runtime, "batch": m.workload.batch, "start": 0} for m in points]
    offset = {"field": "batch", "type": "ordinal", "sort": batches}
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": len(order) * (len(batches) * THIN_BAR + GROUP_GAP),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "encoding": {"y": y, "yOffset": offset},
        "layer": [
            {
                "data": {"values": segments},
                "mark": {"type": "bar", "height": {"band": 0.86}},
                "encoding": {
                    "x": {
                        "field": "start",
                        "type": "quantitative",
                        "title": "share of latency, by batch size",
                        "axis": {"format": ".0%", "tickCount": 5},
                        "scale": {"domainMax": 1, "nice": False},
                    },
                    "x2": {"field": "end"},
                    "color": _line_colours(used, 6 if wide else 2),
                    "tooltip": _bill_tooltip(),
                },
            },
            {
                "data": {"values": names},
                "mark": {
                    "type": "text",
                    "align": "right",
                    "dx": -5,
                    "dy": THIN_BAR / 2 - 1,  # an offset puts text at the top of its bar
                    "fontSize": 10,
                },
                "encoding": {
                    "x": {"field": "start", "type": "quantitative"},
                    "text": {"field": "batch"},
                },
            },
        ],
    }


def _segments(m: Measurement) -> list[dict[str, Any]]:
    """Return the lines of a bill end to end, ms; one below zero goes to the left of zero."""
    upto = below = 0.0
    total = m.latency_ns.value if m.latency_ns else math.nan
    made = []
    for name in BILL:
        ns = (m.bill_ns or {}).get(name)
        if not ns:
            continue
        start = upto if ns > 0 else below
        upto, below = upto + max(ns, 0.0), below + min(ns, 0.0)
        made.append(
            {
                "runtime": m.runtime,
                "batch": m.workload.batch,
                "line": label(name),
                "start": start / 1e6,
                "end": (start + ns) / 1e6,
                "middle": (start + ns / 2) / 1e6,
                "total": total / 1e6,
                "percent": percent(ns / total),
                "time": duration(ns),
                "ink": LINE_COLOURS[name][1],
            }
        )
    return made


def _total(m: Measurement, wide: bool) -> dict[str, Any]:
    total = m.latency_ns.value if m.latency_ns else math.nan
    least = "≥ " if m.bill_method == TWIN else ""
    unit, what = (" ms", " tax") if wide else ("", "")
    share = f", {least}{percent(m.tax_share.value)}{what}" if m.tax_share else ""
    return {
        "runtime": m.runtime,
        "start": total / 1e6,
        "text": f"{milliseconds(total)}{unit}{share}",
    }


def _line_colours(used: Sequence[str], columns: int) -> Spec:
    return {
        "field": "line",
        "type": "nominal",
        "scale": {
            "domain": [label(name) for name in used],
            "range": [LINE_COLOURS[name][0] for name in used],
        },
        "legend": {"title": None, "orient": "top", "columns": columns, "symbolType": "square"},
    }


def _bill_tooltip() -> list[Spec]:
    return [{"field": f} for f in ("runtime", "batch", "line", "time", "percent")]
