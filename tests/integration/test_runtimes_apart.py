"""Runtimes of packages that are seldom installed, through the worker as sessions use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworktax import models, runtimes
from frameworktax.measure import parity
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
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
NAMES = ("jax", "executorch", "litert", "iree", "tract", "zentorch")


def outputs(name: str, workload: Workload, target: Target, folder: Path):
    """Prepare and load in processes as a session starts them; return outputs, modules, notes."""
    runtime = runtimes.get(name)
    common = {"workload": workload, "runtime": name, "target": target, "folder": str(folder)}
    if runtime.prepares:
        with_model = Worker("prepare")
        try:
            with_model.request(Server.prepare, LIMIT_S, batches=tuple(BATCHES), **common)
        finally:
            with_model.kill()
    worker = Worker("measure")
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
    before = onnx_file.read_bytes()
    found = {}
    for runtime in ("onnxruntime", name):
        (tmp_path / runtime).mkdir()
        found[runtime], _, _ = outputs(runtime, workload, Target(), tmp_path / runtime)
    for batch in BATCHES:
        comparison = parity.compare(found["onnxruntime"][batch], found[name][batch], "float32")
        assert comparison.within_tolerance, comparison
    assert onnx_file.read_bytes() == before


@pytest.mark.parametrize("kind", ["uint8", "bool"])
def test_tract_takes_inputs_of_whole_numbers(kind: str, tmp_path: Path) -> None:
    import torch

    if (missing := runtimes.get("tract").missing(Target())) is not None:
        pytest.skip(missing)
    source = tmp_path / "mine.py"
    source.write_text(
        "import torch\n\n\nclass Halves(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x.float() / 2\n\n\n"
        f"def build():\n    return Halves(), (torch.ones(1, 4, dtype=torch.{kind}),)\n"
    )
    found, _, _ = outputs("tract", Workload(model=f"{source}:build"), Target(), tmp_path)
    for batch in BATCHES:
        assert found[batch][0].tolist() == torch.full((batch, 4), 0.5).tolist()
