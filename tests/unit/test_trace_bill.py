"""The bill of a trace: known answers, and that it always adds up."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import trace_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.traces import kineto, timeline
from frameworktax.traces.events import CATEGORIES, Events, Trace


def billed(tmp_path, *events):
    path = tmp_path / "t.json"
    path.write_text(cases.trace(*events))
    line = timeline.build(kineto.read(path))
    return line, trace_bill.bill(line)


def lines(row):
    return {name: ns for name, ns in zip(trace_bill.LINES, row.tolist(), strict=True) if ns}


def test_every_line_of_a_step_is_known(tmp_path):
    _, bill = billed(tmp_path, *cases.one_step())
    assert lines(bill.table[0]) == cases.ONE_STEP


def test_times_before_zero_are_times(tmp_path):
    """As tools write them that count from a moment within the trace; -1 stood for no launch."""
    events = [json.loads(event) for event in cases.one_step()]
    moved = [json.dumps({**event, "ts": event["ts"] - 100}) for event in events]
    run = cases.explained(tmp_path, *moved)
    assert run == cases.explained(tmp_path, *cases.one_step())


def test_a_skewed_device_gives_the_same_bill(tmp_path):
    # moved back by 5,000 and forward again by 4,000: only the pause after a launch is shorter
    _, bill = billed(tmp_path, *cases.one_step(-5_000))
    assert sum(bill.table[0]) == 10_000
    assert lines(bill.table[0])["kernel"] == cases.ONE_STEP["kernel"]


def test_starvation_is_charged_to_the_thread_that_launches_next(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("python_function", "main.py(1): wait", 0, 100),
        cases.event("cpu_op", "backward", 10, 60, tid=200),
        cases.launch(30, 40, 1, tid=200),
        cases.kernel(50, 70, 1),
    )
    found = lines(bill.table[0])
    # before the launch the other thread counts: nothing until 10, its operator until 30
    assert found["remainder"] == 10
    assert found["framework"] == 20
    assert found["launch"] == 10
    assert found["device_gap"] == 10
    # after the last kernel the thread of the step
    assert found["python"] == 30


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_kernels_that_communicate_alone_have_a_line_of_their_own(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        *(cases.launch(n, n + 1, n) for n in (1, 3, 5, 7)),
        cases.kernel(10, 30, 1, name="gemm"),
        cases.kernel(20, 60, 3, stream=8, name=NCCL),
        cases.kernel(50, 70, 5, stream=9, cat="gpu_memcpy"),
        cases.kernel(75, 80, 7, stream=9, name="at::native::BlockAllReduce_softmax"),
    )
    found = lines(bill.table[0])
    assert (found["kernel"], found["communication"], found["copies"]) == (25, 30, 10)


@pytest.mark.parametrize("tail", [0, 10 * 10**6])
def test_a_step_that_communicates_most_of_its_time_has_no_regime(tmp_path, tail):
    """Whether other ranks' hosts or their devices were late is not in the trace of one."""
    ms = 10**6
    run = cases.explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 10 * ms + tail),
        cases.launch(ms // 100, ms // 50, 1),
        cases.launch(ms // 20, ms // 15, 2),
        cases.kernel(ms, 4 * ms, 1, name="gemm"),
        cases.kernel(4 * ms, 30 * ms, 2, stream=8, name=NCCL),
    )
    assert (run.trace["regime"], run.trace["no_regime"]) == (None, "communication")
    assert run.trace["busy_ns"] == 9 * ms + tail
    assert "only with communication" in run.headline
    assert any("communicate" in one.action for one in run.advice)


def test_two_devices_are_busy_where_one_of_them_is(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.launch(0, 1, 1),
        cases.launch(1, 2, 2),
        cases.kernel(10, 30, 1, device=0),
        cases.kernel(20, 50, 2, device=1),
    )
    assert lines(bill.table[0])["kernel"] == 40


def test_without_a_device_operators_and_what_is_around_them(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("python_function", "m.py(1): f", 0, 80),
        cases.event("cpu_op", "aten::linear", 10, 50),
        cases.event("cpu_op", "aten::addmm", 20, 45),
        cases.event("cpu_op", "a pool's", 85, 95, tid=300),
    )
    assert lines(bill.table[0]) == {
        "operators": 25 + 10,
        "framework": 15,
        "python": 40,
        "remainder": 10,
    }


def test_an_annotation_takes_no_time_from_the_call_that_it_lies_in(tmp_path):
    """With record_function around a block of a model its Python was in the remainder."""
    _, bill = billed(
        tmp_path,
        cases.event("python_function", "train.py(1): main", 0, 220),
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("user_annotation", "block", 10, 90),
        cases.event("cpu_op", "aten::mm", 20, 60),
        cases.event("user_annotation", "inside an operator", 30, 50),
        cases.launch(40, 45, 1),
        cases.kernel(46, 70, 1),
        # a step ends, and the next one begins, inside the profiler's own call
        cases.event("python_function", "torch/profiler/profiler.py(1): step", 95, 105),
        cases.event("user_annotation", "ProfilerStep#2", 100, 200),
    )
    first, second = map(lines, bill.table)
    assert first == {"kernel": 24, "device_gap": 1, "launch": 5, "framework": 20, "python": 50}
    assert second == {"python": 100}


def test_a_data_loader_lasts_longer_than_the_call_that_opens_its_annotation(tmp_path):
    """With Python frames it ended with that call, and its time was Python's."""
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 200),
        cases.event("python_function", "torch/utils/data/dataloader.py(720): __next__", 0, 100),
        cases.event("python_function", "torch/autograd/profiler.py(918): __enter__", 4, 14),
        cases.event("python_function", "<built-in method _record_function_enter_new>", 5, 12),
        cases.event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 10, 90),
        cases.event("python_function", "torch/utils/data/_utils/fetch.py(49): fetch", 20, 80),
        cases.event("cpu_op", "aten::select", 30, 40),
        cases.event("python_function", "torch/autograd/profiler.py(930): __exit__", 85, 95),
    )
    assert lines(bill.table[0]) == {"data_loading": 76, "python": 24, "remainder": 100}


