"""Which module of a model, or which line of Python, each sample belongs to.

While a run by place lasts, ``forward`` of every module, and every other public method of a class
that is not torch's own, is wrapped by two readings of the clock that samples carry too. A sample
belongs to the module that was entered last and not left. Torch's own hooks are not used: they cost
more; this adds to the call of a module about what the call of an empty one takes.

What does not run in Python is one layer: a scripted module, or one given to ``torch.compile``.

Lines are noted by a signal at every sample. Python handles it where the interpreter next looks:
after a call into C has returned, at the start of a function, at the end of a loop's turn. So a
sample inside a C function goes to the line that called it, and one between two calls may go to the
next. Frames of torch, of the standard library and of this package are passed over.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import sysconfig
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import numpy as np

from frameworktax.attribution.buckets import classify
from frameworktax.attribution.perf_event import PerfEventSampler
from frameworktax.attribution.sampler import (
    Call,
    SampleRun,
    Ticks,
    refused_as_unavailable,
    sample,
)
from frameworktax.attribution.symbols import Leaf
from frameworktax.errors import WorkerError

PERIOD_NS = 491_000
"""Two thirds of the breakdown's: a layer has few samples, and this run gives no latency."""
OUTSIDE = -1
"""Index of no module."""
STRETCH_NS, LONGEST_NS = 100_000_000, 4_000_000_000
"""Of a program's own runs: sampled time of a stretch, and of all of them."""
COMPILED = "its modules are part of a compiled function, which has no layers"


