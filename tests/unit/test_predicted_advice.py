"""Advice predicts only what was not measured, and says which."""

from dataclasses import replace

import pytest
from made_points import device_point, estimate, point

from frameworktax.analysis import advice as predicted
from frameworktax.analysis.whatif import predict


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    monkeypatch.setattr(predict, "errors_shown", dict)


def test_a_graph_is_predicted_where_none_was_measured():
    focus = device_point()
    (found,) = predicted.unmeasured(focus, [focus])
    assert found.action.startswith("try cuda-graph: 1.8 × faster than eager at batch 1")
    assert found.kind == "predicted" and "was not measured" in found.evidence
    assert "never checked on such a machine" in found.evidence
    measured = replace(focus, runtime="cuda-graph", latency_ns=estimate(60_000.0, 100))
    assert predicted.unmeasured(focus, [focus, measured]) == []


def test_a_runtime_measured_elsewhere_is_predicted_here():
    focus = point(batch=1)
    focus = replace(focus, warm_overhead_ns=estimate(300, 5))
    other = point("inference-mode", batch=2, warm_overhead_ns=estimate(100, 5))
    (found,) = predicted.unmeasured(focus, [focus, other])
    assert found.action.startswith("try inference-mode: 1.3 ×")
    here = replace(other, workload=focus.workload)
    assert predicted.unmeasured(focus, [focus, other, here]) == []


def test_a_refused_formula_gives_no_advice(monkeypatch):
    far = {"two-queue replay, equal launches": {"median": 0.2, "p95": 0.5, "n": 5}}
    monkeypatch.setattr(predict, "errors_shown", lambda: far)
    focus = device_point()
    assert predicted.unmeasured(focus, [focus]) == []
