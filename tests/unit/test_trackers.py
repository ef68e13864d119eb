"""Results in MLflow and Weights & Biases: on fakes with their signatures, and on the real ones
where those are installed."""

import json
import re
import sys
import types
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sample_records as data

import frameworktax as ft
from frameworktax.analysis.document import build
from frameworktax.errors import UsageError
from frameworktax.integrations import trackers

EVERY = build(data.sample_records())
RUN = replace(
    EVERY,
    measurements=tuple(
        m
        for m in EVERY.measurements
        if (m.runtime, m.workload.batch) in {("eager", 1), ("onnxruntime", 8), ("null", 1)}
        or m.status == "crashed"
    ),
)
NAMES = [f"bert-mini, {r}, batch {b}" for r, b in (("eager", 1), ("onnxruntime", 8))]


@pytest.fixture
def results(tmp_path):
    return ft.Results(RUN, tmp_path)


class Refusal(Exception):
    pass


def fake_mlflow(runs, active):
    made = types.ModuleType("mlflow")

    @contextmanager
    def start_run(run_id=None, experiment_id=None, run_name=None, nested=False, **more):
        assert nested or not active
        outer = active[-1]["name"] if active else None
        one = {"name": run_name, "in": outer, "params": {}, "metrics": {}, "tags": {}, "files": {}}
        runs.append(one)
        active.append(one)
        yield types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"id-{len(runs)}"))
        active.pop()

    made.start_run = start_run
    made.set_experiment = lambda experiment_name: runs.append({"experiment": experiment_name})
    made.set_tags = lambda tags: active[-1]["tags"].update(tags)
    made.log_params = lambda params: active[-1]["params"].update(params)
    made.log_metrics = lambda metrics, step=None: active[-1]["metrics"].update(metrics)

    def log_artifact(local_path, artifact_path=None):
        active[-1]["files"][Path(local_path).name] = Path(local_path).read_text()

    made.log_artifact = log_artifact
    made.exceptions = types.ModuleType("mlflow.exceptions")
    made.exceptions.MlflowException = Refusal
    return made


def check_point(name, params, metrics):
    m = next(m for m in RUN.measurements if f"{m.runtime}, batch {m.workload.batch}" in name)
    assert params["model"] == "bert-mini"
    assert (params["runtime"], params["batch"], params["length"]) == (
        m.runtime,
        m.workload.batch,
        128,
    )
    for quantity in ("latency_ns", "tax_share", "kernel_ns"):
        estimate = getattr(m, quantity)
        if estimate is not None:
            assert metrics[quantity] == estimate.value
            assert metrics[f"{quantity}_low"] == estimate.low
            assert metrics[f"{quantity}_high"] == estimate.high
    assert metrics["flops"] == m.flops
    assert "batch" not in metrics


def test_mlflow_gets_the_whole_and_a_run_a_point(results, monkeypatch):
    runs, active = [], []
    fake = fake_mlflow(runs, active)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", fake.exceptions)
    with fake.start_run(run_name="the user's own"):
        assert results.to_mlflow("taxes") == "id-3"
    _, experiment, whole, *points = runs
    assert experiment == {"experiment": "taxes"}
    assert (whole["name"], whole["in"]) == ("frameworktax bert-mini", "the user's own")
    assert whole["tags"]["headline"] == RUN.headline
    assert whole["tags"]["torch_version"] == "2.13.0+cpu"
    assert json.loads(whole["files"]["frameworktax.json"]) == results.to_json()
    assert "<title>" in whole["files"]["frameworktax.html"]
    assert {p["in"] for p in points} == {"frameworktax bert-mini"}
    named = {p["name"]: p for p in points}
    assert set(named) == {*NAMES, "bert-mini, aot-inductor, batch 1"}
    for name in NAMES:
        check_point(name, named[name]["params"], named[name]["metrics"])
    failed = named["bert-mini, aot-inductor, batch 1"]
    assert failed["params"]["status"] == "crashed"
    assert "segmentation fault" in failed["params"]["reason"]
    assert "latency_ns" not in failed["metrics"]


def test_what_mlflow_refuses_is_one_line(results, monkeypatch):
    fake = fake_mlflow([], [])
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", fake.exceptions)

    def refuse(experiment_name):
        raise Refusal("no server\nat that address")

    monkeypatch.setattr(fake, "set_experiment", refuse)
    with pytest.raises(UsageError, match=r"no server at that address; .*MLFLOW_TRACKING_URI"):
        results.to_mlflow("taxes")


