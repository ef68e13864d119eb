"""FLOPs against latency of every point, as a specification that the page fills."""

from __future__ import annotations

from collections.abc import Sequence

from frameworktax.records import Measurement
from frameworktax.report.palette import (
    HEIGHT,
    SCHEMA,
    UNKNOWN,
    Spec,
    colours,
    fill,
    runtime_colour,
)


def operations_chart(measurements: Sequence[Measurement]) -> Spec | None:
    """Return the chart for paper; None with fewer than two numbers of FLOPs."""
    told = [m for m in measurements if m.flops and m.latency_ns is not None]
    if len({m.flops for m in told}) < 2:
        return None
    points = [
        {
            "model": m.workload.model,
            "runtime": m.runtime,
            "batch": m.workload.batch,
            "flops": (m.flops or 0) / 1e9,
            "latency": m.latency_ns.value / 1e6 if m.latency_ns else None,
            "regime": m.regime or UNKNOWN,
        }
        for m in told
    ]
    runtimes = list(dict.fromkeys(m.runtime for m in told))
    values = {"points": points, "runtimes": runtimes, "colours": colours(runtimes)}
    spec: Spec = fill(operations_template(), values)
    return spec


def operations_template(*, wide: bool = True) -> Spec:
    """Return the chart with the holes points, runtimes and colours.

    A point is runtime, model, batch, GFLOP, latency in ms and regime.
    """
    log = {"type": "log", "nice": False, "padding": 14}
    return {
        "$schema": SCHEMA,
        "data": {"values": "@points"},
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.75, "stroke": None},
        "encoding": {
            "x": {
                "field": "flops",
                "type": "quantitative",
                "title": "GFLOP of one call",
                "scale": log,
                "axis": {"format": "~g", "tickCount": 6, "grid": False, "labelOverlap": True},
            },
            "y": {
                "field": "latency",
                "type": "quantitative",
                "title": "latency of one call, ms",
                "scale": log,
                "axis": {"format": "~g", "tickCount": 6, "labelOverlap": True},
            },
            "color": runtime_colour("circle", wide=wide),
            "tooltip": [
                {"field": field, "type": kind}
                for field, kind in (
                    ("model", "nominal"),
                    ("runtime", "nominal"),
                    ("batch", "quantitative"),
                    ("flops", "quantitative"),
                    ("latency", "quantitative"),
                    ("regime", "nominal"),
                )
            ],
        },
    }
