"""Studies of the paper carried out, or evaluated from a store: rows, verdicts, machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax import store as stores
from frameworktax.analysis.document import build
from frameworktax.analysis.regime import Device, gpu_of, gpu_peaks
from frameworktax.api import DEFAULT_STORE, pick_device
from frameworktax.errors import NothingMeasuredError
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Environment, LeftOut, Point, Record, Run, Subject, sessions_of
from frameworktax.reproduce import paper
from frameworktax.reproduce.claims import Judged, free_value, judge, proxies
from frameworktax.reproduce.rows import (
    NotEvaluable,
    Row,
    axes_of,
    by_machine,
    of_measurement,
    select,
    values,
)
from frameworktax.reproduce.studies import (
    Scale,
    StudyFile,
    axes_key,
    chosen,
    default_scale,
    planned_points,
    study_data,
)
from frameworktax.sweep.run import records_of, sweep

ACROSS = "figure-9"
"""The one study over all machines of a store."""
TIMES = ("latency", "host", "kernel")
Peaks = tuple[float | None, Device | None]
"""Of a device, by the paper's table 2 in TFLOPS and by its data sheet; None where not known.

The two count differently (with or without tensor cores): machines are compared by one of them only,
by the data sheet at the precision of a point.
"""


def reproduce(
    names: Sequence[str],
    *,
    scale: Scale | None = None,
    store: str | Path = DEFAULT_STORE / "paper",
    redraw: bool = False,
    time_budget: float | None = None,
    reporter: Reporter | None = None,
    command: Sequence[str] | None = None,
) -> Reproduction:
    """Measure studies of the paper, as far as the store does not hold them, and judge its claims.

    Studies share the store, and each point is measured once. Left out, ``scale`` is full where
    there is a GPU, and ``time_budget``, in seconds, that of the study files; ``redraw`` measures
    nothing.

    Raises:
        UsageError: no such study.
        StoreError: nothing to redraw from, or a store of another version.
        NothingMeasuredError: not one point could be measured.
    """
    studies, size, folder = chosen(names), scale or default_scale(), Path(store)
    if not redraw:
        data = study_data(studies, size, pick_device("auto"), time_budget)
        sweep(data, store=folder, reporter=reporter, command=command)
    records, notes = stores.read(folder)
    found = evaluate_studies(studies, records, folder, size)
    return replace(found, run=replace(found.run, notes=(*found.run.notes, *notes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """One study, from what was measured; the last three as they stand in the document.

    Attributes:
        file: the study.
        rows: what was planned, measured or with a reason why not.
        claims: with their verdicts.
        proxies: see ``claims.proxies``.
        free: the largest value of an axis whose latency is within 10 % of its first value's, or the
            reason why there is none.
        effects: what host and device take of each machine's point at the smallest batch, ns, and
            ratios to the first machine's; null where a time is missing.
    """

    file: StudyFile
    rows: tuple[Row, ...]
    claims: tuple[Judged, ...]
    proxies: Sequence[Mapping[str, Any]]
    free: Sequence[Mapping[str, Any]]
    effects: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Studies with their verdicts, and the document of everything measured for them."""

    studies: tuple[StudyResult, ...]
    scale: Scale
    run: Run
    machines: tuple[str, ...]

    @property
    def claims(self) -> tuple[Judged, ...]:
        """Every claim, in the order of the studies."""
        return tuple(claim for study in self.studies for claim in study.claims)


def evaluate_studies(
    studies: Sequence[StudyFile], records: Sequence[Record], folder: Path, scale: Scale
) -> Reproduction:
    """Return the results of studies at a scale from the records of the store in a folder.

    Raises:
        NothingMeasuredError: the records hold no point of these studies.
    """
    asked = {axes_key(p) for study in studies for p in planned_points(study.name, scale)}
    runs = _by_machine(records_of(records, lambda point: axes_key(point) in asked))
    if not any(m.pipelined_ns for machine in runs.values() for m in machine.run.measurements):
        raise NothingMeasuredError(
            f"{folder} holds no point of {', '.join(s.name for s in studies)} at the {scale} "
            "scale; leave out --redraw to measure, or choose the other --scale"
        )
    names = list(runs)
    here = names[-1]
    results = []
    for study in studies:
        across = names if study.name == ACROSS else [here]
        planned = planned_points(study.name, scale)
        rows = tuple(row for name in across for row in _rows(planned, runs[name]))
        results.append(
            StudyResult(
                file=study,
                rows=rows,
                claims=tuple(judge(study.name, claim, rows) for claim in study.claim),
                proxies=() if study.proxies is None else proxies(rows, study.proxies),
                free=[one for axis in study.free for one in _free(rows, axis)],
                effects=_effects(rows),
            )
        )
    run = runs[here].run
    kept = tuple(m for m in run.measurements if axes_key(m.point) in asked)  # without the floor
    return Reproduction(
        studies=tuple(results),
        scale=scale,
        run=replace(run, measurements=kept),
        machines=tuple(names),
    )


