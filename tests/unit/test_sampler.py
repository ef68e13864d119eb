"""The loop that all samplers share, on a scripted clock."""

import mmap
import time
from collections import Counter
from random import Random

import pytest

from frameworktax.attribution.sampler import Ticks, drawn_period_ns, sample
from frameworktax.clock import Clock, others_ns
from frameworktax.testing import FakeClock


class Counting:
    """A sampler that notes when it was on."""

    name = "counting"
    period_ns = 1_000

    def __init__(self):
        self.events = []

    def start(self):
        self.events.append("start")

    def stop(self):
        self.events.append("stop")

    def ticks(self):
        return [Ticks(Counter(), 0)] * self.events.count("stop")

    def pause(self):
        self.events.append("pause")

    def resume(self):
        self.events.append("resume")


def test_stretches_are_filled_and_timed():
    clock = FakeClock()
    run = sample(lambda: clock.work(300), Counting(), stretches=2, duration_ns=2_000, clock=clock)
    assert [(s.calls, s.wall_ns, s.cpu_ns) for s in run.stretches] == [(4, 1_200, 1_200)] * 2
    assert run.latency_ns == 300


def test_time_in_the_queue_is_told_apart():
    clock = FakeClock()

    def call():
        clock.work(300)
        clock.others(200)
        clock.wait(100)

    run = sample(call, Counting(), stretches=1, duration_ns=1_000, clock=clock)
    (stretch,) = run.stretches
    assert (stretch.calls, stretch.wall_ns, stretch.cpu_ns, stretch.queued_ns) == (
        2,
        1_200,
        600,
        400,
    )


def test_what_others_take_between_two_readings_of_clocks_is_in_none_of_them():
    class Interrupted(FakeClock):
        def _cpu(self):
            read = super()._cpu()
            self.others(1_000)
            return read

    clock = Interrupted()
    run = sample(lambda: clock.work(300), Counting(), stretches=1, duration_ns=1, clock=clock)
    assert (run.stretches[0].wall_ns, run.stretches[0].queued_ns) == (300, 0)


@pytest.mark.parametrize(("waited_ns", "others_ns"), [(0, 500), (100, 200)])
def test_what_a_hypervisor_takes_of_a_thread_that_never_waits_is_time_of_others(
    waited_ns, others_ns
):
    clock = FakeClock()

    def call():
        clock.work(300)
        clock.others(200)
        clock.stolen(300)
        if waited_ns:
            clock.wait(waited_ns)

    run = sample(call, Counting(), stretches=1, duration_ns=1, clock=clock)
    assert run.stretches[0].queued_ns == others_ns


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((10, 3), (60, 3), 80),  # never waited: all of it was others'
        ((10, 3), (60, 4), 50),
        ((10, 3), (100, 3), 80),  # by clocks that are read one after the other
        ((10, 3), (100, 4), 90),
        ((None, 3), (None, 3), 80),
        ((None, 3), (None, 4), None),
    ],
)
def test_time_of_others_in_80_ns_off_the_processor(before, after, found):
    assert others_ns(80, before, after) == found


def test_a_thread_waits_when_it_sleeps_and_not_when_it_computes():
    clock = Clock()
    before = clock.waits()
    sum(range(1000))
    assert clock.waits() == before
    time.sleep(0.001)
    assert clock.waits() > before


def test_page_faults_are_those_of_the_pages_that_a_call_touches_first():
    pages = 512
    whole = mmap.mmap(-1, 8 * pages * mmap.PAGESIZE)
    whole.madvise(mmap.MADV_NOHUGEPAGE)  # else one fault gives 512 of them
    fresh = iter(range(0, len(whole), mmap.PAGESIZE))
    clock = FakeClock()

    def call():
        clock.work(300)
        for _ in range(pages):
            whole[next(fresh)] = 1

    run = sample(call, Counting(), stretches=2, duration_ns=1_200, clock=clock)
    for stretch in run.stretches:
        assert pages * stretch.calls <= stretch.page_faults < 1.2 * pages * stretch.calls


def test_the_wait_for_a_device_is_left_out():
    clock, sampler = FakeClock(), Counting()
    run = sample(
        lambda: clock.work(300),
        sampler,
        stretches=1,
        duration_ns=1_500,
        settle=lambda: clock.wait(900),
        clock=clock,
    )
    (stretch,) = run.stretches
    assert (stretch.calls, stretch.wall_ns, stretch.cpu_ns) == (2, 600, 600)
    assert run.latency_ns == 300
    assert sampler.events == ["start", *["pause", "resume"] * 2, "stop"]


def test_a_call_in_step_with_the_sampler_is_seen_as_it_is():
    """Half of a call of 0.2 ms is kernels; of samples a whole number of calls apart all are."""
    call_ns, period_ns, samples = 200_000, 1_400_000, 33

    def share(periods):
        in_kernel = sum(
            tick * period % call_ns < call_ns // 2 for period in periods for tick in range(samples)
        )
        return in_kernel / (len(periods) * samples)

    assert share([period_ns] * 12) == 1.0
    random = Random(20)
    assert share([drawn_period_ns(period_ns, random) for _ in range(12)]) == pytest.approx(
        0.5, abs=0.05
    )
