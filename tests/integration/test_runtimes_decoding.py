"""Greedy decoding in exported graphs: the tokens that eager makes, in processes without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from frameworktax import models, runtimes
from frameworktax.errors import WorkerError
from frameworktax.records import Workload
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Target

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BATCHES, PROMPT, NEW = [1, 3], 6, 5

FRESH = """
import json, sys, time
from pathlib import Path
import numpy as np
from frameworktax import runtimes
from frameworktax.runtimes.base import Target
name, directory, batches = json.loads(sys.argv[1])
loaded = runtimes.get(name).load(None, Target(), Path(directory))
for batch in batches:
    call = loaded.bind(batch)
    first = loaded.outputs(call())[0]
    start = time.perf_counter_ns()
    (again,) = loaded.outputs(call())
    assert start < loaded.first_token_ns() < time.perf_counter_ns()
    assert (first == again).all(), "a second call starts anew"
    np.save(Path(directory) / f"outputs-{batch}.npy", again)
print(json.dumps([[m for m in ("torch", "transformers") if m in sys.modules], loaded.notes()]))
"""


def decoder(kv_cache: str, name: str = "gpt2", **fields):
    sizes = {"width": 0.1, "depth": 0.1, "length": PROMPT, "new_tokens": NEW} | fields
    return models.build(Workload(model=name, phase="generate", kv_cache=kv_cache, **sizes))


@pytest.mark.parametrize(
    ("name", "kv_cache"),
    [("onnxruntime", "dynamic"), ("openvino", "dynamic"), ("onnxruntime", "none")],
)
def test_exported_steps_make_the_tokens_of_eager(name: str, kv_cache: str, tmp_path: Path) -> None:
    runtime = runtimes.get(name)
    if runtime.missing(Target()):
        pytest.skip(str(runtime.missing(Target())))
    model = decoder(kv_cache)
    runtime.prepare(model, BATCHES, Target(), tmp_path)
    request = json.dumps([name, str(tmp_path), BATCHES])
    done = subprocess.run([sys.executable, "-c", FRESH, request], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported, notes = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    eager = runtimes.get("eager").load(model, Target(), Path())
    for batch in BATCHES:
        made = np.load(tmp_path / f"outputs-{batch}.npy")
        (reference,) = eager.outputs(eager.bind(batch)())
        assert made.shape == (batch, PROMPT + NEW) and made.dtype == np.int64
        assert np.array_equal(made, reference)
    how = "its keys and values handed on" if kv_cache == "dynamic" else "no cache"
    assert dict(notes)["decoded-by"].endswith(how)
    # One layer: its keys and values; one graph serves all batches and lengths.
    artifact = Artifact.read(tmp_path)
    assert artifact.cache == ([[12, 6]] * 2 if kv_cache == "dynamic" else [])
    assert len(set(artifact.files.values())) == 1


def test_a_cache_that_forgets_is_no_plain_one() -> None:
    from frameworktax.runtimes.decoding import export_step

    model = decoder("dynamic")
    model.module.config.sliding_window = 4
    model.module.config.layer_types = ["sliding_attention"]
    with pytest.raises(WorkerError, match="not DynamicSlidingWindowLayer; choose --kv-cache none"):
        export_step(SimpleNamespace(model=model))


@pytest.mark.parametrize(
    ("name", "kv_cache", "says"),
    [
        ("onnxruntime", "static", "none or dynamic, not static"),
        ("openvino", "static", "none or dynamic, not static"),
        ("onnxruntime@fused", "dynamic", "fuses forward passes only"),
        ("onnxruntime-cuda", "dynamic", "forward passes only"),
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
    assert dict(loaded.notes())["decoded-by"].endswith("of one step, static cache")
