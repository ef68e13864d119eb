"""Language models: transformers' own classes from configurations written out here.

No download: weights are random from a fixed seed. Layer norms keep outputs of ordinary size, so
nothing needs calibration. Attention is scaled-dot-product attention, what users run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import SEED, Inputs, Model

if TYPE_CHECKING:
    from frameworktax.records import Workload

DEFAULT_LENGTH = 128
TWIN_LENGTH = 8
"""Tokens of a twin: what the framework costs does not grow with the length, kernels do."""

BERT_SIZES: dict[str, tuple[int, int, int]] = {
    "bert-tiny": (2, 128, 2),
    "bert-mini": (4, 256, 4),
    "bert-small": (4, 512, 8),
    "bert-base": (12, 768, 12),
}
"""Layers, hidden width, heads; Turc et al. 2019 (arXiv:1908.08962), table 1."""


def scaled(layers: int, hidden: int, heads: int, workload: Workload) -> tuple[int, int, int]:
    """Return (layers, hidden, intermediate) after the factors; the number of heads stays.

    Width scales the dimension of a head, so that hidden stays a multiple of the heads. The twin
    has head dimension 1 and nothing wider than the sum of its heads.
    """
    layers = max(1, round(layers * workload.depth))
    if workload.twin:
        return layers, heads, heads
    hidden = heads * max(1, round(hidden // heads * workload.width))
    return layers, hidden, 4 * hidden


def build(name: str, workload: Workload) -> Model:
    """Build a language model in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model's positions.
    """
    import torch

    torch.manual_seed(SEED)
    if name in BERT_SIZES:
        module = _bert(*BERT_SIZES[name], workload)
    elif name == "distilbert":
        module = _distilbert(workload)
    else:
        module = _gpt2(workload)
    config = module.config
    length = DEFAULT_LENGTH if workload.length is None else workload.length
    if not 1 <= length <= config.max_position_embeddings:
        raise UsageError(
            f"{name} takes lengths from 1 to {config.max_position_embeddings}, not {length}; "
            "choose another --length"
        )
    if workload.twin:
        length = min(length, TWIN_LENGTH)

    def inputs(batch: int) -> Inputs:
        # What a tokenizer gives for sentences without padding.
        generator = torch.Generator().manual_seed(SEED)
        shape = (batch, length)
        ids = torch.randint(0, config.vocab_size, shape, generator=generator)
        return Inputs(
            kwargs={"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.int64)}
        )

    dims = {"kwargs.input_ids": 0, "kwargs.attention_mask": 0}
    return Model(module, inputs, dims, has_twin=True)


def _bert(layers: int, hidden: int, heads: int, workload: Workload) -> Any:
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertModel

    layers, hidden, intermediate = scaled(layers, hidden, heads, workload)
    return BertModel(
        BertConfig(
            vocab_size=30522,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=intermediate,
            max_position_embeddings=512,
            attn_implementation="sdpa",
        )
    )


def _distilbert(workload: Workload) -> Any:
    from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
    from transformers.models.distilbert.modeling_distilbert import DistilBertModel

    layers, hidden, intermediate = scaled(6, 768, 12, workload)
    return DistilBertModel(
        DistilBertConfig(
            vocab_size=30522,
            dim=hidden,
            n_layers=layers,
            n_heads=12,
            hidden_dim=intermediate,
            max_position_embeddings=512,
            attn_implementation="sdpa",
        )
    )


def _gpt2(workload: Workload) -> Any:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    layers, hidden, intermediate = scaled(12, 768, 12, workload)
    return GPT2Model(
        GPT2Config(
            vocab_size=50257,
            n_positions=1024,
            n_embd=hidden,
            n_layer=layers,
            n_head=12,
            n_inner=intermediate,
            use_cache=False,  # a single forward pass has nothing to cache for
            attn_implementation="sdpa",
        )
    )
