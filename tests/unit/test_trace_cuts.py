"""Traces cut from a running server: work from before the window is unknown, never idle."""

import numpy as np
import pytest
import trace_cases as cases

from frameworktax.analysis.trace.document import document
from frameworktax.report import trace_blocks
from frameworktax.traces import timeline
from frameworktax.traces.events import CATEGORIES, Events, Trace

US, MS = 1_000, 1_000_000
NAMES = ("ProfilerStep#0", "cudaLaunchKernel", "cudaMemcpyAsync", "k", "aten::mm")


def pipeline(rng, *, steps, kernels, host_ns, kernel_ns):
    """Return rows (category, name, start, end, correlation) of a server, and its true ρ."""
    rows, host, free, correlation, busy = [], 0, 0, 0, 0
    for _ in range(steps):
        begin = host
        for _ in range(kernels):
            correlation += 1
            launched = host + int(host_ns * rng.uniform(0.7, 1.3))
            rows.append(("cpu_op", 4, host, launched, -1))
            rows.append(("cuda_runtime", 1, launched - 4 * US, launched, correlation))
            start = max(launched + 5 * US, free + US)
            free = start + int(kernel_ns * rng.uniform(0.5, 1.5))
            rows.append(("kernel", 3, start, free, correlation))
            busy += free - start
            host = launched
        rows.append(("user_annotation", 0, begin, host, -1))
    return rows, busy / max(host, free)


def recorded(rows, *, marked):
    chosen = [r for r in rows if marked or r[0] != "user_annotation"]
    category, name, start, end, correlation = zip(*chosen, strict=True)
    code = np.array([CATEGORIES.index(c) for c in category])
    on_device = np.where(code == 0, 0, -1)
    stream = np.where(code == 0, 7, -1)
    thread = np.where(code == 0, 1, 0)
    columns = (np.array(c, np.int64) for c in (start, end))
    events = Events(
        NAMES, np.array(name), code, *columns, thread, on_device, stream, np.array(correlation)
    )
    return Trace(events=events, resolution_ns=1, invalid=0, records=len(rows))


def explained(rows, *, marked=True):
    return document(timeline.build(recorded(rows, marked=marked)), "t").trace


