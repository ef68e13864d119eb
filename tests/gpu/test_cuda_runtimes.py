"""The runtimes that need a GPU: right outputs, and their own behaviour under attribution."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from frameworktax import runtimes
from frameworktax.attribution.device import attribute_gpu
from frameworktax.errors import WorkerError
from frameworktax.models.base import Inputs, Model
from frameworktax.records import Workload
from frameworktax.runtimes import deployment
from frameworktax.runtimes.base import Target

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"


def build(precision="float32", tail=None):
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)]
    module = torch.nn.Sequential(*layers, *([tail] if tail else []))
    dtype = getattr(torch, precision)
    module = module.eval().to(DEVICE, dtype)

    def inputs(batch):
        generator = torch.Generator().manual_seed(batch)
        x = torch.randn(batch, 64, generator=generator).to(DEVICE, dtype)
        return Inputs(args=(x,))

    return Model(module=module, inputs=inputs, batch_dims={"args.0": 0})


def outputs(name, model, target, directory, batch):
    runtime = runtimes.get(name)
    if runtime.prepares:
        runtime.prepare(model, [1, 4], target, directory)
    loaded = runtime.load(model if runtime.needs_model else None, target, directory)
    call = loaded.bind(batch)
    call()
    result = call()
    loaded.synchronize()
    return loaded, call, loaded.outputs(result)


@pytest.mark.parametrize(
    "name",
    [
        "inference-mode", "torchscript", "cuda-graph", "onnxruntime-cuda", "onnxruntime-cuda-graph",
        "tensorrt", "inductor", "inductor-reduce-overhead", "torchscript-frozen",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float16", 5e-3)])
@pytest.mark.parametrize("batch", [1, 4])
def test_outputs_equal_eager(name, precision, tolerance, batch, tmp_path):
    same_outputs(name, precision, tolerance, batch, tmp_path)


def same_outputs(name, precision, tolerance, batch, tmp_path):
    target = Target(device=DEVICE, precision=precision)
    reason = runtimes.get(name).missing(target)
    if reason:
        pytest.skip(reason)
    model = build(precision)
    _, _, (expected,) = outputs("eager", model, target, tmp_path / "eager", batch)
    _, _, (got,) = outputs(name, model, target, tmp_path / name, batch)
    assert got.shape == expected.shape == (batch, 8)
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    "name", ["torchscript", "torchscript@graph", "torchscript-frozen@graph", "onnxruntime-cuda",
             "tensorrt"],
)  # fmt: skip
def test_what_is_delivered_equals_eager_in_several_threads_on_streams_of_their_own(name, tmp_path):
    served_as_eager(name, tmp_path)


def served_as_eager(name, tmp_path):
    import torch

    target = Target(device=DEVICE)
    runtime = runtimes.get(name)
    if reason := runtime.missing(target):
        pytest.skip(reason)
    model = build()
    runtime.prepare(model, [1, 4], target, tmp_path)
    before = deployment.files_in(tmp_path)
    loaded = runtime.load(None, target, tmp_path)
    serve = loaded.serve(4)
    assert loaded.takes_torch
    wrong = []

    def work(number):
        stream = torch.cuda.Stream()
        generator = torch.Generator(DEVICE).manual_seed(number)
        with torch.cuda.stream(stream), torch.no_grad():
            kept = []
            for _ in range(20):
                x = torch.randn(4, 64, generator=generator, device=DEVICE)
                kept.append((serve([x])[0], model.module(x)))
            stream.synchronize()
            wrong.extend(1 for a, b in kept if (a - b).abs().max() > 1e-5 * b.abs().max())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what any of them did
    assert wrong == []
    assert deployment.files_in(tmp_path) == before, "loading wrote something"


def test_a_graph_replays_all_kernels_with_one_launch(tmp_path):
    target = Target(device=DEVICE)
    eager, call, _ = outputs("eager", build(), target, tmp_path, 4)
    plain = attribute_gpu(call, eager.synchronize, DEVICE, 6)
    graph, replay, _ = outputs("cuda-graph", build(), target, tmp_path, 4)
    replayed = attribute_gpu(replay, graph.synchronize, DEVICE, 6)
    assert replayed["launches"] == (1,) * 6
    assert replayed["kernels"] == plain["kernels"]
    assert replayed["span_ns"]


@pytest.mark.parametrize("name", ["cuda-graph", "onnxruntime-cuda-graph", "tensorrt"])
def test_two_batches_have_graphs_or_engines_of_their_own(tmp_path, name):
    target = Target(device=DEVICE)
    runtime = runtimes.get(name)
    reason = runtime.missing(target)
    if reason:
        pytest.skip(reason)
    model = build()
    runtime.prepare(model, [1, 4], target, tmp_path)
    loaded = runtime.load(model if runtime.needs_model else None, target, tmp_path)
    first = loaded.bind(1)
    one = loaded.outputs(first())[0]
    second = loaded.bind(4)  # must not get the memory that the first one reads
    assert loaded.outputs(second())[0].shape == (4, 8)
    assert np.array_equal(loaded.outputs(first())[0], one)


def test_a_recorded_session_is_one_launch(tmp_path):
    target = Target(device=DEVICE)
    reason = runtimes.get("onnxruntime-cuda-graph").missing(target)
    if reason:
        pytest.skip(reason)
    loaded, call, _ = outputs("onnxruntime-cuda-graph", build(), target, tmp_path, 4)
    found = attribute_gpu(call, loaded.synchronize, DEVICE, 6)
    assert found["launches"] == (1,) * 6


def test_onnxruntime_queues_behind_torch_and_returns_early(tmp_path):
    target = Target(device=DEVICE)
    reason = runtimes.get("onnxruntime-cuda").missing(target)
    if reason:
        pytest.skip(reason)
    loaded, call, _ = outputs("onnxruntime-cuda", build(), target, tmp_path, 4)
    found = attribute_gpu(call, loaded.synchronize, DEVICE, 6)
    assert found["span_ns"], found["notes"]
    assert not [text for code, text in loaded.notes() if code == "cpu-fallback"]


@pytest.mark.parametrize("name", ["cuda-graph", "inductor-reduce-overhead", "inductor"])
def test_graphs_make_the_tokens_of_eager(name, tmp_path):
    pytest.importorskip("transformers")
    from frameworktax import models
    from frameworktax.models.finalize import place

    target = Target(device=DEVICE)
    if reason := runtimes.get(name).missing(target):
        pytest.skip(reason)
    workload = Workload(
        model="gpt2", phase="generate", kv_cache="static", new_tokens=5, length=6, width=0.1,
        depth=0.1,
    )  # fmt: skip
    model = place(models.build(workload), "float32", DEVICE)
    eager = runtimes.get("eager").load(model, target, tmp_path)
    loaded = runtimes.get(name).load(model, target, tmp_path)
    for batch in (1, 3, 1):
        call = loaded.bind(batch)
        (wanted,) = eager.outputs(eager.bind(batch)())
        for _ in range(2):
            (made,) = loaded.outputs(call())
            assert np.array_equal(made, wanted)
    assert loaded.first_token_ns() > 0


def test_a_model_that_synchronises_cannot_be_captured_and_says_why(tmp_path):
    import torch

    torch.cuda.set_stream(torch.cuda.default_stream())

    class Peek(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    loaded = runtimes.get("cuda-graph").load(build(tail=Peek()), Target(device=DEVICE), tmp_path)
    with pytest.raises(WorkerError, match="cannot be captured") as caught:
        loaded.bind(1)
    assert ".item()" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_outputs_equal_eager_compiled_ahead_of_time(tmp_path):
    """Last and once: it compiles for two minutes."""
    same_outputs("aot-inductor", "float32", 1e-5, 4, tmp_path)
    served_as_eager("aot-inductor@graph", tmp_path / "served")
