"""A ladder measured, read back, and what each step adds: paired differences with intervals.

Latency is compared by blocks of the same process number and round. Tax and kernel time are shares
of it: with r the paired ratio of latencies, s the tax shares and L the latency before,

    ΔL = L (r − 1)     ΔT = L (s' r − s)     ΔK = L ((1 − s') r − (1 − s))

so that the host's drift, which moves both sides, is in none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from frameworktax import api, host, models, store
from frameworktax.ablate.ladder import BASE, PATHS, UNFUSED, Rung, base_point, chosen, ladder
from frameworktax.analysis import document
from frameworktax.analysis.advice import proven
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.compare.contrasts import PAIRED, blocks, moderate, paired, ratio
from frameworktax.analysis.estimates import propagate, scaled
from frameworktax.errors import UsageError
from frameworktax.measure.plan import (
    DEFAULT_SETUP_LIMIT_S,
    Plan,
    points_for,
    process_counts,
    refuse_unavailable,
)
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    REFERENCE,
    Estimate,
    LeftOut,
    Measurement,
    Note,
    Point,
    Record,
    Run,
    Session,
    Subject,
    Workload,
    sessions_of,
)
from frameworktax.stats import CONFIDENCE, UNTIL

AS_IT_IS = "attention-as-it-is"
BUDGET_S = 600.0
OTHERS = frozenset({"measure", "optimize", "reproduce", "sweep"})
"""Verbs whose sessions are no ladders, whatever they measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one step changes; times in ns and signed, None where they are unknown.

    Attributes:
        against: name of the rung it is compared with.
        ratio: latency after over latency before.
        together: the same, its interval one of all steps that hold together (Bonferroni).
        latency_ns: change of the latency.
        tax_ns: change of the tax.
        kernel_ns: change of kernel time.
        reason: why something is None.
    """

    against: str
    ratio: Estimate | None = None
    together: Estimate | None = None
    latency_ns: Estimate | None = None
    tax_ns: Estimate | None = None
    kernel_ns: Estimate | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rung and what was found.

    Attributes:
        rung: which one.
        measured: its point; None where it was not measured.
        reason: why not.
        added: against the rung it is added to, or the nearest one below that was measured.
        alone: the step by itself against the base.
        alone_reason: why there is none, or what else is in it.
        total: with everything before it, against the base.
    """

    rung: Rung
    measured: Measurement | None = None
    reason: str | None = None
    added: Effect | None = None
    alone: Effect | None = None
    alone_reason: str | None = None
    total: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A session's ladder; ``run`` is the document of all its points."""

    steps: tuple[Step, ...]
    run: Run
    session: str
    started: str

    @property
    def base(self) -> Step:
        """The step that all others start from."""
        return self.steps[0]

    @property
    def proven(self) -> list[Step]:
        """The steps on the base's threads whose outputs are proven equal."""
        threads = self.base.rung.point.threads
        return [
            step
            for step in self.steps[1:]
            if step.rung.point.threads == threads
            and (m := step.measured) is not None
            and (m.runtime == REFERENCE or proven(m.parity))
        ]

    @property
    def best(self) -> Step | None:
        """The fastest of the proven steps, one that is faster than the base where any is."""
        compared = [
            (ratio.high >= 1, ratio.value, number)
            for number, step in enumerate(self.proven)
            if step.total is not None and (ratio := step.total.together) is not None
        ]
        return self.proven[min(compared)[-1]] if compared else None


def build(records: Sequence[Record], notes: Sequence[Note] = ()) -> Ablation:
    """Return the ablation from the records of one session; ``notes`` are those on its store.

    Raises:
        UsageError: the records hold no base of a ladder.
    """
    asked = {r.point: r.reason for r in records if isinstance(r, LeftOut)}
    asked |= {r.point: "" for r in records if isinstance(r, Subject)}
    rungs = ladder(
        _base(asked),
        images=any(p.workload.channels_last for p in asked),
        processors=max(p.threads for p in asked),
    )
    run = document.build(records)
    session = next(r for r in records if isinstance(r, Session))
    return Ablation(
        # A path that was not asked for has no missing steps.
        steps=_steps([r for r in rungs if r.point in asked], run.measurements, asked),
        run=replace(run, notes=(*run.notes, *notes)),
        session=session.session,
        started=session.started,
    )


def _base(points: Iterable[Point]) -> Point:
    found = [
        p
        for p in points
        if p.runtime in (f"eager@autograd{UNFUSED}", "eager@autograd")
        and not (p.workload.channels_last or p.workload.twin)
    ]
    if not found:
        raise UsageError("no ladder in this store; frameworktax ablate MODEL measures one")
    return min(found, key=lambda p: (-len(p.runtime), p.threads))


