"""Runs of a block of code in the threads that run it: each is timed or sampled."""

from __future__ import annotations

import inspect
import os
import random
import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from frameworktax.attribution.sampler import Sampler, SampleRun, Stretch, Ticks
from frameworktax.clock import Clock, Queue, others_ns

if TYPE_CHECKING:
    from frameworktax.attribution.layers import RunClock

STRETCH_NS = 100_000_000
"""Sampled time after which samples are set aside, so that the spread gives an interval."""
PLACED = 0.25
"""Share of runs, beyond the first two, that show layers where those are asked for."""
RING_NS = 2_000_000_000
"""The longest run whose samples the ring buffer holds; what is lost of a longer one is counted."""


@dataclass
class InlineProfiler:
    """The runs of the block in one thread."""

    clock: Clock
    sampler: Sampler | None
    refused: str | None
    coin: random.Random = field(default_factory=lambda: random.Random(0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    layers: RunClock | None = None
    depth: int = 0
    sampling: Sampler | None = None
    """Of the run, where it is sampled."""
    placing: RunClock | None = None
    """Of the run, where it shows layers."""
    running: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)
    process: int = field(default_factory=os.getpid)
    plain: array[int] = field(default_factory=lambda: array("q"))
    sampled: array[int] = field(default_factory=lambda: array("q"))
    placed: array[int] = field(default_factory=lambda: array("q"))
    """Runs in which modules read the clock; no source of latency."""
    stretches: list[tuple[int, int, int, int | None]] = field(default_factory=list)
    open: tuple[int, int, int, int | None] = (0, 0, 0, 0)
    """The stretch that is not set aside: calls, wall time, CPU time, time in the queue."""
    begin: tuple[int, Queue, int] = (0, (None, 0), 0)
    """Wall time, queue and CPU time of the thread when the run began."""
    task: Any = None
    """That of asyncio in which the run began."""
    interleaved: int = 0
    """Runs that another task of asyncio began within one, which are no runs of their own."""

    def enter(self) -> None:
        """Begin a run, unless one is under way in this thread."""
        self.depth += 1
        if self.depth > 1:
            self.interleaved += _task() is not self.task
            return
        self.task = _task()
        # The first run is sampled, the second is not: two runs already give both.
        runs = len(self.plain) + len(self.sampled)
        is_drawn = runs == 0 or (runs > 1 and self.coin.random() < 0.5)
        may_place = self.layers is not None and self.layers.is_open and runs > 1
        self.placing = self.layers if may_place and self.coin.random() < PLACED else None
        self.sampling = self.sampler if is_drawn and self.placing is None else None
        if self.sampling is not None:
            with self.lock:
                self.running = True
            (self.sampling.resume if self.open[0] else self.sampling.start)()
            # In the order of the end: each of the three then has the same readings in it.
            self.begin = self.clock.wall_ns(), self.clock.queue(), self.clock.cpu_ns()
            return
        self.begin = self.clock.wall_ns(), (None, 0), 0
        if self.placing is not None:
            self.placing.begin()

    def leave(self) -> None:
        """End the run, if it is the outermost."""
        now = self.clock.wall_ns()
        self.depth -= 1
        if self.depth:
            return
        if self.placing is not None:
            self.placing.end()
        if self.process != os.getpid():  # the rest of a parent's run, forked in it
            return
        begin, queue, cpu = self.begin
        wall_ns = now - begin
        if self.sampling is None:
            (self.plain if self.placing is None else self.placed).append(wall_ns)
            return
        queue_end = self.clock.queue()
        cpu_ns = self.clock.cpu_ns() - cpu
        self.sampling.pause()
        queued_ns = others_ns(wall_ns - cpu_ns, queue, queue_end)
        self.sampled.append(wall_ns)
        calls, wall, ran, queued = self.open
        self.open = calls + 1, wall + wall_ns, ran + cpu_ns, _sum(queued, queued_ns)
        with self.lock:
            self.running = False
            if self.open[1] >= STRETCH_NS:
                self._set_aside()

    def _set_aside(self) -> None:
        if self.sampler is not None and self.open[0]:
            self.sampler.stop()
            self.stretches.append(self.open)
            self.open = 0, 0, 0, 0

    def run(self) -> SampleRun | None:
        """Return what was sampled, None if nothing was; a run that has not ended is left out."""
        with self.lock:
            if self.sampler is None:
                return None
            if not self.running:
                self._set_aside()
            if not self.stretches:
                return None
            ticks = self.sampler.ticks()
            return SampleRun(
                method=self.sampler.name,
                period_ns=self.sampler.period_ns,
                stretches=tuple(
                    Stretch(seen, *clocks)
                    for seen, clocks in zip(ticks, self.stretches, strict=True)
                ),
                latency_ns=round(median(self.sampled)),
            )

    def close(self) -> SampleRun | None:
        """Give the sampler back; return what was sampled."""
        found = self.run()
        if self.sampler is not None:
            self.sampler.__exit__(None, None, None)
            self.sampler = None
        return found


@dataclass
class Ended:
    """The runs of the block in threads that have ended, with one list of stretches."""

    plain: array[int] = field(default_factory=lambda: array("q"))
    sampled: array[int] = field(default_factory=lambda: array("q"))
    placed: array[int] = field(default_factory=lambda: array("q"))
    stretches: list[Stretch] = field(default_factory=list)
    last: SampleRun | None = None
    refused: str | None = None
    interleaved: int = 0

    def take(self, profiler: InlineProfiler) -> None:
        """Take over the runs of a thread; a short last stretch is continued."""
        found = profiler.close()
        self.plain.extend(profiler.plain)
        self.sampled.extend(profiler.sampled)
        self.placed.extend(profiler.placed)
        self.refused = self.refused or profiler.refused
        self.interleaved += profiler.interleaved
        if found is None:
            return
        self.last = found
        for stretch in found.stretches:
            if self.stretches and self.stretches[-1].wall_ns < STRETCH_NS:
                self.stretches[-1] = _together(self.stretches[-1], stretch)
            else:
                self.stretches.append(stretch)

    def run(self) -> SampleRun | None:
        """Return what was sampled as one run, None if nothing was."""
        if self.last is None:
            return None
        latency_ns = round(median(self.sampled))
        return replace(self.last, stretches=tuple(self.stretches), latency_ns=latency_ns)


def _task() -> Any:
    """Return the task of asyncio that runs in this thread, None outside of one."""
    if (asyncio := sys.modules.get("asyncio")) is None:
        return None
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _together(a: Stretch, b: Stretch) -> Stretch:
    """Return two stretches as one; what one of them does not know is not known of both."""
    return Stretch(
        Ticks(
            a.ticks.leaves + b.ticks.leaves,
            _sum(a.ticks.system, b.ticks.system),
            a.ticks.lost + b.ticks.lost,
        ),
        a.calls + b.calls,
        a.wall_ns + b.wall_ns,
        a.cpu_ns + b.cpu_ns,
        _sum(a.queued_ns, b.queued_ns),
    )


def returns_early(function: Callable[..., Any]) -> bool:
    """Return whether a call returns before its work is done: its time is not that of the work."""
    called = function, type(function).__call__  # the latter of an object that is called
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return any(is_kind(one) for is_kind in kinds for one in called)


def hidden() -> str | None:
    """Return why the host's samples do not show kernel time, where a GPU does the work."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return (
            "kernels run on a GPU, and the latency is the time until the call returns; "
            "frameworktax explain shows both from a profiler's trace"
        )
    return None
