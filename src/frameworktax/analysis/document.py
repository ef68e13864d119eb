"""From raw records to the document that ``--json``, the terminal and the report are made of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from statistics import fmean, median, stdev
from typing import Any, TypeVar, cast

from frameworktax.analysis import advice as advising
from frameworktax.analysis import bill as billing
from frameworktax.analysis import grouping as points
from frameworktax.analysis import regime
from frameworktax.analysis.curves import Blocks, free_batch_interval, free_batch_of
from frameworktax.analysis.estimates import one_minus, quotient
from frameworktax.analysis.grouping import PointRecords, gather, left_out_names, ratios, status_of
from frameworktax.analysis.places import layers, source_lines
from frameworktax.analysis.whatif.formulas import SAME_KERNELS_ON_DEVICE
from frameworktax.records import (
    EVERY_THREAD,
    FLOOR,
    LINEAR_REASON,
    REFERENCE,
    Attribution,
    Calibration,
    Curve,
    Effort,
    Estimate,
    FamilyKey,
    LeftOut,
    Measurement,
    Note,
    OwnTax,
    Point,
    Points,
    Record,
    Regime,
    Run,
    Session,
    device_of,
    sessions_of,
)
from frameworktax.stats import NORMAL_95, UNTIL, spread

T = TypeVar("T")
DRIFT = 0.02
"""Movement of the host from which on it is named: what is under it, an interval of ±3 % hides."""

OTHER_KERNELS = 0.05
"""Difference in kernel time from which on other kernels than eager's are named."""
MIN_STRETCHES = 3
"""A session has at least so many; with fewer rounds nothing is said of its host's drift."""


def build(
    records: Sequence[Record],
    *,
    asked: Iterable[Point] = (),
    until: float = UNTIL,
) -> Run:
    """Return the document of one session or several, from records in any order.

    Of a point in several sessions the newest one that measured it counts. ``asked`` are points
    that none of the records may name; ``until`` is the half-width that was asked for, as a share:
    wider points get a note.
    """
    of: dict[type[Any], list[Any]] = defaultdict(list)
    for record in records:
        of[type(record)].append(record)
    sessions = sessions_of(of[Session])
    grouped, notes = gather(records)
    grouped = [g for g in grouped if g.measured]
    shown = _shown(grouped)
    measured = _measurements(shown, grouped, _gpus(sessions), until)
    families: dict[FamilyKey, list[StoredMeasurement]] = defaultdict(list)
    for key, m in measured:
        if m.runtime != FLOOR:  # it is no family's member
            families[key].append(m)
    measurements = [m for _, m in measured]
    processors = {s.session: len(s.environment.affinity) or s.environment.cores for s in sessions}
    curves, advice = [], []
    rows_of = [_rows(family) for family in families.values()]
    every = [row for rows in rows_of for row in rows]
    to_first = ratios((m.records, row[0].records) for row in every for m in row[1:])
    for family, rows in zip(families.values(), rows_of, strict=True):
        found = [_curve(row, [next(to_first) for _ in row[1:]]) for row in rows]
        curves += found
        crowded = [m for m in family if m.threads > processors.get(m.session or "", m.threads)]
        if not crowded or device_of(crowded[0].platform) != "cpu":
            bills = {(m.runtime, m.workload.batch): m.bill for m in family if m.bill is not None}
            more, about = advising.advise(family, found, bills)
            advice += more
            notes += about
        else:
            text = (
                f"{crowded[0].workload.model}: {crowded[0].threads} threads on fewer processors "
                "wait for each other; no advice is given on such numbers"
            )
            notes.append(Note("crowded", text))
    drift = host_drift(
        {
            r.round: median(r.latency_ns)
            for r in of[Calibration]
            if not sessions or r.session == sessions[-1].session
        }
    )
    notes += _session_notes(sessions, drift)
    floors = [m.latency_ns for m in measurements if m.runtime == FLOOR]
    return Run(
        environment=sessions[-1].environment if sessions else None,
        headline=advising.headline(measurements, curves),
        harness_floor_ns=next((floor for floor in floors if floor is not None), None),
        host_drift=drift,
        own_tax=_own_tax(of[Effort]),
        points=_points(shown, of[LeftOut], asked),
        measurements=tuple(measurements),
        curves=tuple(curves),
        advice=advising.ranked(advice),
        left_out=tuple(left_out_names(of[LeftOut], (g.point for g in grouped))),
        notes=tuple(dict.fromkeys(notes)),
    )


