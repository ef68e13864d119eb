"""What to do about a trace: upper bounds, because it was recorded under a profiler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from frameworktax.analysis.advice import EMPTY, WORTH, ranked
from frameworktax.analysis.estimates import duration, exactly, percent, times_at_most
from frameworktax.analysis.trace.bill import slowed
from frameworktax.analysis.whatif import replay
from frameworktax.analysis.whatif.replay import Change
from frameworktax.errors import UsageError
from frameworktax.records import Advice
from frameworktax.traces.timeline import Timeline

PART = 0.1
"""Share of the wall from which on a part is worth an advice of its own."""
LINES = {
    "data_loading": (
        "load data beside the model: more workers of the DataLoader, or less work for a batch",
        "the DataLoader takes {share} of the time{idle}",
    ),
    "communication": (
        "communicate beside the kernels, or less, or let devices wait less for each other",
        "only kernels that communicate run for {share} of the time, which includes waiting for "
        "other devices; compare the traces of all ranks",
    ),
    "copies": (
        "keep data on the device, or copy it from pinned memory beside the kernels",
        "only copies run for {share} of the time",
    ),
}
"""Line of the bill → what to do where it is a large part, and what shows that."""
REMEDY = {
    "memory": "keep device memory between calls",
    "loading": "call the model once before it is timed",
    "compilation": "compile before it is timed",
    "initialisation": "initialise the device before it is timed",
}


def advise(timeline: Timeline, trace: Mapping[str, Any]) -> tuple[Advice, ...]:
    """Return what to do about a trace, the largest gain first; every gain is an upper bound."""
    if not trace["wall_ns"]:
        return ()  # steps without length have nothing to gain
    if (first := _start_up(trace)) is not None:
        found = iter([first])  # what else the steps show is not what they do when warm
    elif len(timeline.work):
        found = _on_device(timeline, trace)
    elif trace["no_regime"] == "device-missing":
        return ()
    else:
        found = _on_cpu(trace)
    return ranked(advice for advice in found if advice.gain.value >= WORTH)


def _bound(action: str, evidence: str, before: float, after: float) -> Advice:
    gain = before / max(after, 1.0)  # where nothing is left: as if it were 1 ns
    gained = exactly(gain, "of a recorded trace, at most")
    return Advice(action=action, evidence=evidence, gain=gained, kind="bound")


def _ceiling(what: str, evidence: str, before: float, after: float) -> Iterator[Advice]:
    """Yield the most that something could give, which is no action; nothing if it is too much."""
    found = _bound(f"{what} would give at most ", evidence, before, after)
    if found.gain.value <= EMPTY:
        yield replace(found, action=found.action + times_at_most(found.gain.value))


def _start_up(trace: Mapping[str, Any]) -> Advice | None:
    """Return the advice to be warm first, where start-up calls are a large part of the steps."""
    wall, begun = trace["wall_ns"], trace["bill_ns"].get("startup", 0)
    inside = [call for call in trace["startup"] if call["in_steps_ns"]]
    if begun < PART * wall or not inside:
        return None
    first = max(inside, key=lambda call: call["in_steps_ns"])
    said, more = "start-up calls take", ""
    if trace["idle_ns"] is not None:
        said = "in start-up calls devices are idle for"
        share = percent(trace["busy_ns"] / (wall - begun or 1))
        more = f"; without such calls a device is busy {share} of the rest"
    return _bound(
        f"{REMEDY[first['kind']]}: {said} {duration(begun)} of {duration(wall)}",
        f"{first['name']} takes {duration(first['in_steps_ns'])} inside steps{more}. A warm "
        "process does not repeat them; where every step does, memory is given back between "
        "steps (torch.cuda.empty_cache) or shapes change",
        wall,
        wall - begun,
    )


def _lines(trace: Mapping[str, Any]) -> Iterator[Advice]:
    """Yield the advice against each of ``LINES`` that is a large part of the steps."""
    wall = trace["wall_ns"]
    idle = "" if trace["idle_ns"] is None else ", with every device idle"
    for line, (action, evidence) in LINES.items():
        part = trace["bill_ns"].get(line, 0)
        if part >= PART * wall:
            said = evidence.format(share=percent(part / wall), idle=idle)
            yield _bound(action, said, wall, wall - part)


def _on_device(timeline: Timeline, trace: Mapping[str, Any]) -> Iterator[Advice]:
    wall, bill = trace["wall_ns"], trace["bill_ns"]
    busy, begun = trace["busy_ns"], bill.get("startup", 0)
    if trace["no_regime"] == "work-before-recording":
        return
    graphs = _graphs(timeline, trace)
    if graphs is not None and graphs.gain.value >= WORTH:
        yield graphs
    elif busy:
        yield from _ceiling(
            "the same kernels without an idle device",
            f"a device is busy {percent(busy / wall)} of the time; more needs other kernels",
            wall,
            busy,
        )
    yield from _lines(trace)
    idle = trace["idle_ns"]
    host = idle["host_starvation"] - begun
    least = wall - host * (1 - 1 / slowed(timeline))
    most = busy + bill.get("unknown", 0)  # what of it is busy is not known
    if idle["host_starvation"] and least > most:
        yield from _ceiling(
            "a faster device",
            f"devices are known to be idle {percent(1 - most / wall)} of the time, and without the "
            f"profiler at least {math.floor(100 * (1 - most / least))} %",
            least,
            least - most,
        )


def _graphs(timeline: Timeline, trace: Mapping[str, Any]) -> Advice | None:
    """Return the advice to launch a step as one graph, the most that it can give."""
    try:
        queues = [replay.queues_of(step) for step in timeline.stretches()]
    except UsageError:
        return None
    if any(np.count_nonzero(q.host_ns) <= len(q.firsts) for q in queues):
        return None
    before, after, change = sum(map(replay.latency_ns, queues)), 0.0, Change(graphs=True)
    for q in (replace(q, blocked=np.zeros_like(q.blocked)) for q in queues):
        after += min(
            replay.latency_ns(replay.changed(v, change)) for v in replay.variants(q, change)
        )
    waits = [w["operator"] or w["call"] for w in trace["waits"]]
    launches = sum(step["launches"] for step in trace["steps"])
    first = f"; first move the wait in {waits[0]} out, which no graph can hold" if waits else ""
    return _bound(
        f"capture the step in a CUDA graph, or torch.compile(mode='reduce-overhead'){first}",
        f"{launches} launches in {duration(trace['wall_ns'])}, of which a device is busy "
        f"{duration(trace['busy_ns'])}; {replay.RECORDED}, a graph in place of every launch; the "
        "profiler slows launches, so measure it",
        before,
        after,
    )


def _on_cpu(trace: Mapping[str, Any]) -> Iterator[Advice]:
    yield from _lines(trace)
    wall, work = trace["wall_ns"], trace["bill_ns"].get("operators", 0)
    if work:
        yield from _ceiling(
            "faster code around the operators",
            f"operators that compute take {percent(work / wall)} of the time, their dispatch "
            "included; frameworktax measure separates the two",
            wall,
            work,
        )
