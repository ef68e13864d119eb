"""Metrics of a model in production: latency of every call, where the time of a few goes.

    watch = ft.watch(model)              # to prometheus_client's registry
    watch = ft.watch(model, exporter="opentelemetry")
    watch.stop()                         # or ``with``; ends with the model at the latest

In the thread that calls the model, a call costs two readings of the clock and an entry in a buffer
of that thread; one call in a hundred is sampled, many in a row. A thread of the watch's own reads
the buffers every few seconds and speaks to the exporter, in small portions, because a thread that
holds the interpreter's lock delays the model. No other thread speaks to it, or waits for it for
longer than it takes to see that it hangs. So a fault of the exporter cannot reach a call; one of
the watch itself within a call is caught, counted (``Watch.faults``) and logged once.

The class of the model's object becomes a subclass that calls through: other objects of the class
are not touched, ``isinstance`` holds, a copy or a pickle is of the original class. Hooks would cost
ten times as much and would be compiled into the model by ``torch.compile``.

The samples of some calls become seconds of each line of the breakdown, and a tax ratio.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, NamedTuple

from frameworktax.attribution.buckets import is_judged, itemise
from frameworktax.attribution.perf_event import Drained, PerfEventSampler, probe
from frameworktax.attribution.sampler import SampleRun, Stretch, Ticks
from frameworktax.attribution.symbols import Leaf, Resolver, read_tables
from frameworktax.clock import REAL, Clock, Queue, others_ns
from frameworktax.errors import UsageError, check_known
from frameworktax.integrations.exporters import EXPORTERS, Exporter
from frameworktax.measure.inline_profiler import hidden, returns_early

INTERVAL_S = 5.0
SAMPLE, STRETCH_NS = 0.01, 100_000_000
"""Share of calls that are sampled, and for how long calls in a row are: to begin and to end
sampling costs as much as a short call on a virtual machine, and slows the calls after it."""
MAX_BATCH = 1024
"""Larger batches share one label value."""
BATCH_BITS, CALL_BITS = 32, 48
"""Of the number that a call is noted as: below, its batch size; below, which method and that."""
MOST = 1 << BATCH_BITS
BUFFER = 65_536
"""Calls of one thread between two readings; of more the oldest are lost, and counted."""
STUCK_S, LOOK_S = 10.0, 0.1
"""Time after which an exporter that does not return is left behind, and between two looks."""
FORK_S = 1.0
"""Time after which a fork waits no longer for an exporter to return: a portion takes 0.1 ms."""
RING_NS = 2_000_000_000
"""The longest sampled call whose samples the ring holds."""
RING_SAMPLER = partial(PerfEventSampler, RING_NS)

log = logging.getLogger("frameworktax.watch")


def watch(
    model: Any,
    *,
    name: str | None = None,
    calls: Sequence[str] = ("__call__",),
    batch: Callable[..., int | None] | None = None,
    sample: float = SAMPLE,
    interval_s: float = INTERVAL_S,
    exporter: str | Exporter = "prometheus",
) -> Watch:
    """Export latency and framework tax of every call of ``model`` from now on.

    Args:
        model: an object whose class is written in Python, such as a ``torch.nn.Module``; a compiled
            one as ``torch.compile`` returned it.
        name: value of the label ``model``; its class's name by default.
        calls: methods that are watched; of nested ones the outermost counts.
        batch: returns the batch size from the arguments of a call; by default the first dimension,
            or the length, of the first argument that has one.
        sample: share of calls that are sampled; 0 for latency alone.
        interval_s: time between two exports.
        exporter: ``prometheus``, ``opentelemetry`` (with the global registry and meter provider),
            or an object with the methods of ``exporters.Exporter``.

    Raises:
        UsageError: the object cannot be watched, is watched already, or the exporter's package is
            not installed.
    """
    if not 0 <= sample <= 1 or not 0 < interval_s < threading.TIMEOUT_MAX:
        raise UsageError("watch takes 0 <= sample <= 1 and seconds above 0 as interval_s")
    if isinstance(calls, str) or not calls:
        raise UsageError("calls takes a list of methods, such as ['generate']")
    cls = type(model)
    if hasattr(cls, "_frameworktax_watched"):
        raise UsageError(f"this {cls.__name__} is watched already; stop that watch first")
    if isinstance(exporter, str):
        check_known("exporter", exporter, EXPORTERS)
        exporter = EXPORTERS[exporter]()
    made = Watch(
        cls.__name__ if name is None else name,
        exporter,
        size=batch_size if batch is None else lambda args, kwargs: batch(*args, **kwargs),
        sample=sample,
        interval_s=interval_s,
    )
    try:
        watched = _watched_class(cls, calls, made)
        made.model = weakref.ref(model)
        object.__setattr__(model, "__class__", watched)  # its own may hand this to another object
    except TypeError as error:
        raise UsageError(
            f"{cls.__name__} cannot be watched; wrap it in a class with __call__, for example a "
            "torch.nn.Module"
        ) from error
    if sample and probe() is None:
        read_tables()  # takes a second: now, not in the first minute of serving
    made.ends = weakref.finalize(model, made.end)
    return made


def _watched_class(cls: type, calls: Sequence[str], recorder: Watch) -> type:
    """Return a subclass of ``cls`` with the same layout whose ``calls`` are recorded."""
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_frameworktax_watched": recorder,
    }
    for call in calls:
        method = getattr(cls, call, None)
        if not callable(method):
            raise UsageError(f"{cls.__name__} has no method {call}")
        if returns_early(getattr(cls, "forward", method) if _is_torchs(method) else method):
            raise UsageError(f"{cls.__name__}.{call} returns before its work is done; watch the "
                             "method that does the work")  # fmt: skip
        namespace[call] = _recorded(method, call.strip("_"), recorder)

    reduce: Any = cls.__reduce_ex__

    def reduced(self: Any, protocol: Any) -> Any:
        parts = reduce(self, protocol)
        if isinstance(parts, str):
            return parts
        made = tuple(cls if part is watched else part for part in parts[1])
        # pickle refuses ``__newobj__`` for an object of another class; it calls the same.
        is_new = getattr(parts[0], "__name__", "") == "__newobj__"
        maker = cls.__new__ if is_new else parts[0]
        return (maker, made, *parts[2:])

    watched: type = type(cls)(cls.__name__, (cls,), namespace | {"__reduce_ex__": reduced})
    return watched


def _recorded(method: Callable[..., Any], call: str, recorder: Watch) -> Callable[..., Any]:
    """Return what takes the place of a method.

    The model's own work has filled the caches by the time of the next call, so that every object
    that is touched costs. So a call that is neither sampled nor within another one is noted in
    ``recorded`` itself, which touches few, and where the method is torch's own, what it does is
    done in its place; all else goes through ``Watch.enter`` and ``leave``.

    It is noted as one whole number, see ``Watch.call_of``: a tuple that stays would be counted by
    the garbage collector, which in a thread that makes none else then stops all threads.
    """
    compiling, now, size = _compiling(), recorder.clock.wall_ns, recorder.size
    local, is_torchs = recorder.local, _is_torchs(method)
    which = len(recorder.calls) << BATCH_BITS
    recorder.calls.append(call)

    @wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():  # a constant to torch.compile, which sees the method as it was
            return method(self, *args, **kwargs)
        caller = local.caller
        if caller is None or caller.skip < 1 or caller.depth:
            return other(self, args, kwargs)
        try:
            batch = size(args, kwargs)
        except Exception:  # noqa: BLE001  # of a user's function: counted there
            return other(self, args, kwargs)
        if batch is None:
            batch = 0
        elif type(batch) is not int or not 0 <= batch < MOST:
            return other(self, args, kwargs)
        caller.skip -= 1
        begin_ns = now()
        try:
            caller.depth = 1
            if is_torchs:
                result = (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
            else:
                result = method(self, *args, **kwargs)
        except BaseException:
            wall_ns = now() - begin_ns
            caller.depth = 0
            caller.calls.append((call, batch, wall_ns, True, None))
            caller.made += 1
            raise
        wall_ns = now() - begin_ns
        caller.depth = 0
        caller.calls.append(wall_ns << CALL_BITS | (which | batch))
        caller.made += 1
        return result

    def other(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = recorder.enter(call, args, kwargs)
        try:
            result = method(self, *args, **kwargs)
        except BaseException:
            recorder.leave(state, failed=True)
            raise
        recorder.leave(state)
        return result

    return recorded


def _is_torchs(method: Any) -> bool:
    """Return whether this is ``Module.__call__`` of torch as it is known, replaced by no tool."""
    torch, code = sys.modules.get("torch"), getattr(method, "__code__", None)
    return (
        torch is not None
        and method is torch.nn.Module.__call__
        and code is not None
        and code.co_names == ("_compiled_call_impl", "_call_impl")
        and not code.co_freevars  # as what ``frameworktax run`` puts in its place has
    )


def _compiling() -> Callable[[], bool]:
    torch = sys.modules.get("torch")
    return torch.compiler.is_dynamo_compiling if torch is not None else lambda: False


# --- calls: noted in the thread that makes them, exported by one of the watch's own ---------------


def batch_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return the first dimension or length of the first argument that has one."""
    try:
        first = args[0].shape[0]
        if type(first) is int:
            return first  # nearly always; the rest of the way would cost as much as all else
    except (AttributeError, IndexError, TypeError):
        pass
    if (jit := sys.modules.get("torch.jit")) is not None and jit.is_tracing():
        return None  # a number of it would be a constant of the trace
    for value in (*args, *kwargs.values()):
        shape = getattr(value, "shape", None)
        if shape is None and isinstance(value, Mapping):
            shape = getattr(next(iter(value.values()), None), "shape", None)
        if shape:
            return int(shape[0])
        if isinstance(value, list | tuple):
            return len(value)
    return None


