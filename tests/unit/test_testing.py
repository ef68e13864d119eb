"""The public fakes keep their own promises: they are what other exact tests stand on."""

from pathlib import Path

import numpy as np
import pytest
from fake_device import FakeDevice
from hypothesis import given
from hypothesis import strategies as st

from frameworktax.clock import Clock
from frameworktax.measure import timing
from frameworktax.runtimes.base import Target
from frameworktax.testing import FakeClock, FakeLoaded, FakeRuntime
from frameworktax.traces.events import (
    COPY,
    COPY_LAUNCHES,
    DEVICE,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSET,
    MEMSET_LAUNCHES,
)


def launches(trace, *names):
    return trace.events.where(trace.events.launching(*names))


def test_the_clock_moves_only_when_told_to():
    clock = FakeClock(start_ns=100)
    assert isinstance(clock, Clock)
    assert (clock.wall_ns(), clock.wall_ns(), clock.cpu_ns()) == (100, 100, 0)
    clock.work(5)
    clock.wait(20)
    clock.sleep(1e-6)
    clock.wait_until(50)
    assert (clock.wall_ns(), clock.cpu_ns(), clock.slept) == (1_125, 5, [1e-6])
    clock.wait_until(2_000)
    assert clock.wall_ns() == 2_000


def test_reading_the_clock_can_cost_time():
    clock = FakeClock(tick_ns=7)
    assert (clock.wall_ns(), clock.wall_ns(), clock.cpu_ns()) == (7, 14, 14)


drawn = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20)


@given(drawn, st.integers(0, 20), st.integers(0, 20), st.integers(1, 4))
def test_the_device_follows_the_replay_of_two_queues(script, latency, gap, depth):
    clock = FakeClock()
    device = FakeDevice(clock, launch_latency_ns=latency, gap_ns=gap, queue_depth=depth)

    def work():
        for host, kernel in script:
            device.launch(host_ns=host, kernel_ns=kernel)

    trace = device.profile(work).device()
    ends, now = [], 0
    for i, (host, kernel) in enumerate(script):
        now += host
        if i >= depth:
            now = max(now, ends[i - depth])
        start = max(now + latency, ends[-1] + gap) if ends else now + latency
        ends.append(start + kernel)
        assert trace.start_ns[i] == start
    assert trace.end_ns.tolist() == ends
    assert clock.now_ns == now
    device.synchronize()
    assert clock.now_ns == max(now, ends[-1])


def test_streams_run_beside_each_other():
    clock = FakeClock()
    device = FakeDevice(clock)
    device.launch(kernel_ns=100)
    device.launch(kernel_ns=70, stream=13)
    device.launch(kernel_ns=70, stream=13)
    assert (device.free_ns(7), device.free_ns(13)) == (100, 140)
    device.synchronize()
    assert clock.now_ns == 140


def test_events_are_reached_when_the_work_before_them_is_done():
    clock = FakeClock()
    device = FakeDevice(clock)
    start, end = device.event(), device.event()
    assert not start.query()
    start.record()
    device.launch(kernel_ns=100)
    end.record()
    assert (start.query(), end.query()) == (True, False)
    clock.wait(99)
    assert not end.query()
    clock.wait(1)
    assert end.query()
    assert end.since_ns(start) == 100
    with pytest.raises(RuntimeError, match="never recorded"):
        end.since_ns(device.event())


def test_a_profile_has_the_kinds_of_records_a_real_one_has():
    device = FakeDevice(FakeClock(start_ns=1_751_410_836_123_456_789), index=2)

    def work():
        device.launch(kernel_ns=1, category=COPY)
        device.launch(kernel_ns=1, category=MEMSET)
        device.replay([5, 5], host_ns=3)
        device.spin(10)

    trace = device.profile(work)
    assert trace.events.start_ns[0] == 1_751_410_836_123_456_789
    assert [len(trace.device(2).of(c)) for c in DEVICE] == [3, 1, 1]
    kinds = (COPY_LAUNCHES, MEMSET_LAUNCHES, GRAPH_LAUNCHES, KERNEL_LAUNCHES)
    assert [int(trace.events.launching(*kind).sum()) for kind in kinds] == [1, 1, 1, 1]
    graph = launches(trace, *GRAPH_LAUNCHES).correlation[0]
    assert (trace.device(2).correlation == graph).sum() == 2


def test_records_can_be_lost_from_a_profile_and_only_there():
    clock = FakeClock()
    device = FakeDevice(clock, lose=lambda number: number == 0)
    device.launch(kernel_ns=5)  # not profiled
    trace = device.profile(lambda: [device.launch(kernel_ns=5) for _ in range(3)])
    assert (len(trace.device()), len(launches(trace, *KERNEL_LAUNCHES))) == (2, 3)
    assert device.free_ns(7) == 20


def test_a_fake_runtime_is_timed_exactly():
    clock = FakeClock()
    loaded = FakeLoaded(clock, cost_ns=lambda batch, number: 1_000 * batch + number)
    runtime = FakeRuntime(loaded)
    assert runtime.missing(Target()) is None
    call = runtime.load(None, Target(), Path()).bind(3)
    block = timing.time_block(call, calls=4, clock=clock)
    # calls this short are dropped in the number that is timed
    assert block.latency_ns == (3_004, 3_005, 3_006, 3_007)
    (array,) = loaded.outputs(call())
    assert np.array_equal(array, np.ones((3, 2)))


def test_a_fake_runtime_on_a_device_returns_before_it_is_done():
    clock = FakeClock()
    device = FakeDevice(clock)
    loaded = FakeLoaded(clock, lambda batch, number: 50, device, lambda batch: 400 * batch)
    block = timing.time_block(
        loaded.bind(2), loaded.synchronize, calls=3, on_device=True, clock=clock
    )
    assert block.enqueue_ns == (50,) * 3
    assert block.latency_ns == (850,) * 3
    assert block.pipelined_ns == 50 + 3 * 800


def test_a_fake_runtime_can_be_missing():
    assert FakeRuntime(missing="no such engine").missing(Target()) == "no such engine"
