"""Every engine that can be delivered computes on any values what eager computes on them."""

import threading

import numpy as np
import pytest
import torch

from frameworktax import models, runtimes
from frameworktax.errors import WorkerError
from frameworktax.measure.parity import TOLERANCE
from frameworktax.models.base import draw
from frameworktax.records import Workload
from frameworktax.runtimes.artifacts import TorchArtifactLoaded
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.torch_common import flatten

ENGINES = {
    "torchscript": Workload(model="bert-tiny", length=8, depth=0.5),
    "onnxruntime": Workload(model="bert-tiny", length=8, depth=0.5),
    "openvino": Workload(model="bert-tiny", length=8, depth=0.5),
    "aot-inductor": Workload(model="mlp", width=0.125),  # it compiles for long
    "onnxruntime@int8": Workload(model="mlp", width=0.125),
    "openvino@serial": Workload(model="mlp", width=0.125),
    "torchscript@bfloat16": Workload(model="mlp", width=0.125),
    "torchscript-frozen@nhwc": Workload(model="resnet-18", image_size=32, width=0.125),
}


@pytest.mark.parametrize("name", ENGINES)
def test_serving_equals_eager(name, tmp_path):
    runtime = runtimes.get(name)
    tolerance = TOLERANCE[runtime.computes_in("float32")]
    model = models.build(ENGINES[name])
    if (reason := runtime.missing(Target())) is not None:
        pytest.skip(reason)
    runtime.prepare(model, [2, 4], Target(), tmp_path)
    loaded = runtime.load(None, Target(), tmp_path)
    one, dynamic = loaded.serve(2), loaded.serve(None)
    wrong = []
    assert loaded.bind(2)() is not None

    def check(serve, batch, number):
        inputs = draw(model, batch, number)
        tensors = [tensor.contiguous() for tensor in inputs.tensors().values()]
        with torch.no_grad():
            expected = flatten(model.module(*inputs.args, **inputs.kwargs))
        on_torch = isinstance(loaded, TorchArtifactLoaded)
        made = serve(tensors if on_torch else [tensor.numpy() for tensor in tensors])
        kept = [np.asarray(array).copy() for array in made]
        serve(tensors if on_torch else [tensor.numpy() * 0 for tensor in tensors])
        for ours, theirs, copy in zip(made, expected, kept, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), copy)  # no later call changes it
            largest = theirs.abs().max().item()
            if not np.allclose(copy, theirs.numpy(), rtol=0, atol=tolerance * largest):
                wrong.append((batch, number))

    for number in (0, 5, 6, 7):
        check(one, 2, number)
        check(dynamic, 3, number)
        check(dynamic, 4, number)
    threads = [threading.Thread(target=check, args=(one, 2, number)) for number in range(8, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_takes_no_images_has_none_to_lay_out(tmp_path):
    model = models.build(Workload(model="mlp", width=0.125))
    with pytest.raises(WorkerError, match="no images"):
        runtimes.get("torchscript@nhwc").prepare(model, [1], Target(), tmp_path)
    assert runtimes.get("torchscript@nhwc").cannot(Workload(model="mlp")) is not None


def test_a_package_is_loaded_in_python_where_torch_has_no_loader_of_its_own(tmp_path, monkeypatch):
    model = models.build(Workload(model="mlp", width=0.125))
    runtimes.get("torchscript").prepare(model, [1], Target(), tmp_path)  # any artifact
    loaded = runtimes.get("aot-inductor").load(None, Target(), tmp_path)
    import torch._inductor

    def absent(*_):
        raise TypeError("takes two arguments")

    monkeypatch.setattr(loaded, "_own_loader", absent)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: lambda *t: t)
    assert loaded.bind(1)()[0].shape[0] == 1
    assert "python-loader" in dict(loaded.notes())