@pytest.mark.parametrize(
    ("host_ns", "kernel_ns", "truth"),
    [
        (100 * US, 20 * US, "framework-bound"),
        (30 * US, 13 * US, "framework-bound"),
        (20 * US, 100 * US, "compute-bound"),
        (50 * US, 60 * US, "compute-bound"),
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_no_cut_contradicts_the_regime_of_the_whole(host_ns, kernel_ns, truth, marked):
    rng = np.random.default_rng(7)
    rows, rho = pipeline(rng, steps=7, kernels=10, host_ns=host_ns, kernel_ns=kernel_ns)
    assert (rho > 0.85) == (truth == "compute-bound")
    found = []
    for cut in sorted({r[2] for r in rows})[: -30 * 2 : 5]:  # at least two steps are left
        trace = explained([r for r in rows if r[2] >= cut], marked=marked)
        found += [trace["regime"], *(step["regime"] for step in trace["steps"])]
    assert set(found) <= {truth, None}
    assert found.count(truth) > len(found) / 4  # and much of what is left carries it


def decode(first_start, *more):
    """Return a decode step of a server: a copy at 0.53 ms, then one graph of 10.7 ms."""
    return [
        cases.event("user_annotation", "ProfilerStep#1", 0, 19_100 * US),
        cases.event("cpu_op", "aten::copy_", 500 * US, 540 * US),
        cases.launch(520 * US, 530 * US, 1, "cudaMemcpyAsync"),
        cases.kernel(first_start, first_start + 20 * US, 1, cat="gpu_memcpy"),
        cases.launch(600 * US, 700 * US, 2, "cudaGraphLaunch"),
        cases.kernel(first_start + 20 * US, first_start + 5_000 * US, 2),
        cases.kernel(first_start + 5_000 * US, first_start + 10_700 * US, 2),
        *more,
    ]


def test_a_host_ahead_of_a_saturated_device(tmp_path):
    run = cases.explained(tmp_path, *decode(8_370 * US))
    (step,) = run.trace["steps"]
    assert step["bill_ns"]["unknown"] == 8_370 * US
    assert step["host_ahead_ns"] == (8_390 - 700) * US  # the graph, launched last
    assert (step["regime"], run.trace["regime"]) == ("compute-bound", "compute-bound")
    assert "device_gap" not in step["bill_ns"]
    assert "work-before-recording" in {note.code for note in run.notes}
    assert run.trace["tax_share"]["low"] < 0.01 < run.trace["tax_share"]["high"]
    # 10.7 ms of 19.1, and the time before if the device was busy then
    assert "busy 56.0 to 99.8 %" in run.headline
    assert trace_blocks.steps(run.trace).rows[0][2].note == "56 to 100 %"


def test_graphs_do_not_shorten_steps_that_keep_the_device_busy(tmp_path):
    """The host is a step ahead: kernels wait for those of the step before, not for the host."""
    steps = []
    for n in range(10):
        steps.append(cases.event("user_annotation", f"ProfilerStep#{n}", n * MS, (n + 1) * MS))
        for i in range(10):
            at, number = n * MS + i * 100 * US, 1 + 10 * n + i
            launched = n * MS + 900 * US + 5 * i * US if i else at
            begun = at + MS if number > 1 else at + 10 * US  # the first is long
            steps.append(cases.launch(launched, launched + 4 * US, number))
            steps.append(cases.kernel(begun, at + MS + 80 * US, number))
    run = cases.explained(tmp_path, *steps)
    (graphs,) = [one for one in run.advice if "graph" in one.action]
    # one launch, the long kernel, 99 others of 80 us; of pauses of 20 us nothing is left at best
    left = 10 + 1_070 + 99 * 80
    assert graphs.gain.value == pytest.approx((10_900 + 80) / left)
    assert graphs.gain.value < run.trace["wall_ns"] / run.trace["busy_ns"]


def test_a_host_is_not_ahead_in_a_step_that_goes_on_after_its_kernels(tmp_path):
    _, *rest = decode(8_370 * US)
    longer = cases.event("user_annotation", "ProfilerStep#1", 0, 25_000 * US)
    run = cases.explained(tmp_path, longer, *rest)
    assert run.trace["bill_ns"]["remainder"] == 5_930 * US  # a faster host would shorten it
    assert run.trace["steps"][0]["host_ahead_ns"] is None
    assert run.trace["regime"] is None


def test_a_faster_device_is_bounded_by_all_that_may_be_busy(tmp_path):
    run = cases.explained(
        tmp_path,
        cases.launch(0, 10 * US, 5),
        cases.event("user_annotation", "ProfilerStep#1", MS, 21 * MS),
        cases.kernel(2 * MS, 3 * MS, 5),
        cases.launch(2 * MS, 2 * MS + 10 * US, 1),
        cases.kernel(3 * MS, 4 * MS, 1),
    )
    assert run.trace["bill_ns"] == {"kernel": 2 * MS, "unknown": MS, "remainder": 17 * MS}
    # of 20 ms no more than 17 are known to be idle
    assert min(advice.gain.value for advice in run.advice) == pytest.approx(20 / 17)


def test_a_host_that_is_ahead_in_one_step_of_two_is_not_said_to_be(tmp_path):
    late = (
        cases.event("user_annotation", "ProfilerStep#2", 19_100 * US, 99_100 * US),
        cases.launch(60_000 * US, 60_010 * US, 3),
        cases.kernel(60_020 * US, 60_500 * US, 3),
    )
    run = cases.explained(tmp_path, *decode(8_370 * US, *late))
    assert [step["host_ahead_ns"] for step in run.trace["steps"]] == [7_690 * US, None]
    assert "ahead" not in run.headline
    assert run.trace["regime"] == "framework-bound"


def test_the_same_step_of_an_idle_device_is_as_it_was(tmp_path):
    run = cases.explained(tmp_path, *decode(536 * US))
    (step,) = run.trace["steps"]
    assert "unknown" not in step["bill_ns"]
    assert step["host_ahead_ns"] is None
    assert run.trace["tax_share"]["value"] == pytest.approx(1 - 10.7 / 19.1)
    # half busy under a profiler may be far busier without it
    assert (run.trace["regime"], run.trace["no_regime"]) == (None, "profiler")


def test_a_copy_behind_work_that_is_not_in_the_file(tmp_path):
    # the host blocks 463 ms in a copy whose stream waits for an event of another one
    run = cases.explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 473 * MS),
        cases.launch(MS, MS + 9 * US, 1),
        cases.kernel(MS + 15 * US, 5 * MS, 1),
        cases.event("cpu_op", "aten::item", 6 * MS, 470 * MS),
        cases.launch(6 * MS, 469 * MS, 2, "cudaMemcpyAsync"),
        cases.kernel(469 * MS - 9 * US, 469 * MS - US, 2, stream=9, cat="gpu_memcpy"),
        cases.launch(471 * MS, 471 * MS + 9 * US, 3),
        cases.kernel(471 * MS + 15 * US, 472 * MS, 3),
    )
    (wait,) = run.trace["waits"]
    assert (wait["operator"], wait["call"], wait["ns"]) == (
        "aten::item",
        "cudaMemcpyAsync",
        463 * MS,
    )
    assert wait["waited_for"] is None
    assert run.trace["regime"] is None
    assert run.trace["no_regime"] == "work-before-recording"
    assert run.trace["bill_ns"]["unknown"] > 460 * MS


def test_kernels_whose_launches_came_before_the_recording(tmp_path):
    run = cases.explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 10 * MS),
        cases.kernel(MS, 3 * MS, 90),
        cases.launch(4 * MS, 4 * MS + 9 * US, 1),
        cases.kernel(4 * MS + 15 * US, 9 * MS, 1),
    )
    assert run.trace["bill_ns"]["unknown"] == MS
