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
    assert start.elapsed_time(end) == 100 / 1e6
    with pytest.raises(RuntimeError, match="never recorded"):
        device.event().elapsed_time(end)


def test_a_fake_runtime_is_timed_exactly():
    clock = FakeClock()
    loaded = FakeLoaded(clock, cost_ns=lambda batch, number: 1_000 * batch + number)
    runtime = FakeRuntime(loaded)
    assert runtime.missing(Target()) is None
    call = runtime.load(None, Target(), Path()).bind(3)
    block = timing.host_block(call, calls=4, clock=clock)
    # calls this short are dropped in the number that is timed
    assert block.latency_ns == (3_004, 3_005, 3_006, 3_007)
    (array,) = loaded.outputs(call())
    assert np.array_equal(array, np.ones((3, 2)))


def test_a_sleep_of_less_than_a_nanosecond_moves_the_clock():
    clock = FakeClock()
    for seconds, now_ns in ((1e-12, 1), (0.5, 500_000_001), (0, 500_000_001)):
        clock.sleep(seconds)
        assert clock.now_ns == now_ns
