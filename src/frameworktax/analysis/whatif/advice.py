"""Advice from predictions: only for what nothing was measured of, and it says so."""

from __future__ import annotations

from collections.abc import Sequence

from frameworktax.analysis.estimates import scaled, times
from frameworktax.analysis.whatif import formula_errors
from frameworktax.analysis.whatif.cpu import SAME_KERNELS
from frameworktax.analysis.whatif.predict import predict_from
from frameworktax.analysis.whatif.request import MEASURED, WhatIf
from frameworktax.records import Advice, Curve, Measurement, Prediction

GRAPH = "cuda-graph"
AHEAD = 2
"""A batch is predicted this many times beyond the largest that was measured."""


def unmeasured(
    focus: Measurement, measured: Sequence[Measurement], curve: Curve | None
) -> list[Advice]:
    """Return advice on runtimes and a batch that were not measured.

    Args:
        focus: the point it starts from, at the smallest batch.
        measured: every measured point of its model; what is among them is never predicted.
        curve: of the focus's runtime over batch.
    """
    known = [m for m in measured if m.latency_ns is not None]
    found = [_runtime(focus, known, name) for name in (*SAME_KERNELS, GRAPH)]
    found.append(_batch(focus, known, curve))
    return [advice for advice in found if advice is not None]


def _ask(focus: Measurement, measured: Sequence[Measurement], asked: WhatIf) -> Prediction | None:
    """Return a prediction from the focus, None where it was refused or is no prediction."""
    if focus.latency_ns is None:
        return None
    family = focus.point.family()
    relatives = [m for m in measured if m.point.family() == family]
    found = predict_from(focus, relatives, measured, asked, formula_errors.table())
    if found is None or found.latency_ns is None or found.formula == MEASURED:
        return None
    return found


def _evidence(focus: Measurement, found: Prediction, why: str) -> str:
    shown = found.shown_error
    error = (
        f"off by {shown['median']:.0%} at the median of {shown['n']:.0f} checks"
        if shown is not None
        else "never checked on such a machine"
    )
    w = focus.workload
    return (
        f"{w.model}, {focus.runtime}, batch {w.batch}: {why} was not measured; "
        f"{found.formula}, {error}"
    )


def _runtime(focus: Measurement, measured: Sequence[Measurement], name: str) -> Advice | None:
    batch = focus.workload.batch
    found = _ask(focus, measured, WhatIf(runtime=name))
    if found is None or found.factor is None:
        return None
    return Advice(
        action=f"try {name}: {times(found.factor.value)} faster than {focus.runtime} at batch "
        f"{batch}, by prediction",
        evidence=_evidence(focus, found, f"{name} at this batch"),
        gain=found.factor,
        kind="predicted",
    )


def _batch(
    focus: Measurement, measured: Sequence[Measurement], curve: Curve | None
) -> Advice | None:
    """Look beyond the largest batch measured, where even that one is free."""
    if curve is None or not curve.free_is_lower_bound:
        return None
    batch = int(AHEAD * curve.values[-1])
    found = _ask(focus, measured, WhatIf(batch=batch))
    if found is None or found.factor is None:
        return None
    more = batch / focus.workload.batch
    return Advice(
        action=f"try batch {batch} with {focus.runtime}: {times(found.factor.value * more)} per "
        "sample, by prediction",
        evidence=_evidence(focus, found, f"batch {batch}"),
        gain=scaled(found.factor, more),
        kind="predicted",
    )
