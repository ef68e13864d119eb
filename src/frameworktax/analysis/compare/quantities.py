"""What is compared of a measurement: a time with its noise, or a count."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from frameworktax.analysis.bill import DEVICE
from frameworktax.analysis.compare.comparison import Metric
from frameworktax.analysis.compare.contrasts import (
    DEVICE_SESSION_SD,
    Blocks,
    Contrast,
    Sample,
    between,
    paired,
)
from frameworktax.errors import StoreError
from frameworktax.records import Estimate, Measurement, device_of
from frameworktax.stats import t_quantile

LOADED = "wall-over-cpu"
"""The note of a point whose calls took longer than their thread was running."""
COUNTS = ("launches", "operators", "flops", "parameters")


def quantity(m: Measurement, metric: Metric) -> Estimate | None:
    """Return the metric's estimate in the document, ns."""
    return {"latency": m.latency_ns, "tax": m.tax_ns, "kernel": m.kernel_ns}.get(metric)


def why_not(a: Measurement, b: Measurement) -> str | None:
    """Return why a point has no ratio: which side was not measured, and the reason recorded."""
    for side, m in (("before", a), ("after", b)):
        if m.status != "ok":
            return f"{m.status} {side}: {m.reason or 'no reason was recorded'}"
    return None


def loaded(a: Measurement, b: Measurement) -> str | None:
    """Return why times of two sessions cannot be compared: one was not alone on its processor.

    Other load can multiply latency and leave the calibrator as it was, and what ran beside one
    session did not run beside the other. With more threads the calling one waits for its own.
    """
    if one_session(a, b):
        return None
    for side, m in (("before", a), ("after", b)):
        if m.threads == 1 and any(note.code == LOADED for note in m.notes):
            return f"other load was on the processor {side}; measure again, or both in one session"
    return None


def one_session(a: Measurement, b: Measurement) -> bool:
    """Return whether both sides were measured side by side."""
    return a.session is not None and a.session == b.session


def contrast(
    a: Measurement, b: Measurement, metric: Metric, same_calibrator: bool
) -> Contrast | None:
    """Return the log ratio after / before of a time; None where a side has none.

    Tax and kernel time are latency × share: log ratios and variances of the two add up. Kernel
    time of a device does not hang on the host and is compared by itself.
    """
    if metric == "kernel" and a.bill_method == b.bill_method == DEVICE:
        return _device(a, b)
    if loaded(a, b) is not None:
        return None
    found = _latency(a, b, same_calibrator)
    if found is None or metric == "latency":
        return found
    one, other = _share(a, metric), _share(b, metric)
    if one is None or other is None or a.bill_method != b.bill_method:
        return None
    move = math.log(other[0] / one[0])
    return replace(
        found,
        value=found.value + move,
        measured=None if found.measured is None else found.measured + move,
        parts=(*found.parts, one[1:], other[1:]),
        method=f"{found.method}; share of the latency: {b.bill_method}",
    )


def _latency(a: Measurement, b: Measurement, same_calibrator: bool) -> Contrast | None:
    old, new = blocks(a), blocks(b)
    if one_session(a, b) and a.blocks_ns and b.blocks_ns:
        return paired(old, new)
    return between(
        Sample(blocks=old, calibrator=dict(a.calibrator_ns)),
        Sample(blocks=new, calibrator=dict(b.calibrator_ns)),
        on_cpu=device_of(b.platform) == "cpu",
        same_calibrator=same_calibrator,
    )


def blocks(m: Measurement) -> Blocks:
    """Return (process, round) → block median, ns; one block a process where none are recorded.

    Raises:
        StoreError: a time is not above zero.
    """
    found = {(process, round_): ns for process, round_, ns in m.blocks_ns}
    if not found:
        found = {(p, 0): float(median(calls)) for p, calls in enumerate(m.samples_ns) if calls}
    times = [*found.values(), *(ns for _, ns in m.calibrator_ns)]
    if not all(math.isfinite(ns) and ns > 0 for ns in times):
        raise StoreError(
            f"{m.workload.model}, {m.runtime}: a time is not above zero; "
            "the document was changed, write it anew with --json"
        )
    return found


def _share(m: Measurement, metric: Metric) -> tuple[float, float, float] | None:
    """Return (share of the latency, variance of its log, degrees of freedom).

    None where it is not known or its interval reaches zero: then no ratio can be taken.
    """
    share = m.tax_share
    if share is None:
        return None
    value = share.value if metric == "tax" else 1 - share.value
    half = (share.high - share.low) / 2
    if value - half <= 0:
        return None
    return (value, *_log_variance(value, half, share))


def _log_variance(value: float, half: float, estimate: Estimate) -> tuple[float, float]:
    degrees = max(1, estimate.n - 1)
    return (half / t_quantile(estimate.confidence, degrees) / value) ** 2, float(degrees)


def _device(a: Measurement, b: Measurement) -> Contrast | None:
    one, other = a.kernel_ns, b.kernel_ns
    if one is None or other is None or min(one.low, other.low) <= 0:
        return None
    parts = [_log_variance(e.value, (e.high - e.low) / 2, e) for e in (one, other)]
    if not one_session(a, b):
        parts.append((2 * DEVICE_SESSION_SD**2, math.inf))
    return Contrast(
        value=math.log(other.value / one.value),
        spread=0.0,
        degrees=math.inf,
        scale=0.0,
        parts=tuple(parts),
        n=min(one.n, other.n),
        method="kernel time of the device, by call",
    )