class ModuleClock:
    """Notes when each module is entered and left, between ``__enter__`` and ``__exit__``.

    Attributes:
        events: (time in ns, index of the module entered or ``OUTSIDE`` for one left), alternating.

    Args:
        root: a ``torch.nn.Module``.
        now: the clock.
    """

    def __init__(self, root: Any, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.events: list[int] = []  # an array would take half as long again to append to
        self._now = now
        self._thread = threading.get_ident()
        self._found = list(_walk("", root, set()))
        self._wrapped: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> ModuleClock:
        for index, (_, module, name) in enumerate(self._found):
            names = [name, *_further_methods(module)] if name == "forward" else [name]
            for method in names:
                attributes = vars(module)
                self._wrapped.append((attributes, method, attributes.get(method)))
                attributes[method] = self._clocked(getattr(module, method), index)
        return self

    def __exit__(self, *exception: object) -> None:
        for attributes, method, before in reversed(self._wrapped):
            if before is None:
                del attributes[method]
            else:
                attributes[method] = before
        self._wrapped.clear()

    def _clocked(self, method: Callable[..., Any], index: int) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(method):
            return method  # it runs in turns with who takes what it yields, and is counted there
        now, note, ident, thread = self._now, self.events.append, threading.get_ident, self._thread

        @wraps(method)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            if ident() != thread:
                return method(*args, **kwargs)
            note(now())
            note(index)
            try:
                return method(*args, **kwargs)
            finally:
                note(now())
                note(OUTSIDE)

        return clocked

    def modules(self) -> tuple[dict[str, Any], ...]:
        """Return the modules as the fields of ``records.Module``, by index."""
        calls = replayed(self.events[1::2])[1]
        return tuple(
            {"path": path, "calls": calls[index], **_source(module)}
            for index, (path, module, _) in enumerate(self._found)
        )

    def innermost(self, times: Sequence[int]) -> list[int]:
        """Return the index of the module that each time fell in, ``OUTSIDE`` for none."""
        state = replayed(self.events[1::2])[0]
        begins = np.array(self.events[::2], np.int64)
        return [state[at] for at in np.searchsorted(begins, np.array(times, np.int64), "right")]


def replayed(entered: Iterable[int]) -> tuple[list[int], Counter[int]]:
    """Return the innermost module before and after each event, and calls by index.

    A module's method that calls another of its own is one call.

    Args:
        entered: index of a module, or ``OUTSIDE`` where one is left.
    """
    stack, state = [OUTSIDE], [OUTSIDE]
    calls: Counter[int] = Counter()
    for index in entered:
        if index >= 0:
            calls[index] += index != stack[-1]
            stack.append(index)
        elif len(stack) > 1:
            stack.pop()
        state.append(stack[-1])
    return state, calls


def _walk(path: str, module: Any, seen: set[int]) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, module, name of the method that runs it), each module once."""
    if id(module) in seen:
        return
    seen.add(id(module))
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    yield path, module, "_compiled_call_impl" if compiled_in_place else "forward"
    if compiled_in_place or _original(module) is not None or _is_scripted(module):
        return
    for name, child in module.named_children():
        yield from _walk(f"{path}.{name}" if path else name, child, seen)


def _original(module: Any) -> Any:
    """Return the module behind ``torch.compile(module)``, None for others."""
    return getattr(module, "_orig_mod", None)


def _is_scripted(module: Any) -> bool:
    import torch

    return isinstance(module, torch.jit.ScriptModule)


def _further_methods(module: Any) -> list[str]:
    """Return the public methods besides ``forward`` of classes that torch does not define."""
    import torch

    found: dict[str, None] = {}
    for kind in type(module).__mro__:
        if kind.__module__.partition(".")[0] == "torch":
            continue
        for name, value in vars(kind).items():
            known = name == "forward" or hasattr(torch.nn.Module, name)
            if inspect.isfunction(value) and not known and not name.startswith("_"):
                found[name] = None
    return [name for name in found if callable(getattr(module, name))]  # no value in its place


def _source(module: Any) -> dict[str, Any]:
    """Return class, file and line of what runs when a module is called."""
    original = _original(module) or module
    kind = type(original)
    name = getattr(original, "original_name", kind.__name__)  # of a scripted module's class
    suffix = ""
    if original is not module or getattr(module, "_compiled_call_impl", None) is not None:
        suffix = " (compiled)"
    elif _is_scripted(module):
        return {"type": f"{name} (scripted)", "file": None, "line": None}
    code = getattr(inspect.unwrap(getattr(kind, "forward", kind)), "__code__", None)
    return {
        "type": f"{name}{suffix}",
        "file": short_path(code.co_filename) if code else None,
        "line": code.co_firstlineno if code else None,
    }


def short_path(file: str) -> str:
    """Return a source file below the folder that it is imported from, or else as it is."""
    folders = [str(Path(folder).resolve()) for folder in [*sys.path, "."]]
    inside = [folder for folder in folders if file.startswith(f"{folder}/")]
    return file[len(max(inside, key=len)) + 1 :] if inside else file


def attribute_modules(
    call: Call, root: Any, *, stretches: int = 5, duration_ns: int = 500_000_000, call_ns: int = 0
) -> dict[str, Any]:
    """Return which module each sample of a run belongs to, as the fields of ``records.Places``.

    All but ``session``, ``point`` and ``process``; ``modules`` are fields of ``records.Module``.

    Args:
        call: what to run, without arguments.
        root: the ``torch.nn.Module`` that it calls.
        stretches: parts of the run, each with its own counts.
        duration_ns: wall time of all stretches together.
        call_ns: about what a call takes, all of which is to be sampled.

    Raises:
        WorkerError: this host allows no sampling, or the model was compiled around its modules
            (status ``unavailable``).
    """
    with refused_as_unavailable():
        stretch_ns = max(duration_ns // stretches, call_ns)
        sampler = PerfEventSampler(stretch_ns, period_ns=PERIOD_NS)
    with sampler, ModuleClock(root) as modules:
        refuse_compiled(call, modules)
        run = sample(call, sampler, stretches=stretches, duration_ns=duration_ns, vary=sampler.vary)
    ticks = [stretch.ticks for stretch in run.stretches]
    return places("module", run, **by_module(modules, ticks))


def by_module(modules: ModuleClock, ticks: Sequence[Ticks]) -> dict[str, Any]:
    """Return the modules that were called, and the samples of each stretch by module."""
    where = iter(modules.innermost([time_ns for seen in ticks for time_ns, _ in seen.timed]))
    counts = [
        Counter((next(where), "", classify(leaf)[0]) for _, leaf in seen.timed) for seen in ticks
    ]
    return by_place(modules.modules(), counts)


def by_place(
    modules: Sequence[dict[str, Any]], counts: Iterable[Mapping[tuple[int, str, str], int]]
) -> dict[str, Any]:
    """Return the modules that were called, and the counts of each stretch, as fields of ``Places``.

    Args:
        modules: fields of ``records.Module``.
        counts: by (index in ``modules`` or ``OUTSIDE``, operator, line of the breakdown).
    """
    called = [index for index, module in enumerate(modules) if module["calls"]]
    place = {OUTSIDE: OUTSIDE} | {index: at for at, index in enumerate(called)}
    return {
        "modules": tuple(modules[index] for index in called),
        "ticks": tuple(
            tuple((place[index], *rest, count) for (index, *rest), count in seen.items())
            for seen in counts
        ),
    }


def places(method: str, run: SampleRun, **found: Any) -> dict[str, Any]:
    """Return a run by place as the fields of ``records.Places``, of which ``found`` has some."""
    return {
        "method": method,
        "calls": run.calls,
        "latency_ns": run.latency_ns,
        "wall_ns": sum(stretch.wall_ns for stretch in run.stretches),
        "period_ns": run.period_ns,
        "modules": (),
        "lost": sum(stretch.ticks.lost for stretch in run.stretches),
        "notes": (),
        **found,
    }


def refuse_compiled(call: Call, modules: ModuleClock) -> None:
    """Call a model whose modules have just been wrapped, and forget when it entered them.

    Raises:
        WorkerError: it was compiled around them, and compiled anew.
    """
    compiled = _compiled_graphs()
    for _ in range(2):  # what notices the change, notices it here
        call()
    if _compiled_graphs() != compiled:
        raise WorkerError("unavailable", COMPILED)
    del modules.events[:]


def _compiled_graphs() -> int:
    """Return how many graphs ``torch.compile`` has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


