"""The grid, and what the command line makes of words."""

import inspect
import math
from dataclasses import replace

import pytest

from frameworktax import ablate, api, comparing
from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.attribution import call_stacks
from frameworktax.cli.measure import ablate_command, optimize_command, reproduce_command
from frameworktax.cli.measure import measure as measure_command
from frameworktax.cli.measure import sweep as sweep_command
from frameworktax.cli.options import arguments
from frameworktax.cli.report import compare_command, explain_command
from frameworktax.errors import UsageError
from frameworktax.measure import plan
from frameworktax.measure.plan import points_for
from frameworktax.optimize.run import Asked
from frameworktax.records import Workload
from frameworktax.reproduce.results import reproduce
from frameworktax.sweep.run import sweep
from frameworktax.sweep.values import numbers, seconds, share


def test_the_grid_is_the_product_without_repeats():
    points = points_for(
        Workload(model="mlp"),
        batches=[4, 1, 4],
        runtimes=["eager", "null", "eager"],
        precisions=["float32", "bfloat16"],
    )
    assert len(points) == 2 * 2 * 2
    assert [p.workload.batch for p in points[:2]] == [1, 4]
    assert {p.workload.precision for p in points} == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    "bad",
    [{"batches": [0]}, {"batches": []}, {"runtimes": []}, {"precisions": ["float8"]}],
)
def test_an_impossible_grid_is_refused(bad):
    arguments = {"batches": [1], "runtimes": ["eager"], **bad}
    with pytest.raises(UsageError):
        points_for(Workload(model="mlp"), **arguments)


def test_numbers_and_powers_of_two():
    assert numbers("1,2,4", "--batch") == [1, 2, 4]
    assert numbers("1..64", "--batch") == [1, 2, 4, 8, 16, 32, 64]
    assert numbers("3..20", "--batch") == [3, 6, 12]
    assert numbers("1..4, 10", "--batch") == [1, 2, 4, 10]


def test_times():
    assert [seconds(t, "--time-budget") for t in ("60s", "10min", "1h", "90", "0.5s", "2m")] == [
        60,
        600,
        3600,
        90,
        0.5,
        120,
    ]


def test_shares():
    assert share("3%", "--until") == pytest.approx(0.03)
    assert share("0.05", "--until") == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (numbers, ["abc", "", "0", "1,,2", "-1", "1.5", "8..1", "0..4", "1..", "1,0", "9" * 5000]),
        (seconds, ["", "soon", "-1s", "0s", "1d", "9" * 400]),
        (share, ["", "0", "100%", "1", "3 percent", "-1%"]),
    ],
)
def test_what_is_no_number_time_or_share_is_refused(read, texts):
    for text in texts:
        with pytest.raises(UsageError, match="--option"):
            read(text, "--option")


def test_by_what_a_runtime_cannot_be_broken_down(monkeypatch):
    monkeypatch.setattr(plan, "probe", lambda: None)
    points = points_for(Workload(model="mlp"), batches=[1], runtimes=["onnxruntime", "eager"])
    plan.refuse_places(points, "module")
    with pytest.raises(UsageError, match=r"onnxruntime .*eager, inference-mode"):
        plan.refuse_places(points[:1], "module")
    plan.refuse_places(points[:1], "operator")
    jax = points_for(Workload(model="mlp"), batches=[1], runtimes=["jax"])
    with pytest.raises(UsageError, match=r"jax .*onnxruntime"):
        plan.refuse_places(jax, "operator")
    with monkeypatch.context() as other:
        other.setattr(call_stacks.platform, "machine", lambda: "aarch64")
        with pytest.raises(UsageError, match=r"aarch64; .*module or line"):
            plan.refuse_places(points, "operator")
    device = [replace(points[1], platform="cuda:0")]
    with pytest.raises(UsageError, match=r"line on cuda:0; .*module or operator"):
        plan.refuse_places(device, "line")
    plan.refuse_places([replace(points[1], platform="cuda:0")], "operator")
    monkeypatch.setattr(plan, "probe", lambda: "why not")
    plan.refuse_places([replace(points[1], platform="cuda:0")], "module")
    with pytest.raises(UsageError, match="perf-event: why not"):
        plan.refuse_places(points, "module")


def test_more_threads_than_processors_are_refused_unless_forced(monkeypatch):
    monkeypatch.setattr(plan.host, "usable_cpus", lambda: (0, 1))
    two, three = (
        plan.Plan(
            points=points_for(
                Workload(model="mlp"), batches=[1], runtimes=["null"], threads=threads
            )
        )
        for threads in (2, 3)
    )
    plan.refuse_crowd(two.points, forced=False)
    with pytest.raises(UsageError, match=r"3 threads on 2 processors .* --force-threads"):
        plan.refuse_crowd(three.points, forced=False)
    plan.refuse_crowd(three.points, forced=True)
    plan.refuse_crowd([replace(three.points[0], platform="cuda:0")], forced=False)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("number", ["until", "budget_s", "setup_limit_s"])
def test_a_share_or_a_time_that_cannot_be(number, value):
    with pytest.raises(UsageError, match="above zero, and finite"):
        plan.Plan(points=(), **{number: value})


def test_options_go_to_the_parameters_of_their_name():
    def call(batch, until, other=1, *, store=None): ...

    given = {"batch": "1,4", "until": "3%", "store": "s", "quiet": True}
    assert arguments(call, given, other=2) == {
        "batch": [1, 4], "until": 0.03, "store": "s", "other": 2,
    }  # fmt: skip
    assert arguments(call, {"batch": 3}) == {"batch": 3}
    with pytest.raises(UsageError, match="--until 'x'"):
        arguments(call, {"until": "x"})


NO_DEFAULT = {"a", "model", "names", "study", "overrides"}
IN_OTHER_WORDS = {"allow", "batch", "paths", "runtimes"}
"""What Python takes as a number, a list or None, and the command line as a text for it."""


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        (ablate_command, ablate.ablate),
        (compare_command, comparing.compare),
        (explain_command, WhatIf),
        (measure_command, api.measure),
        (optimize_command, Asked),
        (reproduce_command, reproduce),
        (sweep_command, sweep),
    ],
    ids=lambda one: one.__name__,
)
def test_an_option_that_is_left_out_is_what_python_takes(verb, call):
    typed, taken = (
        {name: one.default for name, one in inspect.signature(function).parameters.items()}
        for function in (verb, call)
    )
    said = arguments(call, typed)
    shared = said.keys() - NO_DEFAULT - IN_OTHER_WORDS
    assert shared
    assert {name: said[name] for name in shared} == {name: taken[name] for name in shared}


def test_batch_sizes_that_are_left_out_are_those_of_python():
    typed = inspect.signature(measure_command).parameters["batch"].default
    assert tuple(numbers(typed, "--batch")) == api.DEFAULT_BATCHES
