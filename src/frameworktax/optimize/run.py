"""The race and the delivery, stage by stage: ``optimize_model`` is the story."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax import api, host, models, runtimes, store
from frameworktax.analysis.document import build
from frameworktax.errors import (
    NothingMeasuredError,
    UsageError,
    WorkerError,
    check_known,
    counted,
)
from frameworktax.measure import orphans
from frameworktax.measure.plan import (
    DEFAULT_SETUP_LIMIT_S,
    Plan,
    ProcessCounts,
    check_numbers,
    check_sizes,
    listed,
    of_kinds,
    process_counts,
    refuse_unavailable,
    with_live,
)
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.template import Templates
from frameworktax.models.user import Live, unpack
from frameworktax.optimize import race
from frameworktax.optimize.delivery import Delivery, Prover, check_output, staged, unfit, writing
from frameworktax.optimize.race import Candidate
from frameworktax.records import (
    DEPLOYED,
    REFERENCE,
    Effort,
    LeftOut,
    Outcome,
    Point,
    Record,
    Run,
    Session,
    Workload,
)
from frameworktax.runtimes.base import LOWER, Target
from frameworktax.runtimes.deployment import LIGHT, Manifest, Shape, shape_name
from frameworktax.runtimes.variants import GRAPH
from frameworktax.stats import UNTIL

if TYPE_CHECKING:
    from frameworktax.runtimes.serving import Deployment

BUDGET_S = 300.0
HEATS, PROOF = 0.25, 0.3
"""Of the time for measuring: the heats, or until every runtime at every shape was measured once;
and the proof of the gain. The rest is the final's, and what that leaves the run-off's."""
ON_TOP = "exporting and proving outputs on top"
"""Steps whose time is not known before they end."""
MORE = 2
"""Times as many processes in the run-off: they differ, and more blocks of the same show no more."""
COARSE = 0.1
"""Half-width of the interval, as a share, at which a point of the heats is done."""
ATTEMPTS = 4
"""Deliveries that are tried: a winner that fails its proof is replaced by the next, before the last
one by eager. Where a further shape fails in that one, it is tried once more without it."""
STAGE = 1_000_000
"""More than a stage has processes, or rounds."""
TOGETHER = "race"
"""The session of what all stages found."""
ELSEWHERE = ("model", "inputs", "store", "resume", "command")
"""What of a call is not among the options that make its deployment anew."""
EXHAUSTED = f"not delivered: other winners failed in {ATTEMPTS} attempts; race fewer --runtimes"
"""Why what might still win lost."""


@dataclass(kw_only=True)
class Asked:
    """What is to be optimised, and how much it may take.

    Attributes:
        model: a name, ``file.py:function``, or a live module.
        inputs: example inputs of a live module.
        batch: one or several batch sizes.
        length: one or several, for models that have one.
        image_size: pixels a side, for image models.
        batch_dim: see ``measure``.
        runtimes: names, or ``all`` that can be delivered.
        device: auto, cpu or cuda:N.
        threads: of each call.
        time_budget: seconds of wall time for measuring, over all stages.
        setup_limit: seconds that each step of set-up may take.
        until: half-width of the interval, as a share, at which a point of the final is done.
        processes: fresh processes a point, in the final and the proof; by default 3, and in the
            proof up to 12 where the spread between them leaves an interval wider than ``until``.
        aim: latency, throughput, memory or startup; what wins is faster than eager in any case.
        allow: lower precisions to try as well: bfloat16, int8; outputs are then compared with
            eager's in float32 by that precision's tolerance.
        output: folder of the deployment; an older deployment there is replaced.
        store: folder that keeps every sample.
        resume: take stages that the store already has whole.
        command: makes the deployment anew; for its messages.
        live: the module in this process; None for a model with a name.
        workloads: one for each shape.
        templates: import torch once for the processes of all stages.

    Raises:
        UsageError: what was asked for cannot be.
    """

    model: Any
    inputs: Any = None
    batch: int | Iterable[int] = 1
    length: int | Iterable[int] | None = None
    image_size: int | None = None
    batch_dim: int | None = None
    runtimes: str | Iterable[str] = "all"
    device: str = "auto"
    threads: int = 1
    time_budget: float = BUDGET_S
    setup_limit: float = DEFAULT_SETUP_LIMIT_S
    until: float = UNTIL
    processes: int | None = None
    aim: str = "latency"
    allow: str | Iterable[str] = ()
    output: Path = Path("deploy")
    store: Path = api.DEFAULT_STORE
    resume: bool = False
    command: str = ""
    live: Live | None = field(init=False)
    workloads: tuple[Workload, ...] = field(init=False)
    templates: Templates = field(init=False, repr=False, default_factory=Templates)

    def __post_init__(self) -> None:
        self.live = unpack(self.model, self.inputs)
        device = str(self.device)
        self.device = api.pick_device(str(self.device))
        whole = self.counts["processes"], self.threads
        check_numbers(whole, (self.until, self.time_budget, self.setup_limit))
        check_known("--for", self.aim, race.AIMS)
        self.allow = tuple(listed(self.allow))
        for precision in self.allow:
            check_known("--allow", precision, LOWER)
        if self.aim == "throughput" and self.device == "cpu" and self.threads > 1:
            raise UsageError(
                "on a CPU throughput is highest with one thread a call and as many calls at once "
                "as there are processors; leave out --threads"
            )
        if self.aim == "memory" and self.device != "cpu":
            raise UsageError(
                "peak memory is that of the host, and on a GPU most of it is the device's; "
                "choose --for latency, throughput or startup"
            )
        self.workloads = tuple(self._shapes())
        self.command = self.command or self._call(device)

    def _call(self, device: str) -> str:
        """Return the call from Python that makes the deployment anew; ``device`` as asked for."""
        lengths = sorted({w.length for w in self.workloads if w.length is not None})
        own: dict[str, Any] = {
            "batch": sorted({workload.batch for workload in self.workloads}),
            "length": lengths,
            "device": device,
            "allow": list(self.allow),
            "output": str(self.output),
        }
        words = ["module, inputs" if self.live is not None else repr(self.model)]
        for one in fields(self):
            value = own.get(one.name, getattr(self, one.name, None))
            if one.init and one.name not in ELSEWHERE and value not in (one.default, []):
                words.append(f"{one.name}={value!r}")
        return f"ft.optimize({', '.join(words)})"

    def _shapes(self) -> Iterator[Workload]:
        batches = _ascending("batch", self.batch)
        lengths: Sequence[int | None] = [None]
        if self.length is not None:
            lengths = _ascending("length", self.length)
        if not batches or not lengths:
            raise UsageError("name at least one batch size, 1 or more, and no empty --length")
        for length in lengths:
            workload = Workload(
                model=str(self.model) if self.live is None else self.live.name,
                length=length,
                image_size=self.image_size,
                batch_dim=self.batch_dim,
            )
            workload = of_kinds(workload)
            if self.live is None:
                models.check(workload)
            else:
                models.refuse(workload, models.USER)
            yield from (replace(workload, batch=batch) for batch in batches)

    @property
    def counts(self) -> ProcessCounts:
        """In how many processes the proof is measured, and at least the final."""
        return process_counts(self.processes)

    @property
    def target(self) -> Target:
        """Device, precision and threads."""
        return Target(self.device, self.workloads[0].precision, self.threads)

    @property
    def words(self) -> list[str]:
        """The command as its sessions record it."""
        return self.command.removeprefix("frameworktax ").split()

    def point(self, workload: Workload, runtime: str) -> Point:
        """Return the point of a runtime at a shape."""
        return Point(workload=workload, runtime=runtime, platform=self.device, threads=self.threads)


def _ascending(option: str, given: int | Iterable[int]) -> list[int]:
    check_sizes(option, sizes := listed(given))
    return sorted(set(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """What was delivered, and the race behind it.

    Attributes:
        folder: of the deployment; None where nothing is faster than eager at any shape.
        manifest: of the deployment.
        candidates: every runtime at every shape, with why it lost.
        undeliverable: (runtime, why it did not race).
        final: the document of all stages.
    """

    folder: Path | None = None
    manifest: Manifest | None = None
    candidates: tuple[Candidate, ...]
    undeliverable: tuple[tuple[str, str], ...]
    final: Run

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What serves each shape that was asked for."""
        return tuple(s for s in self.manifest.shapes if not s.is_between) if self.manifest else ()


