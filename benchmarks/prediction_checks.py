"""Predictions held against measurements, on the records of one session.

Every check runs the code that answers a what-if, on measurements from which the point in question
was taken out. Times are put on the clock of one reference point by ratios of paired blocks, on a
CPU of their CPU times, so that a drifting or shared host does not count as an error of a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from frameworktax.analysis.estimates import median_interval, scaled
from frameworktax.analysis.grouping import PointRecords, gather
from frameworktax.analysis.whatif import formulas
from frameworktax.analysis.whatif.formulas import Answer, Case, Refused, WhatIf
from frameworktax.records import FLOOR, Estimate, Measurement, Record, device_of, point_name
from frameworktax.stats import ratio_interval, relative_half_width

LARGER = (8, 16)
"""Batches that are predicted from the smaller ones."""
WIDER = 2.0
"""Width that is predicted from the model as it is."""
DEPTHS = (2.0, 3.0)
"""The second is predicted from the model as it is and the first: whole factors, because half of
three blocks is no number of blocks."""
TRUTH = 0.05
"""Half-width of the measured ratio up to which every check counts; above it, those whose error is
larger than the half-width."""
Blocks = Mapping[tuple[int, int], float]
"""(process, round) → block median, ns."""
POINTS = 3
"""Measured batches that a line is drawn through, the largest below the one in question."""
SPAN = "device span, line over batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One prediction and what was then measured.

    Attributes:
        formula: by name.
        subject: the point it started from.
        change: as it would be typed.
        predicted_ns: on the clock of the model's reference point.
        measured_ns: likewise.
        uncertainty: half-width of the measured value's interval, a share.
        error: predicted over measured, less 1.
        counted: whether it counts in the errors that a formula has shown.
    """

    formula: str
    subject: str
    change: str
    predicted_ns: float
    measured_ns: float
    uncertainty: float
    error: float
    counted: bool


def judge(
    records: Iterable[Record], measurements: Sequence[Measurement]
) -> tuple[list[Check], list[str]]:
    """Hold every prediction that these records allow against what they measured.

    Args:
        records: of a store of one model.
        measurements: the document's.

    Returns:
        The checks, and in words what could not be predicted.
    """
    gathered, _ = gather(records)
    told = paired([m for m in measurements if m.latency_ns is not None], gathered)
    checks: list[Check] = []
    refused: list[str] = []
    for m in told:
        for asked, target in _questions(m, told):
            seen = [o for o in told if _seen(o, target, asked)]
            try:
                answer = _answer(m, seen, asked)
            except Refused as no:
                refused.append(f"{point_name(m.point)}, {asked.words()}: {no.reason}")
            else:
                if target.latency_ns is not None:
                    checks.append(_check(m, asked, answer, target.latency_ns))
        checks += _spans(m, told)
    return checks, refused


def paired(
    measurements: Sequence[Measurement], gathered: Sequence[PointRecords]
) -> list[Measurement]:
    """Return the measurements with latencies on the clock of the first: its own × paired ratios.

    Points without a round in common with the first are left out.
    """
    timed = {g.point: by_round(g) for g in gathered if g.blocks}
    if not measurements:
        return []
    base = measurements[0]
    clock, unit = timed[base.point], base.latency_ns
    if unit is None:
        return []
    found = []
    for m in measurements:
        at = m.point
        ratio = paired_ratio(timed[at], clock) if at in timed else None
        if m is base:
            ratio = replace(unit, value=1.0, low=1.0, high=1.0)
        if ratio is None:
            continue
        twin = replace(at, workload=replace(at.workload, twin=True))
        warm = paired_ratio(timed[twin], clock) if twin in timed else None
        found.append(
            replace(
                m,
                latency_ns=scaled(ratio, unit.value),
                warm_overhead_ns=scaled(warm, unit.value) if warm else None,
            )
        )
    return found


def by_round(records: PointRecords) -> Blocks:
    """Return (process, round) → time of a call, ns.

    On one CPU thread its CPU time, which others on the host move far less than the wall (METHOD,
    section 4); a formula's error is then not theirs. On a device the block median of the latency.
    """
    if device_of(records.point.platform) != "cpu" or records.point.threads > 1:
        return records.by_round
    return {
        (b.process, b.round): b.cpu_ns / len(b.latency_ns) for b in records.blocks if b.cpu_ns > 0
    }


