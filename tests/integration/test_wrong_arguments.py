"""Arguments of another kind from Python are wrong use, and no TypeError of something inside."""

import importlib

import pytest
import torch

import frameworktax as ft
from frameworktax import api
from frameworktax.errors import UsageError, UserModelError
from frameworktax.measure.plan import listed
from frameworktax.models.user import wrap

NET, X = torch.nn.Linear(4, 4), torch.ones(1, 4)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch, tmp_path):
    """Fail where something would be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(api, "run_plan", lambda *_, **__: pytest.fail("it would be measured"))


BOTH = [
    {"batch": "1,4"},
    {"batch": 1.0},
    {"batch": [1.5]},
    {"batch": True},
    {"batch": [1, None]},
    {"time_budget": "10s"},
    {"setup_limit": "5min"},
    {"until": "3%"},
    {"processes": "3"},
    {"processes": 1.5},
    {"threads": 1.5},
    {"runtimes": [1]},
    {"runtimes": 5},
    {"runtimes": "eager,torchscript"},
    {"device": 5},
    {"length": "128"},
    {"image_size": "224"},
    {"batch_dim": "0"},
]


FURTHER = [
    {"width": "2"},
    {"precision": torch.float32},
    {"precision": []},
    {"by": 1},
    {"until": 3.0},
    {"time_budget": True},
    {"store": 3},
    {"resume": "no"},
    {"force_threads": "no"},
]


@pytest.mark.parametrize("given", [*BOTH, *FURTHER])
def test_measure_refuses_what_is_of_another_kind(given):
    with pytest.raises(UsageError):
        ft.measure(NET, X, **{"runtimes": "eager", "batch": 1, **given})


GRID = {"grid": {"models": ["mlp"], "runtimes": ["eager"], "batch": [1]}}


@pytest.mark.parametrize(
    ("study", "words", "given"),
    [
        (3, (), {}),
        (None, (), {}),
        (GRID, (3,), {}),
        (GRID, (["grid.batch=1"],), {}),
        (GRID, (), {"store": 3}),
        (GRID, (), {"engine": 3}),
        (GRID, (), {"resume": "no"}),
        (GRID, (), {"allow_code": "no"}),
        (GRID, (), {"force_threads": "no"}),
    ],
)
def test_sweep_refuses_what_is_of_another_kind(study, words, given, monkeypatch):
    run = importlib.import_module("frameworktax.sweep.run")
    monkeypatch.setattr(run.Sweep, "run", lambda _: pytest.fail("it would be measured"))
    with pytest.raises(UsageError):
        ft.sweep(study, *words, **given)


@pytest.mark.parametrize("verb", [ft.compare, ft.explain, ft.load, ft.whatif])
@pytest.mark.parametrize("source", [3, None, [1]])
def test_what_is_no_path_is_refused(verb, source):
    with pytest.raises(UsageError, match="; give a path"):
        verb(source, **({"graphs": True} if verb is ft.whatif else {}))


@pytest.mark.parametrize("given", [{"length": 8}, {"image_size": 8}, {"width": 0.5}, {"depth": 2}])
def test_measure_refuses_what_a_live_module_has_not(given):
    with pytest.raises(UsageError, match=f"your own model has no {next(iter(given))[:5]}"):
        ft.measure(NET, X, runtimes="eager", batch=1, **given)


@pytest.mark.parametrize("given", [{"length": [8]}, {"image_size": 8}])
def test_optimize_refuses_what_a_live_module_has_not(given):
    with pytest.raises(UsageError, match=f"your own model has no {next(iter(given))[:5]}"):
        ft.optimize(NET, X, **given)


@pytest.mark.parametrize("given", [*BOTH, {"allow": 8}, {"aim": None}])
def test_optimize_refuses_what_is_of_another_kind(given):
    with pytest.raises(UsageError):
        ft.optimize(NET, X, **given)


@pytest.mark.parametrize("verb", [ft.measure, ft.optimize])
@pytest.mark.parametrize("model", [5, torch.nn.Linear, NET.state_dict(), len])
def test_what_is_no_module_is_refused_before_a_process_starts(verb, model):
    with pytest.raises(UserModelError):
        verb(model, X)


@pytest.mark.parametrize("verb", [ft.measure, ft.optimize])
def test_inputs_beside_a_name_are_not_left_out_silently(verb):
    with pytest.raises(UsageError, match="inputs"):
        verb("bert-tiny", X, batch=1)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [(torch.nn.Linear(4, 4, device="meta"), X), (NET, torch.ones(1, 4, device="meta"))],
)
def test_what_has_no_values_cannot_be_measured(module, inputs):
    with pytest.raises(UserModelError, match="meta"):
        wrap("Linear", module, inputs, None)


def compiled(module):
    """Import what compiles now, not where tests are collected: that takes seconds."""
    return torch.compile(module, backend="eager")


class Cache:
    def __init__(self):
        self.layers = [{"keys": X}]


@pytest.mark.parametrize(
    ("module", "inputs", "says"),
    [
        (lambda: compiled(NET), X, "is compiled"),
        (lambda: torch.nn.Sequential(NET, compiled(torch.nn.ReLU())), X, "its 1, is compiled"),
        (torch.nn.LazyLinear(4), X, "call it once"),
        (NET, torch.nested.nested_tensor([X[0], X[0, :2]]), "nested tensor in args.0"),
        (NET, 3, "^inputs of Net are of type int; give a tensor"),
        (NET, [], "^inputs of Net have no tensor to batch; give a tensor"),
        (NET, X[:0], "^inputs of Net are of batch 0; give "),
        # A call added to it each time, and its batch stayed as it was.
        (NET, {"input": X, "past_key_values": Cache()}, "nests tensors in kwargs.past_key_values"),
    ],
)
def test_what_cannot_be_measured_says_what_to_give(module, inputs, says):
    if not isinstance(module, torch.nn.Module):
        module = module()
    with pytest.raises(UserModelError, match=says):
        wrap("Net", module, inputs, None)


def test_an_object_without_tensors_is_a_constant():
    assert list(wrap("Net", NET, (X, Cache, object(), NET), None).batch_dims) == ["args.0"]


def test_a_text_is_one_value():
    assert listed("eager") == ["eager"] and listed(range(2)) == [0, 1] and listed(None) == [None]


@pytest.mark.parametrize("name", [None, "named"])
def test_a_block_of_what_is_no_module_is_refused_before_it_begins(name):
    with pytest.raises(UsageError, match=r"int is no torch\.nn\.Module"):
        ft.tax(name, module=3)
