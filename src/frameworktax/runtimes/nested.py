"""Sparse input: the sentences of a ragged batch as a nested tensor, so that no padding is computed.

This is what the paper used BetterTransformer for: the fused encoder layer of torch takes a nested
tensor made from the mask, its matrix products run over real tokens only. Embeddings are looked up
for the padded batch, as BetterTransformer did, and the output is padded again; both are part of
the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.models.ragged import IDS, MASK
from frameworktax.runtimes.base import Loaded, Target
from frameworktax.runtimes.torch_common import TorchLoaded, TorchRuntime, configure, given

if TYPE_CHECKING:
    import torch

    from frameworktax.models.base import Model

NOTES = [
    (
        "nested-tensors",
        "encoder layers see no padding (torch._transformer_encoder_layer_fwd on a nested tensor); "
        "embeddings and output are padded",
    )
]
GELU = "gelu"


class Nested(TorchRuntime):
    """Encoders of BERT's kind over nested tensors; ragged input only."""

    name = "nested"
    paradigm = "sparse-input"
    inputs = ("ragged",)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Take the weights of each layer in the order the fused operator wants.

        Raises:
            WorkerError: the model is no encoder that the operator computes; the message says why.
        """
        import torch

        configure(target)
        built = given(model)
        encoder = _Encoder(built.module)
        return TorchLoaded(built, target, encoder, torch.no_grad, NOTES)


class _Encoder:
    """Embeddings, nested layers, pooler: called and answering like the model itself."""

    def __init__(self, module: Any) -> None:
        config = getattr(module, "config", None)
        kind = str(getattr(config, "model_type", type(module).__name__))
        if kind not in KINDS:
            raise _unavailable(f"computes the layers of {', '.join(KINDS)}, not of {kind}")
        activation = getattr(config, "hidden_act", None)
        if activation != GELU or getattr(config, "is_decoder", False):
            raise _unavailable(f"computes encoders with {GELU}, not this {kind} ({activation})")
        try:
            self._layers = list(_arguments(module, config))
            self._embeddings = module.embeddings
        except AttributeError as error:  # a model with a head, or another version's names
            raise _unavailable(
                f"needs the bare {kind} encoder, which this is not ({error})"
            ) from error
        self._project = getattr(module, "embeddings_project", None)
        self._pooler = getattr(module, "pooler", None)

    def __call__(self, **given: Any) -> tuple[torch.Tensor, ...]:
        import torch

        hidden = self._embeddings(given[IDS])
        if self._project is not None:
            hidden = self._project(hidden)
        nested = torch._nested_tensor_from_mask(hidden, given[MASK].bool())
        for layer in self._layers:
            nested = torch._transformer_encoder_layer_fwd(nested, *layer)
        padded = torch.nested.to_padded_tensor(nested, 0.0, tuple(hidden.shape))
        return (padded,) if self._pooler is None else (padded, self._pooler(padded))


def _unavailable(reason: str) -> WorkerError:
    return WorkerError("unavailable", f"{reason}; choose another runtime")


KINDS = ("bert", "roberta", "electra")
"""transformers' ``model_type`` of the models whose layers have these parts."""
PARTS = (
    *("attention.self.query", "attention.self.key", "attention.self.value"),
    *("attention.output.dense", "attention.output.LayerNorm", "output.LayerNorm"),
    *("intermediate.dense", "output.dense"),
)
"""Of a layer: query, key, value, the projection of attention's output, the norm after it, the norm
after the two linear maps, and these two."""


def _arguments(module: Any, config: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what ``torch._transformer_encoder_layer_fwd`` takes after its input, by layer."""
    import torch

    for layer in module.encoder.layer:
        *projections, out, first, second, inner, outer = attrgetter(*PARTS)(layer)
        if first.eps != second.eps:
            raise _unavailable("takes one epsilon for both layer norms, this model has two")
        yield (
            config.hidden_size,
            config.num_attention_heads,
            torch.cat([p.weight for p in projections]).detach(),
            torch.cat([p.bias for p in projections]).detach(),
            out.weight,
            out.bias,
            True,  # GELU
            False,  # norms follow their blocks
            first.eps,
            *(p for part in (first, second, inner, outer) for p in (part.weight, part.bias)),
        )
