"""Metrics in production: exact numbers from a scripted clock and sampler, and faults everywhere."""

import copy
import gc
import logging
import os
import pickle
import threading
import weakref
from collections import Counter
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from frameworktax.attribution.perf_event import Drained, RefusedError
from frameworktax.attribution.sampler import Stretch, Ticks
from frameworktax.attribution.symbols import Leaf
from frameworktax.errors import UsageError
from frameworktax.integrations import watch as watching
from frameworktax.integrations.exporters import BOUNDS_S, OpenTelemetry, Prometheus
from frameworktax.integrations.watch import (
    WINDOW_TICKS,
    Watch,
    batch_label,
    batch_size,
    parts_ns,
    watch,
)
from frameworktax.testing import FakeClock

KERNEL = Leaf("libtorch_cpu.so", "at::native::gemm")
PYTHON = Leaf("python3.11", "_PyEval_EvalFrameDefault")
PLACES = {1: KERNEL, 2: PYTHON}
MS = 1_000_000
HOUR_S = 3600.0


class Scripted:
    """A sampler that sees one tick a millisecond, three of four in a kernel."""

    name = "scripted"
    period_ns = MS
    kernel = True

    def __init__(self, clock):
        self.clock = clock
        self.seen = []
        self.lost = self.begun = 0
        self.on = None
        self.closed = False

    def resume(self):
        self.on = self.clock.now_ns
        self.begun += 1

    def pause(self):
        if self.on is not None:
            self.seen += range(self.on, self.clock.now_ns, MS)
        self.on = None

    def take(self):
        on = self.on
        self.pause()
        if on is not None:
            self.on = self.clock.now_ns
        seen, self.seen = self.seen, []
        return seen

    def newly_lost(self, seen):
        assert not self.closed  # its descriptor may be another file's by now
        lost, self.lost = self.lost, 0
        return lost

    def parse(self, seen, lost):
        return Drained([(2 if i % 4 == 3 else 1, ns, 0) for i, ns in enumerate(seen)], [], lost)

    def __exit__(self, *exception):
        self.closed = True


class Seen:
    """An exporter that keeps what it gets."""

    def __init__(self):
        self.calls = []
        self.failures = []
        self.seconds = Counter()
        self.ratios = []
        self.faults = Counter()
        self.states = []

    def record(self, name, labels, value):
        if name == "call.duration":
            self.calls.append((*labels[1:], value))
        elif name == "call.errors":
            self.failures.append(labels[1:])
        elif name == "sampled.time":
            assert value > 0 or labels[3] == "kernel"
            self.seconds[labels[2:]] += value
        elif name == "tax":
            self.ratios.append((labels[2], value))
        elif name == "watch.faults":
            self.faults[labels[1]] += value
        else:
            self.states.append((*labels[1:], value))


class Broken:
    """An exporter whose every method raises."""

    def __getattr__(self, name):
        raise ConnectionError(name)


class Doubler:
    """A model."""

    def __init__(self, work=lambda: None):
        self.work = work

    def __call__(self, values, **options):
        self.work()
        return [2 * value for value in values]

    def twice(self, values):
        return self(self(values))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def made():
    return []


@pytest.fixture
def recorder(clock, seen, made):
    def sampler():
        made.append(Scripted(clock))
        return made[-1]

    recorder = Watch(
        "m", seen, sample=1, interval_s=HOUR_S, clock=clock, sampler=sampler, place=lambda _: PLACES
    )
    yield recorder
    recorder.end()
    recorder.join()


def call(recorder, clock, ns, batch=1, failed=False):
    caller = recorder.enter("call", ([0] * batch,), {})
    clock.work(ns)
    recorder.leave(caller, failed=failed)


@pytest.fixture
def watched(monkeypatch):
    """Return a function that watches without symbols or samples; ends every watch."""
    monkeypatch.setattr(watching, "read_tables", lambda: None)
    begun = []

    def begin(model, **options):
        begun.append(watch(model, **{"interval_s": HOUR_S, "sample": 0, **options}))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()


# --- numbers -----------------------------------------------------------------------------------


def test_calls_are_exported_with_latency_and_bucket_of_batch_size(recorder, clock, seen):
    for batch in (1, 2, 3, 4, 5, 64, 1024, 1025):
        call(recorder, clock, 2 * MS, batch)
    call(recorder, clock, MS, 3, failed=True)
    recorder.flush()
    batches = ["1", "2", "3-4", "3-4", "5-8", "33-64", "513-1024", ">1024"]
    assert seen.calls == [("call", batch, 0.002) for batch in batches]
    assert seen.failures == [("call", "3-4")]
    recorder.flush()
    assert len(seen.calls) == 8  # each once


