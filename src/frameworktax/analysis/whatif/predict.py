"""What would change if: predictions from what was measured, each with its formula and its errors.

The formulas stand in ``analysis/formulas.py`` (a CPU: host and kernels share a thread) and
``analysis/queued.py`` (a GPU or a trace: two queues). What none of them has earned trust for is
refused, with the reason (METHOD, section 9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import quotient
from frameworktax.analysis.whatif import cpu as on_cpu
from frameworktax.analysis.whatif import formula_errors as shown
from frameworktax.analysis.whatif import gpu as on_device
from frameworktax.analysis.whatif import queued, replay
from frameworktax.analysis.whatif.request import (
    MEASURED,
    Answer,
    Refused,
    WhatIf,
    changes,
    check,
)
from frameworktax.errors import UsageError
from frameworktax.records import (
    FLOOR,
    REFERENCE,
    Estimate,
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
) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked and each subject it can start from.

    Args:
        asked: the changes; each is answered alone, and those that are replayed also together.
        run: a document: subjects are its measured points, one a model and runtime, at the
            smallest batch.
        steps: of a trace, all of one kind: together they give one interval.
        subject: what the steps are called.
        table: errors that formulas have shown; the committed table unless given.

    Returns:
        Predictions and refusals, subject by subject.

    Raises:
        UsageError: a factor or batch at or below zero, or nothing asked.
    """
    check(asked)
    known = shown.table() if table is None else table
    found: list[Prediction] = []
    for m in _subjects(run.measurements if run is not None else ()):
        relatives = [o for o in _told(run) if o.point.family() == m.point.family()]
        answers = [_point(m, relatives, _told(run), one, known) for one in changes(asked)]
        found += [answer for answer in answers if answer is not None]
    if steps:
        found += _steps(steps, asked, subject, known)
    return tuple(found)


def _told(run: Run | None) -> list[Measurement]:
    measured = run.measurements if run is not None else ()
    return [m for m in measured if m.latency_ns is not None and m.runtime != FLOOR]


def _subjects(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the smallest measured batch of every model in every runtime."""
    first: dict[object, Measurement] = {}
    for m in measurements:
        if m.latency_ns is None or m.runtime == FLOOR:
            continue
        key = (m.point.family(), m.runtime)
        if key not in first or m.workload.batch < first[key].workload.batch:
            first[key] = m
    return list(first.values())


def _point(
    m: Measurement,
    relatives: Sequence[Measurement],
    everything: Sequence[Measurement],
    asked: WhatIf,
    table: Table,
) -> Prediction | None:
    """Answer one change from one point; None where the change leaves the point as it is."""
    if asked.runtime == m.runtime or asked.batch == m.workload.batch:
        return None
    answer = _measured(m, everything, asked)
    if answer is None:
        wing = on_cpu if device_of(m.platform) == "cpu" else on_device
        answer = wing.answer(m, relatives, everything, asked)
    return _told_as(answer, m.latency_ns, asked, point_name(m.point), table)


def _measured(m: Measurement, everything: Sequence[Measurement], asked: WhatIf) -> Answer | None:
    """Return the point that was asked for, where it was measured: then nothing is predicted."""
    if asked.host_speed or asked.device_speed:
        return None
    runtime = "cuda-graph" if asked.graphs else asked.runtime or m.runtime
    workload = replace(
        m.workload,
        batch=asked.batch or m.workload.batch,
        width=m.workload.width * (asked.width or 1),
        depth=m.workload.depth * (asked.depth or 1),
    )
    for other in everything:
        if other is m:
            continue  # a graph asked of what replays one already
        same = (other.workload, other.runtime, other.platform, other.threads)
        if same == (workload, runtime, m.platform, m.threads) and other.latency_ns is not None:
            paired = runtime != m.runtime and m.runtime == REFERENCE and other.ratio_to_eager
            factor = on_cpu.inverse(paired) if paired and workload == m.workload else None
            return Answer(formula=MEASURED, latency=other.latency_ns, factor=factor)
    return None


def _told_as(
    answer: Answer | Refused,
    before: Estimate | None,
    asked: WhatIf,
    subject: str,
    table: Table,
) -> Prediction:
    change = asked.words()
    if isinstance(answer, Refused):
        return Prediction(
            change=change, subject=subject, formula=answer.formula, reason=answer.reason
        )
    errors = table.get(answer.formula)
    if reason := shown.distrust(errors):
        return Prediction(
            change=change,
            subject=subject,
            formula=answer.formula,
            shown_error=errors,
            reason=reason,
        )
    factor = answer.factor
    if factor is None and before is not None:
        factor = quotient(before, answer.latency, answer.formula)
    return Prediction(
        change=change,
        subject=subject,
        formula=answer.formula,
        latency_ns=answer.latency,
        factor=factor,
        shown_error=errors,
    )


def _steps(steps: Sequence[Step], asked: WhatIf, subject: str, table: Table) -> list[Prediction]:
    made: list[Prediction] = []
    try:
        queues = [queued.queues_of(step) for step in steps]
    except UsageError as error:
        refused = Refused(formula=queued.RECORDED, reason=str(error))
        return [_told_as(refused, None, one, subject, table) for one in changes(asked)]
    beyond = max(abs(q.sync_ns) / max(1.0, replay.run(q).latency_ns) for q in queues)
    for one in changes(asked):
        answer: Answer | Refused
        reason = on_device.unanswerable_from_trace(one) or queued.unexplained(beyond, 1.0)
        if reason is None and one.graphs and any(q.blocked.any() for q in queues):
            reason = "the host waits for the device inside the step; a graph cannot hold that"
        if reason is not None:
            answer = Refused(formula=queued.RECORDED, reason=reason)
            made.append(_told_as(answer, None, one, subject, table))
            continue
        before, after = queued.steps_latency(queues, on_device.change_of(one))
        made.append(
            _told_as(Answer(formula=queued.RECORDED, latency=after), before, one, subject, table)
        )
    return made