@lru_cache(MAX_BATCH)
def batch_label(size: int | None) -> str:
    """Return the range of sizes, up to a power of two, that a batch size is in."""
    if size is None or size < 1:
        return "unknown"
    if size > MAX_BATCH:
        return f">{MAX_BATCH}"
    high = 1 << (size - 1).bit_length()
    low = high // 2 + 1
    return str(high) if low >= high else f"{low}-{high}"


@dataclass(eq=False, slots=True)
class Caller:
    """A thread that calls the model; a sampled call holds ``lock``, or who closes its sampler."""

    sampler: PerfEventSampler | None
    coin: random.Random
    skip: int
    thread: threading.Thread = field(default_factory=threading.current_thread)
    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: deque[Call | int] = field(default_factory=lambda: deque(maxlen=BUFFER))
    made: int = 0
    read: int = 0
    depth: int = 0
    call: str = ""
    batch: int | None = None
    begin_ns: int = 0
    sampling: bool = False
    """This call; ``sampled`` and ``sampled_ns`` are calls and their time since sampling began."""
    sampled: int = 0
    sampled_ns: int = 0
    cpu_ns: int = 0
    queue: Queue = (None, 0)


class Local(threading.local):
    """What a watch knows of a thread."""

    caller: Caller | None = None
    leaving: Leaving | None = None


