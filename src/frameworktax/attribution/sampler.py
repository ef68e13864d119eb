"""Where a call spends the thread's time: runs it while its program counter is sampled.

Ways to sample, best first: ``perf-event`` (the kernel's own, no tool needed) and ``py-spy`` (a
wheel; pauses the process for every sample, and does not see the operating system).
``attribute_cpu`` takes the first that works and names it.

A run is cut into stretches, so that the spread between them gives an interval. Samples are read
and resolved between and after the stretches, never while calls run.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random, SystemRandom
from statistics import median
from typing import Any, Protocol, runtime_checkable

from frameworktax.attribution.symbols import Leaf
from frameworktax.clock import REAL, Clock, others_ns
from frameworktax.errors import UsageError, WorkerError

METHODS = ("perf-event", "py-spy")
"""Names of the samplers, best first."""

PERIOD_SPREAD = 0.15
"""How far from the middle a period is drawn: over 0.1 ms either way, a short call's own time."""

Call = Callable[[], Any]
_RANDOM = SystemRandom()
"""Has no state that a fork would inherit, and leaves the model's alone."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What a sampler saw in one stretch.

    Attributes:
        leaves: user-mode ticks by where they were.
        system: ticks inside the operating system; None where the sampler cannot see them.
        lost: ticks that were due and have no record.
        ran_ns: time in which a thread of the process ran; None where one thread alone is seen.
        queued_ns: time in which none ran and one would have; None as ``ran_ns``.
    """

    leaves: Counter[Leaf]
    system: int | None
    lost: int = 0
    ran_ns: int | None = None
    queued_ns: int | None = None


class Sampler(AbstractContextManager["Sampler"], Protocol):
    """Samples the thread that made it, between ``start`` and ``stop``."""

    name: str
    period_ns: int
    counts_cpu_time: bool
    """Whether ticks follow the thread's CPU time exactly, so that missing ones mean something."""

    def start(self) -> None:
        """Begin a stretch."""

    def stop(self) -> None:
        """End a stretch and set its samples aside."""

    def ticks(self) -> list[Ticks]:
        """Return what was seen, a stretch each; symbols are resolved here."""


@runtime_checkable
class Pausable(Protocol):
    """A sampler that can leave part of a stretch out."""

    def pause(self) -> None:
        """Take no samples from here."""

    def resume(self) -> None:
        """Take samples again."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch: its ticks, and what the clocks say about the same time.

    ``queued_ns`` is time ready to run while others had the processor; None where not known.
    """

    ticks: Ticks
    calls: int
    wall_ns: int
    cpu_ns: int
    queued_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SampleRun:
    """A sampled run; ``latency_ns`` is the median call while being sampled."""

    method: str
    period_ns: int
    stretches: tuple[Stretch, ...]
    latency_ns: int
    counts_cpu_time: bool = True

    @property
    def calls(self) -> int:
        """Calls in all stretches."""
        return sum(stretch.calls for stretch in self.stretches)


def sample(
    call: Call,
    sampler: Sampler,
    *,
    stretches: int = 5,
    duration_ns: int = 2_000_000_000,
    min_calls: int = 3,
    settle: Callable[[], None] | None = None,
    clock: Clock = REAL,
) -> SampleRun:
    """Run ``call`` over and over while it is sampled.

    With ``settle``, that is called after each call with sampling paused and its time left out:
    the wait for a device is no host work.

    The garbage collector is off inside stretches and runs between them, as in timing. Calls
    longer than ``duration_ns / stretches`` make fewer stretches: the run ends once the duration
    is over and ``min_calls`` were made.
    """
    if settle is not None and not isinstance(sampler, Pausable):
        text = f"{sampler.name} cannot leave out the wait for a device; allow perf-event"
        raise WorkerError("unavailable", text)
    stretch_ns = duration_ns // stretches
    latencies: list[int] = []
    clocks: list[tuple[int, int, int, int | None]] = []
    wall, cpu = clock.wall_ns, clock.cpu_ns
    spent = 0
    was_enabled = gc.isenabled()
    try:
        while len(clocks) < stretches and (spent < duration_ns or len(latencies) < min_calls):
            gc.enable()
            gc.collect()
            gc.disable()
            before = len(latencies)
            sampler.start()
            cpu_begin, begin = cpu(), wall()
            queue = clock.queue()
            now = begin
            settled_wall = settled_cpu = 0
            while now - begin < stretch_ns:
                call_begin = wall()
                call()
                now = wall()
                latencies.append(now - call_begin)
                if settle is not None and isinstance(sampler, Pausable):
                    cpu_mark = cpu()
                    sampler.pause()
                    settle()
                    sampler.resume()
                    settled_wall += wall() - now
                    settled_cpu += cpu() - cpu_mark
            end = wall() if settle else now
            queue_end = clock.queue()
            cpu_end = cpu()
            sampler.stop()
            wall_ns = end - begin - settled_wall
            cpu_ns = cpu_end - cpu_begin - settled_cpu
            queued = others_ns(wall_ns - cpu_ns, queue, queue_end)
            clocks.append((len(latencies) - before, wall_ns, cpu_ns, queued))
            spent += end - begin
    finally:
        (gc.enable if was_enabled else gc.disable)()
    return SampleRun(
        sampler.name,
        sampler.period_ns,
        tuple(_stretch(seen, *times) for seen, times in zip(sampler.ticks(), clocks, strict=True)),
        int(median(latencies)),
        sampler.counts_cpu_time,
    )


