"""Did it change? Two documents point by point, with one error bound for all points together.

The rule, per point: *slower* or *faster* where the ratio is proven to differ from one over all
points together (Holm, 0.05); *same* where its 95 % interval lies within the margin; otherwise
*cannot tell*. A regression is a point proven slower whose estimate lies beyond the gate: proof
keeps noise out, the estimate keeps small true changes in.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from frameworktax.analysis.compare.contrasts import (
    CONSTANTS_FROM,
    COUNTS,
    ELSEWHERE,
    PAIRED,
    TOO_FEW,
    Constants,
    Contrast,
    contrast,
    holm,
    moderate,
    one_session,
    p_value,
    ratio,
    unusable,
    usable,
)
from frameworktax.analysis.grouping import SEVERAL_HOSTS
from frameworktax.analysis.where import Moved, moved
from frameworktax.errors import UsageError, counted, nearest
from frameworktax.records import (
    FLOOR,
    Environment,
    Estimate,
    Measurement,
    Note,
    Point,
    Run,
    Workload,
    device_of,
    point_name,
)

COMPARISON_SCHEMA = "frameworktax.comparison"
COMPARISON_VERSION = 1

Verdict = Literal["faster", "slower", "same", "cannot tell"]
Gate = Literal["passed", "regressed", "undecided"]
Metric = Literal["latency", "tax", "kernel"]
ERROR = 0.05
"""Chance that noise alone makes any point of a comparison faster or slower."""
MARGIN = 0.05
"""Change that counts as none where there is no gate."""
SHOWN_DRIFT = 0.01
"""Movement of the host between two sessions from which on it is named."""
MACHINE = ("host", "cpu", "cores", "threads_per_core", "gpus")
"""Fields of the environment that make timings another machine's."""
SOFTWARE = ("system", "python", "virtualization", "governor", "turbo", "libraries")
"""Fields that are named: an upgrade is often what is compared."""
CALIBRATOR = ("python", "libraries.numpy")
"""What the calibrator's own speed hangs on, beside the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One point, before and after.

    Attributes:
        workload: of the side after.
        runtime: of the side after.
        against: the name on the side before, where it differs.
        before: the metric, ns; None if not measured.
        after: the same.
        ratio: after over before, with its own 95 % interval; None where there is none.
        p_value: how often noise alone goes this far.
        p_adjusted: the same over all points of the comparison (Holm).
        gate: against the gate; None without one.
        reason: the verdict in words.
        host_ratio: the host's speed after over before, as far as calibrators show it above their
            noise; None if not known, or if both sides were measured in one session.
        measured_ratio: after over before with the host's part in it; None where nothing was taken
            out, and ``ratio`` is as measured.
        method: how the ratio was got.
        counts: launches, operators, FLOPs and parameters that changed: (before, after).
        moved: where in the model the tax changed, if both sides have layers; intervals hold what
            sessions differ by.
    """

    workload: Workload
    runtime: str
    platform: str
    threads: int
    against: str | None = None
    before: Estimate | None = None
    after: Estimate | None = None
    ratio: Estimate | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = "cannot tell"
    gate: Gate | None = None
    reason: str = ""
    host_ratio: float | None = None
    measured_ratio: float | None = None
    method: str | None = None
    counts: Mapping[str, tuple[int, int]] | None = None
    moved: tuple[Moved, ...] = ()

    @property
    def point(self) -> Point:
        """The point, as the side after has it."""
        return Point(
            workload=self.workload,
            runtime=self.runtime,
            platform=self.platform,
            threads=self.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of the environment that differs; ``machine`` where it makes timings another's."""

    field: str
    before: str
    after: str
    machine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All points, and what is to know about both sides.

    Attributes:
        gate: regression that fails, a fraction; None: no gate.
        margin: what counts as the same, a fraction: the gate, or 0.05.
        confidence: one less the error of the whole family of points.
        unpaired_before: points that only the side before has, in words.
        unpaired_after: points that only the side after has.
        exit_code: 0; 1 a regression beyond the gate; 3 a verdict is missing.
    """

    schema: str = COMPARISON_SCHEMA
    version: int = COMPARISON_VERSION
    before: str = ""
    after: str = ""
    metric: Metric = "latency"
    gate: float | None = None
    margin: float = 0.05
    confidence: float = 0.95
    headline: str = ""
    exit_code: int = 0
    points: tuple[Change, ...] = ()
    unpaired_before: tuple[str, ...] = ()
    unpaired_after: tuple[str, ...] = ()
    environment: tuple[Difference, ...] = ()
    notes: tuple[Note, ...] = ()


def signed(factor: float) -> str:
    """Return a ratio as a signed change: ``+10.3 %``."""
    text = f"{100 * (factor - 1):+.1f}".replace("-", "−")
    return f"{text} %"


def share(margin: float) -> str:
    """Return a margin as text: ``5 %``."""
    return f"{100 * margin:.3g} %"


# --- comparing ----------------------------------------------------------------------------------


def compare(
    before: Run | Sequence[Run],
    after: Run,
    *,
    metric: Metric = "latency",
    gate: float | None = None,
    across: bool = False,
    runtimes: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
    names: tuple[str, str] = ("before", "after"),
    constants: Constants = ELSEWHERE,
) -> Comparison:
    """Compare two documents.

    Several sessions of one program before are used together. ``gate`` is a regression that fails,
    a fraction; ``across`` compares different machines; ``runtimes`` and ``models`` are names before
    → after, where they differ on purpose; ``names`` are those of the sides in messages,
    ``constants`` those of the host of both.

    Raises:
        UsageError: no common points, or timings of different machines without ``across``.
    """
    sides = [before] if isinstance(before, Run) else list(before)
    apart = [d for side in sides for d in environments(side.environment, after.environment)]
    differences = list(dict.fromkeys(apart))
    machines = [d for d in differences if d.machine]
    if machines and not across:
        named = "; ".join(f"{d.field} {d.before} and {d.after}" for d in machines)
        raise UsageError(f"measured on different machines ({named}); give --across to compare them")
    old: dict[Point, list[Measurement]] = defaultdict(list)
    renames = {"runtime": runtimes or {}, "model": models or {}}
    for side in sides:
        _check_renames(renames, side, after, names)
        for point, m in _points(side, **renames).items():
            old[point].append(m)
    new = _points(after, {}, {})
    pairs = [(old[point], new[point]) for point in new if point in old]
    if not pairs:
        raise UsageError(_nothing(old, new, names))
    is_mixed = any(note.code == SEVERAL_HOSTS for run in (*sides, after) for note in run.notes)
    is_mixed = is_mixed and not all(one_session(a, b) for some, b in pairs for a in some)
    if is_mixed and not across:
        raise UsageError(
            "a side has points of several hosts, and one may be compared with another host's; "
            "compare stores of one host each, or give --across"
        )
    same_calibrator = not any(d.field in CALIBRATOR for d in differences)
    changes = _timed(pairs, metric, gate, same_calibrator, constants)
    missing = tuple(point_name(p) for p in old if p not in new)
    wanted = set(new) if runtimes or models else set()
    return Comparison(
        before=names[0],
        after=names[1],
        metric=metric,
        gate=gate,
        margin=MARGIN if gate is None else gate,
        confidence=1 - ERROR,
        headline=_headline(changes, metric, gate, len(missing)),
        exit_code=_exit_code(changes, gate, len(missing)),
        points=tuple(changes),
        unpaired_before=missing,
        unpaired_after=tuple(point_name(p) for p in new if p not in old and p not in wanted),
        environment=tuple(differences),
        notes=(
            *_notes(
                [d.field for d in machines] or ["several hosts"] * is_mixed, same_calibrator, pairs
            ),
            *_constants(changes, constants),
        ),
    )


def environments(before: Environment | None, after: Environment | None) -> list[Difference]:
    """Return the fields that differ; libraries one by one."""
    if before is None or after is None:
        return []
    sides = [
        {
            **{name: getattr(side, name) for name in (*MACHINE, *SOFTWARE)},
            "gpus": ", ".join(str(gpu.get("name")) for gpu in side.gpus) or "none",
        }
        for side in (before, after)
    ]
    libraries = [side.pop("libraries") for side in sides]
    for name in sorted((libraries[0].keys() | libraries[1].keys()) - {"frameworktax"}):
        for side, versions in zip(sides, libraries, strict=True):
            side[f"libraries.{name}"] = versions.get(name, "none")
    return [
        Difference(field=name, before=str(a), after=str(b), machine=name in MACHINE)
        for name, a in sides[0].items()
        if a != (b := sides[1][name])
    ]


def _check_renames(
    renames: Mapping[str, Mapping[str, str]], before: Run, after: Run, names: tuple[str, str]
) -> None:
    """Raise UsageError for a name that its side does not have, or that two are paired with."""
    for kind, pairs in renames.items():
        if twice := [new for new, count in Counter(pairs.values()).items() if count > 1]:
            raise UsageError(
                f"--{kind} pairs two with '{twice[0]}'; compare them with it one after the other"
            )
    sides = ((before, names[0], 0), (after, names[1], 1))
    for run, side, place in sides:
        have = {
            "runtime": {m.runtime for m in run.measurements},
            "model": {m.workload.model for m in run.measurements},
        }
        for kind, pairs in renames.items():
            for pair in pairs.items():
                if pair[place] not in have[kind]:
                    known = ", ".join(sorted(have[kind] - {FLOOR}))
                    raise UsageError(
                        f"{side} has no {kind} '{pair[place]}'{nearest(pair[place], have[kind])} "
                        f"(it has {known})"
                    )


def _points(
    run: Run, runtime: Mapping[str, str], model: Mapping[str, str]
) -> dict[Point, Measurement]:
    """Return points by their names on the side after; of renamed kinds only what is renamed.

    The harness's floor cannot be compared.
    """
    found = {}
    for m in run.measurements:
        name = m.workload.model
        is_meant = m.runtime in (runtime or (m.runtime,)) and name in (model or (name,))
        if is_meant and m.runtime != FLOOR:
            workload = replace(m.workload, model=model.get(name, name))
            point = replace(m.point, workload=workload, runtime=runtime.get(m.runtime, m.runtime))
            found[point] = m
    return found


def _nothing(old: Mapping[Point, object], new: Mapping[Point, object], names: Sequence[str]) -> str:
    sides = [
        f"{name} has {point_name(next(iter(points)))}" if points else f"{name} has no such point"
        for name, points in zip(names, (old, new), strict=True)
    ]
    return (
        f"no point in common: {'; '.join(sides)}; measure the same model, batch and runtime, or "
        "give which names correspond with --runtime BEFORE=AFTER or --model BEFORE=AFTER"
    )


# --- one point ----------------------------------------------------------------------------------


def _timed(
    pairs: Sequence[tuple[Sequence[Measurement], Measurement]],
    metric: Metric,
    gate: float | None,
    same_calibrator: bool,
    constants: Constants,
) -> list[Change]:
    fit = [usable(a, b) for a, b in pairs]
    raw = {
        i: found
        for i, (a, (_, b)) in enumerate(zip(fit, pairs, strict=True))
        if (found := contrast(a, b, metric, same_calibrator, constants)) is not None
    }
    shared = dict(zip(raw, moderate(list(raw.values())), strict=True))
    values = {i: p_value(c) for i, c in shared.items()}
    adjusted = dict(zip(values, holm(list(values.values())), strict=True))
    changes = []
    for i, (before, b) in enumerate(pairs):
        sessions = fit[i] or before[:1]
        a = sessions[0]
        names = ((a.workload.model, b.workload.model), (a.runtime, b.runtime))
        counts = {name: (getattr(a, name), getattr(b, name)) for name in COUNTS}
        change = Change(
            workload=b.workload,
            runtime=b.runtime,
            platform=b.platform,
            threads=b.threads,
            against=", ".join(old for old, new in names if old != new) or None,
            before=_mean([getattr(m, f"{metric}_ns") for m in sessions]),
            after=getattr(b, f"{metric}_ns"),
            gate=None if gate is None else "undecided",
            counts={n: c for n, c in counts.items() if None not in c and c[0] != c[1]} or None,
        )
        if i in shared:
            apart = math.sqrt(sum(variance for variance, _ in shared[i].parts))
            places = tuple(moved(a.layers, b.layers, len(pairs), apart))
            change = replace(change, p_value=values[i], p_adjusted=adjusted[i], moved=places)
            change = _judged(change, shared[i], gate, len(values), b)
        else:
            why = unusable(a, b) or f"{metric} has no interval on both sides"
            change = replace(change, reason=why)
        changes.append(change)
    return changes


def _mean(found: Sequence[Estimate | None]) -> Estimate | None:
    """Return a time of one or more sessions, None where one of them has none."""
    known = [e for e in found if e is not None]
    if len(found) == 1 or len(known) < len(found):
        return found[0] if len(found) == 1 else None
    return replace(
        known[0],
        value=fmean(e.value for e in known),
        low=fmean(e.low for e in known),
        high=fmean(e.high for e in known),
        method=f"mean of {len(known)} sessions",
        n=min(e.n for e in known),
    )


def _notes(
    machines: Sequence[str],
    same_calibrator: bool,
    pairs: Sequence[tuple[Sequence[Measurement], Measurement]],
) -> Iterator[Note]:
    if machines:
        text = f"different machines ({', '.join(machines)}): ratios are theirs too"
        yield Note("across-machines", text)
    every = [(a, b) for before, b in pairs for a in usable(before, b) or before[:1]]
    apart = not all(one_session(a, b) for a, b in every)
    if apart and not same_calibrator:
        text = "python or numpy differ, and with them the calibrator: the host's drift is not known"
        yield Note("calibrator-differs", text)
    elif apart and not all(a.calibrator_ns and b.calibrator_ns for a, b in every):
        text = "no calibrator on both sides: the host's drift is not known, intervals are wider"
        yield Note("no-calibrator", text)


def _constants(changes: Sequence[Change], constants: Constants) -> Iterator[Note]:
    """Yield a note where an interval is widened by constants: this host's, or another's."""
    methods = {(c.method, device_of(c.platform)) for c in changes if c.method is not None}
    widened = [(m, d) for m, d in methods if not m.startswith(PAIRED) or TOO_FEW in m]
    if not widened:
        return
    what, more = "processes", "three --processes"
    if any(not method.startswith(PAIRED) for method, _ in widened):
        what, more = "sessions", "more sessions before (--baseline)"
    if constants.sessions is not None and all(device == "cpu" for _, device in widened):
        yield Note(
            "constants-of-this-host",
            f"how far {what} of one program differ was measured on this host, in "
            f"{constants.sessions} sessions",
        )
    else:
        yield Note(
            "constants-of-another-host",
            f"how far {what} of one program differ was not measured here but on another host "
            f"({CONSTANTS_FROM}); {more} make it matter less, "
            "'frameworktax doctor --calibrate' measures it here",
        )


def _judged(
    change: Change, log_ratio: Contrast, gate: float | None, family: int, after: Measurement
) -> Change:
    """Return the point with its ratio and verdict; ``family`` points are compared together."""
    margin, found = MARGIN if gate is None else gate, ratio(log_ratio)
    proven = change.p_adjusted is not None and change.p_adjusted < ERROR
    within = 1 / (1 + margin) <= found.low and found.high <= 1 + margin
    verdict: Verdict = "same" if within else "cannot tell"
    if proven:
        verdict = "slower" if found.value > 1 else "faster"
    state = change.gate
    if gate is not None and proven and found.value > 1 + margin:
        state = "regressed"
    elif gate is not None and (proven or found.high <= 1 + margin):
        state = "passed"
    change = replace(
        change,
        ratio=found,
        verdict=verdict,
        gate=state,
        host_ratio=None if log_ratio.drift is None else math.exp(log_ratio.drift),
        measured_ratio=None if log_ratio.measured is None else math.exp(log_ratio.measured),
        method=log_ratio.method,
    )
    said = [f"{signed(found.value)} ({signed(found.low)} to {signed(found.high)})"]
    if verdict == "same":
        said.append(f"within {share(margin)}")
    elif verdict == "cannot tell":
        said.append(_open(change, margin, family))
    host = change.host_ratio
    if host is not None and abs(host - 1) >= SHOWN_DRIFT:
        taken = "not taken out"
        if change.measured_ratio is not None:
            taken = f"taken out of {signed(change.measured_ratio)} as measured"
        said.append(f"the host itself {signed(host)}, {taken}")
    if after.parity is not None and after.parity.within_tolerance is False:
        said.append(f"its outputs differ from {after.parity.reference}'s")
    return replace(change, reason="; ".join(said))


def _open(change: Change, margin: float, family: int) -> str:
    """Return why a point has no verdict."""
    if change.p_value is not None and change.p_adjusted is not None and change.p_value < ERROR:
        return f"p {change.p_value:.2g} alone, {change.p_adjusted:.2g} among {family} points"
    advice = "measure both in one session, for longer, or give more sessions with --baseline"
    if change.method is not None and change.method.startswith(PAIRED):
        advice = "measure for longer, or with more --processes"
    return f"noise reaches beyond {share(margin)}; {advice}"


# --- all points ---------------------------------------------------------------------------------


def _exit_code(changes: Sequence[Change], gate: float | None, missing: int) -> int:
    """Return 1 for a regression beyond the gate, 3 where a verdict is missing, otherwise 0.

    A gate has no verdict on the ``missing`` points that only the side before has.
    """
    if any(c.gate == "regressed" for c in changes):
        return 1
    if gate is not None:
        return 3 if missing or any(c.gate == "undecided" for c in changes) else 0
    return 3 if any(c.verdict == "cannot tell" for c in changes) else 0


def _headline(changes: Sequence[Change], metric: Metric, gate: float | None, missing: int) -> str:
    """Return the whole comparison in a sentence."""
    counts = {v: sum(c.verdict == v for c in changes) for v in ("slower", "faster", "same")}
    counts["inconclusive"] = sum(c.verdict == "cannot tell" for c in changes)
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    text = f"{metric} of {counted(len(changes), 'point')}: {said}"
    if missing:
        text += f", {missing} not measured after"
    if gate is None:
        return text
    beyond = [c for c in changes if c.gate == "regressed"]
    if beyond:
        worst = max(beyond, key=lambda c: c.ratio.value if c.ratio else 0.0)
        by = f", the worst by {signed(worst.ratio.value)}" if worst.ratio else ""
        return f"{text}; {len(beyond)} beyond the gate of {share(gate)}{by}"
    undecided = sum(c.gate == "undecided" for c in changes)
    if undecided:
        return f"{text}; none is proven beyond the gate of {share(gate)}, {undecided} may be"
    return f"{text}; none beyond the gate of {share(gate)}"
