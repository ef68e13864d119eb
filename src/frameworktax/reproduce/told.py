"""What a store says of the paper's studies: rows, verdicts, proxies, free values."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frameworktax.api import document
from frameworktax.errors import NothingMeasuredError
from frameworktax.records import (
    Environment,
    LeftOut,
    Outcome,
    Point,
    Record,
    Run,
    Session,
    Subject,
    session_order,
)
from frameworktax.reproduce import machines, paper, proxies
from frameworktax.reproduce.files import Scale, StudyFile
from frameworktax.reproduce.judge import Judged, judge
from frameworktax.reproduce.plans import axes_key, planned_points
from frameworktax.reproduce.rows import Row, axes_of, of_measurement
from frameworktax.reproduce.rules import free_value
from frameworktax.reproduce.unjudged import Unjudged

ACROSS = "figure-9"
"""The one study that is told from all machines of a store."""


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
class Told:
    """One study told from what was measured."""

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

    told: tuple[Told, ...]
    run: Run
    environment: Environment | None
    machines: tuple[str, ...]
    store: Path

    @property
    def claims(self) -> tuple[Judged, ...]:
        """Every claim, in the order of the studies."""
        return tuple(claim for one in self.told for claim in one.claims)


def tell(
    studies: Sequence[StudyFile],
    records: Sequence[Record],
    folder: Path,
    scale: Scale | None = None,
) -> Reproduction:
    """Return what records say of studies.

    Args:
        studies: to be told.
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
    told = []
    for study in studies:
        planned = planned_points(study, size)
        across = names if study.name == ACROSS and len(names) > 1 else [here]
        rows = [row for name in across for row in _rows(planned, runs[name], name)]
        told.append(_told(study, size, tuple(rows)))
    measured = any("latency" in row.numbers for one in told for row in one.rows)
    if not measured:
        raise NothingMeasuredError(
            f"{folder} holds no point of {', '.join(s.name for s in studies)} at this scale; "
            "leave out --redraw to measure, or choose the other --scale"
        )
    asked = {axes_key(p) for one in told for p in planned_points(one.file, size)}
    run = runs[here].run
    run = replace(
        run,
        measurements=tuple(
            m
            for m in run.measurements
            if axes_key(Point(workload=m.workload, runtime=m.runtime, threads=m.threads)) in asked
        ),
    )
    return Reproduction(
        told=tuple(told),
        run=run,
        environment=run.environment,
        machines=tuple(names),
        store=folder,
    )


@dataclass(frozen=True, slots=True)
class _Machine:
    run: Run
    environments: Mapping[str, Environment]
    left: Mapping[tuple[Any, ...], str]


def _by_machine(records: Sequence[Record]) -> dict[str, _Machine]:
    """Return machine → what was measured on it, the newest session's last.

    The document of several machines would tell a point from the newest session alone, whichever
    machine that was on.
    """
    platforms: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        if isinstance(record, Subject | LeftOut):
            platforms[record.session][record.point.platform] += 1
    sessions = sorted(
        (r for r in records if isinstance(r, Session)),
        key=lambda s: session_order(s.session, s.started),
    )
    of_machine: dict[str, list[Session]] = {}
    for session in sessions:
        usual = platforms[session.session].most_common(1)
        name = machines.name_of(session.environment, usual[0][0] if usual else "cpu")
        of_machine.setdefault(name, []).append(session)
    ordered = sorted(
        of_machine,
        key=lambda name: session_order(of_machine[name][-1].session, of_machine[name][-1].started),
    )
    found = {}
    for name in ordered:
        ids = {session.session for session in of_machine[name]}
        mine = [record for record in records if record.session in ids]
        left = {axes_key(r.point): r.reason for r in mine if isinstance(r, LeftOut)}
        points = {r.point.key(): r.point for r in mine if isinstance(r, Subject)}
        for record in mine:  # an unavailable runtime has an outcome and no numbers
            if isinstance(record, Outcome) and record.status != "ok" and record.point in points:
                left.setdefault(axes_key(points[record.point]), record.reason or record.status)
        environments = {s.session: s.environment for s in of_machine[name]}
        found[name] = _Machine(document(mine), environments, left)
    return found


def _larger(studies: Sequence[StudyFile], machine: _Machine) -> Scale:
    measured = {
        axes_key(Point(workload=m.workload, runtime=m.runtime, threads=m.threads))
        for m in machine.run.measurements
    }
    counts: dict[Scale, int] = {"small": 0, "full": 0}
    for study in studies:
        for scale in counts:
            counts[scale] += sum(axes_key(p) in measured for p in planned_points(study, scale))
    return max(counts, key=lambda scale: counts[scale])


def _rows(planned: Sequence[Point], machine: _Machine, name: str) -> list[Row]:
    layers = paper.layers()
    measured = {}
    for m in machine.run.measurements:
        key = axes_key(Point(workload=m.workload, runtime=m.runtime, threads=m.threads))
        row = of_measurement(m, layers)
        environment = machine.environments.get(m.session or "", machine.run.environment)
        peaks = machines.peaks_of(environment, m.platform) if environment else (None, None)
        measured[key] = replace(row, at={**row.at, "machine": name, "peaks": peaks})
    found = []
    for point in planned:
        key = axes_key(point)
        if key in measured:
            found.append(measured[key])
            continue
        reason = machine.left.get(key, "not measured")
        at = {**axes_of(point.workload, point.runtime), "regime": None, "machine": name}
        found.append(Row(at=at, reason=reason))
    return found


def _told(study: StudyFile, scale: Scale, rows: tuple[Row, ...]) -> Told:
    table = () if study.proxies is None else tuple(proxies.table(rows, study.proxies))
    free = tuple(f for axis in study.free for f in _free(rows, axis))
    return Told(
        file=study,
        scale=scale,
        rows=rows,
        claims=judge(study, rows),
        proxies=table,
        free=free,
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
        with contextlib.suppress(Unjudged):  # too few blocks for an interval: not told
            estimate, bound = free_value(curve, axis)
            at = curve[0].at
            said = [f"{at['model']} in {at['runtime']}"]
            said += [
                f"{a} {at[a]:g}" if isinstance(at[a], float) else f"{a} {at[a]}"
                for a in others[2:-2]
                if a != axis and at.get(a) not in (None, 1.0, "float32")
            ]
            found.append(
                Free(
                    axis=axis,
                    at=", ".join(said),
                    value=estimate.value,
                    low=estimate.low,
                    high=estimate.high,
                    lower_bound=bound,
                )
            )
    return found
