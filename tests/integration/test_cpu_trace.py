"""A trace that torch records on this CPU, explained."""

from pathlib import Path

import pytest

from frameworktax.explaining import explain


def test_two_large_linear_layers_are_not_called_framework_bound(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
    given = torch.randn(128, 1024)
    with torch.no_grad():
        model(given)
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in range(3):
                with record_function("forward"):
                    model(given)
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    trace = explain(path).run.trace
    assert trace is not None
    assert [step["name"] for step in trace["steps"]] == ["forward"] * 3
    assert (trace["regime"], trace["no_regime"], trace["tax_share"]) == (None, "no-device", None)
    own = {o["name"]: o for o in trace["operators"]}
    assert own["aten::addmm"]["calls"] == 6
    assert (own["aten::addmm"]["tax_ns"], own["aten::linear"]["tax_ns"] > 0) == (0, True)
    # what torch's own table calls self time of computing operators
    events = {e.key: e.self_cpu_time_total for e in recorded.key_averages()}
    computed = 1_000 * (events["aten::addmm"] + events["aten::copy_"])
    assert trace["bill_ns"]["operators"] == pytest.approx(computed, rel=0.05)
