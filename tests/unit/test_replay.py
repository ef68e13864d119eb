"""The replay of two queues, by hand, by property and against a device simulated another way."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from two_queues import Program, busy_ns, play, random_program

from frameworktax.analysis.whatif import formulas, replay
from frameworktax.analysis.whatif.replay import Change
from machines import uniform


def queues(host, kernel, **more):
    n = len(host)
    return replay.Queues(
        host_ns=np.array(host, dtype=float),
        kernel_ns=np.array(kernel, dtype=float),
        stream=np.array(more.pop("stream", [0] * n), dtype=np.int64),
        after=np.array(more.pop("after", [-1] * n), dtype=np.int64),
        blocked=np.array(more.pop("blocked", [False] * n)),
        extra_ns=np.zeros(n),
        late_ns=np.zeros(n),
        **more,
    )


def latency(q, **change):
    return replay.latency_ns(replay.changed(q, Change(**change)))


def test_host_bound_by_hand():
    q = queues([10, 10, 10], [2, 2, 2], launch_ns=5, gap_ns=1, tail_ns=1, sync_ns=3)
    # the last launch at 30, its kernel from 35 to 37; the host returns at 31
    assert latency(q) == 40
    assert latency(q, device_speed=2) == 39  # only the last kernel is in the way
    assert latency(q, host_speed=2) == 25
    assert latency(q, graphs=True) == pytest.approx(10 + 5 + 2 + 0.1 + 2 + 0.1 + 2 + 3)


def test_device_bound_by_hand():
    q = queues([1, 1, 1], [10, 10, 10], launch_ns=5, gap_ns=1, sync_ns=3)
    assert latency(q) == 6 + 10 + 1 + 10 + 1 + 10 + 3
    assert latency(q, device_speed=10) == 6 + 1 + 1 + 1 + 1 + 1 + 3


def test_a_full_queue_holds_the_host_back():
    q = queues([1] * 4, [10] * 4, depth=2, tail_ns=100)
    assert latency(q) == 121  # launched at 1, 2, 11 and 21


def test_streams_run_side_by_side_and_wait_for_each_other():
    apart = queues([1, 1], [10, 10], stream=[0, 1])
    assert latency(apart) == 12
    waiting = queues([1, 1], [10, 10], stream=[0, 1], after=[-1, 0], gap_ns=2)
    assert latency(waiting) == 11 + 2 + 10


def test_a_host_that_waits_is_made_faster_by_the_device():
    q = queues([1, 5], [20, 1], blocked=[False, True])
    assert latency(q) == 21 + 1  # 5 of host work end while the kernel still runs
    apart = queues([1, 5], [20, 1], stream=[0, 1], blocked=[False, True])
    assert latency(apart) == 21 + 1  # on a stream of its own, and waited for all the same
    assert latency(apart, device_speed=4) == 6 + 0.25


PROGRAMS = st.builds(
    lambda seed, launches, host, kernel, streams: random_program(
        np.random.default_rng(seed),
        launches=launches,
        host_ns=host,
        kernel_ns=kernel,
        streams=streams,
    ),
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.floats(200, 20_000),
    st.floats(200, 50_000),
    st.integers(1, 3),
)
FACTORS = st.floats(0.2, 10)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_a_recorded_step_is_given_back_exactly(program):
    step = play(program)
    q = replay.queues_of(step)
    steps, ended = replay.run(q)
    order = np.lexsort((step.device_start_ns, step.launch_start_ns))
    assert steps.sum() == pytest.approx(step.end_ns, abs=1e-3)
    assert ended == pytest.approx(step.device_end_ns[order], abs=1e-3)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS, FACTORS, FACTORS, FACTORS)
def test_no_latency_grows_when_a_part_gets_faster(program, slow, more, other):
    q = replay.queues_of(play(program))
    fast = slow * (1 + more)
    for name, rest in (("device_speed", "host_speed"), ("host_speed", "device_speed")):
        before = latency(q, **{name: slow, rest: other})
        after = latency(q, **{name: fast, rest: other})
        assert after <= before + 1e-6
    # A graph's only launch takes what one takes at the median, never more than all of them.
    if q.late_ns.min() >= 0:
        assert latency(q, graphs=True) <= latency(q) + 1e-6


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 1500),
    st.floats(1, 1e7),
    st.floats(1, 1e7),
    st.floats(1, 2),
    st.builds(Change, device_speed=FACTORS, host_speed=FACTORS, graphs=st.booleans()),
)
def test_totals_end_as_the_replay_of_equal_launches_does(launches, host, kernel, spread, change):
    span = kernel * spread
    q = uniform(launches=launches, host_ns=host, kernel_ns=kernel, span_ns=span, latency_ns=0.0)
    assert latency(q) == pytest.approx(0.0, abs=1e-6)
    here = formulas._queues_ns(Change(), launches, host, kernel, span)
    totals = launches, host, kernel, span
    after = formulas._queues_ns(change, *totals)
    if change.graphs:
        after = formulas._graph_ns(change, launches, replay.GRAPH_GAPS[1], *totals[1:])
    assert replay.latency_ns(replay.changed(q, change)) == pytest.approx(after - here, abs=1e-2)


def errors(seeds, *, streams=1):
    """Relative errors of predicted latencies over simulated calls, by kind of change."""
    found = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        program = random_program(
            rng,
            launches=int(rng.integers(20, 300)),
            host_ns=8_000,
            kernel_ns=float(rng.lognormal(np.log(8_000), 1.0)),
            streams=streams,
        )
        q = replay.queues_of(play(program))
        for change in (
            {"device_speed": 2},
            {"device_speed": 0.5},
            {"host_speed": 2},
            {"host_speed": 0.5},
            {"graphs": True},
        ):
            if "graphs" in change and not q.gap_seen:
                continue  # a record without queued kernels does not hold what a graph will show
            truth = play(program, **change).end_ns
            found.setdefault(str(change), []).append(abs(latency(q, **change) / truth - 1))
    return found


def test_recorded_steps_predict_a_simulated_device_within_two_percent():
    for change, found in errors(range(60)).items():
        assert np.quantile(found, 0.95) < 0.02, change


def test_a_pause_that_was_never_seen_widens_the_interval():
    rng = np.random.default_rng(9)
    program = random_program(rng, launches=60, host_ns=30_000, kernel_ns=2_000)
    program = Program(**{**program.__dict__, "kernel": [min(k, 9_000) for k in program.kernel]})
    q = replay.queues_of(play(program))
    assert not q.gap_seen and q.gap_ns == replay.GAP_NS
    after, _ = replay.steps_latency([q], Change(graphs=True))
    truth = play(program, graphs=True).end_ns
    assert after.low < truth < after.high
    most = replay.GRAPH_GAPS[-1]
    assert after.high - after.low == pytest.approx(59 * 2 * replay.GAP_NS * most)


def test_streams_are_predicted_as_far_as_dependencies_can_be_seen():
    for change, found in errors(range(40), streams=3).items():
        assert np.median(found) < 0.05, change
        assert np.quantile(found, 0.95) < 0.25, change


def test_a_synchronise_inside_the_step_follows_the_device():
    rng = np.random.default_rng(5)
    base = random_program(rng, launches=40, host_ns=15_000, kernel_ns=15_000)
    program = Program(**{**base.__dict__, "synchronises_before": frozenset({20})})
    step = play(program)
    waits = replay.queues_of(step)
    assert waits.blocked.sum() == 1
    blind = replay.queues_of(replace(step, waits_ns=np.empty((0, 2), dtype=np.int64)))
    truth = play(program, device_speed=3).end_ns
    assert latency(waits) == pytest.approx(step.end_ns)
    assert latency(waits, device_speed=3) == pytest.approx(truth, rel=0.02)
    assert latency(blind, device_speed=3) > 1.2 * truth  # without the record of the wait


def test_a_queue_seen_deeper_than_said_is_deeper():
    rng = np.random.default_rng(3)
    step = play(random_program(rng, launches=1500, host_ns=500, kernel_ns=9_000))
    q = replay.queues_of(step)
    assert latency(q) == pytest.approx(step.end_ns)
    shallow = random_program(rng, launches=1500, host_ns=500, kernel_ns=9_000)
    deep = Program(**{**shallow.__dict__, "depth": 4096})
    step = play(deep)
    q = replay.queues_of(step)
    assert q.depth > 1024
    assert latency(q) == pytest.approx(step.end_ns)
    truth = play(deep, device_speed=20).end_ns
    assert latency(q, device_speed=20) == pytest.approx(truth, rel=0.02)


def test_steps_give_one_interval_over_them_and_one_step_says_so():
    rng = np.random.default_rng(1)
    programs = [random_program(rng, launches=50, host_ns=8_000, kernel_ns=3_000) for _ in range(6)]
    steps = [play(p) for p in programs]
    queues = [replay.queues_of(s) for s in steps]
    after, factor = replay.steps_latency(queues, Change(host_speed=2))
    assert after.low < after.value < after.high and after.n == 6
    truth = np.mean([play(p, host_speed=2).end_ns for p in programs])
    assert after.low < truth < after.high
    assert factor.value == pytest.approx(np.mean([s.end_ns for s in steps]) / after.value)
    same, factor = replay.steps_latency(queues, Change())
    assert factor.low == factor.high == 1 and same.low < same.high  # steps differ, alike
    one, _ = replay.steps_latency(queues[:1], Change())
    assert one.low == one.high == steps[0].end_ns and "one step" in one.method


def test_the_simulator_counts_overlap_once():
    rng = np.random.default_rng(2)
    step = play(random_program(rng, launches=30, host_ns=300, kernel_ns=9_000, streams=3))
    assert busy_ns(step) < (step.device_end_ns - step.device_start_ns).sum()
