"""Runtimes that may live in an environment of their own, through the worker as sessions use it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import hurried
import pytest

from frameworktax import models, runtimes
from frameworktax.measure import parity
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
from frameworktax.runtimes import environments
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Target

pytest.importorskip("torch")

BATCHES = [1, 3]
LIMIT_S = 900.0
"""Of a step: no outcome depends on how long one takes."""
WORKLOADS = {
    "mlp": Workload(model="mlp", width=0.125),
    "bert-tiny": Workload(model="bert-tiny", length=16),
}
WITHOUT_TORCH = ("jax", "litert", "iree", "tract")
NAMES = [name for name in runtimes.BUILT_IN if runtimes.get(name).environment]

ENGINE = """
def double(x):
    return 2 * x
"""
PLUGIN = """
import sys
import numpy as np
from frameworktax.runtimes.base import Loaded, Runtime

class OfItsOwn(Runtime):
    name = "of-its-own"
    paradigm = "deferred"
    packages = ("engine_of_its_own",)
    environment = "jax"
    prepares = True
    needs_model = False

    def prepare(self, model, batches, target, directory):
        import engine_of_its_own
        for batch in batches:
            (x,) = model.inputs(batch).args
            y = engine_of_its_own.double(model.module(x).detach().numpy()) / 2
            np.save(directory / f"{batch}.npy", y)

    def load(self, model, target, directory):
        return There(directory)

class There(Loaded):
    def __init__(self, directory):
        self.directory = directory

    def bind(self, batch):
        import engine_of_its_own
        half = np.load(self.directory / f"{batch}.npy") / 2
        return lambda: engine_of_its_own.double(half)

    def outputs(self, result):
        return [result.astype(np.float64)]

    def notes(self):
        return [("apart", sys.prefix)]
"""


def outputs(name: str, workload: Workload, target: Target, folder: Path):
    """Prepare and load in processes as a session starts them; return outputs, modules, notes."""
    runtime = runtimes.get(name)
    common = {"workload": workload, "runtime": name, "target": target, "folder": str(folder)}
    if runtime.prepares:
        with_model = Worker("prepare", python=runtime.python())
        try:
            with_model.request(Server.prepare, LIMIT_S, batches=tuple(BATCHES), **common)
        finally:
            with_model.kill()
    worker = Worker("measure", python=runtime.python())
    try:
        worker.request(Server.load, LIMIT_S, **common)
        found = {}
        for batch in BATCHES:
            bound = worker.request(Server.bind, LIMIT_S, batch=batch, limit_ns=10_000_000)
            file = folder / f"outputs-{batch}.npz"
            worker.request(Server.output, LIMIT_S, batch=batch, path=str(file))
            found[batch] = parity.read_outputs(file)
        modules = worker.request(Server.modules, LIMIT_S)
        return found, modules, {note.code: note.text for note in bound.notes}
    finally:
        worker.kill()


@pytest.mark.parametrize("model", WORKLOADS)
@pytest.mark.parametrize("name", NAMES)
def test_they_agree_with_eager(name: str, model: str, tmp_path: Path) -> None:
    missing = runtimes.get(name).missing(Target())
    if missing:
        pytest.skip(missing)
    folders = [tmp_path / "eager", tmp_path / name]
    for folder in folders:
        folder.mkdir()
    reference, _, _ = outputs("eager", WORKLOADS[model], Target(), folders[0])
    found, modules, notes = outputs(name, WORKLOADS[model], Target(), folders[1])
    for batch in BATCHES:
        comparison = parity.compare(reference[batch], found[batch], "float32")
        assert comparison.within_tolerance, comparison
        assert comparison.max_relative_difference < 1e-5
    assert ("torch" in modules) == (name not in WITHOUT_TORCH)
    if name == "executorch":
        assert "XNNPACK" in notes["not-delegated"]


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory) -> Path:
    """Write a small text model as an ONNX file with a free batch, as a user brings one."""
    if (missing := runtimes.get("onnxruntime").missing(Target())) is not None:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("onnx")
    model = models.build(WORKLOADS["bert-tiny"])
    runtimes.get("onnxruntime").prepare(model, [2, 3], Target(), folder)
    return Artifact.read(folder).file(2)


@pytest.mark.parametrize("name", [name for name in NAMES if runtimes.get(name).takes_onnx])
def test_an_onnx_file_of_a_user_equals_onnxruntime(name: str, request, tmp_path: Path) -> None:
    missing = runtimes.get(name).missing(Target())
    if missing:
        pytest.skip(missing)
    onnx_file = request.getfixturevalue("onnx_file")
    workload = Workload(model=f"onnx:{onnx_file}", length=16)
    before = onnx_file.stat()
    found = {}
    for runtime in ("onnxruntime", name):
        (tmp_path / runtime).mkdir()
        found[runtime], _, _ = outputs(runtime, workload, Target(), tmp_path / runtime)
    for batch in BATCHES:
        comparison = parity.compare(found["onnxruntime"][batch], found[name][batch], "float32")
        assert comparison.within_tolerance, comparison
    assert onnx_file.stat() == before


@pytest.fixture(scope="module")
def apart(tmp_path_factory) -> dict[str, str]:
    """Make an environment with an engine that this one lacks; return the variables that name it."""
    folder = tmp_path_factory.mktemp("apart")
    patch = pytest.MonkeyPatch()
    patch.setenv(environments.FOLDER_VARIABLE, str(folder / "environments"))

    def install(python: Path, wanted: environments.Recipe) -> None:
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        (packages / "engine_of_its_own.py").write_text(ENGINE)

    patch.setattr(environments, "_install", install)
    patch.setattr(environments, "_versions", lambda python, wanted: {})
    said: list[str] = []
    python = environments.create("jax", runtimes.recipe("jax"), said.append)
    again = environments.create("jax", runtimes.recipe("jax"), said.append)
    assert again == python, "a finished one is left as it is"
    patch.undo()
    assert len(said) == 2
    plugin = folder / "plugin"
    metadata = plugin / "apart-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: apart\nVersion: 0\n")
    entry = f"[{runtimes.GROUP}]\nof-its-own = plugin_apart:OfItsOwn\n"
    (metadata / "entry_points.txt").write_text(entry)
    (plugin / "plugin_apart.py").write_text(PLUGIN)
    return {
        **os.environ,
        environments.FOLDER_VARIABLE: str(folder / "environments"),
        "PYTHONPATH": str(plugin),
    }


def test_both_kinds_are_measured_side_by_side(apart: dict[str, str], tmp_path: Path) -> None:
    """The environment sees this one, whose torch its set-up uses, and not the other way round."""
    assert importlib.util.find_spec("engine_of_its_own") is None
    command = [sys.executable, "-P", *hurried.PROGRAM, "measure", "mlp", "--width", "0.1"]
    command += ["--runtimes", "inference-mode,of-its-own", "--batch", "2", "--processes", "1"]
    command += ["--time-budget", "900s", "--until", "60%", "--twin", "none", "--quiet"]
    command += ["--json", "run.json"]
    done = subprocess.run(command, cwd=tmp_path, env=apart, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run.json").read_text())
    found = {m["runtime"]: m for m in run["measurements"]}
    statuses = [(found[name]["status"], found[name]["reason"]) for name in found]
    assert statuses == [("ok", None)] * 3, "both, and the harness's floor"
    assert found["of-its-own"]["parity"]["within_tolerance"]
    (where,) = [n["text"] for n in found["of-its-own"]["notes"] if n["code"] == "apart"]
    assert where == str(Path(apart[environments.FOLDER_VARIABLE]) / "jax")