def _own_tax(efforts: Sequence[Effort]) -> OwnTax | None:
    """Return what the tool cost in all sessions that say it; None where none does."""
    names = ("wall_ns", "setup_ns", "measuring_ns", "calls_ns")
    whole = {name: sum(getattr(one, name) for one in efforts) for name in names}
    if whole["wall_ns"] == 0:
        return None
    return OwnTax(share=1 - whole["calls_ns"] / whole["wall_ns"], **whole)


def _points(
    shown: Iterable[PointRecords], left_out: Iterable[LeftOut], asked: Iterable[Point]
) -> Points | None:
    """Count the points; None where none was asked for."""
    asked = set(asked)  # the floor is measured beside everything, and counts where it was asked for
    reached = {r.point: r for r in shown if r.point.runtime != FLOOR or r.point in asked}
    reasons = {left.point: left.reason for left in left_out}
    settled = {
        *(point for point, r in reached.items() if status_of(r)[0] == "unavailable"),
        *(point for point, reason in reasons.items() if reason.startswith(LINEAR_REASON)),
    }
    every = {*reached, *asked, *(point for point in reasons if not point.workload.twin)}
    measured = [point for point, r in reached.items() if r.latency is not None]
    wanted = len(every) - len((settled & every).difference(measured))
    return Points(asked=wanted, measured=len(measured)) if wanted else None


