"""What would change if: predictions from what was measured, each with its formula and its errors.

``formulas`` holds those from a measured point, ``replay`` that from a trace. A prediction is
refused, with the reason, where its formula has shown larger errors than it may (METHOD, section 9).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from frameworktax.analysis.estimates import paired_ratio, quotient
from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.formulas import (
    MEASURED,
    ON_DEVICE,
    Answer,
    Case,
    Refused,
    WhatIf,
    answer,
    change_of,
    changes,
    check,
    formulas,
    scales,
)
from frameworktax.errors import UsageError
from frameworktax.records import (
    FLOOR,
    Estimate,
    FamilyKey,
    Measurement,
    Prediction,
    Run,
    point_name,
)
from frameworktax.traces.timeline import Step

Table = Mapping[str, Mapping[str, float]]
"""Formula → the error it has shown: ``{"median", "p95", "n"}``, relative."""
FILE = "formula_errors.json"
MEDIAN = 0.05
"""Median relative error up to which a formula is trusted."""
P95 = 0.15
"""The same for the 95th percentile."""
ENOUGH = 5
"""Checks below which nothing is refused: one disturbed measurement is no verdict."""


@cache
def errors_shown() -> Table:
    """Return the errors that formulas have shown, as ``benchmarks/validate.py`` measured them."""
    text = (resources.files("frameworktax.analysis.whatif") / FILE).read_text(encoding="utf-8")
    found: Table = json.loads(text)["formulas"]
    return found


def distrust(shown: Mapping[str, float] | None) -> str | None:
    """Return why a formula is refused: the error it has shown. None where it is trusted.

    A formula that was never checked, or fewer than ``ENOUGH`` times, is not refused; its
    prediction says so.
    """
    if shown is None or shown["n"] < ENOUGH:
        return None
    if shown["median"] <= MEDIAN and shown["p95"] <= P95:
        return None
    return (
        f"this formula was off by {shown['median']:.1%} at the median and {shown['p95']:.1%} at "
        f"the 95th percentile of {shown['n']:.0f} checks; measure, do not predict"
    )


def predict(asked: WhatIf, run: Run, *, alone: bool = True) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked and each point it can start from.

    Args:
        asked: the changes; each is answered alone, and those that are replayed also together.
        run: a document: it starts from one measured point a model and runtime, at the smallest
            batch.
        alone: whether each of several changes is answered; otherwise all of them at once only.

    Returns:
        Predictions and refusals, point by point.

    Raises:
        UsageError: a factor or batch at or below zero, or nothing asked.
    """
    check(asked)
    measured = [m for m in run.measurements if m.latency_ns is not None and m.runtime != FLOOR]
    first: dict[tuple[FamilyKey, str], Measurement] = {}
    families: dict[FamilyKey, list[Measurement]] = defaultdict(list)
    for m in measured:
        family = m.family()
        families[family].append(m)
        smallest = first.setdefault((family, m.runtime), m)
        if m.workload.batch < smallest.workload.batch:
            first[family, m.runtime] = m
    found = (
        predict_from(Case(m, families[family], measured, one))
        for (family, _), m in first.items()
        for one in (changes(asked) if alone else [asked])
    )
    return tuple(one for one in found if one is not None)


def predict_from(case: Case) -> Prediction | None:
    """Return the prediction of one change from one measured point.

    None where the change leaves the point as it is.
    """
    m, asked = case.m, case.asked
    if asked.runtime == m.runtime or asked.batch == m.workload.batch:
        return None
    made = Prediction(
        change=asked.words(),
        subject=point_name(m.point),
        formula="",
        scales=scales(asked, formulas(m)),
    )
    try:
        return _prediction(made, _measured(case) or answer(case), m.latency_ns)
    except Refused as refused:
        return replace(made, formula=refused.formula, reason=refused.reason)


def _measured(case: Case) -> Answer | None:
    """Return the point that was asked for, where it was measured: then nothing is predicted."""
    m, asked = case.m, case.asked
    if asked.host_speed or asked.device_speed or asked.cpu_speed:
        return None
    w = m.workload
    workload = replace(
        w,
        batch=asked.batch or w.batch,
        width=w.width * (asked.width or 1),
        depth=w.depth * (asked.depth or 1),
    )
    runtime = "cuda-graph" if asked.graphs else asked.runtime or m.runtime
    point = replace(m.point, workload=workload, runtime=runtime)
    # graphs asked of what replays one already is the point itself
    others = (o for o in case.everything if o.runtime == runtime and o is not m)
    found = next((o for o in others if o.point == point), None)
    if found is None or found.latency_ns is None:
        return None
    return Answer(MEASURED, found.latency_ns, paired_ratio(m, found))


def _prediction(made: Prediction, answer: Answer, before: Estimate | None) -> Prediction:
    """Return an answer with the errors that its formula has shown, or why it is refused."""
    errors = errors_shown().get(answer.formula)
    made = replace(made, formula=answer.formula, shown_error=errors)
    if reason := distrust(errors):
        return replace(made, reason=reason)
    factor = answer.factor
    if factor is None and before is not None:
        factor = quotient(before, answer.latency, answer.formula)
    return replace(made, latency_ns=answer.latency, factor=factor)


def predict_steps(asked: WhatIf, steps: Sequence[Step], subject: str) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked, from steps of a trace.

    Args:
        asked: the changes, as for ``predict``.
        steps: all of one kind: together they give one interval.
        subject: what the steps are called.

    Raises:
        UsageError: a factor or batch at or below zero, or nothing asked.
    """
    check(asked)
    try:
        queues = [replay.queues_of(step) for step in steps]
        beyond = (replay.unexplained(q.sync_ns, replay.run(q).latency_ns) for q in queues)
        unusable = next((reason for reason in beyond if reason), None)
    except UsageError as error:
        queues, unusable = [], str(error)
    found = []
    for one in changes(asked):
        made = Prediction(
            change=one.words(),
            subject=subject,
            formula=replay.RECORDED,
            scales=scales(one, ON_DEVICE),
        )
        reason = (_not_in_a_trace(one) if queues else None) or unusable
        if reason is None and one.graphs and any(q.blocked.any() for q in queues):
            reason = "the host waits for the device inside the step; a graph cannot hold that"
        if reason is not None:
            found.append(replace(made, reason=reason))
        else:
            before, after = replay.steps_latency(queues, change_of(one))
            found.append(_prediction(made, Answer(replay.RECORDED, after), before))
    return tuple(found)


def _not_in_a_trace(asked: WhatIf) -> str | None:
    """Return why a trace alone cannot answer, or None."""
    if asked.batch or asked.width or asked.depth:
        return "a trace has one size; record the other size too, or measure the model"
    if asked.runtime and asked.runtime != "cuda-graph":
        return f"the host time of {asked.runtime} is not in a trace; measure the model"
    return None
