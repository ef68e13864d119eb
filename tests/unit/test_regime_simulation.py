"""The regime rule against simulated models with known truth; the whole of it is in benchmarks/."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("regime_benchmark", ROOT / "benchmarks/regime.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(benchmark):
    return benchmark.simulate(seed=77, models=50)


def test_framework_and_compute_are_never_confused(found):
    assert found["confused"] == 0
    assert found["accuracy"] >= 0.85


def test_flatness_alone_does_confuse_them(found):
    assert found["confused_by_flatness"] > 0


def test_every_truth_and_every_verdict_occurs(found):
    words = [pair.split(" told ") for pair in found["counts"]]
    regimes = {"framework-bound", "compute-bound", "mixed"}
    assert {a for a, _ in words} == {b for _, b in words} == regimes


def test_the_committed_result_is_that_of_the_held_out_seed(benchmark):
    kept = json.loads(benchmark.RESULT.read_text())
    assert (kept["seed"], kept["models"], kept["batches"]) == (benchmark.HELD_OUT, 250, 8)
    assert sum(kept["counts"].values()) == 2000
    assert kept["confused"] == 0 and kept["accuracy"] >= 0.85
