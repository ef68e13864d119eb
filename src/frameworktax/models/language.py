"""Language models of transformers: encoders, decoders, and what mixes tokens otherwise.

The classes are transformers' own, the configurations stand in ``language.toml``: no download,
weights are random from a fixed seed. Layer norms keep outputs of ordinary size, so nothing needs
calibration. Attention is what the class takes by itself: scaled-dot-product attention where it
has it, what users run.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import SEED, Model, deep, integers, model_of, ones
from frameworktax.models.registry import BUILT_IN, length_of

if TYPE_CHECKING:
    from frameworktax.records import Workload

TWIN_LENGTH = 8
"""Tokens of a twin: what the framework costs does not grow with the length, kernels do."""
LANDMARKS = 64
CHUNK = 64
"""Tokens that a Reformer's token looks back over; shorter texts get full attention."""
BIG_BIRD_FULL = 704
"""Tokens up to which BigBird's class switches to full attention."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer; ``inner`` is the width between a layer's two linear maps."""

    layers: int
    hidden: int
    heads: int
    inner: int

    def named(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes as settings of these names; an empty name leaves its size out."""
        sizes = (self.layers, self.hidden, self.heads, self.inner)
        return {name: size for name, size in zip(names, sizes, strict=True) if name}


BASE = Shape(12, 768, 12, 3072)
"""BERT-base's, and that of many models after it."""
COMMON = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""What most of transformers' configurations call the four sizes."""


def scaled(shape: Shape, workload: Workload, least_head: int = 1) -> Shape:
    """Return the shape after the factors; the number of heads stays.

    Width scales the dimension of a head, so that hidden stays a multiple of the heads. The twin
    has heads of dimension ``least_head`` (rotary positions need pairs) and nothing wider than the
    sum of its heads.
    """
    layers = deep(shape.layers, workload)
    if workload.twin:
        hidden = shape.heads * least_head
        return Shape(layers, hidden, shape.heads, hidden)
    head = shape.hidden // shape.heads
    head = least_head * max(1, round(head * workload.width / least_head))
    hidden = shape.heads * head
    return Shape(layers, hidden, shape.heads, round(shape.inner / shape.hidden * hidden))


def make(family: str, config: str, model: str, **settings: Any) -> Any:
    """Return a seeded model of transformers' ``family`` with these settings."""
    import torch

    package = f"transformers.models.{family}"
    configuration = importlib.import_module(f"{package}.configuration_{family}")
    modeling = importlib.import_module(f"{package}.modeling_{family}")
    torch.manual_seed(SEED)
    return getattr(modeling, model)(getattr(configuration, config)(**settings))


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    """Return the rows of ``language.toml``, which says what they hold."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def build(name: str, workload: Workload) -> Model:
    """Build a language model in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model.
    """
    row = _table()[name]
    family, _, stem = row["class"].partition(".")
    generates, causal = workload.phase == "generate", row.get("causal", "")
    shape = scaled(Shape(*row["shape"]), workload, row.get("least_head", 1))
    settings = {**row.get("settings", {}), **shape.named(row.get("names", COMMON))}
    if name in DERIVED:
        settings.update(DERIVED[name](shape, workload))
    if causal:
        settings["use_cache"] = generates
    kind = causal if generates else f"{stem}Model"
    module = make(family, f"{stem}Config", kind, **settings)
    length = length_of(workload)
    if workload.twin:
        length = TWIN_LENGTHS[name](length) if name in TWIN_LENGTHS else min(length, TWIN_LENGTH)
    vocabulary = int(module.config.vocab_size)
    named = {"input_ids": integers(vocabulary, length)}
    if row.get("mask", True):
        named["attention_mask"] = ones(length)
    return model_of(
        module,
        named=named,
        generates=generates,
        positions=BUILT_IN[name].max_length,
        vocabulary=vocabulary,
    )


def _embedding(shape: Shape, workload: Workload) -> dict[str, Any]:
    return {"embedding_size": shape.hidden}


def _albert(shape: Shape, workload: Workload) -> dict[str, Any]:
    width = shape.hidden if workload.twin else max(1, round(128 * workload.width))
    return {"embedding_size": width}


def _mobilebert(shape: Shape, workload: Workload) -> dict[str, Any]:
    """The shape is that inside of a bottleneck; outside it is four times as wide."""
    return {
        "hidden_size": 4 * shape.hidden,
        "embedding_size": shape.hidden,
        "intra_bottleneck_size": shape.hidden,
    }


def _funnel(shape: Shape, workload: Workload) -> dict[str, Any]:
    return {"block_sizes": [shape.layers] * 3, "d_head": shape.hidden // shape.heads}


def _nystromformer_length(length: int) -> int:
    return min(length, 2 * LANDMARKS)  # below, the twin would run other operators


def _nystromformer(shape: Shape, workload: Workload) -> dict[str, Any]:
    """Its class wants the length in its configuration, and a whole number of tokens a landmark.

    Up to 64 tokens each is its own landmark, which is full attention.

    Raises:
        UsageError: a length above 64 that 64 does not divide.
    """
    length = length_of(workload)
    if length > LANDMARKS and length % LANDMARKS:
        raise UsageError(
            f"{workload.model} takes up to {LANDMARKS} tokens or a multiple of {LANDMARKS}, "
            f"not {length}; choose another --length"
        )
    if workload.twin:
        length = _nystromformer_length(length)
    return {"segment_means_seq_len": length, "num_landmarks": min(length, LANDMARKS)}


def _reformer(shape: Shape, workload: Workload) -> dict[str, Any]:
    axial = shape.hidden // 4 or 1
    return {
        "attn_layers": [("local", "lsh")[i % 2] for i in range(shape.layers)],
        "attention_head_size": shape.hidden // shape.heads,
        "axial_pos_embds_dim": [axial, shape.hidden - axial],
    }


def _reformer_length(length: int) -> int:
    """A text within one chunk takes another path: the twin stays on that of the full model."""
    return min(length, 2 * CHUNK if length > CHUNK else TWIN_LENGTH)


def _big_bird_length(length: int) -> int:
    return length if length > BIG_BIRD_FULL else min(length, TWIN_LENGTH)


def _mamba(shape: Shape, workload: Workload) -> dict[str, Any]:
    return {"state_size": 1 if workload.twin else 16}


def _qwen3(shape: Shape, workload: Workload) -> dict[str, Any]:
    """Its heads together are twice as wide as the layer; the shape has the heads'."""
    return {
        "head_dim": shape.hidden // shape.heads,
        "hidden_size": shape.hidden // 2,
        "intermediate_size": shape.inner // 2,
    }


DERIVED: Mapping[str, Callable[[Shape, Workload], Mapping[str, Any]]] = {
    "electra": _embedding,
    "albert": _albert,
    "mobilebert": _mobilebert,
    "squeezebert": _embedding,
    "funnel": _funnel,
    "nystromformer": _nystromformer,
    "reformer": _reformer,
    "mamba": _mamba,
    "qwen3": _qwen3,
}
"""Settings that follow from shape and workload; they win over those of the table."""

TWIN_LENGTHS: Mapping[str, Callable[[int], int]] = {
    "nystromformer": _nystromformer_length,
    "bigbird": _big_bird_length,
    "reformer": _reformer_length,
    # Its scan dispatches operators for every token, so a shorter twin would be another program.
    "mamba": lambda length: length,
}
"""Tokens of the full model → of its twin, where those of ``TWIN_LENGTH`` would not do."""
