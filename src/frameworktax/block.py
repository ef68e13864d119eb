"""Code measured in place: how much of a block's time is framework tax.

    with ft.tax("decode") as decode:
        model(tokens)
    print(decode)

    with ft.tax("step", module=model) as step:  # and which of its layers pays
        model(tokens)

    @ft.tax("forward")
    def forward(x): ...

    print(forward.block)

Each run of the block is either timed or sampled, by a seeded coin: latency comes from runs without
the sampler, shares from runs with it. Nothing is repeated, warmed up or pinned, so the numbers are
those of the program as it ran, with everything that ran beside it; for a comparison, ``measure``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from frameworktax.analysis.bill import from_samples
from frameworktax.analysis.estimates import exactly, shifted
from frameworktax.analysis.places import layers
from frameworktax.analysis.where import where
from frameworktax.attribution.buckets import itemise
from frameworktax.attribution.sampler import Sampler, open_sampler
from frameworktax.clock import REAL, Clock
from frameworktax.errors import UsageError
from frameworktax.measure import protocol
from frameworktax.measure.inline_profiler import (
    RING_NS,
    Ended,
    InlineProfiler,
    hidden,
    returns_early,
)
from frameworktax.records import Estimate, Layer, Note
from frameworktax.stats import mean_interval

if TYPE_CHECKING:
    from frameworktax.attribution.layers import RunClock

BATCHES = 20
"""Runs are averaged to so many means at most: neighbours in time are not independent."""
WAITS = 0.2
"""Share of waiting from which on a note says that other threads may compute meanwhile."""
TRIALS = 64
"""Empty runs that give the cost of profiling."""
OWN_THREAD = partial(open_sampler, RING_NS)
"""Returns a sampler of the calling thread; raises OSError where that is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTax:
    """What is known of a block; times in ns.

    Attributes:
        calls: runs of the block.
        wall_ns: of all of them.
        latency: one run, from those that were not sampled where there are two.
        kernel: time in kernels, None where it is unknown.
        tax: latency less kernel time.
        share: tax over latency.
        bill_ns: latency by line of the breakdown.
        layers: of the module that was given, which add up to the latency; empty where unknown.
        reason: why there is no kernel time.
        own_cost_ns: processor time that profiling adds to a run; next to nothing of it is in the
            other numbers.
    """

    name: str
    calls: int
    wall_ns: int
    latency: Estimate | None
    own_cost_ns: int
    kernel: Estimate | None = None
    tax: Estimate | None = None
    share: Estimate | None = None
    bill_ns: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()
    reason: str | None = None
    notes: tuple[Note, ...] = ()

    def _repr_html_(self) -> str:
        from frameworktax.report.blocks import Cell, Note, Notes, right, table
        from frameworktax.report.html import blocks_html
        from frameworktax.report.run_blocks import bar_cell, place_table
        from frameworktax.report.words import duration, interval, label, lines_of, percent

        lines = lines_of(self.bill_ns)
        latency = "–" if self.latency is None else interval(self.latency)
        share = Cell("–")
        if self.share is not None:
            low, high = percent(self.share.low), percent(self.share.high)
            share = Cell(percent(self.share.value), note=f"({low} to {high})")
        bar = bar_cell(self.bill_ns, sum(self.bill_ns.values()))
        shown = table(
            "",
            ["block", right("runs"), right("latency (ms)"), right("tax"), "breakdown"],
            [[self.name, f"{self.calls:,}", latency, share, bar]],
            hint=", ".join(f"{label(name)} {duration(ns)}" for name, ns in lines),
        )
        notes = [Note(note.code, note.text) for note in self.notes]
        if self.reason is not None:  # by keyword: it is no code of a document
            notes.insert(0, Note(code="unavailable", text=f"tax unavailable: {self.reason}"))
        places = where(self.layers)
        found = [place_table(self.name, places, folded=False)] if places else []
        return blocks_html([shown, *found, Notes("", tuple(notes))])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        from frameworktax.report.words import duration, interval, label, lines_of, percent

        if self.latency is None:
            return f"{self.name}: {self.reason}"
        runs = "1 run" if self.calls == 1 else f"{self.calls} runs"
        head = f"{self.name}: {runs}, {interval(self.latency)} ms each"
        if self.share is None:
            return f"{head}; tax unavailable: {self.reason}"
        lines = ", ".join(f"{label(line)} {duration(ns)}" for line, ns in lines_of(self.bill_ns))
        low, high = percent(self.share.low), percent(self.share.high)
        text = (
            f"{head}; framework tax {percent(self.share.value)} ({low} to {high}): {lines}; "
            f"profiling takes {duration(self.own_cost_ns)} a run"
        )
        for place in where(self.layers):
            text += f"\n  {place.name or 'the module'}: {percent(place.share)} of the tax"
            text += f", mostly {label(place.line)}" + (place.source and f" ({place.source})")
        return text


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Profiled(Protocol[P, R]):
    """A function whose runs are profiled."""

    block: Block

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it."""


class Block:
    """A piece of code under one name; entered any number of times, by any thread."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock = REAL,
        sampler: Callable[[], Sampler] = OWN_THREAD,
        module: Any = None,
    ) -> None:
        self.name = name
        self.module = module
        self._clock = clock
        self._open = sampler
        self._local = threading.local()
        self._profilers: list[InlineProfiler] = []
        self._ended = Ended()
        self._layers: RunClock | None = None
        """Of the thread that came first: modules read the clock for one thread at a time."""
        self._lock = threading.Lock()

    def __call__(self, func: Callable[P, R]) -> Profiled[P, R]:
        """Return the function profiled; its ``block`` is this.

        Raises:
            UsageError: a call of it returns before its work is done.
        """
        if returns_early(func):
            raise UsageError(
                f"{getattr(func, '__qualname__', func)} returns before its work is done; "
                "write 'with ft.tax(...):' around that work, inside of it"
            )

        @wraps(func)
        def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return func(*args, **kwargs)

        profiled.block = self  # type: ignore[attr-defined]  # a function has attributes
        return cast("Profiled[P, R]", profiled)

    def __enter__(self) -> Block:
        profiler = getattr(self._local, "profiler", None)
        if profiler is None or profiler.process != os.getpid():  # the latter is of a parent
            profiler = self._make_profiler()
        profiler.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        profiler = getattr(self._local, "profiler", None)
        if profiler is None or not profiler.depth:  # as of a generator that ends in another thread
            raise UsageError(
                f"block '{self.name}' was not entered in this thread; leave it where it was entered"
            )
        profiler.leave()

    def _make_profiler(self) -> InlineProfiler:
        try:
            made = InlineProfiler(self._clock, self._open(), None)
        except OSError as error:
            made = InlineProfiler(self._clock, None, str(error.strerror or error))
        self._local.profiler = made
        with self._lock:
            self._profilers = [*self._living(), made]
            if self.module is not None and self._layers is None:
                self._layers = made.layers = _run_clock(self.module)
        return made

    def _living(self) -> list[InlineProfiler]:
        """Return the profilers of living threads; a pool's threads come and go."""
        if any(profiler.process != os.getpid() for profiler in self._profilers):
            # Forked: those runs are the parent's.
            self._profilers, self._ended, self._layers = [], Ended(), None
        living = []
        for profiler in self._profilers:
            if profiler.thread.is_alive():
                living.append(profiler)
            else:
                self._ended.take(profiler)
        return living

    def result(self) -> BlockTax:
        """Return what is known so far; a run that has not ended is not in it."""
        with self._lock:
            self._profilers = self._living()
            threads: list[InlineProfiler | Ended] = [self._ended, *self._profilers]
            runs = [run for one in threads if (run := one.run()) is not None]
            plain = [ns for one in threads for ns in one.plain]
            sampled = [ns for one in threads for ns in one.sampled]
            placed = [ns for one in threads for ns in one.placed]
            refused = next((one.refused for one in threads if one.refused), None)
            interleaved = sum(one.interleaved for one in threads)
            places = self._layers.places() if self._layers is not None else None
        latency = _latency(plain, sampled)
        notes: list[Note] = []
        if interleaved:
            text = (
                f"{interleaved} runs began while another task of asyncio was in the block, and are "
                "counted in its run: put no await inside"
            )
            notes.append(Note("interleaved", text))
        known = BlockTax(
            name=self.name,
            calls=len(plain) + len(sampled) + len(placed),
            wall_ns=sum(plain) + sum(sampled) + sum(placed),
            latency=latency,
            own_cost_ns=self._own_cost_ns(),
            notes=tuple(notes),
        )
        reason = refused or hidden() or ("never run" if latency is None else None)
        bill = None
        if reason is None and latency is not None:
            found = [protocol.attribution(itemise(run)) for run in runs]
            mean = fmean(plain) if len(plain) > 1 else None
            bill = from_samples(latency, found, {}, lambda: mean)
            reason = None if bill else "too short to be sampled; run it more often"
        if bill is None:
            return replace(known, reason=reason)
        notes += bill.notes
        if len(plain) < 2:
            text = (
                "the block ran too seldom to be timed without the sampler, whose cost is in the "
                "latency: 10 to 13 % on a virtual machine"
            )
            notes.append(Note("timed-while-sampled", text))
        if (waits := bill.lines.get("wait", 0.0) / sum(bill.lines.values())) > WAITS:
            text = f"the thread waits for {waits:.0%} of a run: what others compute then is its tax"
            notes.append(Note("waits-for-others", text))
        if self._layers is not None and self._layers.refused:
            notes.append(Note("not-attributed", f"no layers: {self._layers.refused}"))
        inside: tuple[Layer, ...] = ()
        if places is not None and latency is not None:
            inside = layers(latency, bill.lines, [protocol.places(places)])
        return replace(
            known,
            kernel=bill.kernel,
            tax=bill.tax,
            share=bill.share,
            bill_ns=bill.lines,
            layers=inside,
            notes=tuple(notes),
        )

    def __str__(self) -> str:
        return str(self.result())

    def _own_cost_ns(self) -> int:
        """Return what a run of an empty block takes besides the time that is measured of it."""
        empty = Block(self.name, clock=self._clock, sampler=self._open)
        with empty:
            pass  # opens the sampler
        cpu = self._clock.cpu_ns  # what others take meanwhile is not the block's cost
        begin = cpu()
        for _ in range(TRIALS):
            with empty:
                pass
        spent = cpu() - begin
        empty._profilers[0].close()
        return round(spent / TRIALS)