def test_without_a_device_an_annotation_takes_no_time_from_an_operator(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("cpu_op", "aten::mm", 10, 90),
        cases.event("user_annotation", "inside", 15, 85),
    )
    assert lines(bill.table[0]) == {"operators": 80, "remainder": 20}


def test_an_operator_that_calls_its_own_name_computes_without_a_device(tmp_path):
    """As aten::sort and aten::upsample_bilinear2d do: it is no choice among operators inside it."""
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("cpu_op", "aten::sort", 10, 90),
        cases.event("cpu_op", "aten::sort", 12, 88),
        cases.event("cpu_op", "aten::sort", 14, 86),
        cases.event("cpu_op", "aten::copy_", 20, 30),
    )
    assert lines(bill.table[0]) == {"operators": 80, "remainder": 20}


def test_the_loops_of_a_compiled_graph_compute_beside_longer_operators_in_it(tmp_path):
    _, bill = billed(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100),
        cases.event("cpu_op", "Torch-Compiled Region: 0/0", 10, 90),
        cases.event("cpu_op", "## Call CompiledFxGraph fdar7u5z2g ##", 20, 80),
        cases.event("cpu_op", "aten::addmm", 30, 70),
    )
    assert lines(bill.table[0]) == {"operators": 60, "framework": 20, "remainder": 20}


@pytest.mark.parametrize(
    ("name", "busy_ns", "wall_ns"),
    [
        ("h100-bert-small-step.json", [309_437], [4_426_114]),
        # of CUDA 13, by a loop over the sorted intervals of each step in decimal nanoseconds
        ("h100-cuda-13.json.gz", [319_618, 319_143, 319_301], [4_143_468, 3_436_708, 3_410_288]),
        ("a100-alexnet.json", None, None),
    ],
)
def test_recorded_steps_add_up_to_the_nanosecond(name, busy_ns, wall_ns):
    path = Path(__file__).parents[1] / "data" / name
    line = timeline.build(kineto.read(path))
    bill = trace_bill.bill(line)
    walls = line.windows.end_ns - line.windows.begin_ns
    assert bill.table.sum(axis=1).tolist() == walls.tolist()
    if busy_ns is not None:
        assert (bill.table[:, :3].sum(axis=1).tolist(), walls.tolist()) == (busy_ns, wall_ns)


rows = st.lists(
    st.tuples(
        st.sampled_from(range(len(CATEGORIES))),
        st.integers(0, 60),
        st.integers(0, 30),
        st.integers(0, 2),  # thread
        st.integers(0, 1),  # device
        st.integers(-1, 4),  # correlation
        st.sampled_from(range(4)),
    ),
    min_size=1,
    max_size=14,
)
NAMES = ("ProfilerStep#1", "cudaLaunchKernel", "cudaDeviceSynchronize", "ProfilerStep#2")


@given(rows)
@settings(max_examples=200, deadline=None)
def test_whatever_was_recorded_no_nanosecond_is_lost_or_counted_twice(found):
    category, start, length, thread, device, correlation, name = np.array(found).T
    events = Events(
        NAMES, name, category, start, start + length, thread, device, thread, correlation
    )
    line = timeline.build(Trace(events=events, resolution_ns=1, invalid=0, records=len(events)))
    bill = trace_bill.bill(line)
    walls = line.windows.end_ns - line.windows.begin_ns
    assert bill.table.sum(axis=1).tolist() == walls.tolist()
    assert (bill.table >= 0).all()
    busy = np.zeros(200, bool)
    for s, e in zip(line.work.start_ns, line.work.end_ns, strict=True):
        busy[s:e] = True
    for n, (s, e) in enumerate(zip(line.windows.begin_ns, line.windows.end_ns, strict=True)):
        assert bill.table[n, :3].sum() == busy[s:e].sum()


