"""Blocks and warm-up on a scripted clock: exact numbers."""

import pytest
from fake_device import FakeDevice

from frameworktax.measure import timing
from frameworktax.testing import FakeClock, FakeLoaded


def test_a_host_block_drops_the_first_call_and_counts_both_timings():
    clock = FakeClock()
    call = FakeLoaded(clock, cost_ns=lambda batch, number: 9_000 if number == 0 else 1_000).bind(1)
    block = timing.host_block(call, calls=5, clock=clock)
    assert block.latency_ns == (1_000,) * 5
    assert block.pipelined_ns == 5_000
    assert block.pipelined_calls == 5
    assert block.cpu_ns == 5_000
    assert block.enqueue_ns is None


def test_calls_are_dropped_until_caches_are_warm():
    clock = FakeClock()
    slow_at_first = [5_000_000, 4_000_000, 4_000_000, 3_000_000] + [2_000_000] * 20
    call = FakeLoaded(clock, cost_ns=lambda batch, number: slow_at_first[number]).bind(1)
    # 5 + 4 + 4 + 3 ms are the first 15 ms; what is timed comes after them
    assert timing.host_block(call, calls=10, clock=clock).latency_ns == (2_000_000,) * 10


def test_one_call_is_dropped_where_one_is_long():
    clock, made = FakeClock(), []

    def call():
        made.append(1)
        clock.work(40_000_000)

    timing.host_block(call, calls=5, clock=clock)
    assert len(made) == 6


def test_none_is_dropped_where_one_call_is_a_block():
    clock = FakeClock()
    call = FakeLoaded(clock, cost_ns=lambda batch, number: 10**9 + number).bind(1)
    assert timing.host_block(call, calls=1, clock=clock).latency_ns == (10**9,)


@pytest.mark.parametrize("call_ns", [1_000_000, 100_000_000, 400_000_000, 600_000_000])
def test_a_block_takes_what_is_planned_for_it(call_ns):
    clock = FakeClock()
    call = FakeLoaded(clock, cost_ns=lambda batch, number: call_ns).bind(1)
    timing.host_block(call, calls=timing.calls_for(call_ns), clock=clock)
    assert timing.block_ns(call_ns) - call_ns <= clock.wall_ns() <= timing.block_ns(call_ns)


def test_a_host_block_carries_one_clock_reading_a_call():
    clock = FakeClock(tick_ns=7)
    call = FakeLoaded(clock, cost_ns=lambda batch, number: 1_000).bind(1)
    assert timing.host_block(call, calls=6, clock=clock).latency_ns == (1_007,) * 6


def test_waiting_shows_as_wall_over_cpu():
    clock = FakeClock()

    def call():
        clock.work(600)
        clock.wait(400)

    block = timing.host_block(call, calls=5, clock=clock)
    assert (sum(block.latency_ns), block.cpu_ns) == (5_000, 3_000)


def test_a_device_block_tells_latency_enqueue_and_pipelined_apart():
    clock = FakeClock()
    device = FakeDevice(clock)
    loaded = FakeLoaded(clock, lambda batch, number: 300, device, lambda batch: 1_000)
    block = timing.device_block(loaded.bind(1), loaded.synchronize, calls=5, clock=clock)
    assert block.enqueue_ns == (300,) * 5
    assert block.latency_ns == (1_300,) * 5
    # Five launches back to back: the device starts after the first launch and then never waits.
    assert block.pipelined_ns == 300 + 5 * 1_000


def test_the_collector_is_off_inside_and_back_on_after_a_block():
    import gc

    seen = []
    timing.host_block(lambda: seen.append(gc.isenabled()), calls=5)
    assert seen == [False] * 10
    assert gc.isenabled()


def test_a_failing_call_leaves_the_collector_on():
    import gc

    def call():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        timing.host_block(call, calls=5)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("costs_us", "calls", "settled"),
    [
        # groups of five: 9, 5, 2, 1, 1: the fifth is the first that does not fall
        ([9] * 5 + [5] * 5 + [2] * 5 + [1] * 20, 25, True),
        ([1] * 20, 10, True),  # ten calls at least
        ([5_000_000, 4_000_000, 3_000_000], 3, False),  # the limit
        ([9_000_000, 2_000_000, 2_000_000], 3, True),  # a long call is a group
        ([900_000, 700_000, 600_000, 600_000], 4, True),
        ([900_000] + [100_000] * 20, 11, True),  # only the first was long: it compiled
    ],
)
def test_warm_up_goes_on_until_groups_stop_falling(costs_us, calls, settled):
    clock = FakeClock()
    call = FakeLoaded(clock, cost_ns=lambda batch, number: costs_us[number] * 1_000).bind(1)
    warm = timing.warm_up(call, limit_ns=10_000_000_000, clock=clock)
    assert (warm.calls, warm.call_ns, warm.settled) == (calls, costs_us[-1] * 1_000, settled)


def test_calls_fill_a_block_within_bounds():
    assert timing.calls_for(1_000_000, 20_000_000) == 20
    assert timing.calls_for(3_000_000, 20_000_000) == 7
    assert timing.calls_for(1, 20_000_000) == timing.MAX_CALLS
    longer = (100_000_000, 200_000_000, 250_000_000, 400_000_000, 600_000_000, 10**10)
    assert [timing.calls_for(ns, 20_000_000) for ns in longer] == [5, 5, 4, 2, 1, 1]
    assert timing.calls_for(0, 20_000_000) == timing.MAX_CALLS
