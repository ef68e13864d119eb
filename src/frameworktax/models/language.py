"""What the language families share: sizes under the factors, transformers' classes, inputs.

The classes are transformers' own, the configurations are written out in the families' files: no
download, weights are random from a fixed seed. Layer norms keep outputs of ordinary size, so
nothing needs calibration. Attention is what the class takes by itself: scaled-dot-product
attention where it has it, what users run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import Inputs, Model
from frameworktax.records import SEED

if TYPE_CHECKING:
    from frameworktax.records import Workload

DEFAULT_LENGTH = 128
TWIN_LENGTH = 8
"""Tokens of a twin: what the framework costs does not grow with the length, kernels do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer; ``inner`` is the width between a layer's two linear maps."""

    layers: int
    hidden: int
    heads: int
    inner: int

    @property
    def common(self) -> dict[str, int]:
        """The names most of transformers' configurations use."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
        }


def scaled(shape: Shape, workload: Workload, least_head: int = 1) -> Shape:
    """Return the shape after the factors; the number of heads stays.

    Width scales the dimension of a head, so that hidden stays a multiple of the heads. The twin
    has heads of dimension ``least_head`` (rotary positions need pairs) and nothing wider than the
    sum of its heads.
    """
    layers = max(1, round(shape.layers * workload.depth))
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


def length_of(workload: Workload) -> int:
    """Return the tokens of a sample as asked for, the default included."""
    return DEFAULT_LENGTH if workload.length is None else workload.length


def model_of(
    module: Any,
    workload: Workload,
    *,
    mask: bool = True,
    least: int = TWIN_LENGTH,
    positions: int | None = None,
) -> Model:
    """Return a language model with its inputs: what a tokenizer gives for unpadded sentences.

    Args:
        module: takes ``input_ids``.
        workload: says the length, 128 unless set, and the phase.
        mask: whether the module takes an ``attention_mask``.
        least: tokens of the twin.
        positions: most tokens a sample may have, None where nothing bounds them.

    Raises:
        UsageError: the length does not fit the positions.
    """
    import torch

    length = length_of(workload)
    if length < 1 or (positions is not None and length > positions):
        upto = f"from 1 to {positions}" if positions else "of 1 or more"
        raise UsageError(
            f"{workload.model} takes lengths {upto}, not {length}; choose another --length"
        )
    if workload.twin:
        length = min(length, least)
    vocabulary = int(module.config.vocab_size)

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        shape = (batch, length)
        kwargs = {"input_ids": torch.randint(0, vocabulary, shape, generator=generator)}
        if mask:
            kwargs["attention_mask"] = torch.ones(shape, dtype=torch.int64)
        return Inputs(kwargs=kwargs)

    names = ("input_ids", "attention_mask") if mask else ("input_ids",)
    return Model(
        module,
        inputs,
        {f"kwargs.{name}": 0 for name in names},
        has_twin=True,
        generates=workload.phase == "generate",
        positions=positions,
        vocabulary=vocabulary,
    )
