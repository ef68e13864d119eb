"""Samples of several threads as one process: against brute force, and simulated calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from frameworktax.attribution.every_thread import Timeline, covered_ns, intervals, together
from frameworktax.attribution.perf_event import OFF, ON, PREEMPTED
from frameworktax.attribution.symbols import Leaf

KERNEL, PYTHON, WAITING = Leaf("mkl", "gemm"), Leaf("python", "eval"), Leaf("gomp", "wait")
BUCKETS = {KERNEL: "kernel", PYTHON: "python", WAITING: "threading"}
END = 60


def drawn(rng):
    """What a thread does at every moment, as switches and moment by moment."""
    states = []
    while len(states) < END:
        states += [rng.choice((ON, ON, OFF, PREEMPTED))] * rng.randint(1, 9)
    states = states[:END]
    switches = []
    for moment in range(1, END):
        if states[moment] != states[moment - 1]:
            if states[moment] != ON and states[moment - 1] != ON:
                states[moment] = states[moment - 1]  # off becomes preempted through on only
            else:
                switches.append((moment, states[moment]))
    if states[0] == PREEMPTED:  # what was before the window is not known: off, until it comes on
        for moment in range(switches[0][0] if switches else END):
            states[moment] = OFF
    return states, switches


@pytest.mark.parametrize("seed", range(60))
def test_intervals_and_samples_are_those_of_brute_force(seed):
    rng = random.Random(seed)
    threads = [drawn(rng) for _ in range(rng.randint(1, 4))]
    timelines, leaves = [], []
    for states, switches in threads:
        on, queued = intervals(switches, 0, END, counted_ns=states.count(ON))
        ran = {m for m in range(END) if states[m] == ON}
        assert {m for begin, end in on for m in range(begin, end)} == ran
        assert covered_ns(on) == len(ran)
        assert covered_ns(queued) == states.count(PREEMPTED)
        leaf = {m + 0.5: rng.choice((KERNEL, PYTHON, WAITING)) for m in ran}
        timelines.append(Timeline(on, queued, sorted(leaf.items())))
        leaves.append(leaf)
    some = covered_ns([one for t in timelines for one in t.on])
    assert some == sum(any(s[m] == ON for s, _ in threads) for m in range(END))

    wanted = Counter()
    for moment in range(END):
        running = [i for i in range(len(threads)) if moment + 0.5 in leaves[i]]
        if not running:
            continue
        found = [leaves[i][moment + 0.5] for i in running]
        busy = running[0] == 0 and found[0] not in (KERNEL, WAITING)
        wanted[found[0] if busy or KERNEL not in found else KERNEL] += 1
    assert together(timelines, BUCKETS.get) == wanted


def test_time_in_the_queue_after_waking_is_divided_among_the_times_it_was_woken():
    switches = [(10, OFF), (30, ON), (40, OFF), (41, ON), (50, PREEMPTED), (54, ON)]
    on, queued = intervals(switches, 0, 60, counted_ns=35, queued_ns=10)
    assert on == [(0, 10), (30, 40), (41, 50), (54, 60)]
    assert queued == [(27, 30), (40, 41), (50, 54)]  # 4 preempted, and 3 at each of two, 1 at most
    assert intervals(switches, 20, 45, counted_ns=14, queued_ns=None)[0] == [(30, 40), (41, 45)]
    assert intervals([], 0, 60, counted_ns=60) == ([(0, 60)], [])
    assert intervals([], 0, 60, counted_ns=0) == ([], [])


def test_half_of_what_is_counted_beyond_the_records_lies_before_each_switch_to_the_thread():
    switches = [(10, OFF), (30, ON), (40, OFF), (45, ON), (50, OFF)]
    recorded = [(0, 10), (30, 40), (45, 50)]
    assert intervals(switches, 0, 60, counted_ns=25)[0] == recorded
    assert intervals(switches, 0, 60, counted_ns=25 + 12)[0] == [(0, 10), (28, 40), (43, 50)]
    assert intervals(switches, 0, 60, counted_ns=20)[0] == recorded  # sampling was paused


@pytest.mark.parametrize("spins", [True, False], ids=["spinning", "sleeping"])
@pytest.mark.parametrize("python_us", [100, 1000, 10_000])
def test_a_call_of_two_threads_has_the_tax_that_was_put_into_it(python_us, spins):
    """The caller is in Python, then both compute and one waits for the other, now this, now that.

    Kernels take the time until the slower one is done; the other waits in a barrier, or sleeps.
    """
    rng = random.Random(python_us)
    now, kernel_us = 0.0, 0.0
    spans: list[list[tuple[float, float, Leaf]]] = [[], []]
    calls = 4000 if python_us < 10_000 else 1000
    for _ in range(calls):
        spans[0].append((now, now + python_us, PYTHON))
        now += python_us
        for _ in range(3):
            took = [rng.uniform(200, 400) for _ in spans]
            kernel_us += max(took)
            for one, us in zip(spans, took, strict=True):
                one.append((now, now + us, KERNEL))
                if spins:
                    one.append((now + us, now + max(took), WAITING))
            now += max(took)
    timelines = []
    for one in spans:
        due, samples = rng.uniform(0, 1493), []
        for begin, end, leaf in one:  # a tick for every 1,493 µs that the thread runs
            while due < end - begin:
                samples.append((begin + due, leaf))
                due += 1493
            due -= end - begin
        timelines.append(Timeline([(begin, end) for begin, end, _ in one], (), samples))
    found = together(timelines, BUCKETS.get)
    taken = {leaf: count * 1493 / calls for leaf, count in found.items()}
    assert taken[PYTHON] == pytest.approx(python_us, rel=0.05)
    assert taken[KERNEL] == pytest.approx(kernel_us / calls, rel=0.05)
    assert taken.get(WAITING, 0) < 0.05 * kernel_us / calls
