"""Language and speech models of transformers: encoders, decoders, and what mixes tokens otherwise.

The classes are transformers' own, the configurations stand in ``models.toml``: no download,
weights are random from a fixed seed. Layer norms keep outputs of ordinary size, so nothing needs
calibration. Attention is what the class takes by itself: scaled-dot-product attention where it
has it, what users run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import (
    SEED,
    Draw,
    Model,
    deep,
    integers,
    model_of,
    normal,
    ones,
    wide,
)
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
TWIN_SAMPLES = 2_000
"""Samples of a twin's audio."""
CHANNELS = 512
DECODER_TOKENS = 16
FRAMES, TWIN_FRAMES = 3_000, 8
"""Mel frames of 30 s, which Whisper's encoder always takes: shorter audio is padded."""


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
    has heads of dimension ``least_head`` and nothing wider than the sum of its heads.
    """
    layers = deep(shape.layers, workload)
    if workload.twin:
        hidden = shape.heads * least_head
        return Shape(layers, hidden, shape.heads, hidden)
    hidden = shape.heads * wide(shape.hidden // shape.heads, workload, least_head)
    return Shape(layers, hidden, shape.heads, round(shape.inner / shape.hidden * hidden))


def make(family: str, config: str, model: str, **settings: Any) -> Any:
    """Return a seeded model of transformers' ``family`` with these settings."""
    import torch

    package = f"transformers.models.{family}"
    configuration = importlib.import_module(f"{package}.configuration_{family}")
    modeling = importlib.import_module(f"{package}.modeling_{family}")
    torch.manual_seed(SEED)
    return getattr(modeling, model)(getattr(configuration, config)(**settings))


def build(name: str, workload: Workload) -> Model:
    """Build a language or speech model in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model.
    """
    row = BUILT_IN[name].row
    family, _, stem = row["class"].partition(".")
    generates, causal = workload.phase == "generate", row.get("causal", "")
    shape = scaled(Shape(*row["shape"]), workload, row.get("least_head", 1))
    settings = {**row.get("settings", {}), **shape.named(row.get("names", COMMON))}
    derive = DERIVED.get(row.get("derive", name))
    if derive is not None:
        settings |= derive(shape, workload)
    if causal:
        settings["use_cache"] = generates
    kind = causal if generates else row.get("model", f"{stem}Model")
    module = make(family, f"{stem}Config", kind, **settings)
    length = length_of(workload)
    match module.main_input_name:
        case "input_features":
            sizes = [int(module.config.num_mel_bins), settings["max_source_positions"] * 2]
        case "input_values":
            sizes = [min(length, TWIN_SAMPLES) if workload.twin else length]
        case _ if workload.twin and name in TWIN_LENGTHS:
            sizes = [TWIN_LENGTHS[name](length)]
        case _:
            sizes = [min(length, TWIN_LENGTH) if workload.twin else length]
    named = drawers(module, *sizes)
    if not row.get("mask", True):
        named.pop("attention_mask", None)
    return model_of(
        module,
        named=named,
        generates=generates,
        positions=BUILT_IN[name].max_length,
    )


def drawers(module: Any, *shape: int) -> dict[str, Draw]:
    """Return what to draw for a model of transformers', a sample of its main input of this shape.

    That is token ids and their mask, or noise for pixels, raw audio and mel frames; and ids for a
    decoder that follows.
    """
    main, takes = module.main_input_name, inspect.signature(module.forward).parameters
    vocabulary = int(getattr(module.config.get_text_config(), "vocab_size", None) or 2)
    found = {main: integers(vocabulary, *shape) if main == "input_ids" else normal(*shape)}
    if main == "input_ids" and "attention_mask" in takes:
        found["attention_mask"] = ones(*shape)
    if getattr(module.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        found["decoder_input_ids"] = integers(vocabulary, DECODER_TOKENS)
    return found


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
        length = TWIN_LENGTHS["nystromformer"](length)
    return {"segment_means_seq_len": length, "num_landmarks": min(length, LANDMARKS)}


def _reformer(shape: Shape, workload: Workload) -> dict[str, Any]:
    axial = shape.hidden // 4 or 1
    return {
        "attn_layers": [("local", "lsh")[i % 2] for i in range(shape.layers)],
        "attention_head_size": shape.hidden // shape.heads,
        "axial_pos_embds_dim": [axial, shape.hidden - axial],
    }


def _audio(shape: Shape, workload: Workload) -> dict[str, Any]:
    """Convolutions over raw audio; two channels for the twin, on one some layouts coincide."""
    return {
        "conv_dim": [2 if workload.twin else wide(CHANNELS, workload)] * 7,
        # The groups of the positional convolution: 16, or as many as divide the width.
        "num_conv_pos_embedding_groups": max(g for g in range(1, 17) if shape.hidden % g == 0),
    }


def _speecht5(shape: Shape, workload: Workload) -> dict[str, Any]:
    return {
        "decoder_layers": shape.layers // 2 or 1,
        "decoder_attention_heads": shape.heads,
        "decoder_ffn_dim": shape.inner,
        **_audio(shape, workload),
    }


DERIVED: Mapping[str, Callable[[Shape, Workload], Mapping[str, Any]]] = {
    "electra": lambda shape, _: {"embedding_size": shape.hidden},
    "albert": lambda shape, workload: {
        "embedding_size": shape.hidden if workload.twin else wide(128, workload)
    },
    "mobilebert": lambda shape, _: {
        "hidden_size": 4 * shape.hidden,
        "embedding_size": shape.hidden,
        "intra_bottleneck_size": shape.hidden,
    },
    "squeezebert": lambda shape, _: {"embedding_size": shape.hidden},
    "funnel": lambda shape, _: {
        "block_sizes": [shape.layers] * 3,
        "d_head": shape.hidden // shape.heads,
    },
    "nystromformer": _nystromformer,
    "reformer": _reformer,
    "mamba": lambda _, workload: {"state_size": 1 if workload.twin else 16},
    "qwen3": lambda shape, _: {
        "head_dim": shape.hidden // shape.heads,
        "hidden_size": shape.hidden // 2,
        "intermediate_size": shape.inner // 2,
    },
    "audio": _audio,
    "speecht5": _speecht5,
    "whisper": lambda _, workload: {
        "max_source_positions": (TWIN_FRAMES if workload.twin else FRAMES) // 2
    },
}
"""Settings that follow from shape and workload; they win over those of the table."""

TWIN_LENGTHS: Mapping[str, Callable[[int], int]] = {
    # Shorter ones would take another path, with other operators.
    "nystromformer": lambda length: min(length, 2 * LANDMARKS),
    "bigbird": lambda length: length if length > BIG_BIRD_FULL else min(length, TWIN_LENGTH),
    "reformer": lambda length: min(length, 2 * CHUNK if length > CHUNK else TWIN_LENGTH),
    # Its scan dispatches operators for every token, so a shorter twin would be another program.
    "mamba": lambda length: length,
}
"""Tokens of the full model → of its twin, where those of ``TWIN_LENGTH`` would not do."""