class RunClock:
    """Which module the samples of a program's own runs belong to.

    Until ``LONGEST_NS`` of runs were sampled, which bounds the memory that it takes. A run for
    which a function around the modules is compiled anew is the last: such modules are no layers.

    Attributes:
        refused: why there are no layers; empty where there are.

    Args:
        root: a ``torch.nn.Module`` that the runs call, in the thread that makes this.
        sampler: of the calling thread, with the times of samples.
    """

    def __init__(self, root: Any, sampler: PerfEventSampler) -> None:
        self.refused = ""
        self._modules = ModuleClock(root)
        self._sampler = sampler
        self._latencies: list[int] = []
        self._process = os.getpid()
        self._lock = threading.Lock()  # another thread may ask what was found
        self._is_running = False
        self._sampled_ns = self._stretch_ns = self._begin_ns = self._graphs = 0

    @property
    def is_open(self) -> bool:
        """Whether further runs are to be sampled."""
        return not self.refused and self._sampled_ns < LONGEST_NS

    def begin(self) -> None:
        """Begin a run."""
        with self._lock:
            self._is_running = True
        self._graphs = _compiled_graphs()
        self._modules.__enter__()
        self._sampler.resume()
        self._sampler.vary()
        self._begin_ns = time.perf_counter_ns()

    def end(self) -> None:
        """End a run."""
        took_ns = time.perf_counter_ns() - self._begin_ns
        self._modules.__exit__()
        if self._process != os.getpid():  # a child forked within the run; it has no sampler
            return
        self._sampler.pause()
        if _compiled_graphs() != self._graphs:
            self.refused = COMPILED
        with self._lock:
            self._is_running = False
            self._latencies.append(took_ns)
            self._sampled_ns += took_ns
            self._stretch_ns += took_ns
            if self._stretch_ns >= STRETCH_NS:
                self._set_aside()

    def _set_aside(self) -> None:
        self._sampler.stop()
        self._stretch_ns = 0

    def places(self) -> dict[str, Any] | None:
        """Return what was found as ``attribute_modules`` does; None where there are no layers."""
        with self._lock:
            if self._stretch_ns and not self._is_running:
                self._set_aside()
            if self.refused or not self._latencies:
                return None
            ticks = self._sampler.ticks()
            return {
                "method": "module",
                "calls": len(self._latencies),
                "latency_ns": round(median(self._latencies)),
                "wall_ns": self._sampled_ns,
                "period_ns": self._sampler.period_ns,
                "lost": sum(seen.lost for seen in ticks),
                "notes": (),
                **by_module(self._modules, ticks),
            }


