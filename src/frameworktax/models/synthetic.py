"""Synthetic stacks: nothing but one kind of layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.models.base import Inputs, Model
from frameworktax.models.registry import BUILT_IN
from frameworktax.records import SEED

if TYPE_CHECKING:
    import torch

    from frameworktax.records import Workload

SIDE = 32
"""Pixels a side of what the convolutions see; the twin's has ``TWIN_SIDE``."""
TWIN_SIDE = 4
HEADS = 8

_SIZES: dict[str, tuple[int, int]] = {
    # layers, width
    "mlp": (8, 1024),
    "conv": (8, 64),
    "layernorm": (16, 1024),
    "attention": (4, 512),
    "lstm": (2, 512),
    "rnn": (2, 512),
}


def build(name: str, workload: Workload) -> Model:
    """Build a stack in float32 on the CPU; the twin is 1 wide (a head each for attention)."""
    import torch

    torch.manual_seed(SEED)
    depth, full = _SIZES[name]
    layers = max(1, round(depth * workload.depth))
    width = 1 if workload.twin else max(1, round(full * workload.width))
    if name == "attention":
        width = HEADS * (1 if workload.twin else max(1, round(full // HEADS * workload.width)))
    stack = _STACKS[name](layers, width)
    shape = _sample(name, workload, width)

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        return Inputs(args=(torch.randn(batch, *shape, generator=generator),))

    return Model(stack, inputs, {"args.0": 0}, has_twin=True)


def _sample(name: str, workload: Workload, width: int) -> tuple[int, ...]:
    """Return the shape of one sample."""
    if name == "conv":
        side = TWIN_SIDE if workload.twin else SIDE
        return width, side, side
    default = BUILT_IN[name].default_length
    if default is None:
        return (width,)
    length = default if workload.length is None else workload.length
    # A recurrent stack runs its steps one after the other: a shorter twin would do less.
    return (min(length, 8) if workload.twin and name == "attention" else length, width)


def _mlp(layers: int, width: int) -> torch.nn.Module:
    """Linear and ReLU; He et al. 2015 (arXiv:1502.01852) keeps activations of the same size."""
    import torch

    stack = torch.nn.Sequential()
    for _ in range(layers):
        linear = torch.nn.Linear(width, width)
        torch.nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        torch.nn.init.zeros_(linear.bias)
        stack.append(linear)
        stack.append(torch.nn.ReLU())
    return stack


def _conv(layers: int, width: int) -> torch.nn.Module:
    import torch

    stack = torch.nn.Sequential()
    for _ in range(layers):
        conv = torch.nn.Conv2d(width, width, 3, padding=1)
        torch.nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        torch.nn.init.zeros_(conv.bias)
        stack.append(conv)
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


def _recurrent(kind: str) -> Any:
    def stack(layers: int, width: int) -> torch.nn.Module:
        import torch

        class Outputs(torch.nn.Module):  # type: ignore[misc] # as above
            """The output of every step; the last states are in it."""

            def __init__(self) -> None:
                super().__init__()
                self.layers = getattr(torch.nn, kind)(width, width, layers, batch_first=True)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.layers(x)[0]

        return Outputs()

    return stack


_STACKS: dict[str, Any] = {
    "mlp": _mlp,
    "conv": _conv,
    "layernorm": _layernorm,
    "attention": _attention,
    "lstm": _recurrent("LSTM"),
    "rnn": _recurrent("RNN"),
}
