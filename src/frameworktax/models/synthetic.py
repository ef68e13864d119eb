"""Synthetic stacks: nothing but one kind of layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frameworktax.models.base import SEED, Inputs, Model

if TYPE_CHECKING:
    from frameworktax.records import Workload

MLP_LAYERS = 8
MLP_WIDTH = 1024


def build(name: str, workload: Workload) -> Model:
    """Build ``mlp``: 8 times linear 1024 to 1024 and ReLU, float32, on the CPU.

    The twin is 1 wide.
    """
    import torch

    torch.manual_seed(SEED)
    layers = max(1, round(MLP_LAYERS * workload.depth))
    width = 1 if workload.twin else max(1, round(MLP_WIDTH * workload.width))
    stack = torch.nn.Sequential()
    for _ in range(layers):
        linear = torch.nn.Linear(width, width)
        # He et al. 2015 (arXiv:1502.01852): keeps activations of the same size through ReLUs.
        torch.nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        torch.nn.init.zeros_(linear.bias)
        stack.append(linear)
        stack.append(torch.nn.ReLU())

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        return Inputs(args=(torch.randn(batch, width, generator=generator),))

    return Model(stack, inputs, {"args.0": 0}, has_twin=True)
