"""Predictions held against measurements, on the records of one session.

Every check runs the code that answers a what-if, on measurements from which the point in question
was taken out. Times are put on the clock of one reference point by ratios of paired blocks, on a
CPU of their CPU times, so that a drifting or shared host does not count as an error of a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frameworktax.analysis.estimates import median_interval, scaled
from frameworktax.analysis.grouping import PointRecords, blocks, gather
from frameworktax.analysis.whatif import formulas
from frameworktax.analysis.whatif.formulas import Answer, Case, Refused, WhatIf
from frameworktax.records import FLOOR, Estimate, Measurement, Record, device_of, point_name
from frameworktax.stats import ratio_interval, relative_half_width

TRUTH = 0.05
"""Half-width of the measured ratio up to which every check counts; above it, those whose error is
larger than the half-width."""
Blocks = Mapping[tuple[int, int], float]
"""(process, round) → block median, ns."""


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
            # of another runtime a formula takes the twin's latency, or the host time, no more
            seen = [o for o in told if o is not target or asked.runtime is not None]
            relatives = [o for o in seen if o.point.family() == m.point.family()]
            try:
                answer = formulas.answer(Case(m, relatives, asked))
            except Refused as no:
                refused.append(f"{point_name(m.point)}, {asked.words()}: {no.reason}")
            else:
                if target.latency_ns is not None:
                    checks.append(_check(m, asked, answer, target.latency_ns))
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
    section 9); a formula's error is then not theirs. On a device the block median of the latency.
    """
    if device_of(records.point.platform) != "cpu" or records.point.threads > 1:
        return {(process, turn): ns for process, turn, ns in blocks(records)}
    timed = records.timed
    return {
        (process, turn): timed.cpu_ns.item(row) / timed.calls.item(row)
        for (process, turn, _), row in zip(blocks(records), records.blocks, strict=True)
        if timed.cpu_ns.item(row) > 0
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
    if m.runtime != "eager":
        return []
    return [
        (WhatIf(graphs=True) if o.runtime == "cuda-graph" else WhatIf(runtime=o.runtime), o)
        for o in told
        if o is not m
        and o.runtime != FLOOR
        and (o.platform, o.workload) == (m.platform, m.workload)
    ]


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
