"""What earlier sessions found out about a model: kept for named models, read back or done anew."""

from dataclasses import replace

import numpy as np
import pytest

from frameworktax import host
from frameworktax.measure.known import DESCRIPTION, KnownModels
from frameworktax.measure.protocol import Described, Facts
from frameworktax.records import Note, Point, Workload

POINT = Point(workload=Workload(model="mlp", batch=1), runtime="onnxruntime")
SCALED = (Note("counts-scaled", "counts scaled from batch 1 and 2"),)
FOUND = Described(
    facts={1: Facts(parameters=5, flops=6, macs=3, operators=2), 2: Facts(parameters=5)},
    has_twin=True,
    notes=(Note("code", "text"),),
)


def at(point, batch):
    return replace(point, workload=replace(point.workload, batch=batch))


def test_a_description_is_known_to_every_runtime_at_its_batches(tmp_path):
    KnownModels(tmp_path).keep_description(POINT, FOUND)
    later = KnownModels(tmp_path)
    assert later.description(POINT, [1, 2]) == FOUND
    other = later.description(replace(at(POINT, 2), runtime="openvino"), [2])
    assert other == replace(FOUND, facts={2: FOUND.facts[2]})
    assert later.description(POINT, [1, 4]) is None
    later.keep_description(POINT, replace(FOUND, facts={4: Facts(flops=9)}))
    assert later.description(POINT, [1, 4]).facts == {1: FOUND.facts[1], 4: Facts(flops=9)}


def test_another_size_version_or_device_is_not_known(tmp_path, monkeypatch):
    KnownModels(tmp_path).keep_description(POINT, FOUND)
    wide = replace(POINT, workload=replace(POINT.workload, width=2.0))
    assert KnownModels(tmp_path).description(wide, [1]) is None
    assert KnownModels(tmp_path).description(replace(POINT, platform="cuda:0"), [1]) is None
    monkeypatch.setattr(host, "libraries", lambda packages: {"torch": "0.1"})
    assert KnownModels(tmp_path).description(POINT, [1]) is None


@pytest.mark.parametrize("model", ["my_code.py:build", "hf:some/model", "onnx:model.onnx"])
def test_nothing_is_kept_of_what_a_version_does_not_define(tmp_path, model):
    point = replace(POINT, workload=replace(POINT.workload, model=model))
    KnownModels(tmp_path).keep_description(point, FOUND)
    KnownModels(tmp_path, live="module.pkl").keep_description(POINT, FOUND)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"answer": {"facts": {}, "x": 1}}'])
def test_a_damaged_description_is_made_anew(tmp_path, damaged):
    known = KnownModels(tmp_path)
    known.keep_description(POINT, FOUND)
    (file,) = tmp_path.glob(f"*/{DESCRIPTION}")
    file.write_bytes(damaged)
    assert known.description(POINT, [1]) is None
    known.keep_description(POINT, FOUND)
    assert known.description(POINT, [1, 2]) == FOUND


def test_a_scaled_count_is_kept_where_it_is_a_number(tmp_path):
    whole = Facts(parameters=1, flops=2, macs=3, operators=4, notes=SCALED)
    unknown = replace(whole, macs=None)
    known = KnownModels(tmp_path)
    known.keep_description(POINT, Described(facts={4: whole, 8: unknown}, has_twin=False))
    assert known.description(POINT, [4]).facts == {4: whole}
    assert known.description(POINT, [8]) is None


def test_outputs_of_eager_on_the_cpu_are_kept_until_damaged(tmp_path):
    cache, made = tmp_path / "cache", tmp_path / "made.npz"
    cache.mkdir()
    np.savez(made, np.arange(3.0), repeats=False)
    known, eager = KnownModels(cache), replace(POINT, runtime="eager")
    gpu = replace(eager, platform="cuda:0")
    for point in (eager, gpu):
        known.keep_output(point, made)
    path = known.output(eager)
    assert path.read_bytes() == made.read_bytes()
    assert known.output(at(eager, 2)) is None and known.output(gpu) is None
    path.write_bytes(path.read_bytes()[:-30])
    assert known.output(eager) is None
