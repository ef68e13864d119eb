"""From raw records to the document that ``--json``, the terminal and the report are made of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from frameworktax.analysis import advice as advising
from frameworktax.analysis import bill as billing
from frameworktax.analysis import grouping as points
from frameworktax.analysis import regime
from frameworktax.analysis.compare import contrasts
from frameworktax.analysis.curves import free_batch_of, ratio_to_first
from frameworktax.analysis.estimates import one_minus, quotient
from frameworktax.analysis.grouping import PointRecords, gather, left_out_names, ratios, status_of
from frameworktax.analysis.places import layers, source_lines
from frameworktax.analysis.whatif.formulas import SAME_KERNELS
from frameworktax.records import (
    EVERY_THREAD,
    FLOOR,
    LINEAR_REASON,
    REFERENCE,
    Attribution,
    Calibration,
    Curve,
    Effort,
    Environment,
    Estimate,
    FamilyKey,
    LeftOut,
    Measurement,
    Note,
    OwnTax,
    Places,
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


def build(records: Sequence[Record], *, asked: Iterable[Point] = (), until: float = UNTIL) -> Run:
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
    gpus = {s.session: regime.gpu_peaks(regime.gpu_of(s.environment)) for s in sessions}
    measured = _measurements(shown, grouped, gpus, until)
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
    machines = {s.session: _machine(s.environment) for s in sessions}
    crowded: set[FamilyKey] = set()
    for (key, family), rows in zip(families.items(), rows_of, strict=True):
        found = [_curve(row, [next(to_first) for _ in row[1:]], machines) for row in rows]
        curves += found
        m = family[0]  # of all of them threads and device are the same
        fewest = min(processors.get(m.session or "", m.threads) for m in family)
        if m.threads <= fewest or device_of(m.platform) != "cpu":
            bills = {(m.runtime, m.workload.batch): m.bill for m in family if m.bill is not None}
            more, about = advising.advise(family, found, bills)
            advice += more
            notes += about
        else:
            crowded.add(key)
            text = (
                f"{m.workload.model}: {m.threads} threads on fewer processors "
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
    used = {g.session for g in shown}
    hosts = {s.environment.host for s in sessions if s.session in used}
    notes += _session_notes(len(hosts), drift)
    floors = [m.latency_ns for m in measurements if m.runtime == FLOOR]
    return Run(
        environment=sessions[-1].environment if sessions else None,
        headline=advising.headline(measurements, curves, crowded),
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
    wanted = {point.key() for point in asked}
    # the floor is measured beside everything, and counts where it was asked for
    reached = {
        r.point.key(): r for r in shown if r.point.runtime != FLOOR or r.point.key() in wanted
    }
    reasons = {left.point.key(): left for left in left_out}
    settled = {
        *(key for key, r in reached.items() if status_of(r)[0] == "unavailable"),
        *(key for key, left in reasons.items() if left.reason.startswith(LINEAR_REASON)),
    }
    wanted.update(reached, (key for key, left in reasons.items() if not left.point.workload.twin))
    measured = {key for key, r in reached.items() if r.latency is not None}
    count = len(wanted) - len((settled & wanted) - measured)
    return Points(asked=count, measured=len(measured)) if count else None


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


def _session_notes(hosts: int, drift: float | None) -> Iterator[Note]:
    if drift is not None and drift > DRIFT:
        yield Note(
            "host-drift",
            f"this host's speed drifted by about {drift:.0%} during the run; absolute latencies "
            "from another hour may differ by that, ratios between runtimes do not",
        )
    if hosts > 1:
        text = f"measured on {hosts} hosts; the environment shown is the newest session's"
        yield Note(points.SEVERAL_HOSTS, text)


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


class StoredMeasurement(Measurement):
    """A measurement from records; most of it is computed when it is first asked for.

    Attributes:
        records: that it is of.
        twin: the records of its twin.
        eager: the point of eager beside it; None of eager itself and of the floor.
        device: that it was measured on.
        until: half-width of the interval that was asked for.
        slope: of latency over batch; from ``_curve``.
    """

    __slots__ = ("bill", "device", "eager", "records", "slope", "twin", "until")
    records: PointRecords
    twin: PointRecords | None
    eager: StoredMeasurement | None
    device: regime.Device | None
    until: float
    slope: float | None
    bill: billing.Bill | None

    def __getattr__(self, name: str) -> Any:
        """Compute what was not asked for before, and keep it."""
        if name not in _COMPUTED:
            raise AttributeError(name)
        value = _COMPUTED[name](self)
        _put(self, name, value)
        return value

    def __eq__(self, other: object) -> bool:
        return Measurement(**{f.name: getattr(self, f.name) for f in fields(self)}) == other

    __hash__ = Measurement.__hash__


_put = object.__setattr__


def _measurements(
    shown: Sequence[PointRecords],
    grouped: Iterable[PointRecords],
    gpus: Mapping[str, regime.Device | None],
    until: float,
) -> list[tuple[FamilyKey, StoredMeasurement]]:
    """Return each point shown with its family; twin and eager are those of its own session."""
    twins = {
        (g.session, replace(g.point, workload=replace(g.point.workload, twin=False))): g
        for g in grouped
        if g.point.workload.twin
    }
    eagers: dict[tuple[str, FamilyKey, int], StoredMeasurement] = {}
    found = []
    for records in shown:
        point, m = records.point, StoredMeasurement.__new__(StoredMeasurement)
        known: dict[str, Any] = {
            "records": records,
            "twin": twins.get((records.session, point)) if twins else None,
            "device": gpus.get(records.session) if device_of(point.platform) != "cpu" else None,
            "until": until,
            "slope": None,
            "workload": point.workload,
            "runtime": point.runtime,
            "platform": point.platform,
            "threads": point.threads,
            "latency_ns": records.latency,
            "session": records.session,
            "parity": records.parity,
            "setup_ns": records.subject.setup_ns,
            "padding_share": records.subject.padding_share,
        }
        if not records.places:
            known |= {"layers": (), "lines": ()}
        for name, value in known.items():
            _put(m, name, value)
        family = point.family()
        found.append((family, m))
        if point.runtime == REFERENCE:
            eagers[records.session, family, point.workload.batch] = m
    for family, m in found:
        is_compared = m.runtime not in (FLOOR, REFERENCE)
        beside = (m.records.session, family, m.workload.batch)
        _put(m, "eager", eagers.get(beside) if is_compared else None)
    pairs = [(m.records, m.eager.records if m.eager else None) for _, m in found]
    for (_, m), ratio in zip(found, ratios(pairs), strict=True):
        _put(m, "ratio_to_eager", ratio)
    return found


# --- what of a point is computed when it is asked for ---------------------------------------------


def _of_bill(name: str, otherwise: Any = None) -> Callable[[StoredMeasurement], Any]:
    return lambda m: getattr(m.bill, name) if m.bill else otherwise


def _peak(m: StoredMeasurement) -> int | None:
    peaks = [o.peak_memory_bytes for o in m.records.outcomes if o.peak_memory_bytes is not None]
    return max(peaks, default=None)


def _in_places(
    find: Callable[[Estimate, Mapping[str, float], Sequence[Places]], tuple[T, ...]],
) -> Callable[[StoredMeasurement], tuple[T, ...]]:
    def found(m: StoredMeasurement) -> tuple[T, ...]:
        bill, latency, places = m.bill, m.latency_ns, m.records.places
        return find(latency, bill.lines, places) if bill and latency and places else ()

    return found


def _notes(m: StoredMeasurement) -> tuple[Note, ...]:
    records, bill = m.records, m.bill
    notes = points.notes(records, m.until)
    if bill is not None:
        codes = {note.code for note in notes}
        notes += [note for note in bill.notes if note.code not in codes]
    elif records.blocks:
        notes.append(_no_bill(records))
    if records.attributions and not _whole(records):
        text = (
            f"only one of {records.point.threads} threads was sampled, whose waiting for the "
            "others is no tax while they compute: no share is given; measure with --threads 1 for "
            "one"
        )
        notes.append(Note("one-thread-sampled", text))
    if bill is not None and m.eager is not None and m.eager.bill is not None:
        notes += _other_kernels(m.runtime, bill, m.eager.bill)
    return tuple(notes)


def _other_kernels(runtime: str, bill: billing.Bill, eager: billing.Bill) -> Iterator[Note]:
    """Note where a runtime that should run eager's kernels runs others, which take another time."""
    ours, theirs = bill.kernel_names, eager.kernel_names
    same = (*SAME_KERNELS, "cuda-graph")
    if runtime not in same or not ours or not theirs or ours == theirs:
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
    if point.threads == 1 or device_of(point.platform) != "cpu":
        return records.attributions
    return [a for a in records.attributions if a.method == EVERY_THREAD]


