"""Operators of a call: what each kind takes, and what is left between them."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from operator_times import AROUND, ATTRIBUTES, itemise, measure


def test_kinds_and_what_stands_between_add_up_to_the_call():
    found = itemise(["linear", "gelu", "linear"], [100.0, 30.0, 120.0], 400.0)
    assert found.time_ns == {"linear": 220.0, "gelu": 30.0, AROUND: 150.0}
    assert found.calls == {"linear": 2, "gelu": 1}
    assert sum(found.time_ns.values()) == found.latency_ns == 400.0
    assert json.loads(json.dumps(asdict(found)))["calls"] == {"linear": 2, "gelu": 1}


def test_what_is_slower_alone_leaves_less_than_nothing_between():
    assert itemise(["linear"], [500.0], 400.0).time_ns[AROUND] == -100.0


def test_no_operators_is_an_error():
    with pytest.raises(ValueError, match="no operator"):
        itemise([], [], 400.0)


def test_the_operators_of_a_module_are_caught_by_name_and_timed():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    given = torch.ones(1, 4)

    def call():
        hidden = module(given)
        return hidden.view(hidden.shape[1])

    ticks = iter(range(0, 10**9, 10))  # 10 ns from one reading of the clock to the next
    with torch.no_grad():
        found = measure(call, rounds=3, clock=lambda: next(ticks))
    assert found.calls == {"linear": 2, "gelu": 1, ATTRIBUTES: 1, "view": 1}
    assert found.latency_ns == 10
    assert set(found.time_ns) == {*found.calls, AROUND}