def optimize(
    module: Any,
    inputs: Any = None,
    *,
    output: str | Path = "deploy",
    store: str | Path = api.DEFAULT_STORE,
    **options: Any,
) -> Deployment:
    """Find the fastest runtime for each shape, prove it, and return it as a callable.

    Args:
        module: a live ``torch.nn.Module``, a name, or ``file.py:function``.
        inputs: example inputs of a live module.
        output: folder of the deployment.
        store: folder that keeps every sample.
        **options: the other attributes of ``optimize.run.Asked``, and a ``reporter`` that shows
            progress.

    Returns:
        The deployment, loaded; the module is called where nothing was faster.

    Raises:
        UsageError: what was asked for cannot be.
        NothingMeasuredError: nothing could be measured, or nothing is faster than eager.
    """
    reporter = options.pop("reporter", None)
    asked = Asked(model=module, inputs=inputs, output=Path(output), store=Path(store), **options)
    found = optimize_model(asked, reporter)
    if found.folder is None:
        raise NothingMeasuredError(
            "nothing that can be delivered is proven faster than eager at any shape; "
            "keep the module as it is"
        )
    from frameworktax.runtimes.serving import load

    return load(found.folder, module=None if isinstance(module, str) else module)


def optimize_model(asked: Asked, reporter: Reporter | None = None) -> Optimized:
    """Race the runtimes at every shape and deliver what wins; ``reporter`` shows progress.

    Returns:
        What was delivered and why; the folder is None where nothing is faster than eager.

    Raises:
        UsageError: what was asked for cannot be.
        NothingMeasuredError: nothing could be measured.
    """
    check_output(asked.output, asked.store)
    # Whether the folder can be written is known before the race.
    with staged(asked.output) as folder, closing(asked.templates):
        names, undeliverable = deliverable(asked.runtimes, asked.target, asked.workloads[0])
        refuse_unavailable(asked.point(w, name) for w in asked.workloads[:1] for name in names)
        _refuse_unfit(asked)
        final, found = _raced(asked, names, reporter)
        return _deliver(asked, folder, final, found, tuple(undeliverable), reporter)


