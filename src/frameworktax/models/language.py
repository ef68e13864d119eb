"""Language models of transformers: encoders, decoders, and what mixes tokens otherwise.

The classes are transformers' own, the configurations stand in the table below: no download,
weights are random from a fixed seed. Layer norms keep outputs of ordinary size, so nothing needs
calibration. Attention is what the class takes by itself: scaled-dot-product attention where it
has it, what users run. Sizes are those of the checkpoints on the Hugging Face hub that the table
names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

    def named(self, names: tuple[str, str, str, str]) -> dict[str, int]:
        """Return the sizes as settings of these names; an empty name leaves its size out."""
        sizes = (self.layers, self.hidden, self.heads, self.inner)
        return {name: size for name, size in zip(names, sizes, strict=True) if name}


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


@dataclass(frozen=True, slots=True)
class Architecture:
    """One line of the table.

    Attributes:
        family: transformers' folder.
        stem: what its classes begin with: ``BertConfig``, ``BertModel``.
        shape: its full size.
        settings: of the configuration, whatever the size.
        derived: those that follow from shape and workload; they win over the others.
        names: what the configuration calls the four sizes.
        least_head: dimension of the twin's heads. Two where one would change the operators: rotary
            positions need pairs, an einsum over one becomes a product.
        mask: whether the module takes an ``attention_mask``.
        twin_length: tokens of the full model → of its twin.
        causal: the class with a language-model head; empty for what generates no text.
    """

    family: str
    stem: str
    shape: Shape
    settings: Mapping[str, Any] = field(default_factory=dict)
    derived: Callable[[Shape, Workload], Mapping[str, Any]] = lambda shape, workload: {}
    names: tuple[str, str, str, str] = COMMON
    least_head: int = 1
    mask: bool = True
    twin_length: Callable[[int], int] = lambda length: min(length, TWIN_LENGTH)
    causal: str = ""


def build(name: str, workload: Workload) -> Model:
    """Build a language model in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model.
    """
    kind = _TABLE[name]
    generates = workload.phase == "generate"
    shape = scaled(kind.shape, workload, kind.least_head)
    settings = {**kind.settings, **shape.named(kind.names), **kind.derived(shape, workload)}
    if kind.causal:
        settings["use_cache"] = generates
    stem = kind.causal if generates else f"{kind.stem}Model"
    module = make(kind.family, f"{kind.stem}Config", stem, **settings)
    length = length_of(workload)
    if workload.twin:
        length = kind.twin_length(length)
    vocabulary = int(module.config.vocab_size)
    named = {"input_ids": integers(vocabulary, length)}
    if kind.mask:
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


BERT_SIZES: dict[str, Shape] = {
    "bert-tiny": Shape(2, 128, 2, 512),
    "bert-mini": Shape(4, 256, 4, 1024),
    "bert-small": Shape(4, 512, 8, 2048),
    "bert-medium": Shape(8, 512, 8, 2048),
    "bert-base": Shape(12, 768, 12, 3072),
    "bert-large": Shape(24, 1024, 16, 4096),
}
"""Turc et al. 2019 (arXiv:1908.08962), table 1; Devlin et al. 2019 (arXiv:1810.04805)."""
BASE = BERT_SIZES["bert-base"]

_TABLE: dict[str, Architecture] = {
    name: Architecture("bert", "Bert", shape, {"vocab_size": 30522})
    for name, shape in BERT_SIZES.items()
} | {
    "distilbert": Architecture(
        "distilbert",
        "DistilBert",
        Shape(6, 768, 12, 3072),
        {"vocab_size": 30522},
        names=("n_layers", "dim", "n_heads", "hidden_dim"),
    ),
    "roberta": Architecture(
        "roberta",
        "Roberta",
        BASE,
        # Positions are counted from the padding token's id, 1.
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    # google/electra-base-discriminator
    "electra": Architecture("electra", "Electra", BASE, derived=_embedding),
    # albert-base-v2
    "albert": Architecture("albert", "Albert", BASE, derived=_albert),
    # microsoft/deberta-base
    "deberta": Architecture(
        "deberta",
        "Deberta",
        BASE,
        {
            "vocab_size": 50265,
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["c2p", "p2c"],
        },
    ),
    # microsoft/deberta-v3-base, which is of the second version's class
    "deberta-v2": Architecture(
        "deberta_v2",
        "DebertaV2",
        BASE,
        {
            "vocab_size": 128100,
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_buckets": 256,
        },
    ),
    # google/mobilebert-uncased
    "mobilebert": Architecture(
        "mobilebert",
        "MobileBert",
        Shape(24, 128, 4, 512),
        {"classifier_activation": False},
        _mobilebert,
    ),
    # squeezebert/squeezebert-uncased; heads of one would spare the twin two copies
    "squeezebert": Architecture(
        "squeezebert", "SqueezeBert", BASE, derived=_embedding, least_head=2
    ),
    # answerdotai/ModernBERT-base
    "modernbert": Architecture("modernbert", "ModernBert", Shape(22, 768, 12, 1152), least_head=2),
    # funnel-transformer/small
    "funnel": Architecture(
        "funnel",
        "Funnel",
        Shape(4, 768, 12, 3072),
        {"num_decoder_layers": 2},
        _funnel,
        names=("", "d_model", "n_head", "d_inner"),
        least_head=2,
    ),
    # google/fnet-base, which takes no mask
    "fnet": Architecture(
        "fnet",
        "FNet",
        BASE,
        names=("num_hidden_layers", "hidden_size", "", "intermediate_size"),
        mask=False,
    ),
    # uw-madison/nystromformer-512. It is given no mask: the class adds one of (length, length) to
    # scores of (landmarks, length), which cannot be. In eager it finds the mask to be all ones and
    # drops it; no exporter can look, so it exports nowhere. Positions are counted from 2, and the
    # embedding has two rows more.
    "nystromformer": Architecture(
        "nystromformer",
        "Nystromformer",
        BASE,
        {"max_position_embeddings": 510},
        _nystromformer,
        mask=False,
        twin_length=_nystromformer_length,
    ),
    # allenai/longformer-base-4096; pads every text to a multiple of its window
    "longformer": Architecture(
        "longformer",
        "Longformer",
        BASE,
        {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1},
        least_head=2,
    ),
    # google/bigbird-roberta-base
    "bigbird": Architecture(
        "big_bird", "BigBird", BASE, least_head=2, twin_length=_big_bird_length
    ),
    # google/reformer-crime-and-punishment; its hashes are seeded, they are random otherwise
    "reformer": Architecture(
        "reformer",
        "Reformer",
        Shape(6, 256, 2, 512),
        {
            "vocab_size": 320,
            "hash_seed": 0,
            "max_position_embeddings": 524_288,
            "axial_pos_shape": [512, 1024],
            "local_attn_chunk_length": CHUNK,
            "lsh_attn_chunk_length": CHUNK,
            "use_cache": False,
        },
        _reformer,
        names=("", "hidden_size", "num_attention_heads", "feed_forward_size"),
        twin_length=_reformer_length,
    ),
    # state-spaces/mamba-130m-hf: the scan is the class's own in torch, one step a token. It
    # dispatches operators for every token, so a shorter twin would be another program.
    "mamba": Architecture(
        "mamba",
        "Mamba",
        Shape(24, 768, 1, 0),
        {"use_cache": False, "use_associative_scan": False},
        _mamba,
        names=("num_hidden_layers", "hidden_size", "", ""),
        twin_length=lambda length: length,
    ),
    "gpt2": Architecture(
        "gpt2",
        "GPT2",
        BASE,
        {"vocab_size": 50257, "n_positions": 1024},
        names=("n_layer", "n_embd", "n_head", "n_inner"),
        causal="GPT2LMHeadModel",
    ),
    # HuggingFaceTB/SmolLM2-135M
    "smollm2": Architecture(
        "llama",
        "Llama",
        Shape(30, 576, 9, 1536),
        {
            "vocab_size": 49152,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        },
        least_head=2,
        causal="LlamaForCausalLM",
    ),
    # Qwen/Qwen3-0.6B
    "qwen3": Architecture(
        "qwen3",
        "Qwen3",
        Shape(28, 2048, 16, 6144),
        {
            "vocab_size": 151_936,
            "num_key_value_heads": 8,
            "max_position_embeddings": 40_960,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        _qwen3,
        least_head=2,
        causal="Qwen3ForCausalLM",
    ),
    # Mixtral's layer at a size of this project's own: no such checkpoint is small
    "moe": Architecture(
        "mixtral",
        "Mixtral",
        Shape(4, 512, 8, 1792),
        {
            "vocab_size": 32_000,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 4096,
        },
        least_head=2,
        causal="MixtralForCausalLM",
    ),
}
