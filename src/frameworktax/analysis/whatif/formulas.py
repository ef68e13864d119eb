"""What would change if: what is asked, the formulas that answer, and the error each has shown.

On a CPU host and kernels share a thread, and latency is the sum of both. Each formula gives a
ratio, latency after over latency before, with its interval: most of what moves a latency moves both
sides alike.

On a GPU a point is the two queues of ``replay``, by their totals. Totals show no single launches,
so that all N of them are taken as equal. The replay of equal launches ends when the slower queue
does, and needs no playing:

    f = max(H + K / N, H / N + D)

with H host time, K kernel time, D the kernels queued back to back (their gaps, D − K, stay). What
the latency has beyond that is ``sync`` and stays. Sources and errors: METHOD, section 9.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import resources
from typing import Any

from frameworktax.analysis.bill import TWIN, WAITS
from frameworktax.analysis.compare import contrasts
from frameworktax.analysis.estimates import (
    inverse,
    paired_ratio,
    product,
    propagate,
    quotient,
    shifted,
)
from frameworktax.analysis.grouping import SEVERAL_HOSTS
from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.replay import Change
from frameworktax.errors import UsageError
from frameworktax.records import (
    FLOOR,
    Estimate,
    FamilyKey,
    Measurement,
    Prediction,
    Run,
    device_of,
    point_name,
)
from frameworktax.traces.timeline import Timeline

MEASURED = "measured"
"""The formula of an answer that was measured: nothing was predicted."""
FASTEST = 1e9
"""As good as without end; at factors far beyond it no number is left of a latency."""
REPLAYED = ("device_speed", "host_speed", "cpu_speed", "graphs")
"""Changes of the machine, which can be combined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is asked; None (or False) where it is not.

    Attributes:
        device_speed: factor on the device's speed, 2 = twice as fast.
        host_speed: factor on the speed of the framework's part, kernels left as they are.
        cpu_speed: factor on the speed of the CPU: of all that runs on it.
        graphs: replay of captured graphs in place of single launches.
        runtime: another runtime, by name.
    """

    device_speed: float | None = None
    host_speed: float | None = None
    cpu_speed: float | None = None
    graphs: bool = False
    runtime: str | None = None

    def given(self) -> dict[str, Any]:
        """Return what is asked, by name."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in every.items() if value not in (None, False)}

    def words(self) -> str:
        """Return the change as it would be typed: ``--device-speed 2 --graphs``."""
        said = []
        for name, value in self.given().items():
            shown = f" {value}" if isinstance(value, str) else f" {value:g}" * (value is not True)
            said.append(f"--{name.replace('_', '-')}{shown}")
        return " ".join(said)


def check(asked: WhatIf) -> None:
    """Raise UsageError where a change is impossible, or none is asked for."""
    for name, value in ((field.name, getattr(asked, field.name)) for field in fields(asked)):
        if type(value) in (int, float) and not 1 / FASTEST <= value <= FASTEST:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} must be from {1 / FASTEST:g} to {FASTEST:g} (got {value:g})"
            )
    if not asked.given():
        raise UsageError("no change to predict; give --host-speed 2, --graphs or another")


