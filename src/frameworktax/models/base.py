"""What a model is: a module with seeded weights, and inputs for any batch size.

A family is one file with a ``build(name, workload) -> Model`` function and a line per name in
``models/registry.py``. Weights come from a fixed seed and are calibrated so that outputs are of
ordinary size (parity between runtimes means nothing on outputs of 1e-21 or 1e+8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


@dataclass
class Inputs:
    """What a call receives: positional and named arguments, tensors or plain values."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to generate: greedily ``new_tokens`` tokens, ``kv_cache`` none, dynamic or static."""

    new_tokens: int
    kv_cache: str


@dataclass
class Model:
    """A built model.

    Attributes:
        module: in eval mode, on the device and in the precision asked for. An ONNX file has no
            module: a stub stands here that raises when called.
        inputs: batch size → ``Inputs`` on the same device; seeded, so that every process that
            asks for the same batch size gets equal values.
        batch_dims: path of each tensor in the inputs (``args.0``, ``kwargs.input_ids``) → its
            batch dimension; a tensor without one is absent.
        has_twin: whether ``workload.twin`` builds a width-shrunk twin.
        notes: (code, text) pairs that belong beside every number of this model.
        generates: whether the module is a causal language model with a head: called with
            ``input_ids``, ``attention_mask``, ``past_key_values`` and ``use_cache`` it returns
            ``logits`` (batch, tokens, vocabulary) and the cache. Only ``phase = "generate"``
            builds one; ``inputs(batch)`` is then the prompt.
        positions: most tokens that a sample may have, prompt and generated ones together.
        vocabulary: token ids are below this.
        onnx_path: the ONNX file that is the model itself, or None.
        decoding: how to generate; None for a forward pass.
        real: ragged input: batch size → which tokens are no padding, (batch, tokens).
    """

    module: torch.nn.Module
    inputs: Callable[[int], Inputs]
    batch_dims: dict[str, int]
    has_twin: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    generates: bool = False
    positions: int | None = None
    vocabulary: int | None = None
    onnx_path: Path | None = None
    decoding: Decoding | None = None
    real: Callable[[int], NDArray[np.bool_]] | None = None