def _steps(
    rungs: Sequence[Rung], measurements: Iterable[Measurement], asked: Mapping[Point, str]
) -> tuple[Step, ...]:
    measured = {m.point: m for m in measurements}

    def missing(point: Point) -> str | None:
        """Return why a point has no latency, None if it has one."""
        m = measured.get(point)
        if m is None:
            return asked.get(point) or "not measured"
        if m.latency_ns is None:
            return m.reason or f"{m.status}: too few blocks for an interval"
        return None

    reasons = {rung.name: missing(rung.point) for rung in rungs}
    base = measured.get(rungs[0].point)
    if base is not None and any(note.code == AS_IT_IS for note in base.notes):
        reasons["fused-attention"] = "this model has one way to compute attention, or none"
    usable = {rung.name: measured[rung.point] for rung in rungs if reasons[rung.name] is None}
    after = {rung.name: rung.after for rung in rungs}
    pairs: dict[tuple[str, str], tuple[str, Measurement, Measurement]] = {}
    for rung in rungs[1:]:
        if rung.name not in usable:
            continue
        below = rung.after
        while below is not None and below not in usable:
            below = after.get(below, BASE)
        if below is not None:
            pairs[rung.name, "added"] = (below, usable[below], usable[rung.name])
        if BASE in usable:
            pairs[rung.name, "total"] = (BASE, usable[BASE], usable[rung.name])
            if rung.alone is not None and missing(rung.alone) is None:
                pairs[rung.name, "alone"] = (BASE, usable[BASE], measured[rung.alone])
    effects = _effects(pairs)

    def why_not_alone(rung: Rung) -> str | None:
        reason = None if rung.alone is None else reasons[rung.name] or missing(rung.alone)
        return reason or rung.why or None

    return tuple(
        Step(
            rung=rung,
            measured=measured.get(rung.point),
            reason=reasons[rung.name],
            alone_reason=why_not_alone(rung),
            **{kind: effects.get((rung.name, kind)) for kind in ("added", "alone", "total")},
        )
        for rung in rungs
    )


def _effects(
    pairs: Mapping[tuple[str, str], tuple[str, Measurement, Measurement]],
) -> dict[tuple[str, str], Effect]:
    contrasts = {}
    for _, before, after in pairs.values():  # the first step is added, alone and total in one
        if (contrast := paired(blocks(before), blocks(after))) is not None:
            contrasts[before.point, after.point] = contrast
    of_one = 1 - (1 - CONFIDENCE) / max(1, len({name for name, _ in pairs}))
    shared = ((ratio(one), ratio(one, of_one)) for one in moderate(list(contrasts.values())))
    ratios = dict(zip(contrasts, shared, strict=True))
    return {
        key: effect(against, before, after, *ratios.get((before.point, after.point), (None, None)))
        for key, (against, before, after) in pairs.items()
    }


def effect(
    against: str,
    before: Measurement,
    after: Measurement,
    change: Estimate | None,
    together: Estimate | None = None,
) -> Effect:
    """Return what lies between two points of one session; ``against`` names the rung before.

    ``change`` is the ratio of latencies, after over before, and ``together`` as in ``Effect``; None
    where no rounds are shared.
    """
    if change is None or before.latency_ns is None:
        return Effect(against=against, reason="fewer than two rounds in common")
    level = before.latency_ns.value
    found = Effect(
        against=against,
        ratio=change,
        together=together,
        latency_ns=_times(level, lambda r: r - 1, change),
    )
    one, other = before.tax_share, after.tax_share
    if one is None or other is None:
        which = before.runtime if one is None else after.runtime
        return replace(found, reason=f"kernel time of {which} was not measured")
    if before.bill_method != after.bill_method:
        a, b = ("its twin" if m.bill_method == TWIN else m.bill_method for m in (before, after))
        text = (
            f"kernel time of {before.runtime} comes from {a}, of {after.runtime} from {b}: their "
            "difference would be neither's"
        )
        return replace(found, reason=text)
    return replace(
        found,
        tax_ns=_times(level, lambda r, b, a: b * r - a, change, other, one),
        kernel_ns=_times(level, lambda r, b, a: (1 - b) * r - (1 - a), change, other, one),
    )


def _times(level: float, function: Callable[..., float], *inputs: Estimate) -> Estimate:
    """Return a share of a latency as a time; the latency's own interval is in neither side."""
    return scaled(propagate(function, PAIRED, *inputs), level)


# --- measuring ------------------------------------------------------------------------------------


