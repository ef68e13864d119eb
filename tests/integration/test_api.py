"""From Python: names, live modules, and modules that cannot travel."""

import hurried
import pytest

import frameworktax as ft
from frameworktax.attribution import probe
from frameworktax.errors import UsageError, UserModelError

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    hurried.hurry(monkeypatch)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x))


def test_a_live_module_is_measured_in_processes_of_its_own(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(cache))
    module = Scale()
    results = ft.measure(
        module,
        torch.randn(1, 16),
        runtimes=["eager", "inference-mode"],
        batch=[1, 4],
        by="module",
        time_budget=600,
        until=0.5,
        processes=1,
        store=tmp_path / "s",
    )
    found = {(m.runtime, m.workload.batch): m for m in results if m.runtime != "null"}
    assert set(found) == {(r, b) for r in ("eager", "inference-mode") for b in (1, 4)}
    assert all(m.status == "ok" and m.workload.model == "Scale" for m in found.values())
    assert all(m.parity.within_tolerance for m in found.values())  # eval: dropout does nothing
    assert module.training  # the caller's own module is as it was
    if probe() is None:
        which_layer_pays(found["eager", 1])
    left = {path.name for path in cache.iterdir()} - {"machine-code"}  # of installed libraries
    assert left == set()  # neither the module, nor what was made from it, nor scratch
    assert [p.suffix for p in (tmp_path / "s").iterdir()] == [".jsonl"]
    frame = results.to_pandas()
    assert len(frame) == len(results) and frame["latency_ns"].notna().any()
    assert "<table" in results._repr_html_() and "Scale" in repr(results)


def which_layer_pays(point):
    """Every module is there, and together they are the latency, line by line."""
    assert {layer.path: layer.class_ for layer in point.layers} == {
        "": "Scale", "linear": "Linear", "dropout": "Dropout", None: "",
    }  # fmt: skip
    assert all(layer.calls == 1 for layer in point.layers[:-1])
    total = sum(layer.time_ns.value for layer in point.layers)
    assert total == pytest.approx(point.latency_ns.value)
    for line, ns in point.bill_ns.items():
        assert sum(one.bill_ns.get(line, 0.0) for one in point.layers) == pytest.approx(ns)


def test_a_module_that_cannot_travel_is_refused(tmp_path):
    import threading

    module = Scale()
    module.lock = threading.Lock()  # no lock can be pickled
    with pytest.raises(UserModelError, match=r"lock.*file\.py:function"):
        ft.measure(module, torch.randn(1, 16), runtimes="eager", store=tmp_path / "s")


def test_a_live_module_needs_inputs(tmp_path):
    with pytest.raises(UsageError, match="needs an example"):
        ft.measure(Scale(), runtimes="eager", store=tmp_path / "s")


def test_impossible_arguments_are_one_line(tmp_path):
    for bad in ({"batch": 0}, {"processes": 0}, {"device": "tpu"}, {"twin": "maybe"}):
        with pytest.raises(UsageError) as refused:
            ft.measure("mlp", store=tmp_path / "s", **bad)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "s").exists()