def _bill(m: StoredMeasurement) -> billing.Bill | None:
    records, latency, warm = m.records, m.latency_ns, m.warm_overhead_ns
    if latency is None or m.runtime == FLOOR:
        return None  # the floor has no kernels: its latency is the harness's own
    if device_of(m.platform) != "cpu":
        return billing.from_device(latency, records.attributions)
    sampled = billing.from_samples(
        latency,
        _whole(records),
        records.levels,
        lambda: records.pipelined.value if records.pipelined else None,
    )
    if sampled is not None or warm is None:
        return sampled
    return billing.from_twin(latency, warm, quotient(warm, latency, billing.TWIN))


def _no_bill(records: PointRecords) -> Note:
    if records.latency is None:
        return Note(
            "too-few-blocks",
            "only one block was timed: its value has no interval, and nothing follows from it",
        )
    if records.point.runtime == FLOOR:
        return Note("floor", "does nothing: its latency is the harness's own cost per call")
    on_cpu = device_of(records.point.platform) == "cpu"
    if on_cpu and any(a.samples for a in _whole(records)):
        text = "too few samples for a breakdown or a regime; give it more --time-budget"
        return Note("too-few-samples", text)
    return Note("no-kernel-time", "kernel time was not measured: no breakdown and no regime")


def _regime(m: StoredMeasurement) -> Regime | None:
    bill, share = m.bill, m.tax_share
    if bill is None or share is None:
        return None
    if bill.method != billing.DEVICE:
        return regime.cpu_regime(share, of_twin=bill.method == billing.TWIN)
    found = regime.gpu_regime(one_minus(share), m.slope)
    return regime.refine(found, m.records.subject, bill.kernel, m.device)