NAMED: dict[str, Block] = {}
"""Blocks of ``tax`` by name; without an entry a name begins anew."""


def tax(name: str | None = None, *, module: Any = None, fresh: bool = False) -> Block:
    """Return a context manager and decorator that measures the framework tax of what it runs.

    Args:
        name: of the block; all runs under one name are one block, also of a ``with`` in a loop.
            Without a name it is one of its own.
        module: a ``torch.nn.Module`` that the block calls; a quarter of the runs, 4 s of them at
            most, show which of its layers pays. In those a call of a module takes a few µs more.
        fresh: forget earlier runs under this name.

    Raises:
        UsageError: the name is no text, what was given as the module is none, or the block of this
            name has another one.
    """
    if not (module is None or hasattr(module, "named_children")):
        raise UsageError(f"{type(module).__name__} is no torch.nn.Module; give one as module=")
    if name is None:
        return Block("block", module=module)
    if not isinstance(name, str):
        raise UsageError('tax takes the name of a block, as in @ft.tax("forward")')
    if fresh:
        NAMED.pop(name, None)
    block = NAMED.setdefault(name, Block(name, module=module))
    if module is not None and block.module is not module:
        raise UsageError(f"block '{name}' was begun with another module; add fresh=True")
    return block


def _run_clock(module: Any) -> RunClock | None:
    """Return what shows the layers of runs in this thread; None where it allows no sampling."""
    from frameworktax.attribution import layers
    from frameworktax.attribution.perf_event import PerfEventSampler

    try:
        sampler = PerfEventSampler(RING_NS, period_ns=layers.PERIOD_NS)
    except OSError:
        return None  # the block's own sampler says why
    return layers.RunClock(module, sampler)


def _latency(plain: Sequence[int], sampled: Sequence[int]) -> Estimate | None:
    values = plain if len(plain) > 1 else (*plain, *sampled)
    if not values:
        return None
    if len(values) == 1:
        return exactly(float(values[0]), "one run")
    batches = min(BATCHES, len(values))
    ends = [len(values) * number // batches for number in range(batches + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(ends)]
    found = mean_interval(means, "mean of runs in place")
    # some batches have one run more than others
    return found and shifted(found, fmean(values) - found.value)