def host_drift(calibrator_ns: Mapping[int, float]) -> float | None:
    """Return how far the host's speed moved between stretches of a session: half of 95 %, a share.

    It is in no result's interval: those are of their session. The rounds (round → median of the
    calibrator's calls, ns) are divided into stretches of √n neighbours (of n / 3, if that is less);
    the result is 1.96 standard deviations of the stretches' mean logs, the long-run variance by
    batch means (Flegal and Jones 2010). None where there are fewer than ``MIN_STRETCHES`` rounds.
    """
    logs = [math.log(ns) for _, ns in sorted(calibrator_ns.items())]
    if len(logs) < MIN_STRETCHES:
        return None
    size = min(math.isqrt(len(logs)), len(logs) // MIN_STRETCHES)
    first = len(logs) % size  # what fills no stretch is left out at the beginning
    stretches = [fmean(logs[i : i + size]) for i in range(first, len(logs), size)]
    return NORMAL_95 * stdev(stretches)


def _session_notes(sessions: Sequence[Session], drift: float | None) -> list[Note]:
    notes = []
    if drift is not None and drift > DRIFT:
        text = (
            f"this host's speed drifted by about {drift:.0%} during the run; absolute latencies "
            "from another hour may differ by that, ratios between runtimes do not"
        )
        notes.append(Note("host-drift", text))
    hosts = {session.environment.host for session in sessions}
    if len(hosts) > 1:
        text = f"measured on {len(hosts)} hosts; the environment shown is the newest session's"
        notes.append(Note("several-hosts", text))
    return notes


def _shown(grouped: Iterable[PointRecords]) -> list[PointRecords]:
    """Return what is no twin, by model and runtime as they first appear, then by batch."""
    shown = [g for g in grouped if not g.point.workload.twin]
    models: dict[str, int] = {}
    runtimes: dict[str, int] = {}
    for g in shown:
        models.setdefault(g.point.workload.model, len(models))
        runtimes.setdefault(g.point.runtime, len(runtimes))
    return sorted(
        shown,
        key=lambda g: (
            models[g.point.workload.model],
            runtimes[g.point.runtime],
            g.point.workload.batch,
        ),
    )


def _lazy(compute: Callable[[StoredMeasurement], T]) -> T:
    """Return a field that is computed when it is first asked for, to mypy of what it computes."""
    return cast("T", cached_property(compute))


class StoredMeasurement(Measurement):
    """A measurement from records; what no table shows is computed when it is first asked for."""

    records: PointRecords
    bill: billing.Bill | None
    device: regime.Device | None
    slope: float | None  # of latency over batch; from ``_curves``
    regime = _lazy(lambda m: _regime(m))
    pipelined_ns = _lazy(lambda m: m.records.pipelined)
    kernel_ns = _lazy(lambda m: m.bill.kernel if m.bill else None)
    tax_ns = _lazy(lambda m: m.bill.tax if m.bill else None)
    bill_ns = _lazy(lambda m: m.bill.lines if m.bill else None)
    kernel_detail_ns = _lazy(lambda m: m.bill.detail if m.bill else None)
    symbols_ns = _lazy(lambda m: m.bill.symbols if m.bill else ())
    sampler_inflation = _lazy(lambda m: m.bill.inflation if m.bill else None)
    process_spread = _lazy(lambda m: spread(m.records.block_medians)[0])
    block_spread = _lazy(lambda m: spread(m.records.block_medians)[1])
    samples_ns = _lazy(lambda m: points.samples(m.records))
    blocks_ns = _lazy(lambda m: points.blocks(m.records))
    calibrator_ns = _lazy(lambda m: tuple(sorted(m.records.calibrator.items())))

    def __eq__(self, other: object) -> bool:
        return Measurement(**{f.name: getattr(self, f.name) for f in fields(self)}) == other

    __hash__ = Measurement.__hash__


def _measurements(
    shown: Sequence[PointRecords],
    grouped: Iterable[PointRecords],
    gpus: Mapping[tuple[str, str], regime.Device | None],
    until: float,
) -> list[tuple[FamilyKey, StoredMeasurement]]:
    """Return each point shown with its family; twins and eager are found among all of them."""
    twins = {
        replace(g.point, workload=replace(g.point.workload, twin=False)): g
        for g in grouped
        if g.point.workload.twin
    }
    families = [records.point.family() for records in shown]
    eagers = {
        (family, g.point.workload.batch): g
        for family, g in zip(families, shown, strict=True)
        if g.point.runtime == REFERENCE
    }
    beside = [
        eagers.get((family, records.point.workload.batch))
        if records.point.runtime not in (FLOOR, REFERENCE)
        else None
        for family, records in zip(families, shown, strict=True)
    ]
    to_eager = ratios(zip(shown, beside, strict=True))
    bills = {
        id(records): _bill(records, twins.get(records.point) if twins else None)
        for records in shown
    }
    found = []
    for family, records, eager, ratio in zip(families, shown, beside, to_eager, strict=True):
        point = records.point
        twin = twins.get(point) if twins else None
        bill, of_eager = bills[id(records)], bills.get(id(eager))
        device = gpus.get((records.session, device_of(point.platform)))
        notes = _other_kernels(point.runtime, bill, of_eager)
        m = _measurement(records, bill, twin, ratio, until, notes)
        vars(m).clear()  # slots hold what was given; here are defaults of what is computed later
        vars(m).update(records=records, bill=bill, device=device, slope=None)
        found.append((family, m))
    return found


def _measurement(
    records: PointRecords,
    bill: billing.Bill | None,
    twin: PointRecords | None,
    to_eager: Estimate | None,
    until: float,
    more: Iterable[Note],
) -> StoredMeasurement:
    status, reason = status_of(records)
    latency = records.latency
    notes = points.notes(records, until)
    if bill is not None:
        codes = {note.code for note in notes}
        notes += [note for note in bill.notes if note.code not in codes]
    elif records.blocks:
        notes.append(_no_bill(records, latency))
    if records.attributions and not _whole(records):
        text = (
            f"only one of {records.point.threads} threads was sampled, whose waiting for the "
            "others is no tax while they compute: no share is given; measure with --threads 1 for "
            "one"
        )
        notes.append(Note("one-thread-sampled", text))
    notes += more
    subject, point, places = records.subject, records.point, records.places
    peaks = [o.peak_memory_bytes for o in records.outcomes if o.peak_memory_bytes is not None]
    return StoredMeasurement(
        workload=point.workload,
        runtime=point.runtime,
        paradigm=subject.paradigm,
        platform=point.platform,
        threads=point.threads,
        status=status,
        reason=reason,
        latency_ns=latency,
        enqueue_ns=points.aside(records, records.timed.enqueue_ns),
        span_ns=bill.span if bill else None,
        tax_share=bill.share if bill else None,
        warm_overhead_ns=twin.latency if twin is not None else None,
        bill_method=bill.method if bill else None,
        layers=layers(latency, bill.lines, places) if bill and latency and places else (),
        lines=source_lines(latency, bill.lines, places) if bill and latency and places else (),
        page_faults=points.page_faults(records),
        ratio_to_eager=to_eager,
        launches=bill.launches if bill else None,
        kernel_names=bill.kernel_names if bill else {},
        sm_activity=bill.sm_activity if bill else None,
        warp_occupancy=bill.warp_occupancy if bill else None,
        operators=subject.operators,
        flops=subject.flops,
        macs=subject.macs,
        parameters=subject.parameters,
        peak_memory_bytes=max(peaks, default=None),
        setup_ns=subject.setup_ns,
        artifact_bytes=subject.artifact_bytes,
        padding_share=subject.padding_share,
        first_token_ns=points.aside(records, records.timed.first_token_ns),
        per_token_ns=points.per_token(records),
        parity=records.parity,
        started=tuple(sorted({o.started for o in records.outcomes if o.started is not None})),
        notes=tuple(notes),
        session=records.session,
    )


def _other_kernels(
    runtime: str, bill: billing.Bill | None, eager: billing.Bill | None
) -> Iterator[Note]:
    """Note where a runtime that should run eager's kernels runs others, which take another time."""
    if bill is None or eager is None or runtime not in SAME_KERNELS_ON_DEVICE:
        return
    ours, theirs = bill.kernel_names, eager.kernel_names
    if not ours or not theirs or ours == theirs:
        return
    change = bill.kernel.value / eager.kernel.value - 1
    if abs(change) > OTHER_KERNELS:
        text = (
            f"runs other kernels than eager, {sum(ours.values())} a call instead of "
            f"{sum(theirs.values())}, which take {abs(change):.0%} "
            f"{'more' if change > 0 else 'less'} time: a difference from eager is not of overhead "
            "alone"
        )
        yield Note("other-kernels", text)


def _whole(records: PointRecords) -> Sequence[Attribution]:
    """Return samples of whole calls: of one of several threads on a CPU they are not."""
    point = records.point
    is_one = point.threads == 1 or device_of(point.platform) != "cpu"
    return [a for a in records.attributions if is_one or a.method == EVERY_THREAD]


def _bill(records: PointRecords, twin: PointRecords | None) -> billing.Bill | None:
    point, latency = records.point, records.latency
    if latency is None or point.runtime == FLOOR:
        return None  # the floor has no kernels: its latency is the harness's own
    if device_of(point.platform) != "cpu":
        return billing.from_device(latency, records.attributions)
    sampled = billing.from_samples(
        latency,
        _whole(records),
        records.levels,
        lambda: records.pipelined.value if records.pipelined else None,
    )
    warm = twin.latency if twin is not None else None
    if sampled is not None or warm is None:
        return sampled
    return billing.from_twin(latency, warm, quotient(warm, latency, billing.TWIN))


def _no_bill(records: PointRecords, latency: Estimate | None) -> Note:
    if latency is None:
        return Note(
            "too-few-blocks",
            "only one block was timed: no latency is given, because it has no interval",
        )
    if records.point.runtime == FLOOR:
        return Note("floor", "does nothing: its latency is the harness's own cost per call")
    return Note("no-kernel-time", "kernel time was not measured: no breakdown and no regime")


def _gpus(sessions: Sequence[Session]) -> dict[tuple[str, str], regime.Device | None]:
    """Return (session, platform) → peak numbers of its device."""
    return {
        (s.session, f"cuda:{gpu.get('index', i)}"): regime.gpu_peaks(gpu)
        for s in sessions
        for i, gpu in enumerate(s.environment.gpus)
    }


def _regime(m: StoredMeasurement) -> Regime | None:
    bill = m.bill
    if bill is None:
        return None
    if bill.method != billing.DEVICE:
        return regime.cpu_regime(bill.share, is_lower=bill.method == billing.TWIN)
    found = regime.gpu_regime(one_minus(bill.share), m.slope)
    return regime.refine(found, m.records.subject, bill.kernel, m.device)


def _rows(family: Iterable[StoredMeasurement]) -> list[list[StoredMeasurement]]:
    """Return the points of each runtime that have a latency, by batch."""
    rows: dict[str, list[StoredMeasurement]] = defaultdict(list)
    for m in family:
        if m.latency_ns is not None:
            rows[m.runtime].append(m)
    return list(rows.values())


def _curve(row: Sequence[StoredMeasurement], to_first: Sequence[Estimate | None]) -> Curve:
    """Return the curve of a row; ``to_first`` are the ratios of the others to the first point."""
    batches, first = [float(m.workload.batch) for m in row], row[0]
    if all(to_first):
        free, bound = free_batch_of(batches, to_first)
    else:
        # a process of another session is another one
        blocks: list[Blocks] = [{((m.session, p), r): ns for p, r, ns in m.blocks_ns} for m in row]
        free, bound = free_batch_interval(batches, blocks)
    slopes = regime.elasticities(batches, [m.latency_ns.value for m in row if m.latency_ns])
    for m, slope in zip(row, slopes, strict=True):
        vars(m)["slope"] = slope
    return Curve(
        model=first.workload.model,
        runtime=first.runtime,
        platform=first.platform,
        precision=first.workload.precision,
        axis="batch",
        values=tuple(batches),
        latency_ns=tuple(m.latency_ns for m in row),
        free_batch=free,
        free_is_lower_bound=bound,
        regimes=tuple(m.regime for m in row),
        elasticity=tuple(m.slope for m in row),
    )
