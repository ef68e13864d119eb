"""Studies of the paper carried out, or evaluated from a store: rows, verdicts, proxies."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax import store as stores
from frameworktax.api import document, pick_device
from frameworktax.errors import NothingMeasuredError, StoreError
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    LeftOut,
    Measurement,
    Point,
    Record,
    Run,
    Subject,
    sessions_of,
)
from frameworktax.reproduce import machines, paper, proxies
from frameworktax.reproduce.claims import Judged, free_value, judge
from frameworktax.reproduce.rows import NotEvaluable, Row, axes_of, of_measurement
from frameworktax.reproduce.studies import (
    Scale,
    StudyFile,
    axes_key,
    chosen,
    default_scale,
    planned_points,
    study_data,
)
from frameworktax.sweep.plan import SweepPlan, plan_sweep
from frameworktax.sweep.run import sweep

ACROSS = "figure-9"
"""The one study over all machines of a store."""


def forecast(studies: Sequence[StudyFile], scale: Scale, folder: Path) -> SweepPlan:
    """Return what there is to measure, and how long it will take."""
    data = study_data(studies, scale, pick_device("auto"))
    return plan_sweep(data, store=folder)


def reproduce(
    names: Sequence[str],
    *,
    scale: Scale | None = None,
    store: str | Path = "frameworktax-results/paper",
    redraw: bool = False,
    time_budget: float | None = None,
    reporter: Reporter | None = None,
    command: Sequence[str] | None = None,
) -> Reproduction:
    """Measure studies of the paper, as far as the store does not hold them, and judge its claims.

    Args:
        names: of studies; ``all`` for every one.
        scale: full, the paper's sizes, or small; full where there is a GPU.
        store: folder that keeps every sample; studies share it, and each point is measured once.
        redraw: measure nothing; the scale, if not given, is the one the store holds more of.
        time_budget: seconds for everything; that of the study files if left out.
        reporter: gets progress.
        command: recorded with each session.

    Raises:
        UsageError: no such study.
        StoreError: nothing to redraw from, or a store of another version.
        NothingMeasuredError: not one point could be measured.
    """
    studies = chosen(names)
    folder = Path(store)
    if not redraw:
        size = scale or default_scale()
        data = study_data(studies, size, pick_device("auto"))
        if time_budget is not None:
            data["study"]["time_budget"] = time_budget
        sweep(data, store=folder, reporter=reporter, command=command)
    elif not folder.is_dir():
        raise StoreError(f"no store at {folder}; name one with --store, or leave out --redraw")
    records, _ = stores.read(folder)
    return evaluate_studies(studies, records, folder, scale if redraw else size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """The largest value of an axis whose latency is within 10 % of its first value's."""

    axis: str
    at: str
    value: float
    low: float
    high: float
    lower_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """One study, from what was measured."""

    file: StudyFile
    scale: Scale
    rows: tuple[Row, ...]
    claims: tuple[Judged, ...]
    proxies: tuple[proxies.Proxy, ...] = ()
    free: tuple[Free, ...] = ()
    effects: tuple[machines.Effect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Studies with their verdicts, and the document of everything measured for them."""

    studies: tuple[StudyResult, ...]
    run: Run
    machines: tuple[str, ...]
    store: Path

    @property
    def claims(self) -> tuple[Judged, ...]:
        """Every claim, in the order of the studies."""
        return tuple(claim for study in self.studies for claim in study.claims)


def evaluate_studies(
    studies: Sequence[StudyFile],
    records: Sequence[Record],
    folder: Path,
    scale: Scale | None = None,
) -> Reproduction:
    """Return the results of studies from records.

    Args:
        studies: to evaluate.
        records: of a store.
        folder: it came from.
        scale: whose points; the one that the records hold more of if left out.

    Raises:
        NothingMeasuredError: the records hold no point of these studies.
    """
    runs = _by_machine(records)
    if not runs:
        raise NothingMeasuredError(f"no session in {folder}; leave out --redraw to measure")
    names = list(runs)
    here = names[-1]
    size = scale or _larger(studies, runs[here])
    results = []
    for study in studies:
        planned = planned_points(study, size)
        across = names if study.name == ACROSS else [here]
        rows = [row for name in across for row in _rows(planned, runs[name], name)]
        results.append(_result(study, size, tuple(rows)))
    if not any("latency" in row.numbers for result in results for row in result.rows):
        raise NothingMeasuredError(
            f"{folder} holds no point of {', '.join(s.name for s in studies)} at this scale; "
            "leave out --redraw to measure, or choose the other --scale"
        )
    asked = {axes_key(p) for study in studies for p in planned_points(study, size)}
    run = runs[here].run
    kept = tuple(m for m in run.measurements if _key(m) in asked)
    run = replace(run, measurements=kept)
    return Reproduction(
        studies=tuple(results),
        run=run,
        machines=tuple(names),
        store=folder,
    )


@dataclass(frozen=True, slots=True)
class _Machine:
    run: Run
    left_out: Mapping[tuple[Any, ...], str]


def _by_machine(records: Sequence[Record]) -> dict[str, _Machine]:
    """Return machine → what was measured on it, the machine of the newest session last.

    One document over several machines would show a point of the newest session alone.
    """
    platforms: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Subject | LeftOut):
            platforms[record.session][record.point.platform] += 1
    ids: dict[str, set[str]] = {}
    for session in sessions_of(records):
        usual = platforms[session.session].most_common(1)
        name = machines.name_of(session.environment, usual[0][0] if usual else "cpu")
        ids[name] = {*ids.pop(name, ()), session.session}
    found = {}
    for name, mine in ids.items():
        kept = [record for record in records if record.session in mine]
        left_out = {axes_key(r.point): r.reason for r in kept if isinstance(r, LeftOut)}
        found[name] = _Machine(document(kept), left_out)
    return found


def _larger(studies: Sequence[StudyFile], machine: _Machine) -> Scale:
    measured = {_key(m) for m in machine.run.measurements}
    counts: dict[Scale, int] = {"small": 0, "full": 0}
    for study in studies:
        for scale in counts:
            counts[scale] += sum(axes_key(p) in measured for p in planned_points(study, scale))
    return max(counts, key=lambda scale: counts[scale])


def _key(m: Measurement) -> tuple[Any, ...]:
    return axes_key(Point(workload=m.workload, runtime=m.runtime, threads=m.threads))


def _rows(planned: Sequence[Point], machine: _Machine, name: str) -> list[Row]:
    layers = paper.layers()
    measured = {}
    for m in machine.run.measurements:
        row = of_measurement(m, layers)
        environment = machine.run.environment
        peaks = machines.peaks_of(environment, m.platform) if environment else (None, None)
        measured[_key(m)] = replace(row, at={**row.at, "machine": name, "peaks": peaks})
    found = []
    for point in planned:
        key = axes_key(point)
        if key in measured:
            found.append(measured[key])
            continue
        reason = machine.left_out.get(key, "not measured")
        at = {**axes_of(point.workload, point.runtime), "regime": None, "machine": name}
        found.append(Row(at=at, reason=reason))
    return found


def _result(study: StudyFile, scale: Scale, rows: tuple[Row, ...]) -> StudyResult:
    return StudyResult(
        file=study,
        scale=scale,
        rows=rows,
        claims=judge(study, rows),
        proxies=() if study.proxies is None else tuple(proxies.table(rows, study.proxies)),
        free=tuple(f for axis in study.free for f in _free(rows, axis)),
        effects=tuple(machines.effects(rows)),
    )


def _free(rows: Sequence[Row], axis: str) -> list[Free]:
    """Return the free value of an axis for every curve along it."""
    others = ["model", "runtime", "precision", "batch", "length", "width", "depth"]
    others += ["image_size", "input", "machine"]
    curves: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if "latency" in row.numbers and row.at.get(axis) is not None:
            curves[tuple(row.at.get(a) for a in others if a != axis)].append(row)
    found = []
    for curve in curves.values():
        curve.sort(key=lambda row: row.at[axis])
        if len(curve) < 2:
            continue
        with contextlib.suppress(NotEvaluable):  # too few blocks for an interval: left out
            estimate, bound = free_value(curve, axis)
            at = curve[0].at
            parts = [f"{at['model']} in {at['runtime']}"]
            parts += [
                f"{a} {at[a]:g}" if isinstance(at[a], float) else f"{a} {at[a]}"
                for a in others[2:-2]
                if a != axis and at.get(a) not in (None, 1.0, "float32")
            ]
            found.append(
                Free(
                    axis=axis,
                    at=", ".join(parts),
                    value=estimate.value,
                    low=estimate.low,
                    high=estimate.high,
                    lower_bound=bound,
                )
            )
    return found