_COMPUTED: Mapping[str, Callable[[StoredMeasurement], Any]] = {
    **{
        name: attrgetter(f"records.subject.{name}")
        for name in ("paradigm", "operators", "flops", "macs", "parameters", "artifact_bytes")
    },
    "bill": _bill,
    "span_ns": _of_bill("span"),
    "tax_share": _of_bill("share"),
    "bill_method": _of_bill("method"),
    "launches": _of_bill("launches"),
    "kernel_names": _of_bill("kernel_names", {}),
    "sm_activity": _of_bill("sm_activity"),
    "warp_occupancy": _of_bill("warp_occupancy"),
    "kernel_ns": _of_bill("kernel"),
    "tax_ns": _of_bill("tax"),
    "bill_ns": _of_bill("lines"),
    "kernel_detail_ns": _of_bill("detail"),
    "symbols_ns": _of_bill("symbols", ()),
    "sampler_inflation": _of_bill("inflation"),
    "layers": _in_places(layers),
    "lines": _in_places(source_lines),
    "status": lambda m: status_of(m.records)[0],
    "reason": lambda m: status_of(m.records)[1],
    "pipelined_ns": attrgetter("records.pipelined"),
    "enqueue_ns": lambda m: points.aside(m.records, m.records.timed.enqueue_ns),
    "first_token_ns": lambda m: points.aside(m.records, m.records.timed.first_token_ns),
    "per_token_ns": lambda m: points.per_token(m.records),
    "warm_overhead_ns": lambda m: m.twin.latency if m.twin else None,
    "page_faults": lambda m: points.page_faults(m.records),
    "peak_memory_bytes": _peak,
    "regime": _regime,
    "process_spread": lambda m: spread(m.records.block_medians)[0],
    "block_spread": lambda m: spread(m.records.block_medians)[1],
    "started": lambda m: tuple(sorted({o.started for o in m.records.outcomes if o.started})),
    "notes": _notes,
    "samples_ns": lambda m: points.samples(m.records),
    "blocks_ns": lambda m: points.blocks(m.records),
    "calibrator_ns": lambda m: tuple(sorted(m.records.calibrator.items())),
}
"""Field → what it is of a point from records."""


# --- curves ---------------------------------------------------------------------------------------


def _rows(family: Iterable[StoredMeasurement]) -> list[list[StoredMeasurement]]:
    """Return the points of each runtime that have a latency, by batch."""
    rows: dict[str, list[StoredMeasurement]] = defaultdict(list)
    for m in family:
        if m.latency_ns is not None:
            rows[m.runtime].append(m)
    return list(rows.values())


def _machine(environment: Environment) -> tuple[object, ...]:
    """Return what makes two hosts one kind of machine: nodes of a cluster differ in their names."""
    return environment.cpu, environment.cores, *(gpu.get("name") for gpu in environment.gpus)


def _unpaired(m: StoredMeasurement, first: StoredMeasurement) -> Estimate | None:
    """Return the ratio of latencies that share fewer than two rounds, as those of two sessions."""
    if m.session == first.session:
        return ratio_to_first(contrasts.blocks(m), contrasts.blocks(first))
    found = contrasts.contrast([first], m, "latency", True, contrasts.ELSEWHERE)
    return None if found is None else contrasts.ratio(found)


def _curve(
    row: Sequence[StoredMeasurement],
    to_first: Sequence[Estimate | None],
    machines: Mapping[str, tuple[object, ...]],
) -> Curve:
    """Return the curve of a row; of points from two kinds of machines nothing but their latencies.

    Args:
        row: points by batch size.
        to_first: the ratios of the others to the first point.
        machines: by session.
    """
    batches, first = [float(m.workload.batch) for m in row], row[0]
    slopes: Sequence[float | None] = [None] * len(row)
    is_one_machine = len({machines.get(m.session or "") for m in row}) == 1
    free, bound = None, False
    if is_one_machine and batches[0] == 1:
        each = zip(to_first, row[1:], strict=True)
        known = [r for paired, m in each if (r := paired or _unpaired(m, first)) is not None]
        if 0 < len(known) == len(to_first):
            free, bound = free_batch_of(batches, known)
    if is_one_machine:
        slopes = regime.elasticities(batches, [m.latency_ns.value for m in row if m.latency_ns])
    for m, slope in zip(row, slopes, strict=True):
        _put(m, "slope", slope)
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