def paired_ratio(a: Blocks, b: Blocks) -> Estimate | None:
    """Return a / b as the median over pairs of blocks of one round, between order statistics.

    Few processes and short sessions: a median is moved less than a mean by a round that others
    disturbed. Below six pairs it is ``stats.ratio_interval``.
    """
    logs = [math.log(a[key] / b[key]) for key in a.keys() & b.keys()]
    found = median_interval(logs, "median of paired-block-ratios")
    if found is None:
        return ratio_interval(a, b)
    low, value, high = (math.exp(x) for x in (found.low, found.value, found.high))
    return replace(found, low=low, value=value, high=high)


def _questions(m: Measurement, told: Sequence[Measurement]) -> list[tuple[WhatIf, Measurement]]:
    """Return what can be asked from a point, with the point that has the answer."""
    found = []
    w = m.workload
    if m.runtime != "eager" or (w.width, w.depth) != (1, 1):
        return []
    for other in told:
        v = other.workload
        if other is m or other.runtime == FLOOR or other.platform != m.platform:
            continue
        if replace(w, batch=v.batch) == v and other.runtime == m.runtime:
            if w.batch == 1 and v.batch in LARGER:
                found.append((WhatIf(batch=v.batch), other))
        elif w == v and other.runtime == "cuda-graph":
            found.append((WhatIf(graphs=True), other))
        elif w == v:
            found.append((WhatIf(runtime=other.runtime), other))
        elif replace(w, width=WIDER) == v and other.runtime == m.runtime:
            found.append((WhatIf(width=WIDER), other))
        elif replace(w, depth=DEPTHS[-1]) == v and other.runtime == m.runtime:
            found.append((WhatIf(depth=DEPTHS[-1]), other))
    return found


def _seen(other: Measurement, target: Measurement, asked: WhatIf) -> bool:
    """Return whether a prediction may look at a point: not at its answer, nor beyond it.

    Of another runtime it takes the twin's warm overhead, or the host time, and no latency.
    """
    if asked.runtime is not None:
        return True
    if asked.batch is not None:
        return other.workload.batch < target.workload.batch
    return other is not target


def _answer(m: Measurement, seen: Sequence[Measurement], asked: WhatIf) -> Answer:
    relatives = [o for o in seen if o.point.family() == m.point.family()]
    return formulas.answer(Case(m, relatives, seen, asked))


def _spans(m: Measurement, told: Sequence[Measurement]) -> list[Check]:
    """Hold the line through the device spans of small batches against those of larger ones."""
    row = [
        o
        for o in told
        if (o.point.family(), o.runtime) == (m.point.family(), m.runtime) and o.span_ns is not None
    ]
    found = []
    if m.workload.batch != 1 or m.span_ns is None:
        return []
    for target in row:
        if target.workload.batch not in LARGER or target.span_ns is None:
            continue
        small = [o for o in row if o.workload.batch < target.workload.batch][-POINTS:]
        with suppress(Refused):
            answer = formulas.on_line(
                [(float(o.workload.batch), o.span_ns) for o in small if o.span_ns is not None],
                float(target.workload.batch),
                SPAN,
                "--batch 1,2,4",
            )
            found.append(_check(m, WhatIf(batch=target.workload.batch), answer, target.span_ns))
    return found


def counts(error: float, uncertainty: float) -> bool:
    """Return whether a check counts: a sharp truth, or a miss that its uncertainty cannot explain.

    A gate by uncertainty alone would drop the misses: points that are slow to settle are those
    that formulas miss.
    """
    return uncertainty <= TRUTH or abs(error) > uncertainty


def _check(m: Measurement, asked: WhatIf, answer: Answer, measured: Estimate) -> Check:
    uncertainty = relative_half_width(measured)
    error = answer.latency.value / measured.value - 1
    return Check(
        formula=answer.formula,
        subject=point_name(m.point),
        change=asked.words(),
        predicted_ns=answer.latency.value,
        measured_ns=measured.value,
        uncertainty=uncertainty,
        error=error,
        counted=counts(error, uncertainty),
    )