@contextmanager
def _proving(asked: Asked) -> Iterator[Prover]:
    with (
        orphans.scratch(host.cache_folder()) as scratch,
        Prover(asked.target, asked.live, scratch, asked.setup_limit, asked.templates) as prover,
    ):
        yield prover


def _refuse_unfit(asked: Asked) -> None:
    """Refuse a module that no deployment can stand in for before minutes of a race.

    Raises:
        UsageError: that; what fails otherwise is in the race, with its reason.
    """
    try:
        with _proving(asked) as prover:
            prover.look(asked.workloads[0])
    except WorkerError as error:
        if error.status == "unavailable":
            raise unfit(asked.workloads[0], error) from error


def _raced(
    asked: Asked, names: Sequence[str], reporter: Reporter | None
) -> tuple[Run, list[Candidate]]:
    """Return what all stages found as one document, and who is left, who lost and why."""
    show = reporter or Reporter()
    say = show.say

    def seconds(stage: Run) -> float:
        return stage.own_tax.measuring_ns / 1e9 if stage.own_tax is not None else 0.0

    pairs = [(workload, name) for workload in asked.workloads for name in names]
    found: list[Candidate] = []
    stages: list[Run] = []
    proof_s = PROOF * asked.time_budget
    left_s = asked.time_budget - proof_s
    if len(names) > race.FINALISTS:
        runtimes, shapes = counted(len(names), "runtime"), counted(len(asked.workloads), "shape")
        say(f"heats: {runtimes} at {shapes}")
        heats_s = HEATS * asked.time_budget
        coarse = {"processes": 1, "until": COARSE, "precise_s": heats_s}
        show.follows(left_s - heats_s + proof_s, ON_TOP)
        heats = _stored(asked, pairs)
        if heats is None:
            stages.append(heats := _race(asked, pairs, left_s - heats_s, reporter, (), **coarse))
            left_s = max(left_s - seconds(heats), heats_s)
        together = _together(asked, [heats])
        found = race.after_heats(race.candidates(pairs, *together), asked.aim)
        pairs = [one.pair for one in found if one.is_in]
        found = [one for one in found if not one.is_in]
    if pairs:
        pairs = race.with_tunings(pairs, asked.target, tuple(asked.allow))
        for shape in dict.fromkeys(w for w, _ in pairs):
            names_left = ", ".join(name for w, name in pairs if w == shape)
            say(f"final, {shape_name(shape)}: {names_left}")
        show.follows(proof_s, ON_TOP)
        stages.append(_race(asked, pairs, left_s, reporter, stages))
        left_s -= seconds(stages[-1])
        together = _together(asked, stages)
        found = race.after_final([*found, *race.candidates(pairs, *together)], asked.aim)
    if asked.aim == "latency" and left_s > 0 and (pairs := race.undecided(found)):
        say(f"run-off: {', '.join(f'{shape_name(w)} {name}' for w, name in pairs)}")
        stages.append(
            _race(
                asked, pairs, left_s, reporter, stages, processes=MORE * asked.counts["processes"]
            )
        )
        found = [one for one in found if one.pair not in pairs]
        together = _together(asked, stages)
        found = race.after_final([*found, *race.candidates(pairs, *together)])
    return together[0], found


