"""Variants that differ in one step compute what eager computes, and take that one step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frameworktax import models, runtimes
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
TARGET = Target()


@pytest.fixture(scope="module")
def model():
    return models.build(Workload(model="bert-tiny", length=8))


@pytest.mark.parametrize(
    ("name", "records_gradients", "spelled_out"),
    [
        ("eager", False, False),
        ("eager@autograd", True, False),
        ("eager@unfused", False, True),
        ("eager@autograd-unfused", True, True),
        ("inference-mode@unfused", False, True),
        ("torchscript@autograd-unfused", True, True),
    ],
)
def test_each_word_is_one_step(name, records_gradients, spelled_out, model, tmp_path: Path) -> None:
    runtime = runtimes.get(name)
    if runtime.prepares:
        runtime.prepare(model, [1], TARGET, tmp_path)
    loaded = runtime.load(model, TARGET, tmp_path)
    call = loaded.bind(1)
    output = call()
    first = output["last_hidden_state"] if isinstance(output, dict) else output[0]
    assert first.requires_grad is records_gradients
    if not runtime.prepares:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
        fused = sum("scaled_dot_product" in event.name for event in profile.events())
        assert (fused == 0) is spelled_out
    assert ("attention-unfused" in dict(loaded.notes())) is spelled_out
    reference = runtimes.get("eager").load(model, TARGET, tmp_path)
    expected = reference.outputs(reference.bind(1)())
    for ours, theirs in zip(loaded.outputs(output), expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5


def test_what_cannot_be_spelled_out_says_so() -> None:
    plain = models.build(Workload(model="mlp", width=0.1))
    loaded = runtimes.get("eager@unfused").load(plain, TARGET, Path())
    assert "attention-as-it-is" in dict(loaded.notes())
    missing = runtimes.get("inference-mode@jemalloc").missing(TARGET)
    assert missing is None or "apt install libjemalloc2" in missing


def test_a_measuring_process_starts_with_its_runtime_s_variables() -> None:
    variables = dict(runtimes.get("inference-mode@malloc").variables())
    worker = Worker("malloc", environment=variables)
    try:
        worker.request(Server.memory, 900.0)  # it has started
        environment = Path(f"/proc/{worker._process.number}/environ").read_bytes().split(b"\0")
        assert b"MALLOC_MMAP_MAX_=0" in environment
    finally:
        worker.kill()
