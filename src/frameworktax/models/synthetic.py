"""Synthetic stacks: nothing but one kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from frameworktax.models.base import SEED, Model, deep, model_of, normal, wide
from frameworktax.models.registry import length_of

if TYPE_CHECKING:
    import torch

    from frameworktax.records import Workload

SIDE, TWIN_SIDE = 32, 4
"""Pixels a side of what the convolutions see, and of what those of the twin see."""
TWIN_LENGTH = 8
HEADS = 8


def build(name: str, workload: Workload) -> Model:
    """Build a stack in float32 on the CPU; the twin is 1 wide (a head each for attention)."""
    import torch

    torch.manual_seed(SEED)
    depth, full, make = _STACKS[name]
    heads = HEADS if name == "attention" else 1
    width = heads * wide(full // heads, workload)
    return model_of(make(deep(depth, workload), width), normal(*_sample(name, workload, width)))


def _sample(name: str, workload: Workload, width: int) -> tuple[int, ...]:
    """Return the shape of one sample."""
    if name == "conv":
        side = TWIN_SIDE if workload.twin else SIDE
        return width, side, side
    length = length_of(workload)
    # A recurrent stack runs its steps one after the other: a shorter twin would do less.
    if workload.twin and name == "attention":
        length = min(length, TWIN_LENGTH)
    return (length, width) if length else (width,)


def _rectified(kind: str, layers: int, width: int) -> torch.nn.Module:
    """Linear maps or convolutions, each with a ReLU after it.

    He et al. 2015 (arXiv:1502.01852) keeps activations of the same size.
    """
    import torch

    stack = torch.nn.Sequential()
    for _ in range(layers):
        if kind == "linear":
            layer = torch.nn.Linear(width, width)
        else:
            layer = torch.nn.Conv2d(width, width, 3, padding=1)
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        torch.nn.init.zeros_(layer.bias)
        stack.append(layer)
        stack.append(torch.nn.ReLU())
    return stack


def _layernorm(layers: int, width: int) -> torch.nn.Module:
    import torch

    return torch.nn.Sequential(*(torch.nn.LayerNorm(width) for _ in range(layers)))


def _attention(layers: int, width: int) -> torch.nn.Module:
    """``x + attention(norm(x))``, over and over; without the norms the sizes would run off."""
    import torch

    class Residual(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(width)
            self.attention = torch.nn.MultiheadAttention(width, HEADS, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return x + self.attention(y, y, y, need_weights=False)[0]

    return torch.nn.Sequential(*(Residual() for _ in range(layers)))


def _recurrent(kind: str, layers: int, width: int) -> torch.nn.Module:
    import torch

    class Outputs(torch.nn.Module):  # type: ignore[misc] # as above
        """The output of every step; the last states are in it."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = getattr(torch.nn, kind)(width, width, layers, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[0]

    return Outputs()


_STACKS: dict[str, tuple[int, int, Callable[[int, int], torch.nn.Module]]] = {
    # layers, width, from both to the module
    "mlp": (8, 1024, partial(_rectified, "linear")),
    "conv": (8, 64, partial(_rectified, "convolution")),
    "layernorm": (16, 1024, _layernorm),
    "attention": (4, 512, _attention),
    "lstm": (2, 512, partial(_recurrent, "LSTM")),
    "rnn": (2, 512, partial(_recurrent, "RNN")),
}