def changes(asked: WhatIf) -> list[WhatIf]:
    """Return each change alone, and those of the machine together where there are several."""
    given = asked.given()
    alone = [WhatIf(**{name: value}) for name, value in given.items()]
    machine = {name: value for name, value in given.items() if name in REPLAYED}
    return [*alone, WhatIf(**machine)] if len(machine) > 1 else alone


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A predicted latency, ns; ``factor`` where it is known better than as a quotient."""

    formula: str
    latency: Estimate
    factor: Estimate | None = None


class Refused(Exception):  # noqa: N818 - an answer too: it becomes a prediction without a number
    """No prediction by this formula, and why."""

    def __init__(self, formula: str, reason: str) -> None:
        super().__init__(formula, reason)
        self.formula, self.reason = formula, reason


@dataclass(frozen=True, slots=True)
class Case:
    """A change of one measured point.

    Attributes:
        m: the point.
        relatives: measured points that differ from it in runtime and batch alone, itself included;
            of a document of several hosts those of its session.
        asked: the change.
    """

    m: Measurement
    relatives: Sequence[Measurement]
    asked: WhatIf

    def batches(self, runtime: str) -> list[Measurement]:
        """Return the relatives of one runtime, by batch."""
        mine = [m for m in self.relatives if m.runtime == runtime]
        return sorted(mine, key=lambda m: m.workload.batch)


Formulas = Mapping[str, tuple[str, Callable[[Case], Answer]]]
"""Change → what of the latency it scales and what it keeps, and its formula. The first one that is
asked for answers."""


def scales(asked: WhatIf, known: Formulas) -> str:
    """Return what a change scales and what it keeps; of several changes each, in brackets."""
    said = [known[name][0] for name in asked.given() if known[name][0]]
    return said[0] if len(said) == 1 else " and ".join(f"({one})" for one in said)


# --- a CPU ----------------------------------------------------------------------------------------

HOST = "tax / host speed + kernels"
CPU = "latency / CPU speed"
RUNTIME = "kernels + tax between warm overheads"
SAME_KERNELS = ("eager", "inference-mode", "torchscript")
"""Runtimes that call the kernels that eager calls, in the same order."""


def faster_host(tax_share: Estimate, speed: float) -> Estimate:
    """Return the ratio on a host whose overhead takes 1 / speed: T / (speed · L) + K / L."""
    return propagate(lambda s: s / speed + 1 - s, HOST, tax_share)


def _cpu_speed(case: Case) -> Answer:
    """Answer T / (cpu · host · L) + K / (cpu · L), on a CPU on which all takes 1 / cpu.

    The interval reaches to kernels that stay as they are: what bounds them may be memory. Without
    a tax share nothing is known to shrink.
    """
    m, cpu = case.m, case.asked.cpu_speed or 1.0
    both = cpu * (case.asked.host_speed or 1.0)
    if m.tax_share is None or m.bill_method == TWIN:
        ends = (1 / both, 1 / cpu, 1.0)
        unknown = Estimate(value=1 / cpu, low=min(ends), high=max(ends), method=CPU, n=1)
        return _scaled(m, unknown)
    found = propagate(lambda s: s / both + (1 - s) / cpu, CPU, m.tax_share)
    kept = propagate(lambda s: s / both + 1 - s, CPU, m.tax_share)
    return _scaled(m, replace(found, low=min(found.low, kept.low), high=max(found.high, kept.high)))


def _host_speed(case: Case) -> Answer:
    m = case.m
    if m.tax_share is None or m.bill_method in (None, TWIN):
        raise Refused(HOST, f"kernel time of {m.runtime} is not known by sampling")
    return _scaled(m, faster_host(m.tax_share, case.asked.host_speed or 1.0))


def _scaled(m: Measurement, ratio: Estimate) -> Answer:
    formula = ratio.method
    if m.latency_ns is None:
        raise Refused(formula, "its latency is not known")
    return Answer(formula, product(m.latency_ns, ratio, formula), inverse(_positive(ratio)))


def _positive(found: Estimate) -> Estimate:
    """Return a latency or a ratio of two; refuse one that may be nothing."""
    if found.low <= 0:
        raise Refused(found.method, "its interval reaches zero; measure it for longer")
    return found


def _runtime(case: Case) -> Answer:
    """Answer a runtime with the same kernels, with its tax among real kernels.

    Real kernels evict code and data, so that either runtime costs more than its twin. What that
    adds, T − W, is the runtimes' own, and then scales as their twins do (T · W' / W), or that of
    the operators both of them call, and then stays (T − W + W'). The value is half way; the
    interval reaches to both ends.
    """
    m, name = case.m, str(case.asked.runtime)
    for runtime in (name, m.runtime):
        if runtime not in SAME_KERNELS:
            raise Refused(RUNTIME, f"{runtime} runs other kernels; measure, do not predict")
    if m.tax_share is None or m.latency_ns is None or m.bill_method in (None, TWIN):
        raise Refused(RUNTIME, f"kernel time of {m.runtime} was not sampled")
    own, warm = (
        next((o.warm_overhead_ns for o in case.batches(runtime) if o.warm_overhead_ns), None)
        for runtime in (m.runtime, name)
    )
    if own is None or warm is None:
        reason = (
            f"the warm overhead of {m.runtime if own is None else name} is not known; measure "
            f"both at a small batch: --runtimes {m.runtime},{name} --batch 1 --twin all"
        )
        raise Refused(RUNTIME, reason)

    def ends(share: float, ratio: float, warm: float) -> tuple[float, float]:
        return 1 - share + share * ratio, 1 - warm + warm * ratio

    inputs = m.tax_share, quotient(warm, own, RUNTIME), quotient(own, m.latency_ns, RUNTIME)
    found = propagate(lambda *v: sum(ends(*v)) / 2, RUNTIME, *inputs)
    both = ends(*(e.value for e in inputs))
    return _scaled(m, replace(found, low=min(found.low, *both), high=max(found.high, *both)))


def _needs_device(case: Case) -> Answer:
    option = "--graphs" if case.asked.graphs else "--device-speed"
    raise Refused("none", f"{option} needs a device: this point ran on the CPU; ask --cpu-speed")


ON_CPU: Formulas = {
    "graphs": ("", _needs_device),
    "device_speed": ("", _needs_device),
    "runtime": ("the tax; kernels stay", _runtime),
    "cpu_speed": (
        "tax and kernels; the interval reaches to kernels that stay, bound by memory",
        _cpu_speed,
    ),
    "host_speed": (
        "the tax; kernels stay, though they run on this CPU (--cpu-speed scales both)",
        _host_speed,
    ),
}


# --- a device -------------------------------------------------------------------------------------

UNIFORM = "two-queue replay, equal launches"
GRAPHED = "two-queue replay, one launch"
"""Graphs and no other change: what they take was measured."""
GRAPHS = ("cuda-graph", "onnxruntime-cuda-graph", "inductor-reduce-overhead")


def change_of(asked: WhatIf) -> Change:
    """Return a change of the machine as the replay takes it."""
    return Change(
        device_speed=asked.device_speed or 1.0,
        host_speed=(asked.host_speed or 1.0) * (asked.cpu_speed or 1.0),
        graphs=asked.graphs or asked.runtime == "cuda-graph",
    )


def totals(m: Measurement) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return latency, host time, kernel time and span of a call of a GPU point, ns.

    Raises:
        Refused: it cannot be replayed.
    """
    latency, host, kernel = m.latency_ns, m.enqueue_ns, m.kernel_ns
    if latency is None or host is None or kernel is None or not m.launches:
        reason = "host time, kernel time and launches are needed; measure with a device profile"
        raise Refused(UNIFORM, reason)
    if any(note.code == WAITS for note in m.notes):
        # its host time holds the device's, and totals do not show between which launches
        reason = "the host waits for the device inside the call; measure, do not predict"
        raise Refused(UNIFORM, reason)
    # without a span the gaps are not known; they are then part of ``sync`` and stay
    span = m.span_ns if m.span_ns is not None else kernel
    sync_ns = latency.value - _queues_ns(Change(), m.launches, host.value, kernel.value, span.value)
    if beyond := replay.unexplained(sync_ns, latency.value):
        raise Refused(UNIFORM, beyond)
    return latency, host, kernel, span


def _queues_ns(change: Change, launches: int, host: float, kernel: float, span: float) -> float:
    """Return when both queues of equal launches have ended, ns."""
    host = host / change.host_speed
    first = host / launches
    shorter = kernel / change.device_speed
    gaps = span - kernel if launches > 1 else 0.0
    return max(host + shorter / launches, first + shorter + gaps)


def _graph_ns(
    change: Change, launches: int, share: float, host: float, kernel: float, span: float
) -> float:
    """Return when a graph of the same kernels has ended, ns; a share of the gaps is left."""
    first = min(host / launches, replay.GRAPH_LAUNCH_NS) / change.host_speed
    gaps = span - kernel if launches > 1 else 0.0
    return first + kernel / change.device_speed + share * gaps


def _after(m: Measurement, change: Change) -> tuple[Estimate, Estimate | None]:
    """Return the latency after a change, ns, and the latency before over it.

    Both come from the same times: what they have in common moves no factor. It is None for a graph.

    Of the same kernels in a graph what the latency had beyond both queues is gone: it is what the
    device had left to do when the host returned. The interval reaches from the least to the most
    of the gaps that may be left.
    """
    launches = m.launches or 0  # ``totals`` refuses a point without
    latency, host, kernel, span = totals(m)

    def played(latency: float, *parts: float) -> float:
        before, after = (_queues_ns(of, launches, *parts) for of in (Change(), change))
        return after + latency - before

    def gain(latency: float, *parts: float) -> float:
        return latency / played(latency, *parts)

    if not change.graphs:
        times = latency, host, kernel, span
        after = _positive(propagate(played, UNIFORM, *times))
        return after, propagate(gain, UNIFORM, *times)
    if m.span_ns is None:
        span = shifted(kernel, launches * replay.GAP_NS)
    parts = host, kernel, span
    beyond_ns = latency.value - _queues_ns(Change(), launches, *(one.value for one in parts))

    def captured(share: float) -> Estimate:
        found = propagate(partial(_graph_ns, change, launches, share), UNIFORM, *parts)
        return shifted(found, min(0.0, beyond_ns))

    least, middle, most = map(captured, replay.GRAPH_GAPS)
    return _positive(replace(middle, low=least.low, high=most.high)), None


def _replayed(case: Case) -> Answer:
    change, runtime = change_of(case.asked), case.asked.runtime
    if runtime not in (None, "cuda-graph"):
        raise Refused("none", f"the host time of {runtime} is not known; measure it")
    if change.graphs and case.m.runtime in GRAPHS:
        raise Refused(UNIFORM, f"{case.m.runtime} replays a graph already")
    is_graph_alone = change == Change(graphs=True)
    return Answer(GRAPHED if is_graph_alone else UNIFORM, *_after(case.m, change))


_LAUNCHES = "launches, to one, and most of the gaps; kernels stay"
_HOST = "the host's time; kernels, launch latency and gaps stay"
ON_DEVICE: Formulas = {
    "graphs": (_LAUNCHES, _replayed),
    "runtime": (_LAUNCHES, _replayed),
    "device_speed": ("kernels and copies; the host, launch latency and gaps stay", _replayed),
    "host_speed": (_HOST, _replayed),
    "cpu_speed": (_HOST, _replayed),
}
STEPS: Formulas = {
    **ON_DEVICE,
    "graphs": (f"{_LAUNCHES}, and what is in a DataLoader", _replayed),
    "device_speed": (
        "kernels and copies on the device; communication, copies from and to the host, launch "
        "latency, gaps and the host stay",
        _replayed,
    ),
}
"""Of recorded steps, which may communicate with other devices."""


# --- predictions ---------------------------------------------------------------------------------


@cache
def errors_shown() -> Mapping[str, Mapping[str, float]]:
    """Return the relative errors that formulas have shown: ``{"median", "p95", "n"}`` of each.

    On a CPU as ``benchmarks/validate.py`` measured them, on a GPU by ``docs/results/gpu``.
    """
    found: dict[str, dict[str, float]] = {}
    for name in ("formula_errors.json", "formula_errors_gpu.json"):
        path = resources.files("frameworktax.analysis.whatif") / name
        found |= json.loads(path.read_text(encoding="utf-8"))["formulas"]
    return found


def predict(asked: WhatIf, run: Run, *, alone: bool = True) -> tuple[Prediction, ...]:
    """Return predictions and refusals, one for each change asked and each point of a document.

    They start from the smallest batch of a model and runtime. Each change is answered alone, and
    those of the machine also together; without ``alone`` all of them at once only.

    Raises:
        UsageError: a factor not from 1 / ``FASTEST`` to it, or nothing asked.
    """
    check(asked)
    measured = [m for m in run.measurements if m.latency_ns is not None and m.runtime != FLOOR]
    is_mixed = any(note.code == SEVERAL_HOSTS for note in run.notes)
    families: dict[FamilyKey, list[Measurement]] = defaultdict(list)
    alike: dict[tuple[FamilyKey, str], list[Measurement]] = defaultdict(list)
    for m in measured:
        families[m.family()].append(m)
        alike[m.family(), m.runtime].append(m)
    return tuple(
        _predicted(Case(m, relatives, one))
        for (family, _), same in alike.items()
        for m in [min(same, key=lambda m: m.workload.batch)]
        for relatives in [[o for o in families[family] if not is_mixed or o.session == m.session]]
        for one in (changes(asked) if alone else [asked])
        if one.runtime != m.runtime  # else it changes nothing
    )


def _known(m: Measurement) -> Formulas:
    return ON_CPU if device_of(m.platform) == "cpu" else ON_DEVICE


def answer(case: Case) -> Answer:
    """Answer one change from one point.

    Raises:
        Refused: no formula can.
    """
    known, given = _known(case.m), case.asked.given()
    return next(known[name][1] for name in known if name in given)(case)


def _predicted(case: Case) -> Prediction:
    m, asked = case.m, case.asked
    made = Prediction(
        change=asked.words(),
        subject=point_name(m.point),
        formula="",
        scales=scales(asked, _known(m)),
    )
    try:
        return _prediction(made, _measured(case) or answer(case), m.latency_ns)
    except Refused as refused:
        return replace(made, formula=refused.formula, reason=refused.reason)


def _measured(case: Case) -> Answer | None:
    """Return the point that was asked for, where it was measured: then nothing is predicted."""
    m, asked = case.m, case.asked
    if asked.host_speed or asked.device_speed or asked.cpu_speed:
        return None
    runtime = "cuda-graph" if asked.graphs else asked.runtime
    # graphs asked of what replays one already is the point itself
    others = (o for o in case.batches(str(runtime)) if o is not m)
    found = next((o for o in others if o.workload.batch == m.workload.batch), None)
    if found is None or found.latency_ns is None:
        return None
    gain = paired_ratio(m, found)
    if gain is None:
        apart = contrasts.contrast([m], found, "latency", True, contrasts.ELSEWHERE)
        gain = None if apart is None else inverse(contrasts.ratio(apart))
    return Answer(MEASURED, found.latency_ns, gain)


def _prediction(made: Prediction, answer: Answer, before: Estimate | None) -> Prediction:
    """Return an answer with the errors that its formula has shown."""
    return replace(
        made,
        formula=answer.formula,
        shown_error=errors_shown().get(answer.formula),
        latency_ns=answer.latency,
        factor=answer.factor or (before and quotient(before, answer.latency, answer.formula)),
    )


def predict_steps(asked: WhatIf, timeline: Timeline, subject: str) -> tuple[Prediction, ...]:
    """Return one prediction for each change asked, from steps of a trace that are all of one kind.

    Raises:
        UsageError: a factor not from 1 / ``FASTEST`` to it, or nothing asked.
    """
    check(asked)
    try:
        queues = [replay.queues_of(step) for step in timeline.stretches()]
        beyond = (replay.unexplained(q.sync_ns, replay.latency_ns(q)) for q in queues)
        unusable = next((reason for reason in beyond if reason), None)
    except UsageError as error:
        queues, unusable = [], str(error)
    found = []
    for one in changes(asked):
        made = Prediction(
            change=one.words(), subject=subject, formula=replay.RECORDED, scales=scales(one, STEPS)
        )
        change, reason = change_of(one), unusable
        if queues and one.runtime not in (None, "cuda-graph"):
            reason = f"the host time of {one.runtime} is not in a trace; measure the model"
        elif reason is None and change.graphs and any(q.waits_inside for q in queues):
            reason = "the host waits for the device inside the step; a graph cannot hold that"
        try:
            if reason is not None:
                raise UsageError(reason)
            answer = Answer(replay.RECORDED, *replay.steps_latency(queues, change))
            found.append(_prediction(made, answer, None))
        except UsageError as error:
            found.append(replace(made, reason=str(error)))
    return tuple(found)