class Leaving(NamedTuple):
    """Gives a thread's sampler back as it ends: many may come and go between two exports."""

    watch: weakref.ref[Watch]
    caller: Caller

    def __del__(self) -> None:
        watch = self.watch()
        if watch is not None:
            watch._give_back(self.caller)


@dataclass(eq=False, repr=False)
class Watch:
    """The calls of one watched model in this process; a context manager that ends with ``stop``.

    Attributes:
        faults: of the watch itself by stage: call, batch, sampler, ring, buffer, export, fork.
        model: weakly, so that it can end.
        ends: called with the model's end.
        calls: names of the methods that are watched.
    """

    name: str
    exporter: Exporter
    size: Callable[[tuple[Any, ...], Mapping[str, Any]], int | None] = batch_size
    sample: float = SAMPLE
    interval_s: float = INTERVAL_S
    clock: Clock = REAL
    sampler: Callable[[], PerfEventSampler] = RING_SAMPLER
    place: Callable[[Iterable[int]], Mapping[int, Leaf]] = field(default_factory=lambda: Places())
    ended: bool = field(default=False, init=False)
    model: weakref.ref[Any] | None = field(default=None, init=False)
    ends: weakref.finalize[..., Any] | None = field(default=None, init=False)
    faults: Counter[str] = field(default_factory=Counter, init=False)
    calls: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._refused = None if self.sample else "not asked for: sample=0"
        self.local = Local()
        self._begin()
        _WATCHES[id(self)] = self

    def _begin(self) -> None:
        """Begin with no thread and no call: here, and again in a forked child."""
        self.local.caller = None
        self._callers: list[Caller] = []
        self._joining = threading.RLock()  # a signal's handler may call the model meanwhile
        self.exporting = threading.RLock()
        """Of the thread that calls the exporter, or of a fork: else the child could inherit a lock
        of the exporter's that nothing in it ever releases."""
        self._since_s: float | None = None
        """When the exporter was called, until it returns."""
        self._exported: Counter[str] = Counter(self.faults)
        self._said: tuple[str, str] | None = None
        self._requests: SimpleQueue[threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._owed: defaultdict[tuple[Labels, str], float] = defaultdict(float)
        self._windows: dict[Labels, tuple[int, int, int]] = {}

    def stop(self) -> None:
        """Export what is left, give back samplers and the thread, and leave the model as it was.

        An exporter that does not return for ``STUCK_S`` is left behind, as in ``flush``.
        """
        model = self.model() if self.model is not None else None
        if getattr(type(model), "_frameworktax_watched", None) is self:
            object.__setattr__(model, "__class__", type(model).__bases__[0])
        if self.ends is not None:
            self.ends.detach()  # the model may live on: it keeps no watch that has ended
        self.end()
        self.join()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def reason(self) -> str | None:
        """Why there is no tax, None where there is or no call was made yet."""
        sampled = any(caller.sampler is not None for caller in self._callers)
        return hidden() or (None if sampled else self._refused)

    def enter(self, call: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Caller | None:
        """Begin a call; never raises an ``Exception``."""
        if self.ended:
            return None
        try:
            caller = self.local.caller or self._join()
            caller.depth += 1
            if caller.depth > 1:
                return caller
            try:
                size = self.size(args, kwargs)
                caller.call, caller.batch = call, None if size is None else int(size)
            except Exception as error:  # noqa: BLE001  # of a user's function, or an argument's shape
                self._fault("batch", error)
                caller.call, caller.batch = call, None
            caller.skip -= 1
            if caller.skip < 0:
                self._begin_sample(caller)
            if not caller.sampling:
                caller.begin_ns = self.clock.wall_ns()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is not the request's
            self._fault("call", error)
            self.local.caller = None
            return None
        return caller

    def leave(self, caller: Caller | None, *, failed: bool = False) -> None:
        """End a call; never raises an ``Exception``."""
        if caller is None:
            return
        try:
            now = self.clock.wall_ns()
            caller.depth -= 1
            if caller.depth:
                return
            sampled = self._end_sample(caller, now) if caller.sampling else None
            wall_ns = now - caller.begin_ns
            caller.calls.append((caller.call, caller.batch, wall_ns, failed, sampled))
            caller.made += 1
        except Exception as error:  # noqa: BLE001  # as in enter
            self._fault("call", error)

    def _join(self) -> Caller:
        """Return the state of a thread that calls for the first time."""
        self._running()  # first: where none can be started there is nothing to give back
        opened = None
        if self.sample:
            try:
                opened = self.sampler()
            except OSError as error:
                self._refused = str(error.strerror or error)
        coin = random.Random(threading.get_ident())
        caller = Caller(opened, coin, self._gap(coin, 1))
        self.local.caller, self.local.leaving = caller, Leaving(weakref.ref(self), caller)
        with self._joining:
            self._callers.append(caller)
        return caller

    def _running(self) -> threading.Thread:
        """Return the thread of the watch, which the first call begins."""
        with self._joining:
            if self._thread is None:
                made = threading.Thread(target=self._run, name="frameworktax-watch", daemon=True)
                self._thread = made  # now: a handler may call the model next
                try:
                    made.start()
                except RuntimeError:  # there are too many: the next call tries again
                    self._thread = None
                    raise
            return self._thread

    def _gap(self, coin: random.Random, sampled: int) -> int:
        """Return how many calls are passed over after so many that were sampled."""
        if not self.sample:
            return sys.maxsize
        return int(coin.expovariate(1) * sampled * (1 / self.sample - 1))

    def _begin_sample(self, caller: Caller) -> None:
        caller.skip = 0 if caller.sampler is not None else sys.maxsize
        if not caller.lock.acquire(blocking=False):
            return  # the watch has ended, and gives the sampler back
        try:
            if caller.sampler is not None:
                if not caller.sampled:
                    caller.sampler.resume()
                caller.sampling = True
                # In the order of the end: each of the three then has the same readings in it.
                caller.begin_ns = self.clock.wall_ns()
                caller.queue = self.clock.queue()
                caller.cpu_ns = self.clock.cpu_ns()
        except Exception as error:  # noqa: BLE001  # as in enter
            self._fault("sampler", error)
            caller.sampler, caller.sampling = None, False
        finally:
            if not caller.sampling:
                caller.lock.release()

    def _end_sample(self, caller: Caller, now: int) -> Sampled | None:
        caller.sampling, found = False, None
        queue, cpu = self.clock.queue(), self.clock.cpu_ns()
        try:
            if caller.sampler is not None:  # else forked in the middle of this call
                wall_ns, cpu_ns = now - caller.begin_ns, cpu - caller.cpu_ns
                queued_ns = others_ns(wall_ns - cpu_ns, caller.queue, queue)
                caller.sampled += 1
                caller.sampled_ns += wall_ns
                if caller.sampled_ns >= STRETCH_NS:
                    self._end_row(caller, caller.sampler)
                records = caller.sampler.take()
                lost = caller.sampler.newly_lost(records)
                begin_ns = caller.begin_ns
                found = Sampled(caller.sampler, records, lost, begin_ns, cpu_ns, queued_ns)
        except Exception as error:  # noqa: BLE001  # as in enter
            self._fault("sampler", error)
            caller.sampler = None
        finally:
            caller.lock.release()
        if self.ended:
            self._give_back(caller)
        return found

    def _end_row(self, caller: Caller, sampler: PerfEventSampler) -> None:
        """Take no samples until the next calls in a row."""
        sampler.pause()
        caller.skip = self._gap(caller.coin, caller.sampled)
        caller.sampled = caller.sampled_ns = 0

    def _rest(self, caller: Caller) -> None:
        """End the row of a thread that has not called since the last export."""
        if not caller.sampled or not caller.lock.acquire(blocking=False):
            return
        try:
            if caller.sampled and caller.sampler is not None:
                self._end_row(caller, caller.sampler)
                caller.sampler.newly_lost(caller.sampler.take())  # of what it did besides
        finally:
            caller.lock.release()

    def _give_back(self, caller: Caller) -> None:
        """Close a thread's sampler; if it is in use, the end of that call does it."""
        if caller.lock.acquire(blocking=False):
            try:
                if caller.sampler is not None:
                    caller.sampler.__exit__()
            except Exception as error:  # noqa: BLE001  # as in enter
                self._fault("sampler", error)
            finally:
                caller.sampler = None
                caller.lock.release()

    def _fault(self, stage: str, error: Exception | str, count: int = 1) -> None:
        if not self.faults[stage]:
            log.warning("watch of %s: fault in %s (said once): %s", self.name, stage, error)
        self.faults[stage] += count

    # --- what happens in the thread of the watch -------------------------------------------------

    def _run(self) -> None:
        while not self.ended:
            done = None
            with suppress(Empty):
                done = self._requests.get(timeout=self.interval_s)
            self._export()
            if done is not None:
                done.set()
        self._export()  # what came while it ended
        for caller in self._callers:
            self._give_back(caller)

    def end(self) -> None:
        """End soon; may be called by the garbage collector at any point of any thread."""
        self.ended = True
        for caller in self._callers:
            caller.skip = 0  # the next call looks whether the watch has ended
        self._requests.put(threading.Event())

    def join(self) -> None:
        """Wait until everything is exported and the thread has ended, or the exporter hangs."""
        thread = self._thread
        if thread is not None:
            self._wait(thread, thread.join)

    def flush(self) -> None:
        """Export what every thread has seen since the last time, or see that the exporter hangs.

        It hangs where it does not return for ``STUCK_S``: a fault of the stage export. Nothing is
        exported after the watch has ended.
        """
        if not self.ended:
            done = threading.Event()
            self._requests.put(done)
            try:
                self._wait(self._running(), done.wait)
            except RuntimeError as error:  # no thread can be started
                self._fault("export", error)

    def _wait(self, thread: threading.Thread, wait: Callable[[float], bool | None]) -> None:
        """Wait for what the thread of the watch does, unless this is that thread."""
        while thread is not threading.current_thread() and not wait(LOOK_S) and thread.is_alive():
            since_s = self._since_s
            if since_s is not None and monotonic() - since_s > STUCK_S:
                self._fault("export", f"the exporter has not returned for {STUCK_S:g} s")
                return

    def _export(self) -> None:
        with self._joining:
            callers = list(self._callers)
        for caller in callers:
            alive, read = caller.thread.is_alive(), caller.read
            try:
                self._export_calls(caller)
                if caller.read == read:
                    self._rest(caller)
            except Exception as error:  # noqa: BLE001  # the next reading may work
                self._fault("ring", error)
            if not alive:
                self._give_back(caller)
                with self._joining:
                    self._callers.remove(caller)
        self._portion(self._export_state)

    def _portion(self, work: Callable[[], None]) -> None:
        """Do a small piece of work, undisturbed by a fork; its faults are counted."""
        with self.exporting:
            self._since_s = monotonic()
            try:
                work()
            except Exception as error:  # noqa: BLE001  # the exporter's, of any kind
                self._fault("export", error)
            finally:
                self._since_s = None

    def _export_calls(self, caller: Caller) -> None:
        lost = caller.made - caller.read - len(caller.calls)
        if lost > 0:
            self._fault("buffer", "more calls between two exports than are kept", lost)
            caller.read += lost
        held = len(caller.calls)
        sampled: defaultdict[Labels, list[tuple[int, Sampled, Drained]]] = defaultdict(list)
        while held > 0:
            portion = [caller.calls.popleft() for _ in range(min(PORTION, held))]
            held -= len(portion)
            caller.read += len(portion)
            self._portion(partial(self._observe, portion))
            sleep(REST_S)
            for one in portion:
                if isinstance(one, int):
                    continue
                call, batch, wall_ns, _, seen = one
                if seen is None or hidden() is not None:
                    continue
                drained = within(seen, wall_ns)
                if seen.lost:
                    self._fault("ring", "samples were lost: this call is left out", seen.lost)
                else:
                    labels = self.name, call, batch_label(batch)
                    sampled[labels].append((wall_ns, seen, drained))
        for labels, calls in sampled.items():
            stretch = stretch_of(calls, self.place)
            parts = parts_ns(stretch, calls[0][1].sampler)
            self._portion(partial(self._export_stretch, labels, parts, stretch))

    def call_of(self, noted: Call | int) -> Call:
        """Return a call that was noted; a batch size of 0 stands for one that is not known."""
        if not isinstance(noted, int):
            return noted
        which = noted >> BATCH_BITS & (1 << CALL_BITS - BATCH_BITS) - 1
        batch, wall_ns = noted & (1 << BATCH_BITS) - 1, noted >> CALL_BITS
        return self.calls[which], batch, wall_ns, False, None

    def _observe(self, noted: Iterable[Call | int]) -> None:
        record = self.exporter.record
        for call, batch, wall_ns, failed, _ in map(self.call_of, noted):
            labels = self.name, call, batch_label(batch)
            if failed:
                record("call.errors", labels, 1)
            else:
                record("call.duration", labels, wall_ns / 1e9)

    def _export_stretch(self, labels: Labels, parts: Mapping[str, int], stretch: Stretch) -> None:
        """Add a stretch to the counters, and to the window of the tax ratio.

        A counter never falls, but a stretch's part can be below zero (system time that is a
        difference of two counts): that is owed, and taken off what comes next.
        """
        # A kernel time of zero too: without it a tax of 100 % would have no value in a query.
        for part, ns in {"kernel": 0, **parts}.items():
            owed = self._owed[labels, part] + ns
            self._owed[labels, part] = min(owed, 0.0)  # what is above zero is exported
            if owed > 0 or part == "kernel":
                self.exporter.record("sampled.time", (*labels, part), owed / 1e9)
        ticks, all_ns, kernel_ns = self._windows.pop(labels, (0, 0, 0))
        ticks += sum(stretch.ticks.leaves.values()) + (stretch.ticks.system or 0)
        all_ns += sum(parts.values())
        kernel_ns += parts.get("kernel", 0)
        if ticks < WINDOW_TICKS:
            self._windows[labels] = ticks, all_ns, kernel_ns
        else:
            self.exporter.record("tax", labels, 1 - kernel_ns / all_ns)

    def _export_state(self) -> None:
        for stage, count in tuple(self.faults.items()):
            if count > self._exported[stage]:
                added = count - self._exported[stage]
                self.exporter.record("watch.faults", (self.name, stage), added)
                self._exported[stage] = count
        reason = self.reason
        said = ("none" if reason else "perf-event", reason or "")
        if said != self._said:
            if self._said is not None:
                self.exporter.record("watch.info", (self.name, *self._said), 0)
            self.exporter.record("watch.info", (self.name, *said), 1)
            self._said = said

    def pause(self) -> bool:
        """Let the exporter not be called until ``exporting`` is released; False where it hangs."""
        since_s = self._since_s
        left_s = FORK_S if since_s is None else FORK_S - (monotonic() - since_s)
        return self.exporting.acquire(timeout=max(0.0, left_s))

    def forked(self) -> None:
        """Begin anew in a forked child: its calls are its own, its threads are gone."""
        for caller in self._callers:
            caller.sampler = None  # closed by its own module: the event is the parent's
        self._begin()


# --- forks ----------------------------------------------------------------------------------------

_WATCHES: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()
_PAUSED: dict[int, list[Watch]] = {}
"""Thread that forks → watches whose exporters are not called meanwhile."""


def _every_watch() -> list[Watch]:
    """Return the watches of this process, while other threads may begin some."""
    return [one for ref in _WATCHES.valuerefs() if (one := ref()) is not None]


def _before_fork() -> None:
    paused = _PAUSED[threading.get_ident()] = []
    for one in _every_watch():
        if one.pause():
            paused.append(one)


def _after_in_parent() -> list[Watch]:
    paused = _PAUSED.pop(threading.get_ident(), [])
    for one in paused:
        one.exporting.release()
    return paused


def _after_in_child() -> None:
    paused = _after_in_parent()
    _PAUSED.clear()
    for one in _every_watch():
        one.forked()
        if one not in paused:
            one._fault("fork", f"the exporter did not return in {FORK_S:g} s before a fork: in "
                       "this process it may hang")  # fmt: skip


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)


# --- where the time of sampled calls went ---------------------------------------------------------

PORTION = 64
"""Calls, or new addresses, handled at a stretch; about 100 µs."""
REST_S = 0.002
"""Time that other threads have the interpreter to themselves after each portion."""
WINDOW_TICKS = 400
"""Samples that a tax ratio is of: its standard error is at most 2.5 points."""
Labels = tuple[str, str, str]
"""Values of the labels model, call and batch."""


class Sampled(NamedTuple):
    """A sampled call with the records of its ring; ``queued_ns`` is None where it is not known.

    Records are of the time since the sampled call before it, unless it was the first in a row.
    """

    sampler: PerfEventSampler
    records: bytes
    lost: int
    begin_ns: int
    cpu_ns: int
    queued_ns: int | None


Call = tuple[str, int | None, int, bool, Sampled | None]
"""What was called, batch size, wall time in ns, whether it failed, and what was seen of it."""


def within(seen: Sampled, wall_ns: int) -> Drained:
    """Return the samples of a call alone."""
    drained, end_ns = seen.sampler.parse(seen.records, seen.lost), seen.begin_ns + wall_ns
    return drained._replace(
        user=[one for one in drained.user if seen.begin_ns <= one[1] < end_ns],
        kernel_ns=[at for at in drained.kernel_ns if seen.begin_ns <= at < end_ns],
    )


def stretch_of(
    calls: Sequence[tuple[int, Sampled, Drained]],
    place: Callable[[Iterable[int]], Mapping[int, Leaf]],
) -> Stretch:
    """Return sampled calls of one thread, wall time and what was seen of each, as a stretch."""
    seen = [one for _, one, _ in calls]
    addresses = [address for *_, drained in calls for address, *_ in drained.user]
    where = place(addresses)
    system = sum(len(drained.kernel_ns) for *_, drained in calls)
    known = [one.queued_ns for one in seen if one.queued_ns is not None]
    leaves = Counter(map(where.__getitem__, addresses))
    return Stretch(
        Ticks(leaves, system if seen[0].sampler.kernel else None),
        len(calls),
        sum(wall_ns for wall_ns, *_ in calls),
        sum(one.cpu_ns for one in seen),
        sum(known) if len(known) == len(seen) else None,
    )


def parts_ns(stretch: Stretch, sampler: PerfEventSampler) -> dict[str, int]:
    """Return line of the breakdown → ns of a stretch, signed; together they are its wall time.

    Time in which other processes had the processor is in no line, as in ``ft.tax``.
    """
    run = SampleRun(sampler.name, sampler.period_ns, (stretch,), 0)
    parts = {line: count * sampler.period_ns for line, count in itemise(run)["samples"][0].items()}
    parts["wait"] = stretch.wall_ns - stretch.cpu_ns - (stretch.queued_ns or 0)
    return parts


class Places:
    """Places of addresses; an address is looked up once, new ones in small portions."""

    KEPT = 50_000
    """Addresses after which all are forgotten: code comes and goes."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}
        self._resolver = Resolver(judged=is_judged)

    def __call__(self, addresses: Iterable[int]) -> Mapping[int, Leaf]:
        """Return address → place."""
        if len(self._known) > self.KEPT:
            self._known = {}
        new = list(set(addresses) - self._known.keys())
        for at in range(0, len(new), PORTION // 8):
            portion = new[at : at + PORTION // 8]
            self._known |= self._resolver.resolve(portion)
            sleep(REST_S)
        return self._known
