"""Where a call spends the thread's time: runs it while its program counter is sampled.

A run is cut into stretches, so that the spread between them gives an interval. Samples are read
and resolved between and after the stretches, never while calls run.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random, SystemRandom
from statistics import median
from typing import Any, Protocol

from frameworktax.attribution.symbols import Leaf
from frameworktax.clock import REAL, Clock, others_ns
from frameworktax.errors import WorkerError

METHOD = "perf-event"
"""The sampler's name in records; older ones have others."""

PERIOD_SPREAD = 0.15
"""How far from the middle a period is drawn: over 0.1 ms either way, a short call's own time."""

Call = Callable[[], Any]
RANDOM = SystemRandom()
"""Has no state that a fork would inherit, and leaves the model's alone."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What a sampler saw in one stretch.

    Attributes:
        leaves: user-mode ticks by where they were.
        system: ticks inside the operating system; None where the sampler cannot see them, which
            are then those that are missing against the CPU time.
        lost: ticks that were due and have no record.
        ran_ns: time in which a thread of the process ran; None where one thread alone is seen.
        queued_ns: time in which none ran and one would have; None as ``ran_ns``.
        timed: (time, where) of each tick in the order of time, by the sampler of one thread.
    """

    leaves: Counter[Leaf]
    system: int | None
    lost: int = 0
    ran_ns: int | None = None
    queued_ns: int | None = None
    timed: Sequence[tuple[int, Leaf]] = ()


class Sampler(AbstractContextManager["Sampler"], Protocol):
    """Samples the thread that made it, between ``start`` and ``stop``."""

    name: str
    period_ns: int

    def start(self) -> None:
        """Begin a stretch."""

    def pause(self) -> None:
        """Take no samples from here; part of a stretch is left out."""

    def resume(self) -> None:
        """Take samples again."""

    def stop(self) -> None:
        """End a stretch and set its samples aside."""

    def ticks(self) -> list[Ticks]:
        """Return what was seen, a stretch each; symbols are resolved here."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch: its ticks, and what the clocks say about the same time.

    ``queued_ns`` is time ready to run while others had the processor, ``page_faults`` those of the
    process; None where not known.
    """

    ticks: Ticks
    calls: int
    wall_ns: int
    cpu_ns: int
    queued_ns: int | None = None
    page_faults: int | None = None


@dataclass(frozen=True, slots=True)
class SampleRun:
    """A sampled run; ``latency_ns`` is the median call while being sampled."""

    method: str
    period_ns: int
    stretches: tuple[Stretch, ...]
    latency_ns: int

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
    vary: Callable[[], None] | None = None,
    clock: Clock = REAL,
) -> SampleRun:
    """Run ``call`` over and over while it is sampled.

    With ``settle``, that is called after each call with sampling paused and its time left out:
    the wait for a device is no host work. ``vary`` is called before each call, in the stretch.

    The garbage collector is off inside stretches and runs between them, as in timing. Calls
    longer than ``duration_ns / stretches`` make fewer stretches: the run ends once the duration
    is over and ``min_calls`` were made.
    """
    stretch_ns = duration_ns // stretches
    latencies: list[int] = []
    clocks: list[tuple[int, int, int, int | None, int]] = []
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
            faults = clock.page_faults()
            cpu_begin, begin = cpu(), wall()
            queue = clock.queue()
            now = begin
            settled_wall = settled_cpu = 0
            while now - begin < stretch_ns:
                if vary is not None:
                    vary()
                call_begin = wall()
                call()
                now = wall()
                latencies.append(now - call_begin)
                if settle is not None:
                    cpu_mark = cpu()
                    sampler.pause()
                    settle()
                    sampler.resume()
                    settled_wall += wall() - now
                    settled_cpu += cpu() - cpu_mark
            end = wall() if settle else now
            queue_end = clock.queue()
            cpu_end = cpu()
            faults = clock.page_faults() - faults
            sampler.stop()
            wall_ns = end - begin - settled_wall
            cpu_ns = cpu_end - cpu_begin - settled_cpu
            queued = others_ns(wall_ns - cpu_ns, queue, queue_end)
            clocks.append((len(latencies) - before, wall_ns, cpu_ns, queued, faults))
            spent += end - begin
    finally:
        (gc.enable if was_enabled else gc.disable)()
    return SampleRun(
        sampler.name,
        sampler.period_ns,
        tuple(_stretch(seen, *times) for seen, times in zip(sampler.ticks(), clocks, strict=True)),
        int(median(latencies)),
    )


def _stretch(
    seen: Ticks, calls: int, wall_ns: int, cpu_ns: int, queued_ns: int | None, faults: int
) -> Stretch:
    """Return a stretch; of several threads the time in which any of them ran is its CPU time."""
    if seen.ran_ns is None:
        return Stretch(seen, calls, wall_ns, cpu_ns, queued_ns, faults)
    return Stretch(seen, calls, wall_ns, seen.ran_ns, seen.queued_ns, faults)


def usable_sampler() -> str | None:
    """Return the sampler's name, None where this host does not allow it."""
    from frameworktax.attribution.perf_event import probe

    return METHOD if probe() is None else None


def drawn_period_ns(period_ns: int, random: Random = RANDOM) -> int:
    """Return a period near ``period_ns``, another one at each sample.

    A call whose own time is steady and nearly a whole part of the period is met at the same places
    again and again. With another period in each of a point's samples that error is another one in
    each, averages out, and is in the spread between processes.
    """
    return round(period_ns * random.uniform(1 - PERIOD_SPREAD, 1 + PERIOD_SPREAD))


def open_sampler(stretch_ns: int, threads: int = 1) -> Sampler:
    """Return a sampler of the calling thread, or of every thread where there are several.

    Raises:
        OSError: this host does not allow it.
    """
    from frameworktax.attribution.perf_event import PERIOD_NS, PerfEventSampler

    period_ns = drawn_period_ns(PERIOD_NS)
    if threads == 1:
        return PerfEventSampler(stretch_ns, period_ns=period_ns)
    from frameworktax.attribution.every_thread import EveryThreadSampler

    return EveryThreadSampler(stretch_ns, period_ns=period_ns)


def attribute_cpu(
    call: Call,
    *,
    threads: int = 1,
    stretches: int = 5,
    duration_ns: int = 2_000_000_000,
    call_ns: int = 0,
    settle: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Return where ``call`` spends this thread's time, as the fields of ``records.Attribution``.

    All but ``session``, ``point`` and ``process``; ``notes`` are (code, text) pairs.

    Args:
        call: what to run, without arguments.
        threads: of the call; all are sampled where there are several.
        stretches: parts of the run, each with its own counts.
        duration_ns: wall time of all stretches together.
        call_ns: about what a call takes, all of which is to be sampled.
        settle: waits for a device after each call, left out of the samples.

    Raises:
        WorkerError: this host allows no sampling (status ``unavailable``).
    """
    from frameworktax.attribution.buckets import itemise

    stretch_ns = max(duration_ns // stretches, call_ns)
    with refused_as_unavailable(), open_sampler(stretch_ns, threads) as sampler:
        return itemise(
            sample(call, sampler, stretches=stretches, duration_ns=duration_ns, settle=settle)
        )


@contextmanager
def refused_as_unavailable() -> Iterator[None]:
    """Raise the refusal of a sampler as a WorkerError; any other error is the call's own."""
    from frameworktax.attribution.perf_event import RefusedError

    try:
        yield
    except RefusedError as refused:
        raise WorkerError("unavailable", str(refused.strerror)) from refused
