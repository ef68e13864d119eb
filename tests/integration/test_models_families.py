"""Every named model at a small size: it runs, its outputs are of ordinary size, its twin is one."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from frameworktax import models
from frameworktax.models import BUILT_IN
from frameworktax.models.base import Inputs, Model
from frameworktax.models.describe import describe
from frameworktax.records import Workload

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTHS = {"language": 16, "speech": 2000, "synthetic": 8}
LONGER = {
    "nystromformer": 128,  # landmarks: up to 64 tokens are full attention
    "reformer": 128,  # hashing: up to 64 tokens are full attention
    "bigbird": 768,  # blocks: up to 704 tokens are full attention
    "mamba": 8,
}
FAINT = {"mobilebert": 0.05}
"""Its norms are none, so that outputs stay as small as the embeddings."""


def small(name: str) -> dict:
    """Return factors and sizes that make any model a matter of milliseconds."""
    entry = BUILT_IN[name]
    chosen: dict = {}
    if "width" in entry.factors:
        chosen["width"] = 0.25
    if "depth" in entry.factors:
        chosen["depth"] = 0.1
    if entry.has_length:
        least = max(entry.min_length, (entry.default_length or 0) // 8)
        chosen["length"] = LONGER.get(name, LENGTHS.get(entry.family, least))
    if entry.has_image_size:
        chosen["image_size"] = entry.min_image_size
    return chosen


@functools.cache
def missing() -> dict[str, str | None]:
    """Return what each named model needs and is not installed."""
    return {row["name"]: row["missing"] for row in models.describe_names()}


def build(**workload):
    if missing()[workload["model"]]:
        pytest.skip(missing()[workload["model"]])
    return models.build(Workload(**workload))


def outputs(model, batch):
    from frameworktax.runtimes.torch_common import flatten

    inputs = model.inputs(batch)
    with torch.no_grad():
        return flatten(model.module(*inputs.args, **inputs.kwargs))


ALIKE = {
    *(f"bert-{size}" for size in ("mini", "small", "medium", "large")),
    *(f"resnet-{layers}" for layers in (34, 101, 152)),
}
"""Differ in numbers alone from others, which are built."""


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ALIKE])
def test_family(name: str) -> None:
    sizes = small(name)
    full = build(model=name, **sizes)
    first = outputs(full, 2)
    assert all(bool(torch.isfinite(t).all()) for t in first)
    largest = max(float(t.abs().max()) for t in first)
    assert FAINT.get(name, 0.1) < largest < 100
    assert all(torch.equal(a, b) for a, b in zip(first, outputs(full, 2), strict=True))
    rows = [t.shape[0] for t in first]
    assert rows == [2] * len(rows), "every output has the batch first"
    facts = describe(full, 2)
    assert facts["notes"] == []
    # A layer's product is counted in both; attention is in the FLOPs alone.
    assert facts["flops"] >= 2 * facts["macs"]
    if sizes.pop("width", None) is None:
        return  # torchvision's own size: no twin
    twin = build(model=name, twin=True, **sizes)
    shrunk = describe(twin, 2)
    assert shrunk["operators"] == facts["operators"], "the twin runs the same operators"
    assert shrunk["macs"] <= facts["macs"] / 10
    assert shrunk["parameters"] < facts["parameters"]


SAMPLE = ("bert-tiny", "resnet-18", "recommender")
VALUES = """
import hashlib, sys
import torch
from frameworktax import models
from frameworktax.records import Workload
for name, sizes in {sample!r}.items():
    model = models.build(Workload(model=name, **sizes))
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    inputs = model.inputs(3)
    for tensor in (*inputs.args, *inputs.kwargs.values()):
        digest.update(tensor.numpy().tobytes())
    print(name, digest.hexdigest())