def _stretch(seen: Ticks, calls: int, wall_ns: int, cpu_ns: int, queued_ns: int | None) -> Stretch:
    """Return a stretch; of several threads the time in which any of them ran is its CPU time."""
    if seen.ran_ns is None:
        return Stretch(seen, calls, wall_ns, cpu_ns, queued_ns)
    return Stretch(seen, calls, wall_ns, seen.ran_ns, seen.queued_ns)


def available_samplers() -> list[tuple[str, bool, str]]:
    """Return (name, usable, why not and what helps) of each way to sample, best first.

    Imports no engine and takes milliseconds.
    """
    from frameworktax.attribution import perf_event, py_spy

    probes = (perf_event.probe, py_spy.probe)
    reasons = [(name, probe()) for name, probe in zip(METHODS, probes, strict=True)]
    return [(name, reason is None, reason or "") for name, reason in reasons]


def best_sampler() -> str | None:
    """Return the name of the best way to sample that this host allows, None for none."""
    return next((name for name, usable, _ in available_samplers() if usable), None)


def separates_kernels(sampler: str | None, *, has_symbols: bool) -> bool:
    """Return whether samples tell kernels from the rest of a runtime.

    By its symbols; without them by addresses. Where no machine code is read, that is a bound.
    """
    return sampler is not None if has_symbols else sampler == "perf-event"


def drawn_period_ns(period_ns: int, random: Random = _RANDOM) -> int:
    """Return a period near ``period_ns``, another one at each sample.

    A call whose own time is steady and nearly a whole part of the period is met at the same places
    again and again. With another period in each of a point's samples that error is another one in
    each, averages out, and is in the spread between processes.
    """
    return round(period_ns * random.uniform(1 - PERIOD_SPREAD, 1 + PERIOD_SPREAD))


def open_sampler(method: str, stretch_ns: int, threads: int = 1) -> Sampler:
    """Return a sampler of the calling thread, or of every thread where there are several.

    Raises:
        UsageError: no sampler has this name.
        OSError: this host does not allow it.
    """
    from frameworktax.attribution.perf_event import PERIOD_NS, PerfEventSampler
    from frameworktax.attribution.py_spy import PySpySampler

    period_ns = drawn_period_ns(PERIOD_NS)
    if threads > 1:
        from frameworktax.attribution.every_thread import EveryThreadSampler

        return EveryThreadSampler(stretch_ns, period_ns=period_ns)
    if method == "perf-event":
        return PerfEventSampler(stretch_ns, period_ns=period_ns)
    if method == "py-spy":
        return PySpySampler()
    raise UsageError(f"no sampler '{method}'; choose {', '.join(METHODS)}")


def attribute_cpu(
    call: Call,
    *,
    method: str | None = None,
    threads: int = 1,
    stretches: int = 5,
    duration_ns: int = 2_000_000_000,
    settle: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Return where ``call`` spends this thread's time, as the fields of ``records.Attribution``.

    All but ``session``, ``point`` and ``process``; ``notes`` are (code, text) pairs.

    Args:
        call: what to run, without arguments.
        method: one of ``METHODS``; None takes the best that this host allows.
        threads: of the call; all are sampled where there are several, by ``perf-event`` alone.
        stretches: parts of the run, each with its own counts.
        duration_ns: wall time of all stretches together.
        settle: waits for a device after each call, left out of the samples.

    Raises:
        WorkerError: no way to sample works here (status ``unavailable``); says why for each.
    """
    from frameworktax.attribution.buckets import itemise

    refused = []
    usable = METHODS if threads == 1 else METHODS[:1]
    for name in usable if method is None else (method,):
        try:
            with open_sampler(name, duration_ns // stretches, threads) as sampler:
                run = sample(
                    call, sampler, stretches=stretches, duration_ns=duration_ns, settle=settle
                )
        except OSError as error:
            refused.append(f"{name}: {error.strerror or error}")
        else:
            return itemise(run)
    raise WorkerError("unavailable", f"no sampler works here ({'; '.join(refused)})")
