"""Readers of other tools' results: latencies from anywhere, as the same records.

A reader takes what a file says and no more: where it has no kernel times there is no tax, where it
has one value a point there is no interval, and a note says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from frameworktax.analysis import curves, regime
from frameworktax.analysis.estimates import difference, median_interval, one_minus, quotient
from frameworktax.integrations.readers import files
from frameworktax.integrations.readers.files import WHOLE, Row, Table
from frameworktax.records import Curve, Estimate, Measurement, Note, Regime, Run, Workload
from frameworktax.stats import mean_interval, t_quantile

__all__ = ["read"]

AS_GIVEN = "as given, no interval"
REPEATS = "mean of repeats"
CALLS = "median of calls of one process"
SUMMARY = "mean and standard error as given"
KERNEL = "kernel time as given"
NO_INTERVAL = Note("no-interval", "one value a point, or too few: no interval can be given")
NARROW = Note(
    "calls-not-blocks",
    "calls of one process follow each other: this interval is narrower than the truth",
)
FIELDS = ("batch", "length", "image_size", "width", "depth")
"""Axes that a workload has."""
AXES = (*FIELDS, "threads")


def read(path: str | Path) -> Run | None:
    """Return another tool's file as a document, or None where it is no such file.

    Args:
        path: a CSV of latencies (``.csv``, ``.tsv``), a report of optimum-benchmark
            (``benchmark_report.json``, ``benchmark.json``, or a folder of them), or the JSON of
            pytest-benchmark.

    Raises:
        UsageError: it is such a file, and cannot be read; one line that names the place.
    """
    for reader in (files.latencies, files.optimum_benchmark, files.pytest_benchmark):
        found = reader(Path(path))
        if found is not None:
            return _document(found)
    return None


def _document(table: Table) -> Run:
    """Return a table as a document.

    Kernel times, where the table has them, give tax and regime; without them the regime is None
    and elasticity and the free value are all there is, which a note says.
    """
    measurements = [_measurement(row) for row in table.rows]
    found, regimes = _curves(table.rows, measurements)
    measurements = [replace(m, regime=r) for m, r in zip(measurements, regimes, strict=True)]
    latency_only = not any(row.kernel_ns for row in table.rows)
    sentences = [sentence(curve) for curve in found]
    notes = [Note("other-tool", f"read from {table.source}; taken as it says, not measured here")]
    if latency_only:
        text = "latencies only: no kernel time, so no tax and no regime; slopes are all there is"
        notes.append(Note("latency-only", text))
    notes += [Note("curve-shape", text) for text in sentences]
    return Run(
        environment=table.environment,
        headline=_headline(measurements, sentences, latency_only),
        measurements=tuple(measurements),
        curves=tuple(found),
        notes=tuple(notes),
    )


def _headline(
    measurements: Sequence[Measurement], sentences: Sequence[str], latency_only: bool
) -> str:
    first = measurements[0]
    parts = []
    billed = next((m for m in measurements if m.tax_share is not None), None)
    if billed is not None and billed.tax_share is not None:
        share = f"{100 * billed.tax_share.value:.0f} %"
        where = f"{billed.workload.model}, {billed.runtime}, batch {billed.workload.batch}"
        parts.append(f"{where}: {share} framework tax")
    if sentences:
        more = f" ({len(sentences)} curves in all)" if len(sentences) > 1 else ""
        parts.append(sentences[0] + more)
    if not parts:
        parts.append(f"{len(measurements)} points of {first.workload.model} and no curve")
    if latency_only:
        parts.append("latencies only, so the tax is unknown")
    return "; ".join(parts)


def _latency(row: Row) -> tuple[Estimate, Note | None]:
    if row.summary is None:
        return _estimate(row.latency_ns, row.correlated)
    mean, error, count = row.summary
    half = t_quantile(0.95, count - 1) * error if count > 1 else 0.0
    found = Estimate(value=mean, low=mean - half, high=mean + half, method=SUMMARY, n=count)
    return found, NARROW if count > 1 else NO_INTERVAL


def _estimate(values: Sequence[float], correlated: bool) -> tuple[Estimate, Note | None]:
    """Return what values are worth, and a note where an interval is missing or too narrow."""
    if correlated:
        found, note = median_interval(values, CALLS), NARROW
    else:
        found, note = mean_interval(values, REPEATS), None
    return (
        (found, note) if found is not None else (_exactly(median(values), len(values)), NO_INTERVAL)
    )


def _exactly(value: float, n: int) -> Estimate:
    return Estimate(value=value, low=value, high=value, method=AS_GIVEN, n=n)


def _measurement(row: Row) -> Measurement:
    latency, note = _latency(row)
    notes = [] if note is None else [note]
    kernel = _estimate(row.kernel_ns, row.correlated)[0] if row.kernel_ns else None
    tax = difference(latency, kernel, KERNEL) if kernel is not None else None
    share = one_minus(quotient(kernel, latency, KERNEL)) if kernel is not None else None
    foreign = {name: value for name, value in row.values.items() if name not in AXES}
    if foreign:
        said = ", ".join(f"{name} {value:g}" for name, value in foreign.items())
        notes.append(Note("axis-value", said))
    facts = dict(row.facts)
    first, each = (facts.pop(name, None) for name in ("first_token", "per_token"))
    phase = facts.pop("phase", "forward")
    return Measurement(
        workload=_workload(row, phase),
        runtime=row.runtime,
        paradigm="unknown",
        platform=row.platform,
        threads=int(row.values.get("threads", 1)),
        status="ok",
        latency_ns=latency,
        kernel_ns=kernel,
        tax_ns=tax,
        tax_share=share,
        bill_ns={"kernel": kernel.value, "remainder": latency.value - kernel.value}
        if kernel is not None
        else None,
        bill_method=KERNEL if kernel is not None else None,
        first_token_ns=_estimate(first, True)[0] if first else None,
        per_token_ns=_estimate(each, True)[0] if each else None,
        notes=tuple(notes),
        samples_ns=(tuple(round(v) for v in row.latency_ns),) if row.latency_ns else (),
        **facts,
    )


def _workload(row: Row, phase: str) -> Workload:
    known: dict[str, Any] = {
        name: int(value) if name in WHOLE else value
        for name, value in row.values.items()
        if name in FIELDS
    }
    return Workload(model=row.model, precision=row.precision, phase=phase, **known)


def _curves(
    rows: Sequence[Row], measurements: Sequence[Measurement]
) -> tuple[list[Curve], list[Regime | None]]:
    """Return one curve an axis with everything else fixed, and the regime of every point."""
    regimes = [_regime(m, None) for m in measurements]
    found = []
    for axis in dict.fromkeys(name for row in rows for name in row.values):
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            if axis in row.values:
                others = tuple((k, v) for k, v in sorted(row.values.items()) if k != axis)
                key = (row.model, row.runtime, row.precision, row.platform, others)
                groups[key].append(i)
        for members in groups.values():
            members.sort(key=lambda i: rows[i].values[axis])
            values = [rows[i].values[axis] for i in members]
            if len(set(values)) < len(values) or len(values) < 2 or values[0] <= 0:
                continue
            latency = [measurements[i].latency_ns for i in members]
            known = [estimate.value for estimate in latency if estimate is not None]
            slopes = regime.elasticities(values, known)
            if axis == "batch":
                for i, slope in zip(members, slopes, strict=True):
                    regimes[i] = _regime(measurements[i], slope)
            free, bound = _free(axis, values, known, [rows[i].latency_ns for i in members])
            first = rows[members[0]]
            found.append(
                Curve(
                    model=first.model,
                    runtime=first.runtime,
                    platform=first.platform,
                    precision=first.precision,
                    axis=axis,
                    values=tuple(values),
                    latency_ns=tuple(latency),
                    free_batch=free,
                    free_is_lower_bound=bound,
                    regimes=tuple(regimes[i] for i in members),
                    elasticity=tuple(slopes),
                )
            )
    return found, regimes


def _free(
    axis: str,
    values: Sequence[float],
    latency_ns: Sequence[float],
    repeats: Sequence[tuple[float, ...]],
) -> tuple[Estimate | None, bool]:
    """Return the largest free value, and whether it is a lower bound; None off batch 1."""
    if axis == "batch" and values[0] != 1:
        return None, False
    if axis == "batch" and all(len(given) > 1 for given in repeats):
        calls = zip(values, repeats, strict=True)
        blocks: list[curves.Blocks] = [
            {(n, i): ns for i, ns in enumerate(given)} for n, given in calls
        ]
        return curves.free_batch_interval(values, blocks)
    value, bound = curves.free_batch(values, latency_ns)
    return _exactly(value, 1), bound


def _regime(m: Measurement, slope: float | None) -> Regime | None:
    if m.kernel_ns is None or m.tax_share is None or m.latency_ns is None:
        return None
    if m.platform.lower().startswith("cpu"):
        return regime.cpu_regime(m.tax_share)
    return regime.gpu_regime(quotient(m.kernel_ns, m.latency_ns, KERNEL), slope)


def sentence(curve: Curve) -> str:
    """Return a curve in words: up to where it is flat, and from where it is linear."""
    known = [e.value if e is not None else None for e in curve.latency_ns]
    said = [f"{curve.model}, {curve.runtime}, {curve.precision}"]
    flat = regime.flat_to(curve.values, known)
    if flat is not None and flat > curve.values[0]:
        said.append(f"flat to {curve.axis} {flat:g}")
    else:
        said.append(f"not flat over {curve.axis}")
    linear = regime.linear_from(curve.values, curve.elasticity)
    if linear is not None:
        said.append(f"linear from {linear:g}")
    return said[0] + ": " + ", ".join(said[1:])