def test_sampled_time_goes_to_the_line_and_the_label_set_of_the_call(recorder, clock, seen):
    for _ in range(50):
        call(recorder, clock, 4 * MS, 1)
        call(recorder, clock, 12 * MS, 2)
    recorder.flush()
    assert seen.seconds["1", "kernel"] == pytest.approx(0.150)
    assert seen.seconds["1", "python"] == pytest.approx(0.050)
    assert seen.seconds["2", "kernel"] == pytest.approx(0.450)
    assert seen.seconds["2", "python"] == pytest.approx(0.150)
    assert seen.ratios == [("2", 0.25)]  # 600 samples; the 200 of batch 1 are too few


def test_a_tax_of_all_has_a_kernel_time_that_queries_find(recorder, clock, seen):
    recorder.place = lambda _: {1: PYTHON, 2: PYTHON}
    call(recorder, clock, 4 * MS)
    recorder.flush()
    assert dict(seen.seconds) == {("1", "kernel"): 0.0, ("1", "python"): 0.004}


def test_the_call_that_has_lost_samples_is_the_one_that_is_left_out(recorder, clock, seen, made):
    call(recorder, clock, 8 * MS, 1)
    made[0].lost = 3
    call(recorder, clock, 8 * MS, 2)
    recorder.flush()
    assert recorder.faults == {"ring": 3}
    assert set(seen.seconds) == {("1", "kernel"), ("1", "python")}


def test_a_call_is_exported_after_its_sampler_was_given_back(recorder, clock, seen, made):
    call(recorder, clock, 8 * MS)
    recorder._give_back(recorder._callers[0])
    recorder.flush()
    assert made[0].closed and not recorder.faults
    assert seen.seconds["1", "kernel"] == pytest.approx(0.006)


@pytest.mark.parametrize(("others", "wait_ms"), [("others", 4), ("stolen", 0)])
def test_waiting_is_tax_and_the_time_of_others_is_in_no_line(
    recorder, clock, seen, others, wait_ms
):
    for _ in range(50):
        caller = recorder.enter("call", ([0],), {})
        clock.work(4 * MS)
        recorder._callers[0].sampler.pause()  # no ticks off the processor
        if wait_ms:
            clock.wait(wait_ms * MS)
        getattr(clock, others)(8 * MS)
        recorder._callers[0].sampler.on = clock.now_ns
        recorder.leave(caller)
    recorder.flush()
    assert seen.seconds["1", "wait"] == pytest.approx(0.05 * wait_ms)
    assert sum(seen.seconds.values()) == pytest.approx(0.05 * (4 + wait_ms))


def test_what_a_reading_of_the_queue_takes_is_in_wall_and_cpu_time_alike(recorder, clock, seen):
    clock.queued_ns = lambda: clock.work(MS) or 0
    for _ in range(50):
        caller = recorder.enter("call", ([0],), {})
        clock.work(3 * MS)
        clock.wait(4 * MS)
        recorder.leave(caller)
    recorder.flush()
    assert seen.seconds["1", "wait"] == pytest.approx(0.05 * 4)


def test_without_kernel_samples_missing_ticks_are_system_time(clock):
    sampler = Scripted(clock)
    stretch = Stretch(Ticks(Counter({KERNEL: 6}), None), 2, 12 * MS, 10 * MS, 1 * MS)
    assert parts_ns(stretch, sampler) == {"kernel": 6 * MS, "system": 4 * MS, "wait": 1 * MS}


def test_a_negative_difference_is_taken_off_what_comes_next(recorder, seen):
    labels = ("m", "call", "1")
    stretch = Stretch(Ticks(Counter({KERNEL: 1}), None), 1, MS, MS, 0)
    for system in (3, -2, 1, 4):
        recorder._export_stretch(labels, {"kernel": MS, "system": system * MS}, stretch)
    assert seen.seconds["1", "system"] == pytest.approx(0.006)  # 3 - 2 + 1 + 4