def deliverable(
    wanted: str | Iterable[str], target: Target, workload: Workload
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the runtimes that race, and (name, reason) of those that cannot.

    Raises:
        UsageError: an unknown name, one that cannot be delivered was asked for by name, or eager
            cannot run the model.
    """
    if why := runtimes.get(REFERENCE).cannot(workload):
        raise UsageError(
            f"optimize compares with {REFERENCE}, which {why.partition(';')[0]}; give the "
            "torch module that it was made of"
        )
    asked = list(map(str, listed(wanted)))
    racing: list[str] = []
    others: list[tuple[str, str]] = []
    for name in [n for one in asked for n in (runtimes.every() if one == "all" else [one])]:
        runtime = runtimes.get(name)
        if name == REFERENCE or name in racing:
            continue
        why = None if runtime.serves_with else "is for measuring alone"
        if why is not None and runtime.needs_model:
            why = "needs the model's own code in every process"
        if why is not None and name in asked:
            raise UsageError(f"{name} cannot be delivered: it {why}; choose another runtime")
        why = why or runtime.missing(target) or runtime.cannot(workload)
        if why is None:
            racing.append(name)
            if target.is_cuda and GRAPH in runtime.options and not runtime.option:
                racing.append(f"{name}@{GRAPH}")  # may be fastest where the plain one is slowest
        else:
            others.append((name, why))
    if not racing:
        reasons = "; ".join(f"{name}: {why}" for name, why in others)
        reasons = reasons or f"{REFERENCE} is what they are compared with; name others"
        raise UsageError(f"no runtime that can be delivered runs here: {reasons}")
    return list(dict.fromkeys(racing)), others


# --- stages ---------------------------------------------------------------------------------------


def _race(
    asked: Asked,
    pairs: Sequence[tuple[Workload, str]],
    budget_s: float,
    reporter: Reporter | None,
    before: Iterable[Run],
    **given: Any,
) -> Run:
    """Measure runtimes at shapes beside eager, or take the stage from the store.

    What was a stage ``before`` is no other one.

    They are called as a deployment calls them: for short calls what converts the arguments may
    decide between two engines. In races for ``LIGHT`` loads engines run alone: a process that is
    called with arrays instead of torch's tensors does not import torch.
    """
    called = pairs
    if asked.aim not in LIGHT:
        called = [(workload, runtimes.deployed(name)) for workload, name in pairs]
    points = _points(asked, called)
    processes = given.setdefault("processes", asked.counts["processes"])
    used = {m.session for run in before for m in run.measurements}
    known = _known(asked, points, processes, used) if asked.resume else None
    return known or _measured(asked, reporter, points=points, budget_s=budget_s, **given)


def _points(asked: Asked, pairs: Sequence[tuple[Workload, str]]) -> tuple[Point, ...]:
    """Return the points of runtimes at shapes, those of eager first."""
    at = dict.fromkeys(workload for workload, _ in pairs)
    return tuple(asked.point(w, name) for w, name in [*((w, REFERENCE) for w in at), *pairs])


def _stored(asked: Asked, pairs: Sequence[tuple[Workload, str]]) -> Run | None:
    """Return a session of ``measure`` that stands for the heats, or None.

    Its runtimes were not called as a deployment calls them: later stages have none of its blocks,
    and heats of a race come first.
    """
    called = [(workload, runtimes.deployed(name)) for workload, name in pairs]
    if not asked.resume or asked.aim in LIGHT or _known(asked, _points(asked, called), 1):
        return None
    return _known(asked, _points(asked, pairs), 1)


def _measured(asked: Asked, reporter: Reporter | None, **given: Any) -> Run:
    """Measure in one session; ``given`` are attributes of its plan."""
    given.setdefault("until", asked.until)
    plan = Plan(setup_limit_s=asked.setup_limit, twin="none", **given)
    if asked.live is not None:
        plan = with_live(plan, asked.live)
    return api.run_plan(
        plan,
        asked.store,
        reporter=reporter,
        command=asked.words,
        templates=asked.templates,
    ).run


def _together(asked: Asked, stages: Sequence[Run]) -> tuple[Run, dict[str, float]]:
    """Return what all stages found until now, as the document of one session, and starts.

    A stage goes on where the one before ended: its processes and rounds have numbers of their own,
    so that a ratio is over those of all stages, and of blocks of one. What failed in the last stage
    has failed. Starts are key of a point → ns from nothing loaded to the end of its first call, the
    median.
    """
    before = {m.session: n for n, run in enumerate(reversed(stages)) for m in run.measurements}
    failed = {m.point.key() for m in stages[-1].measurements if m.status != "ok"}
    records: list[Record] = []
    found: dict[str, list[int]] = defaultdict(list)
    for record in store.read(asked.store)[0]:
        if record.session not in before:
            continue
        number = before[record.session]
        point = getattr(record, "point", None)
        if number and (point.key() if isinstance(point, Point) else point) in failed:
            continue
        moved = {
            name: getattr(record, name) + number * STAGE
            for name in ("process", "round")
            if hasattr(record, name)
        }
        records.append(replace(record, session=TOGETHER, **moved))
        if isinstance(record, Outcome) and record.first_ns:
            found[record.point].append((record.load_ns or 0) + record.first_ns)
    starts = {point: statistics.median(times) for point, times in found.items()}
    return build(records, until=asked.until), starts


def _known(
    asked: Asked, points: Sequence[Point], processes: int, used: Collection[str | None] = ()
) -> Run | None:
    """Return the newest whole session of the store that has all of these points, or None.

    It is none of those ``used``, as the heats are no final. It was measured here, with the versions
    that are installed, in as many processes. Another command may give more time than one in which
    it was too short. A model's file was not changed since. A live module has no name that says what
    it is: it is measured again.
    """
    if asked.live is not None or not any(asked.store.glob("*.jsonl")):
        return None
    records, _ = store.read(asked.store)
    wanted = {point.key() for point in points}
    on_cpu = asked.device == "cpu"
    gpus = [] if on_cpu else host.cards(host.gpus())
    here = host.cpu_model(), host.libraries(runtimes.distributions()), gpus
    changed = _last_change(str(asked.model))
    begins = {r.session: r for r in records if isinstance(r, Session) and r.started > changed}
    # Without those that were interrupted.
    whole = [r.session for r in records if isinstance(r, Effort) and r.session not in used]
    for begin in (begins[session] for session in reversed(whole) if session in begins):
        e, is_same = begin.environment, list(begin.command) == asked.words
        place = e.cpu, e.libraries, [] if on_cpu else host.cards(e.gpus)
        mine = [r for r in records if r.session == begin.session]
        outcomes = [r for r in mine if isinstance(r, Outcome)]
        ended = {r.point for r in outcomes if is_same or r.status != "timeout"}
        ended |= {r.point.key() for r in mine if is_same and isinstance(r, LeftOut)}
        is_as_fine = {*range(processes)} <= {r.process for r in outcomes}
        if wanted <= ended and is_as_fine and place == here:
            return build(mine, until=asked.until, asked=points)
    return None


def _last_change(model: str) -> str:
    """Return when the file that a model is in was changed, as sessions write it; empty for none.

    A package is looked for in the current folder, and of a folder of transformers' the newest file.
    """
    where, _, name = model.rpartition(":")
    package = where.replace(".", "/")
    places = [Path(where), Path(f"{package}.py"), Path(package, "__init__.py"), Path(name)]
    if where == "hf" and Path(name).is_dir():
        places += Path(name).iterdir()
    files = [path for path in places if path.is_file()]
    times = [datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in files]
    return max((time.isoformat(timespec="seconds") for time in times), default="")


def _deliver(
    asked: Asked,
    folder: Path,
    final: Run,
    found: list[Candidate],
    undeliverable: tuple[tuple[str, str], ...],
    reporter: Reporter | None,
) -> Optimized:
    """Deliver the winners, made in a folder; what fails its proof is out, the next one is tried."""
    show = reporter or Reporter()
    nothing = Optimized(candidates=(), undeliverable=undeliverable, final=final)
    found = race.after_proof(found, {})  # reserves are back in where the final left none
    with _proving(asked) as prover, writing(asked.output):
        delivery = Delivery(asked, folder, prover)
        for attempt in itertools.count(1):
            decided = race.decide(found, asked.aim)
            winners = [one for one in decided if one.won]
            if not winners:
                break
            shown = ", ".join(f"{shape_name(one.workload)} {one.runtime}" for one in winners)
            show.say(f"delivering and proving: {shown}")
            delivery.make(decided)
            slower = set()
            if not delivery.failures:
                prover.rest()
                show.follows(0.0, "unless a gain is not proven")
                given = {"points": delivery.points(), "budget_s": PROOF * asked.time_budget}
                given |= {"deployment": folder, **asked.counts}
                proof = delivery.confirm(_measured(asked, reporter, **given))
                if asked.aim not in LIGHT:  # else the race was of engines alone
                    found = race.as_delivered(found, delivery.measured)
                best = {one.pair for one in race.decide(found, asked.aim) if one.won}
                slower = {one.pair for one in winners} - best
                if not delivery.failures and (not slower or attempt >= ATTEMPTS):
                    delivery.finish(proof)
                    made = replace(nothing, folder=asked.output, manifest=delivery.manifest)
                    return replace(made, candidates=tuple(decided))
            found = race.after_proof(found, delivery.failures)
            if attempt >= ATTEMPTS - 1:  # the last ones are of what was delivered well, or eager
                lost = {workload for workload, _ in {*delivery.failures, *slower}}
                found = _without(found, lost, keep=DEPLOYED)
    decided = race.decide(_without(found, {one.workload for one in found}), asked.aim)
    return replace(nothing, candidates=tuple(decided))


def _without(
    found: Iterable[Candidate], shapes: Collection[Workload], keep: str = ""
) -> list[Candidate]:
    """Return the candidates, those left at these shapes out but what was measured as ``keep``."""
    return [
        one.out(EXHAUSTED)
        if one.is_in and one.workload in shapes and getattr(one.measured, "runtime", None) != keep
        else one
        for one in found
    ]
