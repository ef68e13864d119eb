"""The answer in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frameworktax.analysis.advice import percent, proven
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.estimates import duration, times
from frameworktax.records import FLOOR, REFERENCE, Curve, Measurement, device_of


def headline(measurements: Sequence[Measurement], curves: Sequence[Curve]) -> str:
    """Return what was found for the first model, and how many more there are."""
    real = [m for m in measurements if m.runtime != FLOOR]
    measured = [m for m in real if m.latency_ns is not None]
    if not measured:
        return "nothing could be measured" if real else ""
    # one family: the points that differ from the first one in runtime and batch alone
    first = measured[0]
    family = [m for m in measured if m.point.family() == first.point.family()]
    smallest = min(m.workload.batch for m in family)
    at_first = [m for m in family if m.workload.batch == smallest]
    focus = next((m for m in at_first if m.runtime == REFERENCE), at_first[0])
    parts = [_tax(focus), _free(focus, curves), _fastest(at_first, smallest), _bound(focus)]
    text = f"{first.workload.model} {_place(first)}: " + "; ".join(part for part in parts if part)
    others = len({m.point.family() for m in measured}) - 1
    return text + (f" (and {others} more below)" if others else "")


def _place(m: Measurement) -> str:
    if m.platform == "cpu":
        return f"on this machine ({m.threads} thread{'s' if m.threads != 1 else ''})"
    return f"on {m.platform}"


def _tax(m: Measurement) -> str:
    if m.tax_share is None:
        slow = duration(m.latency_ns.value if m.latency_ns is not None else math.nan)
        return f"{m.runtime} takes {slow} at batch {m.workload.batch}"
    least = "at least " if m.bill_method == TWIN else ""
    tax = percent(m.tax_share.value)
    return f"{m.runtime} pays {least}{tax} framework tax at batch {m.workload.batch}"


def _free(m: Measurement, curves: Sequence[Curve]) -> str:
    w = m.workload
    curve = next(
        (
            c
            for c in curves
            if (c.model, c.runtime, c.platform, c.precision)
            == (w.model, m.runtime, m.platform, w.precision)
        ),
        None,
    )
    if curve is None or curve.free_batch is None:
        return ""
    free = math.floor(curve.free_batch.value + 1e-9)
    if curve.free_is_lower_bound:
        return f"batch {free} is still free"
    return f"batch {free} is free" if free > 1 else "no larger batch is free"


def _fastest(at_first: Sequence[Measurement], smallest: int) -> str:
    faster = [
        (m.ratio_to_eager, m.runtime)
        for m in at_first
        if m.ratio_to_eager is not None and m.ratio_to_eager.high < 1 and proven(m.parity)
    ]
    if not faster:
        return ""
    ratio, runtime = min(faster, key=lambda item: item[0].value)
    return f"{runtime} is {times(1 / ratio.value)} faster at batch {smallest}"


def _bound(m: Measurement) -> str:
    if m.tax_share is None or m.tax_share.low <= 0:
        return ""
    cause = "faster math kernels" if device_of(m.platform) == "cpu" else "a faster device"
    return f"{cause} would give at most {times(1 / m.tax_share.value)}"
