"""What a model is: a module with seeded weights, and inputs for any batch size.

A family is one file with a ``build(name, workload) -> Model`` function and a registry line in
``models/__init__.py``. Weights come from a fixed seed and are calibrated so that outputs are of
ordinary size (parity between runtimes means nothing on outputs of 1e-21 or 1e+8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SEED = 20230213


@dataclass
class Inputs:
    """What a call receives: positional and named arguments, tensors or plain values."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Model:
    """A built model.

    Attributes:
        module: in eval mode, on the device and in the precision asked for.
        inputs: batch size → ``Inputs`` on the same device; seeded, so that every process that
            asks for the same batch size gets equal values.
        batch_dims: path of each tensor in the inputs (``args.0``, ``kwargs.input_ids``) → its
            batch dimension; a tensor without one is absent.
        has_twin: whether ``workload.twin`` builds a width-shrunk twin.
    """

    module: torch.nn.Module
    inputs: Callable[[int], Inputs]
    batch_dims: dict[str, int]
    has_twin: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