def test_the_ratio_is_of_all_samples_of_its_window(recorder, seen):
    labels = ("m", "call", "1")
    for kernel in (3, 1):
        stretch = Stretch(Ticks(Counter({KERNEL: WINDOW_TICKS // 2}), 0), 1, MS, MS, 0)
        parts = {"kernel": kernel * MS, "python": (4 - kernel) * MS}
        recorder._export_stretch(labels, parts, stretch)
    assert seen.ratios == [("1", 0.5)]


@pytest.mark.parametrize(("ms", "begun"), [(10, 200), (1000, 2000)])
def test_one_call_in_twenty_is_sampled_and_short_ones_many_in_a_row(clock, seen, made, ms, begun):
    recorder = Watch(
        "m", seen, sample=0.05, interval_s=HOUR_S, clock=clock, sampler=lambda: Scripted(clock)
    )
    for _ in range(40_000):
        call(recorder, clock, ms * MS)
    (caller,) = recorder._callers
    sampled = [seen for *_, seen in caller.calls if seen is not None]
    assert 0.6 * 2000 < len(sampled) < 1.5 * 2000  # five standard deviations of 200 gaps
    assert caller.sampler.begun == pytest.approx(len(sampled) / (2000 / begun), abs=1)
    recorder.end()
    recorder.join()


def test_what_a_thread_does_between_calls_in_a_row_is_in_none(recorder, clock, seen, made):
    for _ in range(50):
        call(recorder, clock, 4 * MS)
        clock.work(12 * MS)
    recorder.flush()
    assert made[0].begun == 2  # after 25 calls of 4 ms sampling began anew
    assert sum(seen.seconds.values()) == pytest.approx(0.2)


def test_a_thread_that_calls_no_more_is_sampled_no_more(recorder, clock, seen, made):
    call(recorder, clock, 4 * MS)
    recorder.flush()
    clock.work(2 * MS)
    assert made[0].on is not None  # in a row of 0.1 s
    made[0].lost = 3  # of what it does besides
    recorder.flush()
    assert made[0].on is None and made[0].seen == []
    call(recorder, clock, 4 * MS)
    recorder.flush()
    assert made[0].begun == 2 and sum(seen.seconds.values()) == pytest.approx(0.008)


def test_a_thread_that_may_not_be_sampled_is_asked_once(clock, seen):
    asked = []

    def refused():
        asked.append(1)
        raise RefusedError(1, "no")

    recorder = Watch("m", seen, sample=1, interval_s=HOUR_S, clock=clock, sampler=refused)
    for _ in range(3):
        call(recorder, clock, MS)
    assert asked == [1] and recorder._callers[0].skip > 1000
    recorder.end()
    recorder.join()


def test_without_samples_no_call_begins_one(clock, seen, monkeypatch):
    begun = []
    monkeypatch.setattr(Watch, "_begin_sample", lambda *_: begun.append(1))
    recorder = Watch("m", seen, sample=0, interval_s=HOUR_S, clock=clock)
    for _ in range(10):
        call(recorder, clock, MS)
    recorder.end()
    recorder.join()
    assert (len(seen.calls), begun) == (10, [])


def test_nested_calls_count_once_and_by_the_outermost(clock, seen, watched):
    model = Doubler()
    one = watched(model, calls=("__call__", "twice"), exporter=seen, name="d")
    for _ in range(2):  # the first one opens the thread's buffer
        assert model.twice([1, 2]) == [4, 8]
        assert model([1]) == [2]
    one.flush()
    assert [(name, batch) for name, batch, _ in seen.calls] == 2 * [("twice", "2"), ("call", "1")]


def test_calls_between_sampled_ones_are_noted_with_their_time(clock, seen, monkeypatch):
    monkeypatch.setattr(Watch, "_gap", lambda *_: 3)
    monkeypatch.setattr(watching, "STRETCH_NS", 2 * MS)
    recorder = Watch(
        "m", seen, interval_s=HOUR_S, clock=clock, sampler=lambda: Scripted(clock),
        place=lambda _: PLACES,
    )  # fmt: skip
    model = Doubler(lambda: clock.work(2 * MS))
    model.__class__ = watching._watched_class(Doubler, ("__call__",), recorder)
    for _ in range(9):
        model([1])
    (caller,) = recorder._callers
    noted = list(map(recorder.call_of, caller.calls))
    assert [number for number, (*_, seen) in enumerate(noted) if seen is not None] == [3, 7]
    assert {ns for _, _, ns, failed, _ in noted if not failed} == {2 * MS}
    recorder.end()
    recorder.join()
    assert seen.calls == [("call", "1", 0.002)] * 9


def test_calls_leave_nothing_that_the_garbage_collector_counts(watched, seen):
    """It would stop all threads of a server, for as long as it takes to look at torch's objects."""
    model, begun = Doubler(), []
    with watched(model, exporter=seen, sample=0):
        model([1])
        gc.collect()
        gc.callbacks.append(lambda phase, _: begun.append(phase))
        try:
            for _ in range(20 * gc.get_threshold()[0]):
                model([1])
        finally:
            gc.callbacks.pop()
    assert begun == []


# --- batch sizes -------------------------------------------------------------------------------


class Tensor:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("args", "kwargs", "size"),
    [
        ((Tensor(3, 8),), {}, 3),
        ((), {"input_ids": Tensor(5, 8), "mask": Tensor(1, 8)}, 5),
        (({"input_ids": Tensor(7, 8)},), {}, 7),
        ((["a", "b"],), {}, 2),
        ((0.5, Tensor(9)), {}, 9),
        ((Tensor(),), {}, None),
        ((), {}, None),
    ],
)
def test_batch_size_is_that_of_the_first_argument_that_has_one(args, kwargs, size):
    assert batch_size(args, kwargs) == size


def test_a_label_is_the_range_of_a_power_of_two():
    sizes = (1, 2, 3, 4, 5, 8, 9, 513, 1024, 1025, 0, None)
    assert [batch_label(size) for size in sizes] == [
        "1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "513-1024", "513-1024", ">1024",
        "unknown", "unknown",
    ]  # fmt: skip


def test_a_million_batch_sizes_are_few_label_sets(recorder, seen):
    for size in range(0, 1_000_000, 499):
        recorder.leave(recorder.enter("call", (Tensor(size),), {}))
    recorder.flush()
    labels = {(name, batch) for name, batch, _ in seen.calls}
    assert len(labels) <= 13
    assert ("call", "unknown") in labels  # size 0


# --- faults ------------------------------------------------------------------------------------


def test_a_broken_exporter_does_not_reach_the_call_and_is_logged_once(watched, caplog):
    model = Doubler()
    with caplog.at_level(logging.WARNING, logger="frameworktax.watch"):
        one = watched(model, exporter=Broken())
        for _ in range(3):
            assert model([1]) == [2]
            one.flush()
    assert one.faults == {"export": 6}  # the call and the state, three times
    assert len(caplog.records) == 1


def test_a_model_keeps_no_watch_that_has_ended(watched, seen):
    model = Doubler()
    ended = weakref.ref(watch(model, exporter=seen, sample=0, interval_s=HOUR_S))
    ended().stop()
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (None, "unknown"), (0, "unknown"), (-3, "unknown"), (True, "1"), (2**32 - 1, ">1024"),
        (2**32, ">1024"), (2**70, ">1024"), (7, "5-8"),
    ],
)  # fmt: skip
def test_whatever_a_batch_function_returns_has_a_label_in_every_call(watched, seen, size, label):
    model = Doubler()
    with watched(model, exporter=seen, sample=0, batch=lambda _: size):
        for _ in range(3):
            model([1])
    assert [batch for _, batch, _ in seen.calls] == [label] * 3


def test_a_failing_batch_function_is_an_unknown_batch(watched, seen):
    model = Doubler()
    one = watched(model, exporter=seen, batch=lambda values: values.size)
    assert model([1]) == model([1]) == [2]
    one.flush()
    assert [batch for _, batch, _ in seen.calls] == ["unknown"] * 2
    assert one.faults == seen.faults == {"batch": 2}


@pytest.mark.parametrize("broken", ["resume", "pause", "take", "parse", "__exit__"])
def test_a_failing_sampler_leaves_the_latency(clock, seen, made, monkeypatch, broken):
    def fails(self, *exception):
        raise OSError(broken)

    monkeypatch.setattr(Scripted, broken, fails)
    recorder = Watch(
        "m", seen, sample=1, interval_s=HOUR_S, clock=clock, sampler=lambda: Scripted(clock)
    )
    for _ in range(3):
        call(recorder, clock, MS)
    recorder.end()
    recorder.join()
    assert len(seen.calls) == 3
    assert sum(recorder.faults.values()) == 1
    assert bool(seen.seconds) == (broken == "__exit__")


def test_a_failing_clock_is_counted(recorder, clock, seen, monkeypatch):
    call(recorder, clock, MS)
    monkeypatch.setattr(recorder, "clock", None)
    recorder.leave(recorder.enter("call", ([0],), {}))
    assert recorder.faults["call"] == 1


def test_without_a_sampler_there_is_latency_and_the_reason(clock, seen):
    def refused():
        raise RefusedError(1, "kernel.perf_event_paranoid is 3")

    recorder = Watch("m", seen, sample=1, interval_s=HOUR_S, clock=clock, sampler=refused)
    call(recorder, clock, MS)
    recorder.flush()
    assert recorder.reason == "kernel.perf_event_paranoid is 3"
    assert seen.states == [("none", "kernel.perf_event_paranoid is 3", 1)]
    assert len(seen.calls) == 1
    assert not seen.seconds
    assert not recorder.faults  # a refusal is no fault
    recorder.end()
    recorder.join()


def test_kernels_on_a_gpu_are_the_reason_why_there_is_no_tax(recorder, clock, seen, monkeypatch):
    call(recorder, clock, 4 * MS)
    monkeypatch.setattr(watching, "hidden", lambda: "kernels run on a GPU")
    recorder.flush()
    assert seen.states == [("none", "kernels run on a GPU", 1)]
    assert not seen.seconds


def test_more_calls_than_are_kept_are_counted(recorder, clock, seen, monkeypatch):
    monkeypatch.setattr(watching, "BUFFER", 100)
    for _ in range(107):
        recorder.leave(recorder.enter("call", (), {}))
    recorder.flush()
    assert recorder.faults == seen.faults == {"buffer": 7}
    assert len(seen.calls) == 100


def test_an_exception_of_the_model_is_its_own(watched, seen):
    def fails():
        raise ValueError("mine")

    model = Doubler(fails)
    one = watched(model, exporter=seen)
    for _ in range(2):  # the first one opens the thread's buffer
        with pytest.raises(ValueError, match="mine"):
            model([1])
    one.flush()
    assert (seen.failures, seen.calls) == ([("call", "1")] * 2, [])


# --- beginning and end -------------------------------------------------------------------------


def test_stop_exports_the_rest_and_leaves_the_model_as_it_was(watched, seen):
    model = Doubler()
    with watched(model, exporter=seen) as one:
        assert type(model) is not Doubler
        assert isinstance(model, Doubler)
        model([1])
        thread, call, (caller,) = one._thread, model.__call__, one._callers
        assert thread.is_alive()
    assert type(model) is Doubler
    assert call([1]) == [2]  # a method that was taken while it was watched
    assert caller.made == 1
    assert len(seen.calls) == 1
    assert not thread.is_alive()
    model([1])
    one.flush()
    assert len(seen.calls) == 1


def test_a_watch_ends_with_its_model(watched, seen):
    model = Doubler()
    one = watched(model, exporter=seen)
    model([1])
    thread = one._thread
    del model
    gc.collect()
    thread.join(timeout=600)
    assert not thread.is_alive()
    assert len(seen.calls) == 1


def test_a_model_lives_on_without_its_watch(watched, seen):
    model = Doubler()
    watch(model, exporter=seen, sample=0, interval_s=HOUR_S)
    gc.collect()
    model([1])
    assert type(model) is not Doubler


def test_other_objects_copies_and_pickles_are_not_watched(watched, seen):
    model = Doubler(len)
    watched(model, exporter=seen)
    assert type(Doubler()) is Doubler
    assert type(copy.copy(model)) is type(copy.deepcopy(model)) is Doubler
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert type(pickle.loads(pickle.dumps(model, protocol))) is Doubler


class Rebuilt(Doubler):
    def __reduce__(self):
        return partial(Rebuilt, self.work), ()


def test_a_copy_may_be_made_by_any_callable(watched, seen):
    model = Rebuilt(len)
    watched(model, exporter=seen)
    assert type(copy.copy(model)) is type(pickle.loads(pickle.dumps(model))) is Rebuilt


class Generates:
    def __call__(self):
        yield 1


class Streams:
    async def __call__(self):
        yield 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (len, {}),
        (object(), {}),
        (Generates(), {}),
        (Streams(), {}),
        (Doubler(), {"calls": ("absent",)}),
        (Doubler(), {"calls": "twice"}),
        (Doubler(), {"calls": ()}),
        (Doubler(), {"exporter": "statsd"}),
        (Doubler(), {"sample": 2}),
        (Doubler(), {"interval_s": float("inf")}),
        (Doubler(), {"interval_s": float("nan")}),
    ],
)
def test_what_cannot_be_watched_is_wrong_use(watched, model, options):
    with pytest.raises(UsageError):
        watched(model, **{"exporter": Seen(), **options})


