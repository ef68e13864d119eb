"""Advice predicts only what was not measured, and says which."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from made_points import device_point, estimate, point

from frameworktax.analysis import advice as predicted
from frameworktax.analysis.whatif import predict
from frameworktax.records import Curve


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    monkeypatch.setattr(predict, "errors_shown", dict)


def curve(values, bound=True):
    return Curve(
        model="m",
        runtime="eager",
        platform="cpu",
        precision="float32",
        axis="batch",
        values=values,
        latency_ns=(None,) * len(values),
        free_batch=None,
        free_is_lower_bound=bound,
        regimes=(None,) * len(values),
        elasticity=(None,) * len(values),
    )


def test_a_graph_is_predicted_where_none_was_measured():
    focus = device_point()
    (found,) = predicted.unmeasured(focus, [focus], None)
    assert found.action.startswith("try cuda-graph: 1.8 × faster than eager at batch 1")
    assert found.kind == "predicted" and "was not measured" in found.evidence
    assert "never checked on such a machine" in found.evidence
    measured = replace(focus, runtime="cuda-graph", latency_ns=estimate(60_000.0, 100))
    assert predicted.unmeasured(focus, [focus, measured], None) == []


def test_a_runtime_measured_elsewhere_is_predicted_here():
    focus = point(batch=1)
    other = point("inference-mode", batch=2, warm_overhead_ns=estimate(100, 5))
    (found,) = predicted.unmeasured(focus, [focus, other], None)
    assert found.action.startswith("try inference-mode: 1.4 ×")
    here = replace(other, workload=focus.workload)
    assert predicted.unmeasured(focus, [focus, other, here], None) == []


def test_a_batch_beyond_the_largest_is_predicted_only_while_that_one_is_free():
    row = [point(batch=n, latency=1000.0 + 10 * n) for n in (1, 2, 4)]
    (found,) = predicted.unmeasured(row[0], row, curve((1, 2, 4)))
    assert "batch 8" in found.action and "batch 8 was not measured" in found.evidence
    assert found.gain.value == pytest.approx(8 * 1010 / 1080)
    assert predicted.unmeasured(row[0], row, curve((1, 2, 4), bound=False)) == []
    assert predicted.unmeasured(row[0], row, None) == []


def test_a_refused_formula_gives_no_advice(monkeypatch):
    far = {"two-queue replay, equal launches": {"median": 0.2, "p95": 0.5, "n": 5}}
    monkeypatch.setattr(predict, "errors_shown", lambda: far)
    focus = device_point()
    assert predicted.unmeasured(focus, [focus], None) == []
