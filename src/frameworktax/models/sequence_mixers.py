"""Encoders that mix tokens otherwise than by full attention, and a state-space model.

Sizes are those of the checkpoints on the Hugging Face hub that each function names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frameworktax.errors import UsageError
from frameworktax.models.language import Shape, length_of, make, model_of, scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

BASE = Shape(12, 768, 12, 3072)
LANDMARKS = 64
CHUNK = 64
"""Tokens that a Reformer's token looks back over; shorter texts get full attention."""


def build(name: str, workload: Workload) -> Model:
    """Build a model in float32 on the CPU.

    Raises:
        UsageError: the length does not fit the model.
    """
    return _FAMILIES[name](workload)


def _funnel(workload: Workload) -> Model:
    """funnel-transformer/small; heads of one would turn the twin's einsums into products."""
    shape = scaled(Shape(4, 768, 12, 3072), workload, least_head=2)
    module = make(
        "funnel",
        "FunnelConfig",
        "FunnelModel",
        block_sizes=[shape.layers] * 3,
        num_decoder_layers=2,
        d_model=shape.hidden,
        n_head=shape.heads,
        d_head=shape.hidden // shape.heads,
        d_inner=shape.inner,
    )
    return model_of(module, workload)


def _fnet(workload: Workload) -> Model:
    """google/fnet-base, which takes no mask."""
    shape = scaled(BASE, workload)
    module = make(
        "fnet",
        "FNetConfig",
        "FNetModel",
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
    )
    return model_of(module, workload, mask=False, positions=512)


def _nystromformer(workload: Workload) -> Model:
    """uw-madison/nystromformer-512.

    The class wants the length in its configuration, and a whole number of tokens a landmark; up
    to 64 tokens each is its own landmark, which is full attention. It is given no mask: the class
    adds one of (length, length) to scores of (landmarks, length), which cannot be. In eager it
    finds the mask to be all ones and drops it; no exporter can look, so it exports nowhere.

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
        length = min(length, 2 * LANDMARKS)  # below, the twin would run other operators
    module = make(
        "nystromformer",
        "NystromformerConfig",
        "NystromformerModel",
        max_position_embeddings=510,
        segment_means_seq_len=length,
        num_landmarks=min(length, LANDMARKS),
        **scaled(BASE, workload).common,
    )
    # Positions are counted from 2, and the embedding has two rows more.
    return model_of(module, workload, mask=False, positions=510, least=length)


def _longformer(workload: Workload) -> Model:
    """allenai/longformer-base-4096; pads every text to a multiple of its window."""
    module = make(
        "longformer",
        "LongformerConfig",
        "LongformerModel",
        vocab_size=50265,
        max_position_embeddings=4098,
        type_vocab_size=1,
        **scaled(BASE, workload, least_head=2).common,  # as in Funnel, for its einsums
    )
    return model_of(module, workload, positions=4096)


def _bigbird(workload: Workload) -> Model:
    """google/bigbird-roberta-base; up to 704 tokens its class switches to full attention."""
    shape = scaled(BASE, workload, least_head=2)  # as in Funnel
    module = make("big_bird", "BigBirdConfig", "BigBirdModel", **shape.common)
    length = length_of(workload)
    return model_of(module, workload, positions=4096, least=length if length > 704 else 8)


def _reformer(workload: Workload) -> Model:
    """google/reformer-crime-and-punishment; its hashes are seeded, they are random otherwise."""
    shape = scaled(Shape(6, 256, 2, 512), workload)
    head = shape.hidden // shape.heads
    axial = shape.hidden // 4 or 1
    module = make(
        "reformer",
        "ReformerConfig",
        "ReformerModel",
        vocab_size=320,
        hash_seed=0,
        attn_layers=[("local", "lsh")[i % 2] for i in range(shape.layers)],
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        attention_head_size=head,
        feed_forward_size=shape.inner,
        max_position_embeddings=524_288,
        axial_pos_shape=[512, 1024],
        axial_pos_embds_dim=[axial, shape.hidden - axial],
        local_attn_chunk_length=CHUNK,
        lsh_attn_chunk_length=CHUNK,
        use_cache=False,
    )
    length = length_of(workload)
    # A text within one chunk takes another path: the twin stays on the one of the full model.
    least = 2 * CHUNK if length > CHUNK else 8
    return model_of(module, workload, positions=524_288, least=least)


def _mamba(workload: Workload) -> Model:
    """state-spaces/mamba-130m-hf: the scan is the class's own in torch, one step a token."""
    layers = max(1, round(24 * workload.depth))
    hidden = 1 if workload.twin else max(1, round(768 * workload.width))
    module = make(
        "mamba",
        "MambaConfig",
        "MambaModel",
        hidden_size=hidden,
        num_hidden_layers=layers,
        state_size=1 if workload.twin else 16,
        use_cache=False,
        use_associative_scan=False,
    )
    # The scan dispatches operators for every token: a shorter twin would be another program.
    return model_of(module, workload, least=length_of(workload))


_FAMILIES: dict[str, Callable[[Workload], Model]] = {
    "funnel": _funnel,
    "fnet": _fnet,
    "nystromformer": _nystromformer,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "reformer": _reformer,
    "mamba": _mamba,
}
