"""Steps, start-up calls, waits, traces of a CPU: what a reader of a trace would say, in numbers."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
import trace_cases as cases
from trace_cases import explained

from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.errors import UsageError
from frameworktax.explaining import explain
from frameworktax.report import run_blocks
from frameworktax.traces.timeline import LOADER

US, MS = 1_000, 1_000_000


def mark(name, start, end):
    return cases.event("user_annotation", name, start, end)


def call(at, correlation):
    """Return a launch at a time and its kernel of 100 ns."""
    return cases.launch(at, at + 10, correlation), cases.kernel(at + 20, at + 120, correlation)


def names(run):
    return [step["name"] for step in run.trace["steps"]]


ANNOTATED = [
    mark("everything", 0, 9_000),
    mark("warmup forward 0", 100, 1_000),
    mark("warmup forward 1", 1_000, 2_000),
    mark("clear", 2_050, 2_950),
    mark("forward 0", 2_000, 4_000),
    mark("forward 0", 3_000, 3_900),  # what is measured lies inside a mark of the same name
    mark("forward 1", 4_000, 5_000),
    mark("attention", 4_100, 4_300),
    mark("attention", 4_500, 4_700),
    mark("clear", 6_000, 8_900),
    mark("Optimizer.step#SGD", 5_100, 5_200),
    mark("Optimizer.step#SGD", 5_300, 5_400),
    *call(150, 1), *call(1_100, 2), *call(3_100, 3), *call(4_150, 4), *call(4_400, 5),
    *call(5_110, 6), *call(5_150, 7), *call(5_310, 8), *call(5_350, 9),  # the optimiser's
]  # fmt: skip


def test_repeated_annotations_are_steps(tmp_path):
    run = explained(tmp_path, *ANNOTATED)
    assert names(run) == ["forward 0", "forward 1"]
    assert [step["wall_ns"] for step in run.trace["steps"]] == [900, 1_000]
    (note,) = [n for n in run.notes if n.code == "other-annotations"]
    assert "warmup forward N (2)" in note.text


def test_the_profilers_own_steps_come_before_others(tmp_path):
    assert names(explained(tmp_path, *ANNOTATED, mark("ProfilerStep#1", 0, 8_000))) == [
        "ProfilerStep#1"
    ]


def test_steps_that_old_versions_write_as_operators_are_steps(tmp_path):
    """Of torch 1.8 to 1.10; as operators they held all others and were what cost most."""

    def old(name, start, end):
        return cases.event("Operator", name, start, end)

    run = explained(
        tmp_path,
        *(old(f"ProfilerStep#{n}", n * 1_000, n * 1_000 + 900) for n in (1, 2)),
        *(old("aten::relu", n * 1_000 + 100, n * 1_000 + 500) for n in (1, 2)),
        *call(1_200, 1),
        *call(2_200, 2),
    )
    assert names(run) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert [one["name"] for one in run.trace["operators"]] == ["aten::relu"]
    assert [one["name"] for one in run.trace["starved_by"]["operator"]] == ["aten::relu"]


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "forward {}"])
@pytest.mark.parametrize("unit", [1, 1_000])
def test_steps_that_overlap_by_rounding_are_all_there(tmp_path, name, unit):
    """Begin and length are written apart: their sum may be a unit beyond the next begin."""
    events = []
    for n in range(4):
        at, launched, end = n * 2_000, n * 2_000 + 1_000, n * 2_000 + 2_000
        events.append(mark(name.format(n), at, end + unit))
        events += [cases.launch(at, launched, n + 1), cases.kernel(launched, end, n + 1)]
    run = explained(tmp_path, *events)
    assert [step["wall_ns"] for step in run.trace["steps"]] == [2_000] * 3 + [2_000 + unit]
    assert "steps-overlap" not in {note.code for note in run.notes}


def test_an_expression_chooses_the_steps(tmp_path):
    assert names(explained(tmp_path, *ANNOTATED, step="^att")) == ["attention"] * 2
    assert names(explained(tmp_path, *ANNOTATED, step="warm.*0")) == ["warmup forward 0"]
    with pytest.raises(UsageError, match="attention"):
        explained(tmp_path, *ANNOTATED, step="nothing")
    with pytest.raises(UsageError, match="regular expression"):
        explained(tmp_path, *ANNOTATED, step="(")
    with pytest.raises(UsageError, match="no trace"):
        explain(DATA / "other_tools" / "framework_tax_figures.csv", step="x")


def test_annotations_that_launch_nothing_are_no_steps(tmp_path):
    run = explained(tmp_path, mark("load", 0, 90), mark("load", 100, 190), *call(200, 1))
    assert not run.trace["marked"]


def test_without_a_device_the_annotation_that_takes_the_most_time(tmp_path):
    run = explained(
        tmp_path,
        *(mark(f"forward {n}", n * 1_000, n * 1_000 + 900) for n in range(3)),
        *(mark("norm", n * 1_000 + 100, n * 1_000 + 200) for n in range(3)),
    )
    assert names(run) == ["forward 0", "forward 1", "forward 2"]


def test_what_a_compiler_marks_is_no_step(tmp_path):
    name = "pass.post_grad_passes.pass_pattern_{}_data: compile_id=0/0"  # as torch 2.13 writes it
    passes = [mark(name.format(n), n * 1_000, n * 1_000 + 900) for n in range(3)]
    own = [mark(f"forward {n}", 5_000 + n * 100, 5_050 + n * 100) for n in range(2)]
    assert names(explained(tmp_path, *passes, *own)) == ["forward 0", "forward 1"]
    assert not explained(tmp_path, *passes).trace["marked"]


def start_up(*calls):
    """Return a step of 100 ms with these calls in it, 1 ms of kernels, and launches."""
    return [
        mark("ProfilerStep#1", 0, 100 * MS),
        *calls,
        cases.launch(90 * MS, 90 * MS + 9 * US, 1),
        cases.kernel(90 * MS + 12 * US, 91 * MS + 12 * US, 1),
    ]


def test_a_compilation_on_a_cpu_is_start_up_and_no_operator(tmp_path):
    compiled = "_compile.compile_inner (dynamo_timed)"
    run = explained(
        tmp_path,
        mark("step 0", 0, 100 * MS),
        cases.event("cpu_op", compiled, 0, 90 * MS),
        cases.event("cpu_op", "aten::mm", 10 * MS, 15 * MS),  # of the compiler
        cases.event("cpu_op", "aten::addmm", 92 * MS, 98 * MS),
    )
    assert run.trace["bill_ns"] == {"startup": 90 * MS, "operators": 6 * MS, "remainder": 4 * MS}
    assert [(o["name"], o["self_ns"]) for o in run.trace["operators"]] == [("aten::addmm", 6 * MS)]
    assert [s["name"] for s in run.trace["startup"]] == [compiled]
    assert [a.gain.value for a in run.advice] == [10.0]
    assert "addmm" not in run.headline


def test_the_time_of_an_operator_that_calls_its_own_name_counts_once(tmp_path):
    run = explained(
        tmp_path,
        mark("step 0", 0, 100),
        cases.event("cpu_op", "aten::sum", 10, 90),
        cases.event("cpu_op", "aten::sum", 20, 80),
    )
    (found,) = run.trace["operators"]
    assert (found["calls"], found["host_ns"], found["self_ns"]) == (2, 80, 80)


@pytest.mark.parametrize(
    ("call", "kind", "ns"),
    [
        (cases.launch(10 * MS, 40 * MS, 7, "cudaMalloc"), "memory", 30 * MS),
        (cases.launch(10 * MS, 12 * MS, 7, "cuModuleLoadData"), "loading", 2 * MS),
        (cases.launch(10 * MS, 25 * MS, 7), "loading", 15 * MS),
        (cases.launch(10 * MS, 25 * MS, 7, "cudaStreamCreate"), "initialisation", 15 * MS),
        (
            cases.event("python_function", "torch/_inductor/compile_fx.py(9): f", 10 * MS, 80 * MS),
            "compilation",
            70 * MS,
        ),
    ],
)
def test_start_up_calls_are_named_and_carry_no_regime(tmp_path, call, kind, ns):
    run = explained(tmp_path, *start_up(call))
    (found,) = run.trace["startup"]
    assert (found["kind"], found["ns"], found["in_steps_ns"]) == (kind, ns, ns)
    assert run.trace["bill_ns"]["startup"] == ns
    if ns > 50 * MS:
        assert (run.trace["regime"], run.trace["no_regime"]) == (None, "start-up")
    if ns >= 10 * MS:
        assert run.advice[0].gain.value == pytest.approx(100 * MS / (100 * MS - ns))


def test_of_a_start_up_call_across_borders_of_steps_only_what_is_inside_counts(tmp_path):
    run = explained(
        tmp_path,
        mark("step 0", 10 * MS, 20 * MS),
        mark("step 1", 30 * MS, 40 * MS),
        cases.launch(5 * MS, 32 * MS, 1, "cudaMalloc", tid=2),
        cases.event("cpu_op", "aten::mm", 12 * MS, 13 * MS),
    )
    (found,) = run.trace["startup"]
    assert (found["ns"], found["in_steps_ns"]) == (27 * MS, 12 * MS)


@pytest.mark.parametrize(
    "call",
    [
        cases.launch(10 * MS, 15 * MS, 7),  # not long
        cases.launch(10 * MS, 40 * MS, 7, "cudaDeviceSynchronize"),
        cases.launch(10 * MS, 40 * MS, 7, "cudaMemcpyAsync"),
    ],
)
def test_other_calls_are_no_start_up(tmp_path, call):
    assert explained(tmp_path, *start_up(call)).trace["startup"] == []


def test_a_launch_into_a_full_queue_is_no_start_up(tmp_path):
    busy = [
        cases.launch(5 * MS, 5 * MS + 9 * US, 6), cases.kernel(5 * MS + 12 * US, 45 * MS, 6),
        cases.launch(10 * MS, 40 * MS, 7), cases.kernel(45 * MS, 46 * MS, 7),
    ]  # fmt: skip
    assert explained(tmp_path, *start_up(*busy)).trace["startup"] == []


def test_a_wait_inside_a_step_is_named_with_its_operator(tmp_path):
    run = explained(
        tmp_path,
        mark("ProfilerStep#1", 0, 10_000),
        cases.launch(10, 20, 1, "cudaDeviceSynchronize"),  # before the step's first launch
        *call(100, 2),
        cases.event("python_function", "m.py(3): f", 300, 3_000),
        cases.event("cpu_op", "aten::is_nonzero", 400, 1_400),
        cases.event("cpu_op", "aten::item", 500, 1_300),
        cases.launch(600, 620, 3, "cudaMemcpyAsync"),
        cases.kernel(650, 700, 3, cat="gpu_memcpy", name="Memcpy DtoH"),
        cases.launch(630, 1_200, 4, "cudaStreamSynchronize"),
        cases.launch(640, 1_100, 4, "cuStreamSynchronize", cat="cuda_driver"),
        *call(2_000, 5),
        cases.launch(3_000, 9_000, 6, "cudaDeviceSynchronize"),  # after its last one
    )
    assert run.trace["waits"] == [
        {
            "operator": "aten::is_nonzero",
            "line": "m.py(3): f",
            "call": "cudaStreamSynchronize",
            "calls": 1,
            "ns": 570,
            "waited_for": "Memcpy DtoH",
        }
    ]


def test_the_item_that_ends_a_step_is_a_wait_and_the_synchronise_behind_it_is_none(tmp_path):
    run = explained(
        tmp_path,
        mark("ProfilerStep#1", 0, 10_000),
        *call(100, 2),
        cases.event("cpu_op", "aten::item", 500, 1_300),
        cases.launch(600, 620, 3, "cudaMemcpyAsync"),
        cases.kernel(650, 700, 3, cat="gpu_memcpy", name="Memcpy DtoH"),
        cases.launch(630, 1_200, 4, "cudaStreamSynchronize"),
        cases.launch(3_000, 9_000, 6, "cudaDeviceSynchronize"),
    )
    (wait,) = run.trace["waits"]
    assert (wait["operator"], wait["calls"], wait["ns"]) == ("aten::item", 1, 570)


def loading(*more):
    """Return a step of 100 ms, 60 of them in a DataLoader that makes a batch of its own."""
    return [
        mark("ProfilerStep#1", MS, 101 * MS),
        mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", MS, 61 * MS),
        cases.event("python_function", "collate.py(3): f", 5 * MS, 50 * MS),
        cases.event("cpu_op", "aten::stack", 10 * MS, 40 * MS),
        cases.event("cpu_op", "aten::addmm", 70 * MS, 80 * MS),
        *more,
    ]


def test_time_in_a_data_loader_has_a_line_and_an_advice(tmp_path):
    on_device = cases.launch(71 * MS, 72 * MS, 1), cases.kernel(72 * MS, 90 * MS, 1)
    run = explained(tmp_path, *loading(*on_device, *call(0, 2)))
    assert run.trace["bill_ns"] == {
        "kernel": 18 * MS, "framework": MS, "launch": MS, "data_loading": 60 * MS,
        "remainder": 20 * MS,
    }  # fmt: skip
    assert run.trace["idle_ns"]["host_starvation"] == 82 * MS
    assert 100 / 40 in {a.gain.value for a in run.advice if "DataLoader" in a.action}
    assert "data loading, 60 %" in run.headline


@pytest.mark.parametrize("waits", [False, True])
def test_a_graph_replaces_no_data_loader(tmp_path, waits):
    """Steps of 80 ms: 60 in a DataLoader, four launches 5 ms apart; the host may wait at the end.

    Kernels take 0.5 ms. A graph leaves 60 + 2 ms and what is after the last kernel, 4.5 ms at most.
    """
    events = []
    for n in range(2):
        at, work = n * 80 * MS, n * 80 * MS + 60 * MS
        events += [mark(f"ProfilerStep#{n}", at, at + 80 * MS), mark(f"{LOADER}#a", at, work)]
        for i in range(4):
            begin = work + 5 * i * MS
            events.append(cases.launch(begin, begin + 5 * US, 10 * n + i + 1))
            events.append(cases.kernel(begin + 10 * US, begin + MS // 2, 10 * n + i + 1))
        if waits:
            done = work + 16 * MS
            events.append(cases.launch(done - MS // 2, done, 0, "cudaDeviceSynchronize"))
    run = explained(tmp_path, *events, what_if=WhatIf(graphs=True))
    (found,) = run.predictions
    (bound,) = [one for one in run.advice if "CUDA graph" in one.action]
    assert 61.9 * MS < found.latency_ns.value < 66.6 * MS
    assert 80 / 66.6 < bound.gain.value < 80 / 61.9


def test_operators_that_make_a_batch_are_not_the_models(tmp_path):
    run = explained(tmp_path, *loading())
    assert run.trace["bill_ns"] == {
        "operators": 10 * MS, "data_loading": 60 * MS, "remainder": 30 * MS,
    }  # fmt: skip
    assert [one["name"] for one in run.trace["operators"]] == ["aten::addmm"]
    assert 100 / 40 in {a.gain.value for a in run.advice if "DataLoader" in a.action}


def test_a_bound_that_says_nothing_is_left_out_or_said_to_be_none(tmp_path):
    """Devices are busy for next to nothing: a host without end would give 10,000 times."""
    launches = [part for n in range(4) for part in call((20 + 20 * n) * MS, n + 1)]
    run = explained(tmp_path, mark("ProfilerStep#1", 0, 80 * MS + 200), *launches)
    assert [a.action.split(",")[0] for a in run.advice] == ["capture the step in a CUDA graph"]
    (item,) = run_blocks.advice_blocks(run.advice)[0].items
    assert item.lead == "no bound" and "says nothing" in item.detail


LINEARS = [
    event
    for n in range(2)
    for at in [n * 1_000]
    for event in (
        mark(f"step {n}", at, at + 1_000),
        cases.event("cpu_op", "aten::linear", at, at + 990),
        cases.event("cpu_op", "aten::t", at + 5, at + 15),
        cases.event("cpu_op", "aten::addmm", at + 20, at + 980),
        cases.event("cpu_op", "aten::expand", at + 22, at + 30),
        cases.event("cpu_op", "aten::copy_", at + 30, at + 80),
        cases.event("cpu_op", "aten::resolve_conj", at + 82, at + 83),
    )
]
"""Two steps with a large linear layer, as torch records it on a CPU."""


def test_linear_layers_on_a_cpu_are_not_called_framework_bound(tmp_path):
    run = explained(tmp_path, *LINEARS)
    own = {o["name"]: (o["self_ns"], o["tax_ns"]) for o in run.trace["operators"]}
    assert own["aten::addmm"] == (2 * (960 - 8 - 50 - 1), 0)
    assert own["aten::copy_"] == (100, 0)
    assert own["aten::linear"] == (40, 40)  # chooses what computes
    assert own["aten::expand"] == (16, 16)  # a view
    assert run.trace["bill_ns"] == {
        "operators": 2 * 901 + 100,
        "framework": 2 * (20 + 10 + 8 + 1),
        "remainder": 20,
    }
    assert (run.trace["regime"], run.trace["no_regime"]) == (None, "no-device")
    assert run.trace["tax_share"] is None
    assert all(step["regime"] is None for step in run.trace["steps"])
    gains = {a.gain.value for a in run.advice}
    assert 2_000 / 1_902 in gains  # of everything around the operators


def test_guards_of_a_compiled_function_compute_nothing(tmp_path):
    run = explained(
        tmp_path,
        mark("step 0", 0, 1_000),
        cases.event("cpu_op", "TorchDynamo Cache Lookup", 0, 300),
        cases.event("cpu_op", "Pregraph bytecode", 300, 310),
        cases.event("cpu_op", "Torch-Compiled Region: 0/0", 310, 1_000),
        cases.event("cpu_op", "AOTDispatcher Runtime Wrapper Prologue", 320, 330),
        cases.event("cpu_op", "## Call CompiledFxGraph f ##", 330, 1_000),
        cases.event("cpu_op", "aten::addmm", 340, 990),
    )
    # of the graph's own 20 ns nothing says what are loops and what is their wrapper
    assert run.trace["bill_ns"] == {"operators": 670, "framework": 330}
    assert 1_000 / 670 in {a.gain.value for a in run.advice}


def test_the_recorded_step_of_bert_small():
    run = explain(DATA / "h100-bert-small-step.json").run
    assert run.trace["regime"] == "framework-bound"
    (wait,) = run.trace["waits"]
    assert (wait["operator"], wait["call"], wait["ns"]) == (
        "aten::is_nonzero",
        "cudaStreamSynchronize",
        7_640,
    )
    assert wait["waited_for"] == "Memcpy DtoH (Device -> Pinned)"
    graphs, device = run.advice
    assert "aten::is_nonzero" in graphs.action
    assert 5 < graphs.gain.value < 4_426 / 309  # no more than back to back
    assert 1.07 < device.gain.value < 1.3


def test_the_recorded_forward_pass_of_alexnet():
    run = explain(DATA / "a100-alexnet.json").run
    (step,) = run.trace["steps"]
    assert (step["name"].rpartition("|measure|")[2], step["wall_ns"]) == ("forward]", 36_356_000)
    assert run.trace["devices"]["0"]["kernel_ns"] == 66_141_000
    first = run.trace["startup"][0]
    assert (first["name"], first["kind"], first["in_steps_ns"]) == (
        "cudaDeviceGetStreamPriorityRange",
        "initialisation",
        0,
    )
    assert first["ns"] == 29_927_377_000
    inside = {c["name"]: c["in_steps_ns"] for c in run.trace["startup"]}
    assert inside["cudaMalloc"] > 32 * MS
    assert (run.trace["regime"], run.trace["no_regime"]) == (None, "start-up")
    (advice,) = run.advice
    assert advice.gain.value == pytest.approx(36.356 / (36.356 - 30.257), rel=1e-3)
