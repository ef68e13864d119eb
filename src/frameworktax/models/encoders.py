"""BERT and its relatives: encoders with full attention.

Sizes are those of the checkpoints on the Hugging Face hub that each function names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.models.language import Shape, make, model_of, scaled

if TYPE_CHECKING:
    from frameworktax.models.base import Model
    from frameworktax.records import Workload

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
POSITIONS = 512


def build(name: str, workload: Workload) -> Model:
    """Build an encoder in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model's positions.
    """
    size = BERT_SIZES.get(name)
    module = _bert(size, workload) if size else _FAMILIES[name](workload)
    return model_of(module, workload, positions=8192 if name == "modernbert" else POSITIONS)


def _bert(shape: Shape, workload: Workload) -> Any:
    settings = scaled(shape, workload).common
    return make("bert", "BertConfig", "BertModel", vocab_size=30522, **settings)


def _distilbert(workload: Workload) -> Any:
    shape = scaled(Shape(6, 768, 12, 3072), workload)
    return make(
        "distilbert",
        "DistilBertConfig",
        "DistilBertModel",
        vocab_size=30522,
        dim=shape.hidden,
        n_layers=shape.layers,
        n_heads=shape.heads,
        hidden_dim=shape.inner,
    )


def _roberta(workload: Workload) -> Any:
    return make(
        "roberta",
        "RobertaConfig",
        "RobertaModel",
        vocab_size=50265,
        max_position_embeddings=514,  # counted from the padding token's id, 1
        type_vocab_size=1,
        **scaled(BASE, workload).common,
    )


def _electra(workload: Workload) -> Any:
    """google/electra-base-discriminator."""
    shape = scaled(BASE, workload)
    return make(
        "electra", "ElectraConfig", "ElectraModel", embedding_size=shape.hidden, **shape.common
    )


def _albert(workload: Workload) -> Any:
    """albert-base-v2."""
    shape = scaled(BASE, workload)
    embedding = shape.hidden if workload.twin else max(1, round(128 * workload.width))
    return make("albert", "AlbertConfig", "AlbertModel", embedding_size=embedding, **shape.common)


def _deberta(workload: Workload) -> Any:
    """microsoft/deberta-base."""
    return make(
        "deberta",
        "DebertaConfig",
        "DebertaModel",
        vocab_size=50265,
        type_vocab_size=0,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["c2p", "p2c"],
        **scaled(BASE, workload).common,
    )


def _deberta_v2(workload: Workload) -> Any:
    """microsoft/deberta-v3-base, which is of the second version's class."""
    return make(
        "deberta_v2",
        "DebertaV2Config",
        "DebertaV2Model",
        vocab_size=128100,
        type_vocab_size=0,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_buckets=256,
        **scaled(BASE, workload).common,
    )


def _mobilebert(workload: Workload) -> Any:
    """google/mobilebert-uncased."""
    inside = scaled(Shape(24, 128, 4, 512), workload)
    outside = 4 * inside.hidden
    return make(
        "mobilebert",
        "MobileBertConfig",
        "MobileBertModel",
        num_hidden_layers=inside.layers,
        num_attention_heads=inside.heads,
        hidden_size=outside,
        intermediate_size=inside.inner,
        embedding_size=inside.hidden,
        intra_bottleneck_size=inside.hidden,
        classifier_activation=False,
    )


def _squeezebert(workload: Workload) -> Any:
    """squeezebert/squeezebert-uncased; heads of one would spare the twin two copies."""
    shape = scaled(BASE, workload, least_head=2)
    return make(
        "squeezebert",
        "SqueezeBertConfig",
        "SqueezeBertModel",
        embedding_size=shape.hidden,
        **shape.common,
    )


def _modernbert(workload: Workload) -> Any:
    """answerdotai/ModernBERT-base."""
    shape = scaled(Shape(22, 768, 12, 1152), workload, least_head=2)
    return make("modernbert", "ModernBertConfig", "ModernBertModel", **shape.common)


_FAMILIES = {
    "distilbert": _distilbert,
    "roberta": _roberta,
    "electra": _electra,
    "albert": _albert,
    "deberta": _deberta,
    "deberta-v2": _deberta_v2,
    "mobilebert": _mobilebert,
    "squeezebert": _squeezebert,
    "modernbert": _modernbert,
}