"""


def test_every_process_builds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = VALUES.format(sample={name: small(name) for name in SAMPLE})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exec(code, {})
    assert capsys.readouterr().out == done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SAMPLE)


# --- counts of what torch's counter does not know -------------------------------------------------


def test_experts_are_counted() -> None:
    """Each of 2 * 16 tokens goes through 2 of 8 experts: three maps of 512 by 1792."""
    facts = describe(build(model="moe", depth=0.25, length=16), 2)
    tokens, width, inner = 32, 512, 1792
    projections = tokens * (2 * width * width + 2 * width * width // 4)
    experts = tokens * 2 * 3 * width * inner
    routers = tokens * width * 8
    assert facts["macs"] == projections + experts + routers
    assert facts["flops"] == 2 * facts["macs"] + 2 * 2 * 2 * 16 * 16 * width


def test_projections_without_layers_are_counted() -> None:
    """torch's attention hands its weights to one function; a recurrent layer is one operator."""
    facts = describe(build(model="attention", depth=0.25, length=16), 2)
    assert facts["macs"] == 2 * 16 * 4 * 512 * 512
    assert facts["flops"] == 2 * facts["macs"] + 2 * 2 * 2 * 16 * 16 * 512
    facts = describe(build(model="lstm", length=4), 2)
    assert facts["macs"] == 2 * 4 * 2 * (4 * 2 * 512 * 512)
    assert facts["flops"] == 2 * facts["macs"]
    facts = describe(build(model="wavlm", depth=0.1, length=2000), 1)
    assert facts["macs"] > describe(build(model="hubert", depth=0.1, length=2000), 1)["macs"]


class _Attends(torch.nn.Module):
    def __init__(self, named: tuple[str, ...]) -> None:
        super().__init__()
        self.named, self.attention = named, torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        given = {"value": memory, "key": memory, "query": x}
        return self.attention(
            *[given.pop(name) for name in ("query", "key", "value") if name not in self.named],
            **given,
        )[0]


@pytest.mark.parametrize("named", [(), ("value",), ("key", "value"), ("query", "key", "value")])
def test_attention_called_by_name_is_counted(named: tuple[str, ...]) -> None:
    """Three tokens over five: each is projected for queries and outputs, or for keys and values."""
    inputs = Inputs((torch.randn(1, 3, 8), torch.randn(1, 5, 8)))
    facts = describe(Model(_Attends(named).eval(), lambda _: inputs, {}), 1)
    assert facts["macs"] == (2 * 3 + 2 * 5) * 8 * 8


class _Steps(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> object:
        return self.layer(input=x)


@pytest.mark.parametrize(
    ("layer", "gates"),
    [
        (torch.nn.LSTM(8, 16), 4),
        (torch.nn.LSTMCell(8, 16), 4),
        (torch.nn.GRUCell(8, 16), 3),
        (torch.nn.RNNCell(8, 16), 1),
    ],
)
def test_recurrent_layers_and_cells_are_counted(layer: torch.nn.Module, gates: int) -> None:
    inputs = Inputs((torch.randn(5, 8),))
    facts = describe(Model(_Steps(layer).eval(), lambda _: inputs, {}), 1)
    assert facts["macs"] == 5 * gates * 16 * (8 + 16)


# --- what a family says no to ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (Workload(model="vit-base", image_size=40), r"\b16, not 40\b"),
        (Workload(model="unet", image_size=20), r"\b8, not 20\b"),
        (Workload(model="nystromformer", length=100), r"up to 64\b.*multiple of 64\b"),
        (Workload(model="wav2vec2", length=100), r"\b400\b.*not 100\b"),
        (Workload(model="inception-v3", image_size=64), r"\b96\b.*not 64\b"),
        (Workload(model="alexnet", width=0.5), "width factor"),
    ],
)
def test_sizes_a_family_cannot_take(workload: Workload, said: str) -> None:
    from frameworktax.errors import UsageError

    with pytest.raises(UsageError, match=said):
        models.check(workload)
        build(model=workload.model, length=workload.length)


def test_a_decoder_gets_its_head_to_generate() -> None:
    sizes = {"width": 0.125, "depth": 0.1, "length": 8}
    plain = build(model="smollm2", **sizes)
    assert not plain.module.can_generate() and plain.positions == 8192
    decoder = build(model="smollm2", phase="generate", new_tokens=2, kv_cache="none", **sizes)
    assert decoder.module.can_generate()
    inputs = decoder.inputs(2)
    logits = decoder.module(**inputs.kwargs).logits
    assert tuple(logits.shape) == (2, 8, 49152)
    weights = [sum(p.numel() for p in m.module.parameters()) for m in (plain, decoder)]
    assert weights[0] == weights[1], "the head is the embedding"
