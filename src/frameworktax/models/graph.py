"""A graph network: every node adds up what its neighbours send, Kipf and Welling's layer.

arXiv:1609.02907, with the edges as a list, as graph libraries run it: gather, scatter-add. Every
sample is a graph of its own with as many nodes and edges, so that a batch is a tensor.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from frameworktax.models.base import SEED, Model, deep, integers, model_of, normal, wide

if TYPE_CHECKING:
    from frameworktax.records import Workload

LAYERS, WIDTH = 4, 128
NODES, EDGES = 256, 1024
TWIN_NODES, TWIN_EDGES = 8, 16


class _Convolution(nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """``relu(linear(sum over edges of sender / sqrt(degrees)))``, the node itself included."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")

    def forward(
        self, x: torch.Tensor, senders: torch.Tensor, receivers: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        x = self.linear(x)
        width = (-1, -1, x.shape[-1])
        sent = x.gather(1, senders.unsqueeze(-1).expand(width)) * weight
        return torch.relu(x.scatter_add(1, receivers.unsqueeze(-1).expand(width), sent))


class _Network(nn.Module):  # type: ignore[misc] # as above
    """Node features (batch, nodes, width) and edges (batch, 2, edges) → node features."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Convolution(width) for _ in range(layers))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        senders, receivers = edges[:, 0], edges[:, 1]
        degree = torch.ones_like(x[..., 0])
        degree = degree.scatter_add(1, receivers, torch.ones_like(receivers, dtype=x.dtype))
        scale = degree.rsqrt()
        weight = (scale.gather(1, senders) * scale.gather(1, receivers)).unsqueeze(-1)
        for layer in self.layers:
            x = layer(x, senders, receivers, weight)
        return x


def build(name: str, workload: Workload) -> Model:
    """Build the graph network in float32 on the CPU; the twin is 1 wide on a tiny graph."""
    torch.manual_seed(SEED)
    width = wide(WIDTH, workload)
    nodes, edges = (TWIN_NODES, TWIN_EDGES) if workload.twin else (NODES, EDGES)
    network = _Network(deep(LAYERS, workload), width)
    return model_of(network, normal(nodes, width), integers(nodes, 2, edges))