class FakeRun:
    def __init__(self, options):
        self.options, self.metrics, self.files, self.finished = options, {}, {}, False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.finished = True

    def log(self, data, step=None, commit=None):
        self.metrics |= data

    def log_artifact(self, artifact_or_path, name=None, type=None, aliases=None, tags=None):
        self.files = artifact_or_path.files


class FakeArtifact:
    def __init__(self, name, type, description=None, metadata=None, incremental=False):
        self.files = {}

    def add_file(self, local_path, name=None, is_tmp=False, **more):
        self.files[Path(local_path).name] = Path(local_path).read_text()


def test_wandb_gets_a_group_with_the_whole_and_a_run_a_point(results, monkeypatch):
    runs = []

    def init(entity=None, project=None, name=None, config=None, group=None, job_type=None, **more):
        assert more == {"reinit": "create_new"}  # the caller's own run is left alone
        options = {"project": project, "group": group, "kind": job_type, "config": config}
        runs.append(FakeRun(options | {"name": name}))
        return runs[-1]

    fake = types.ModuleType("wandb")
    fake.init, fake.Artifact, fake.Error = init, FakeArtifact, Refusal
    monkeypatch.setitem(sys.modules, "wandb", fake)
    group = results.to_wandb("taxes")
    assert group == f"frameworktax bert-mini {data.SESSION}"
    assert all(run.finished for run in runs)
    assert {(r.options["project"], r.options["group"]) for r in runs} == {("taxes", group)}
    whole, *points = runs
    assert whole.options["config"]["headline"] == RUN.headline
    assert json.loads(whole.files["frameworktax.json"]) == results.to_json()
    assert {p.options["kind"] for p in points} == {"frameworktax-point"}
    named = {p.options["name"]: p for p in points}
    for name in NAMES:
        check_point(name, named[name].options["config"], named[name].metrics)

    def refuse(**options):
        raise Refusal("no key")

    fake.init = refuse
    with pytest.raises(UsageError, match=r"wandb .*: no key; .*WANDB_MODE"):
        results.to_wandb()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_extra_names_itself(results, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"pip install 'frameworktax\[{name}\]'"):
        getattr(results, f"to_{name}")()
    assert name in trackers.TRACKERS


def test_from_the_command_line(tmp_path, monkeypatch, command):
    data.write(tmp_path / "store", data.sample_records())
    runs = []
    fake = fake_mlflow(runs, [])
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", fake.exceptions)

    export = "store", "export", str(tmp_path / "store")
    code, out, err = command(
        *export, "--to", "mlflow", "--where", "runtime=eager", "--where", "batch=1,8"
    )
    assert (code, err) == (0, "")
    assert re.fullmatch(r"[^\n]*mlflow: 2 points in id-1\n", out)
    assert [r["name"] for r in runs[1:]] == [f"bert-mini, eager, batch {b}" for b in (1, 8)]
    for words, said in {
        ("--to", "mlflo"): "no tracker 'mlflo', did you mean 'mlflow'? choose mlflow, wandb",
        (): "Missing option '--to'",
        ("-o", "t.csv"): "frameworktax report STORE -o points.csv writes the table",
    }.items():
        code, out, err = command(*export, *words)
        assert (code, out) == (2, "")
        assert said in err


def test_with_the_real_mlflow(results, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")  # mlflow-skinny comes without
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    outer = results.to_mlflow("taxes")
    client = mlflow.MlflowClient()
    (found,) = client.search_experiments(filter_string="name = 'taxes'")
    runs = client.search_runs([found.experiment_id])
    assert len(runs) == 4
    assert {r.info.status for r in runs} == {"FINISHED"}
    inner = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == outer]
    for run in inner:
        if run.info.run_name in NAMES:
            params = {k: int(v) if v.isdigit() else v for k, v in run.data.params.items()}
            check_point(run.info.run_name, params, run.data.metrics)
    files = {f.path for f in client.list_artifacts(outer)}
    assert files == {"frameworktax.json", "frameworktax.html"}


def test_with_the_real_wandb(results, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    results.to_wandb("taxes")
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == 4