@dataclass(frozen=True, slots=True)
class _Machine:
    name: str
    run: Run
    left_out: Mapping[tuple[Any, ...], str]
    peaks: Peaks


def _by_machine(records: Sequence[Record]) -> dict[str, _Machine]:
    """Return machine → what was measured on it, the machine of the newest session last.

    One document over several machines would show a point of the newest session alone.
    """
    platforms: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Subject | LeftOut):
            platforms[record.session][record.point.platform] += 1
    ids: dict[str, set[str]] = {}
    peaks: dict[str, Peaks] = {}
    for session in sessions_of(records):
        usual = platforms[session.session].most_common(1)
        name, known = _device(session.environment, usual[0][0] if usual else "cpu")
        ids[name] = {*ids.pop(name, ()), session.session}
        peaks[name] = known
    found = {}
    for name, mine in ids.items():
        kept = [record for record in records if record.session in mine]
        left_out = {axes_key(r.point): r.reason for r in kept if isinstance(r, LeftOut)}
        found[name] = _Machine(name, build(kept), left_out, peaks[name])
    return found


def _device(environment: Environment, platform: str) -> tuple[str, Peaks]:
    """Return what a machine is called, by its device and its host, and the peaks of its device."""
    if not platform.startswith("cuda"):
        return environment.cpu, (None, None)
    gpu = gpu_of(environment)
    name = str(gpu.get("name", platform))
    # with MIG on, what is measured is a part of the card
    printed = None if gpu.get("mig_mode") == "Enabled" else paper.peak_tflops(name)
    return f"{name} with {environment.cpu}", (printed, gpu_peaks(gpu))


def _rows(planned: Sequence[Point], machine: _Machine) -> list[Row]:
    """Return a row for each planned point, measured or with the reason why not."""
    layers = {name: int(model["layers"]) for name, model in paper.models().items()}
    measured = {axes_key(m.point): of_measurement(m, layers) for m in machine.run.measurements}
    found = []
    for point in planned:
        key = axes_key(point)
        at = {**axes_of(point.workload, point.runtime), "regime": None}
        row = measured.get(key) or Row(at=at, reason=machine.left_out.get(key, "not measured"))
        printed, sheet = machine.peaks
        rate = sheet and (sheet.single if row.at["precision"] == "float32" else sheet.half) / 1e12
        here = {**row.at, "machine": machine.name, "peaks": (printed, rate)}
        found.append(replace(row, at=here))
    return found


def _free(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    """Return the free value of an axis for every curve along it."""
    names = ("precision", "batch", "length", "width", "depth", "image_size", "input", "machine")
    others = [name for name in names if name != axis]
    machines = by_machine(rows)
    usual = (None, 1.0, "float32", "dense", *(machines if len(machines) == 1 else ()))
    curves: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if "latency" in row.numbers and row.at.get(axis) is not None:
            curves[tuple(row.at.get(a) for a in ("model", "runtime", *others))].append(row)
    found = []
    for curve in curves.values():
        if len(curve) < 2:
            continue
        curve.sort(key=lambda row: row.at[axis])
        at = curve[0].at
        parts = [f"{at['model']} in {at['runtime']}"]
        parts += [
            f"{a} {at[a]:g}" if isinstance(at[a], float) else f"{a} {at[a]}"
            for a in others
            if at.get(a) not in usual
        ]
        one: dict[str, Any] = dict.fromkeys(("value", "low", "high", "lower_bound", "reason"))
        try:
            x, bound = free_value(curve, axis)
            one |= {"value": x.value, "low": x.low, "high": x.high, "lower_bound": bound}
        except NotEvaluable as why:
            one["reason"] = str(why)
        found.append({"axis": axis, "at": ", ".join(parts), **one})
    return found


def _effects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what host and device take of each model on each machine; empty for one machine."""
    machines = by_machine(rows)
    found = []
    for model in values(rows, "model") if len(machines) > 1 else ():
        first: dict[str, float] = {}
        for name, mine in machines.items():
            chosen = select(mine, {"model": model, "runtime": "eager", "batch": "first"})
            if not chosen or "latency" not in chosen[0].numbers:
                continue
            times = {q: chosen[0].numbers[q].value for q in TIMES if q in chosen[0].numbers}
            first = first or times
            ratio = {q: times[q] / first[q] for q in times if first.get(q)}
            one = {"machine": name, "model": model, **{f"{q}_ns": times.get(q) for q in TIMES}}
            one |= {"host_ratio": ratio.get("host"), "device_ratio": ratio.get("kernel")}
            found.append(one)
    return found