class Handing(Doubler):
    """Hands what is set on it to another object, as TorchScript's modules do."""

    def __setattr__(self, name, value):
        if name == "work":
            object.__setattr__(self, name, value)
        else:
            setattr(self.work, name, value)


def test_only_the_class_of_the_model_itself_is_changed(watched, seen):
    model = Handing(Doubler())
    model.work.__dict__["work"] = lambda: None
    watch = watched(model, exporter=seen)
    assert type(model.work) is Doubler and type(model) is not Handing
    watch.stop()
    assert type(model.work) is Doubler and type(model) is Handing


def test_a_second_watch_of_a_model_is_wrong_use(watched, seen):
    model = Doubler()
    watched(model, exporter=seen)
    with pytest.raises(UsageError, match="already"):
        watched(model, exporter=seen)


def test_threads_have_buffers_and_samplers_of_their_own(recorder, clock, seen, made):
    def work():
        for _ in range(10):
            call(recorder, clock, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    recorder.flush()
    assert len(seen.calls) == 40
    assert all(sampler.closed for sampler in made)
    assert not recorder._callers


def test_a_thread_gives_its_sampler_back_as_it_ends(recorder, clock, seen, made):
    for _ in range(3):
        thread = threading.Thread(target=call, args=(recorder, clock, 8 * MS))
        thread.start()
        thread.join()
    assert [one.closed for one in made] == [True] * 3  # before anything is exported
    recorder.flush()
    assert len(seen.calls) == 3 and sum(seen.seconds.values()) == pytest.approx(0.024)
    assert not recorder.faults


def test_a_call_under_way_keeps_its_ring_until_it_ends(recorder, clock, made):
    caller = recorder.enter("call", (), {})
    recorder.end()
    recorder.join()
    assert not made[0].closed
    recorder.leave(caller)
    assert made[0].closed


@pytest.mark.timeout(120)  # it would wait for itself
def test_an_exporter_may_fork(clock):
    class Forking(Seen):
        def record(self, name, labels, value):
            if name != "call.duration":
                return
            child = os.fork()
            if not child:
                os._exit(0)
            self.calls.append(os.waitpid(child, 0)[1])

    forking = Forking()
    recorder = Watch("m", forking, sample=0, interval_s=HOUR_S, clock=clock)
    call(recorder, clock, MS)
    recorder.flush()
    assert forking.calls == [0]
    recorder.end()
    recorder.join()


@pytest.mark.timeout(60)
def test_a_signals_handler_may_call_the_model_in_the_middle_of_its_first_call(
    watched, seen, monkeypatch
):
    def interrupted(thread, start=threading.Thread.start):
        monkeypatch.setattr(threading.Thread, "start", start)
        assert model([1, 2]) == [2, 4]
        if not thread.ident:
            start(thread)

    model = Doubler()
    one = watched(model, exporter=seen)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    for _ in range(2):
        model([1])
    one.flush()
    assert sorted(batch for _, batch, _ in seen.calls) == ["1", "1", "2"] and not one.faults
    assert [t.name for t in threading.enumerate()].count("frameworktax-watch") == 1


def test_a_watch_whose_thread_cannot_be_started_tries_again(watched, seen, monkeypatch):
    model = Doubler()
    one = watched(model, exporter=seen)
    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start")))
        for _ in range(3):
            assert model([1]) == [2]
        one.flush()
    assert one.faults == {"call": 3, "export": 1}
    assert model([1]) == [2]
    one.flush()
    assert len(seen.calls) == 1


class Hanging(Seen):
    """Does not return until it may."""

    def __init__(self):
        super().__init__()
        self.may, self.entered = threading.Event(), threading.Event()

    def record(self, name, labels, value):
        self.entered.set()
        self.may.wait()
        super().record(name, labels, value)


@pytest.fixture
def hanging(monkeypatch):
    """Return an exporter that hangs, with no time to wait for it."""
    monkeypatch.setattr(watching, "STUCK_S", 0.0)
    monkeypatch.setattr(watching, "FORK_S", 0.0)
    exporter = Hanging()
    yield exporter
    exporter.may.set()


@pytest.mark.timeout(60)
def test_an_exporter_that_hangs_is_left_behind_by_flush_and_stop(watched, hanging, seen):
    model, other = Doubler(), Doubler()
    one, healthy = watched(model, exporter=hanging), watched(other, exporter=seen)
    model([1])
    other([1])
    one.flush()
    healthy.flush()
    assert len(seen.calls) == 1 and one.faults == {"export": 1} and not healthy.faults
    model([1])
    one.stop()
    assert type(model) is Doubler and one.faults == {"export": 2}
    hanging.may.set()
    one._thread.join()
    assert len(hanging.calls) == 2  # it went on, and nothing was lost


@pytest.mark.timeout(60)
def test_a_fork_does_not_wait_for_an_exporter_that_hangs(watched, hanging, seen):
    model, other = Doubler(), Doubler()
    one, healthy = watched(model, exporter=hanging), watched(other, exporter=seen)
    model([1])
    other([1])
    healthy.flush()
    one.flush()
    assert hanging.entered.is_set()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        model([1])
        other([1])
        healthy.flush()
        os.write(writing, f"{len(seen.calls)} {dict(one.faults)} {dict(healthy.faults)}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "2 {'export': 1, 'fork': 1} {}"
    assert os.waitpid(child, 0)[1] == 0
    assert one.faults == {"export": 1}  # a fault of the child's


@pytest.mark.parametrize("size", [np.int64(3), True, 3.0])
def test_a_batch_size_may_be_a_number_of_another_type(watched, seen, size):
    model = Doubler()
    one = watched(model, exporter=seen, batch=lambda values: size)
    for _ in range(2):
        model([1])
    one.flush()
    label = batch_label(int(size))
    assert [batch for _, batch, _ in seen.calls] == [label, label] and not one.faults


# --- exporters ---------------------------------------------------------------------------------


def drive(exporter):
    labels = ("m", "call", "3-4")
    exporter.record("call.duration", labels, 0.003)
    exporter.record("call.errors", labels, 1)
    exporter.record("sampled.time", (*labels, "kernel"), 0.5)
    exporter.record("tax", labels, 0.25)
    exporter.record("watch.faults", ("m", "export"), 2)
    exporter.record("watch.info", ("m", "none", "why"), 1)


NAMES = {
    "frameworktax_call_duration_seconds": "histogram",
    "frameworktax_call_errors": "counter",
    "frameworktax_sampled_time_seconds": "counter",
    "frameworktax_tax_ratio": "gauge",
    "frameworktax_watch_faults": "counter",
    "frameworktax_watch_info": "gauge",
}


def test_a_prometheus_client_reads_names_units_and_values():
    registry = CollectorRegistry()
    drive(Prometheus(registry))
    found = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    kinds = {name: f.type for name, f in found.items() if not name.endswith("_created")}
    assert kinds == NAMES
    labels = {"model": "m", "call": "call", "batch": "3-4"}
    values = {s.name: (s.labels, s.value) for f in found.values() for s in f.samples}
    assert values["frameworktax_call_duration_seconds_sum"] == (labels, 0.003)
    assert values["frameworktax_call_errors_total"] == (labels, 1)
    seconds = values["frameworktax_sampled_time_seconds_total"]
    assert seconds == ({**labels, "part": "kernel"}, 0.5)
    assert values["frameworktax_tax_ratio"] == (labels, 0.25)
    assert values["frameworktax_watch_faults_total"] == ({"model": "m", "stage": "export"}, 2)


def test_opentelemetry_has_the_same_in_its_own_names():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    drive(OpenTelemetry(provider))
    scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
    found = {m.name: (m.unit, m.data.data_points[0]) for m in scope.metrics}
    provider.shutdown()
    assert {name: unit for name, (unit, _) in found.items()} == {
        "frameworktax.call.duration": "s",
        "frameworktax.call.errors": "{call}",
        "frameworktax.sampled.time": "s",
        "frameworktax.tax": "1",
        "frameworktax.watch.faults": "{fault}",
        "frameworktax.watch.info": "",
    }
    duration = found["frameworktax.call.duration"][1]
    assert (duration.sum, duration.explicit_bounds) == (0.003, BOUNDS_S)
    assert dict(duration.attributes) == {"model": "m", "call": "call", "batch": "3-4"}
    assert found["frameworktax.tax"][1].value == 0.25