# --- lines of Python ------------------------------------------------------------------------------

SIGNAL = signal.SIGPROF
OWN = str(Path(__file__).parents[1])
STANDARD = sysconfig.get_path("stdlib")
PASSED = ("torch", "frameworktax")
"""Packages whose frames are passed over."""

Line = tuple[str, int, str]
"""File, line, function; an empty file where no such frame was there."""


@contextmanager
def line_notes() -> Iterator[list[tuple[int, Line]]]:
    """Note (time, line) at every signal while the block lasts.

    Raises:
        WorkerError: this is not the main thread, which alone handles signals.
    """
    notes: list[tuple[int, Line]] = []

    def note(number: int, frame: FrameType | None) -> None:
        now = time.perf_counter_ns()
        while frame is not None and is_passed(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            notes.append((now, ("", 0, "")))
        else:
            code = frame.f_code
            notes.append((now, (code.co_filename, frame.f_lineno, code.co_qualname)))

    try:
        before = signal.signal(SIGNAL, note)
    except ValueError as error:
        raise WorkerError("unavailable", "lines are sampled in the main thread only") from error
    try:
        yield notes
    finally:
        signal.signal(SIGNAL, before)


@cache
def is_passed(file: str) -> bool:
    """Return whether a source file is neither the user's nor the model library's."""
    if file.startswith("<"):
        return True
    packages = [f"-packages/{name}/" for name in PASSED]  # site, or as Debian says dist
    standard = file.startswith(f"{STANDARD}/") and "-packages/" not in file
    return standard or file.startswith(f"{OWN}/") or any(name in file for name in packages)


def by_line(
    notes: Sequence[tuple[int, Line]], ticks: Sequence[tuple[int, Leaf]]
) -> Counter[tuple[Line, str]]:
    """Return samples by line and line of the bill: each goes to the first note after it."""
    times = [time_ns for time_ns, _ in notes]
    counts: Counter[tuple[Line, str]] = Counter()
    for time_ns, leaf in ticks:
        at = bisect_left(times, time_ns)
        line = notes[at][1] if at < len(notes) else ("", 0, "")
        counts[line, classify(leaf)[0]] += 1
    return counts


def attribute_lines(
    call: Call, *, stretches: int = 5, duration_ns: int = 1_000_000_000, call_ns: int = 0
) -> dict[str, Any]:
    """Return which line of Python each sample of a run belongs to, as fields of ``records.Places``.

    The arguments are those of ``attribute_modules``.

    Raises:
        WorkerError: this host allows no sampling, or this is not the main thread.
    """
    with line_notes() as notes:
        with refused_as_unavailable():
            stretch_ns = max(duration_ns // stretches, call_ns)
            sampler = PerfEventSampler(stretch_ns, signal=SIGNAL)
        with sampler:
            vary = sampler.vary
            run = sample(call, sampler, stretches=stretches, duration_ns=duration_ns, vary=vary)
    ticks = [tick for stretch in run.stretches for tick in stretch.ticks.timed]
    seen = by_line(notes, ticks)
    lines = tuple(
        (short_path(file) if file else "", number, function, bucket, count)
        for ((file, number, function), bucket), count in seen.most_common()
    )
    return places("line", run, lines=lines)
