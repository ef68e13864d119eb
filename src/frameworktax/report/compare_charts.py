"""Two results as a picture: how much each point changed, with its interval."""

from __future__ import annotations

from frameworktax.analysis.compare.comparison import Change, Comparison
from frameworktax.report.compare_words import change_told, point, value, verdict
from frameworktax.report.palette import SCHEMA, Spec

ROWS = 40
"""Points drawn: those that changed most."""
ROW_HEIGHT = 22
COLOURS = {"slower": "#d55e00", "faster": "#009e73", "same": "#7b8494", "cannot tell": "#b8860b"}


def changes_chart(comparison: Comparison, *, wide: bool = True) -> Spec | None:
    """Return after over before of each point on a log axis; None where no point has a ratio."""
    told = [c for c in comparison.points if c.ratio is not None and c.ratio.low > 0]
    if not told:
        return None
    told = sorted(told, key=_size, reverse=True)[:ROWS]
    shown = [c for c in comparison.points if any(c is one for one in told)]
    values = [_row(c, comparison.metric) for c in shown]
    y = {
        "field": "point",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {
            "domain": False,
            "ticks": False,
            "labelLimit": 330 if wide else 120,
            "grid": True,
        },
    }
    scale = {"type": "log", "nice": False, "padding": 16}
    axis = {"format": "~g", "tickCount": 6, "grid": False, "labelOverlap": True}
    title = f"{comparison.metric}, after over before"
    x = {"type": "quantitative", "scale": scale, "axis": axis, "title": title}
    names = [name for name in COLOURS if any(c.verdict == name for c in shown)]
    colour = {
        "field": "verdict",
        "type": "nominal",
        "scale": {"domain": names, "range": [COLOURS[name] for name in names]},
        "legend": {"title": None, "orient": "top", "columns": 4 if wide else 2},
    }
    tooltip = [
        {"field": field, "type": "nominal"}
        for field in ("point", "before", "after", "change", "said")
    ]
    return {
        "$schema": SCHEMA,
        "data": {"values": values},
        "width": "container",
        "height": ROW_HEIGHT * len(values),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "encoding": {"y": y},
        "layer": [
            {
                "data": {"values": [{"one": 1}]},
                "mark": {"type": "rule", "strokeDash": [3, 4], "opacity": 0.7},
                "encoding": {"x": {**x, "field": "one"}, "y": None},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "stroke": None},
                "encoding": {"x": {**x, "field": "ratio"}, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def _size(change: Change) -> float:
    """Return how far from no change a point is, either way."""
    value = change.ratio.value if change.ratio is not None else 1.0
    return max(value, 1 / value)


def _row(change: Change, metric: str) -> dict[str, object]:
    ratio = change.ratio
    if ratio is None:  # only points with a ratio are drawn
        raise ValueError("a point without a ratio cannot be drawn")
    return {
        "point": point(change),
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": change.verdict,
        "before": value(change.before, metric),
        "after": value(change.after, metric),
        "change": change_told(change),
        "said": verdict(change),
    }
