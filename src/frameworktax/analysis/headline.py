"""The answer in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frameworktax.analysis.advice import either, recommend
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.estimates import duration, share_texts, times, times_range
from frameworktax.records import FLOOR, REFERENCE, Curve, Estimate, Measurement, device_of
from frameworktax.stats import within_one_process

UNDETERMINED = 0.2
"""Half-width of the interval of a tax share from which on the headline gives no number for it."""


def headline(measurements: Sequence[Measurement], curves: Sequence[Curve]) -> str:
    """Return what was found for the first model, and how many more there are."""
    real = [m for m in measurements if m.runtime != FLOOR]
    measured = [m for m in real if m.latency_ns is not None]
    if not measured:
        return "nothing could be measured" if real else ""
    # one family: the points that differ from the first one in runtime and batch alone
    first = measured[0]
    keys = [m.family() for m in measured]
    family = [m for m, key in zip(measured, keys, strict=True) if key == keys[0]]
    smallest = min(m.workload.batch for m in family)
    at_first = [m for m in family if m.workload.batch == smallest]
    focus = next((m for m in at_first if m.runtime == REFERENCE), at_first[0])
    parts = [_tax(focus), _free(focus, curves), _fastest(at_first, smallest), _bound(focus)]
    text = f"{first.workload.model} {_place(first)}: " + "; ".join(part for part in parts if part)
    others = len(set(keys)) - 1
    return text + (f" (and {others} more below)" if others else "")


def _place(m: Measurement) -> str:
    if m.platform == "cpu":
        alone = ", one process" if within_one_process(m.latency_ns) else ""
        return f"on this machine ({m.threads} thread{'s' if m.threads != 1 else ''}{alone})"
    return f"on {m.platform}{' (one process)' if within_one_process(m.latency_ns) else ''}"


def _tax(m: Measurement) -> str:
    where = f"at batch {m.workload.batch}"
    if m.tax_share is None:
        latency = m.latency_ns
        slow = duration(latency.value if latency is not None else math.nan)
        if latency is not None and latency.low < latency.high:
            slow = f"{slow} ({duration(latency.low)} to {duration(latency.high)})"
        return f"{m.runtime} takes {slow} {where}"
    if not determined(m.tax_share):
        low, high = 100 * m.tax_share.low, 100 * m.tax_share.high
        return f"the tax of {m.runtime} {where} is not determined ({low:.0f} to {high:.0f} %)"
    value, half = share_texts(m.tax_share)
    share = f"{value} ±{half} %" if half else f"{value} %"
    if m.bill_method == TWIN:
        return f"{m.runtime} has {share} warm overhead {where}"
    return f"{m.runtime} pays {share} framework tax {where}"


def determined(share: Estimate) -> bool:
    """Return whether a tax share is known well enough to be named as a number."""
    return (share.high - share.low) / 2 < UNDETERMINED


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
    low, high = (math.floor(end + 1e-9) for end in (curve.free_batch.low, curve.free_batch.high))
    if curve.free_is_lower_bound:
        return f"batch {low} is free" if low > 1 else "the largest free batch is not determined"
    if low != high:
        return f"the largest free batch is between {low} and {high}"
    return f"batch {low} is free" if low > 1 else "no larger batch is free"


def _fastest(at_first: Sequence[Measurement], smallest: int) -> str:
    best = next(iter(recommend(at_first)), None)
    if best is None:
        return ""
    if best.gain is None:
        return f"no other runtime is proven faster at batch {smallest}"
    return f"{either(best.runtimes)} is {times_range(best.gain)} faster at batch {smallest}"


def _bound(m: Measurement) -> str:
    if m.tax_share is None or m.tax_share.low <= 0 or not determined(m.tax_share):
        return ""
    cause = "faster math kernels" if device_of(m.platform) == "cpu" else "a faster device"
    return f"{cause} would give at most {times(1 / m.tax_share.low)}"
