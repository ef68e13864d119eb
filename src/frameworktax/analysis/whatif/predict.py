"""What would change if: predictions from what was measured, each with its formula and its errors.

``cpu`` holds the formulas for a CPU, where host and kernels share a thread; ``gpu`` those for a GPU
and ``replay`` for a trace: two queues. A prediction is refused, with the reason, where its formula
has shown larger errors than it may (METHOD, section 9).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import paired_ratio, quotient
from frameworktax.analysis.whatif import cpu, formula_errors, gpu, replay
from frameworktax.analysis.whatif.request import (
    MEASURED,
    Answer,
    Refused,
    WhatIf,
    changes,
    check,
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
    device_of,
    point_name,
)
from frameworktax.traces.timeline import Step

__all__ = ["WhatIf", "predict"]

Table = Mapping[str, Mapping[str, float]]


def predict(
    asked: WhatIf,
    run: Run | None = None,
    steps: Sequence[Step] = (),
    subject: str = "step",
    table: Table | None = None,
    *,
    alone: bool = True,
) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked and each subject it can start from.

    Args:
        asked: the changes; each is answered alone, and those that are replayed also together.
        run: a document: subjects are its measured points, one a model and runtime, at the
            smallest batch.
        steps: of a trace, all of one kind: together they give one interval.
        subject: what the steps are called.
        table: errors that formulas have shown; default: the committed table.
        alone: whether each of several changes is answered; otherwise all of them at once only.

    Returns:
        Predictions and refusals, subject by subject.

    Raises:
        UsageError: a factor or batch at or below zero, or nothing asked.
    """
    check(asked)
    known = formula_errors.table() if table is None else table
    measured = [
        m
        for m in (run.measurements if run is not None else ())
        if m.latency_ns is not None and m.runtime != FLOOR
    ]
    first: dict[tuple[FamilyKey, str], Measurement] = {}
    for m in measured:
        key = (m.point.family(), m.runtime)
        if key not in first or m.workload.batch < first[key].workload.batch:
            first[key] = m
    families: dict[FamilyKey, list[Measurement]] = {}
    for m in measured:
        families.setdefault(m.point.family(), []).append(m)
    found = [
        predict_from(m, families[m.point.family()], measured, one, known)
        for m in first.values()
        for one in (changes(asked) if alone else [asked])
    ]
    predictions = [one for one in found if one is not None]
    return (*predictions, *_of_steps(steps, asked, subject, known))


def predict_from(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
    table: Table,
) -> Prediction | None:
    """Return the prediction of one change from one measured point.

    Args:
        m: the point.
        relatives: measured points that differ from it in runtime and batch alone, itself included.
        everything: measured points, among which the one that is asked for may be.
        asked: the change.
        table: errors that formulas have shown.

    Returns:
        None where the change leaves the point as it is.
    """
    if asked.runtime == m.runtime or asked.batch == m.workload.batch:
        return None
    scaled = scales(asked, on_device=device_of(m.platform) != "cpu")
    made = Prediction(change=asked.words(), subject=point_name(m.point), formula="", scales=scaled)
    try:
        answers = _answers(m, relatives, everything, asked)
    except Refused as refused:
        return replace(made, formula=refused.formula, reason=refused.reason)
    return _prediction(made, answers, m.latency_ns, table)


def _answers(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
) -> list[Answer]:
    """Answer one change from one point by every formula that can."""
    if measured := _measured(m, everything, asked):
        return [measured]
    if device_of(m.platform) == "cpu":
        return cpu.answers(m, relatives, everything, asked)
    return gpu.answers(m, relatives, asked)


def _measured(m: Measurement, everything: Sequence[Measurement], asked: WhatIf) -> Answer | None:
    """Return the point that was asked for, where it was measured: then nothing is predicted."""
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
    found = next(
        (o for o in everything if o.runtime == runtime and o is not m and o.point == point), None
    )
    if found is None or found.latency_ns is None:
        return None
    return Answer(MEASURED, found.latency_ns, paired_ratio(m, found))


def _prediction(
    made: Prediction, answers: Sequence[Answer], before: Estimate | None, table: Table
) -> Prediction:
    """Return the answer of the formula that has shown the smallest error, or the first one."""
    answer = min(answers, key=lambda a: table.get(a.formula, {"median": math.inf})["median"])
    errors = table.get(answer.formula)
    made = replace(made, formula=answer.formula, shown_error=errors)
    if reason := formula_errors.distrust(errors):
        return replace(made, reason=reason)
    factor = answer.factor
    if factor is None and before is not None:
        factor = quotient(before, answer.latency, answer.formula)
    return replace(made, latency_ns=answer.latency, factor=factor)


def _of_steps(
    steps: Sequence[Step], asked: WhatIf, subject: str, table: Table
) -> Iterator[Prediction]:
    if not steps:
        return
    formula = replay.RECORDED
    try:
        queues = [replay.queues_of(step) for step in steps]
        beyond = max(abs(q.sync_ns) / max(1.0, replay.run(q).latency_ns) for q in queues)
        unusable = replay.unexplained(beyond, 1.0)
    except UsageError as error:
        queues, unusable = [], str(error)
    for one in changes(asked):
        scaled = scales(one, on_device=True)
        made = Prediction(change=one.words(), subject=subject, formula=formula, scales=scaled)
        reason = (gpu.unanswerable_from_trace(one) if queues else None) or unusable
        if reason is None and one.graphs and any(q.blocked.any() for q in queues):
            reason = "the host waits for the device inside the step; a graph cannot hold that"
        if reason is not None:
            yield replace(made, reason=reason)
        else:
            before, after = replay.steps_latency(queues, gpu.change_of(one))
            yield _prediction(made, [Answer(formula, after)], before, table)
