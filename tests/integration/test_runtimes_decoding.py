"""Greedy decoding by recorded steps, and what else does not decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frameworktax import models, runtimes
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BATCHES, PROMPT, NEW = [1, 3], 6, 5


def decoder(kv_cache: str, name: str = "gpt2", **fields):
    sizes = {"width": 0.1, "depth": 0.1, "length": PROMPT, "new_tokens": NEW} | fields
    return models.build(Workload(model=name, phase="generate", kv_cache=kv_cache, **sizes))


@pytest.mark.parametrize(
    ("name", "kv_cache", "says"),
    [
        ("inductor", "dynamic", "static, not dynamic"),
        ("onnxruntime", "dynamic", "forward passes only"),
        ("openvino", "none", "forward passes only"),
        ("torchscript", "dynamic", "forward passes only"),
    ],
)
def test_what_generates_otherwise_is_refused_with_what_to_choose(
    name: str, kv_cache: str, says: str
) -> None:
    workload = Workload(model="gpt2", phase="generate", new_tokens=NEW, kv_cache=kv_cache)
    assert says in str(runtimes.get(name).cannot(workload))


def taped(call, ready):
    """Record a call as a CUDA graph does: its operators on fixed tensors, without its Python."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map

    seen = []

    class Tape(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._local_scalar_dense.default:
                raise RuntimeError("the host reads a value while capturing")
            result = function(*args, **(kwargs or {}))
            seen.append((function, args, kwargs or {}, result))
            return result

    for _ in range(3):
        ready()
        call()
    ready()
    with Tape():
        output = call()

    def replay():
        made = {}

        def now(value):
            return made.get(id(value), value)

        for function, args, kwargs, result in seen:
            fresh = function(*tree_map(now, args), **tree_map(now, kwargs))
            made.update(zip(map(id, tree_flatten(result)[0]), tree_flatten(fresh)[0], strict=True))

    return replay, output


@pytest.mark.parametrize(
    ("name", "new_tokens"), [("gpt2", 5), ("gpt2", 1), ("qwen3", 2), ("smollm2", 5)]
)
def test_replayed_steps_make_the_tokens_of_eager(name: str, new_tokens: int) -> None:
    from frameworktax.models.generate import Replayed
    from frameworktax.runtimes.cuda_graph import GraphLoaded

    model = decoder("static", name, new_tokens=new_tokens)
    eager = runtimes.get("eager").load(model, Target(), Path())
    replayed = Replayed(model.module, model.decoding, taped)
    loaded = GraphLoaded(model, Target(), replayed, torch.inference_mode)
    calls = {batch: loaded.bind(batch) for batch in BATCHES}
    for batch, call in [*calls.items(), *calls.items()]:
        (made,), (reference,) = loaded.outputs(call()), eager.outputs(eager.bind(batch)())
        assert made.shape == (batch, PROMPT + new_tokens)
        assert np.array_equal(made, reference)
    assert loaded.first_token_ns() > 0
    assert dict(loaded.notes())["decoded-by"].endswith("static cache")