KINDS = {
    "op": ("cpu_op", "aten::mm", "framework"),
    "frame": ("python_function", "a.py(1): f", "python"),
    "module": ("python_function", "nn.Module: L_0", "python"),
    "note": ("user_annotation", "a block", None),
    "loader": ("user_annotation", "enumerate(DataLoader)#x", "data_loading"),
    "launch": ("cuda_runtime", "cudaLaunchKernel", "launch"),
    "wait": ("cuda_runtime", "cudaStreamSynchronize", "wait"),
    "malloc": ("cuda_runtime", "cudaMalloc", "startup"),
}
WORK = {"kernel": ("kernel", "k"), "communication": ("kernel", NCCL), "copies": ("gpu_memcpy", "m")}


def anything(random):
    """Return steps, calls (begin, end, thread, kind, depth), work (begin, end, line, call)."""
    steps, calls, work, at = [], [], [], random.randint(0, 5)
    for _ in range(random.randint(1, 3)):
        steps.append((at, at + random.randint(20, 80)))
        at = steps[-1][1] + random.randint(0, 6)

    def fill(low, high, thread, depth):
        while low < high - 1 and random.random() < 0.8:
            begin = random.randint(low, high - 2)
            low = random.randint(begin + 1, high - 1)
            kinds = [*KINDS] if depth < 4 else ["launch", "wait", "malloc"]
            calls.append((begin, low, thread, random.choice(kinds), depth))
            if calls[-1][3] not in ("launch", "wait", "malloc"):
                fill(begin + 1, low, thread, depth + 1)

    for thread in (100, 200):
        fill(0, at, thread, 0)
    free, begins = {}, set()
    for call in sorted(c for c in calls if c[3] == "launch"):
        device, stream = place = random.choice([(0, 7), (0, 8), (1, 7)])
        begin = max(call[0] + random.randint(0, 6), free.get(place, 0))
        while begin in begins:
            begin += 1
        begins.add(begin)
        free[place] = begin + random.randint(0, 15)
        work.append((begin, free[place], random.choice([*WORK]), call, device, stream))
    return steps, calls, work


def doing(calls, thread, t):
    """Return the line of the bill that a thread's time is on."""
    around = sorted((c for c in calls if c[2] == thread and c[0] <= t < c[1]), key=lambda c: c[4])
    kinds = [kind for *_, kind, _ in around if kind != "note"]
    if not kinds:
        return "remainder"
    if kinds[-1] == "wait":
        return "wait"
    first = next((kind for kind in ("malloc", "loader") if kind in kinds), kinds[-1])
    return KINDS[first][2]


def line_at(t, calls, work, until):
    """Return what a nanosecond is on by the head of the module; None where the host decides."""
    running = [line for begin, end, line, *_ in work if begin <= t < end]
    if running:
        return next(line for line in WORK if line in running)
    if t < until:
        return "unknown"
    return "device_gap" if any(w[3][1] <= t < w[0] for w in work) else None


@pytest.mark.parametrize("seed", range(150))
def test_a_bill_is_that_of_a_loop_over_nanoseconds(tmp_path, seed):
    steps, calls, work = anything(Random(seed))
    line, bill = billed(
        tmp_path,
        *(cases.event("user_annotation", f"ProfilerStep#{i}", *s) for i, s in enumerate(steps)),
        *(
            cases.event(*KINDS[kind][:2], begin, end, tid=thread, correlation=n + 1)
            for n, (begin, end, thread, kind, _) in enumerate(calls)
        ),
        *(
            cases.kernel(begin, end, calls.index(call) + 1, device=device, stream=stream,
                         cat=WORK[what][0], name=WORK[what][1])
            for begin, end, what, call, device, stream in work
        ),
    )  # fmt: skip
    if not work:
        return
    until = line.backlog_until_ns or 0
    for row, (begin, end) in zip(bill.table, steps, strict=True):
        found = [line_at(t, calls, work, until) for t in range(begin, end)]
        for i in [i for i, what in enumerate(found) if what is None]:
            idle_until = next((j for j in range(i, len(found)) if found[j]), len(found)) + begin
            later = [w for w in work if idle_until <= w[0] < end]
            thread = min(later)[3][2] if later else cases.HOST
            found[i] = (doing(calls, thread, begin + i),)
        assert lines(row) == Counter(w[0] if isinstance(w, tuple) else w for w in found)


def test_a_thread_that_only_passed_by_explains_nothing(tmp_path):
    _, bill = billed(tmp_path, cases.kernel(0, 1, 1), cases.launch(0, 0, 9), cases.kernel(3, 4, 2))
    assert lines(bill.table[0]) == {"kernel": 2, "remainder": 2}