def ablate(
    model: str,
    workload: Workload | None = None,
    *,
    paths: Iterable[str] = PATHS,
    device: str = "auto",
    threads: int | None = None,
    time_budget: float = BUDGET_S,
    setup_limit: float = DEFAULT_SETUP_LIMIT_S,
    until: float = UNTIL,
    processes: int | None = None,
    folder: str | Path = api.DEFAULT_STORE,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
) -> tuple[Ablation, api.Results]:
    """Measure the ladder of a model in one session.

    Args:
        model: a name, ``file.py:function`` or ``package.module:function``.
        workload: batch, length, image size, factors, precision, phase; its model is replaced.
        paths: branches to climb; eager is always among them.
        device: auto, cpu or cuda:N.
        threads: of the step with several; all processors if left out, 1 leaves the step out.
        time_budget: seconds of wall time for measuring.
        setup_limit: seconds that each step of set-up may take.
        until: half-width of the interval, as a share, at which a point is done.
        processes: fresh processes a point; by default 3, and up to 12 where they differ.
        folder: store that keeps every sample.
        reporter: gets progress.
        command: recorded with the session.

    Returns:
        The ladder, and the session's results as ``measure`` gives them.

    Raises:
        UsageError: what was asked for cannot be.
        NothingMeasuredError: no step could be measured.
    """
    if threads is not None and threads < 1:
        raise UsageError("threads must be above zero")
    if model.startswith("onnx:"):
        raise UsageError(f"{model} is no torch module, there is no eager to start from; name one")
    wanted = replace(workload or Workload(model=model), model=model)
    (point,) = points_for(
        wanted,
        batches=[wanted.batch],
        runtimes=["eager"],
        precisions=[wanted.precision],
        device=api.pick_device(device),
    )
    models.check(point.workload)
    rungs = ladder(
        base_point(point, attention=may_choose_attention(model)),
        images=models.entry_of(model).has_image_size and not model.startswith("hf:"),
        processors=(threads or len(host.usable_cpus())) if point.platform == "cpu" else 1,
        paths=chosen(paths),
    )
    refuse_unavailable([rungs[0].point])
    points = [rung.point for rung in rungs]
    points += [rung.alone for rung in rungs if rung.alone is not None]
    place = Path(folder)
    plan = Plan(
        points=tuple(dict.fromkeys(points)),
        **process_counts(processes),
        until=until,
        budget_s=time_budget,
        setup_limit_s=setup_limit,
    )
    results = api.run_plan(plan, place, reporter=reporter, command=command)
    # not the newest: that may be another's, who waited for this host to be free
    own = {m.session for m in results}
    records, notes = store.read(place)
    return build([r for r in records if r.session in own], notes), results


def may_choose_attention(model: str) -> bool:
    """Return whether a model may have more than one way to compute attention.

    Those of transformers do; code from elsewhere may. A model that turns out to have one only
    carries the note ``attention-as-it-is``.
    """
    entry = models.entry_of(model)
    return entry.family in (models.USER.family, models.PLUGIN) or "transformers" in entry.packages


def read(
    folder: str | Path, model: str | None = None, *, paths: Iterable[str] = (), **wanted: object
) -> Ablation:
    """Return the newest ladder in a store that is as wanted, without measuring.

    Args:
        folder: the store.
        model: of the ladder, None for any.
        paths: branches that it must have, and that are shown; all that it has if empty.
        wanted: further fields of its workload (``batch``, …) or its ``platform``.

    Raises:
        StoreError: there is no store, or another version wrote it.
        UsageError: no such path, or the store holds no such ladder.
    """
    shown = chosen(paths) if paths else ()
    wanted = ({"model": model} if model else {}) | wanted
    records, notes = store.read(Path(folder))
    for session in reversed(sessions_of(records)):
        if OTHERS.intersection(session.command[:1]):
            continue  # it has the base, and maybe a step or two
        try:
            found = build([r for r in records if r.session == session.session], notes)
        except UsageError:
            continue
        point = found.base.rung.point
        own = {**asdict(point.workload), "platform": point.platform}
        has = {step.rung.path for step in found.steps}
        if wanted.items() <= own.items() and has.issuperset(shown):
            steps = (step for step in found.steps if not shown or step.rung.path in shown)
            return replace(found, steps=tuple(steps))
    asked = wanted | ({"paths": ",".join(paths)} if paths else {})
    said = " with " * bool(asked) + ", ".join(f"{name} {value}" for name, value in asked.items())
    raise UsageError(f"{folder} holds no ladder{said}; frameworktax ablate MODEL measures one")
