"""Small networks of this project's own: stacks of one kind of layer, a graph, a recommender.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from frameworktax.models.base import Model, deep, integers, model_of, normal, wide
from frameworktax.models.registry import BUILT_IN, length_of

if TYPE_CHECKING:
    from frameworktax.records import Workload

SIDE, TWIN_SIDE = 32, 4
"""Pixels a side of what the convolutions see, and of what those of the twin see."""
TWIN_LENGTH = 8
HEADS = 8


def stack(name: str, workload: Workload) -> Model:
    """Build a stack in float32 on the CPU; the twin is 1 wide (a head each for attention)."""
    row, length = BUILT_IN[name].row, length_of(workload)
    heads = HEADS if name == "attention" else 1
    layers, width = deep(row["layers"], workload), heads * wide(row["wide"] // heads, workload)
    # A recurrent stack runs its steps one after the other: a shorter twin would do less.
    if workload.twin and name == "attention":
        length = min(length, TWIN_LENGTH)
    shape: tuple[int, ...] = (length, width) if length else (width,)
    if name == "conv":
        side = TWIN_SIDE if workload.twin else SIDE
        shape = (width, side, side)
    if name in ("lstm", "rnn"):
        module: nn.Module = _Recurrent(name.upper(), layers, width)
    else:
        parts = [part for _ in range(layers) for part in _layer(name, width)]
        module = nn.Sequential(*parts)
    return model_of(module, normal(*shape))


def _layer(kind: str, width: int) -> list[nn.Module]:
    if kind == "layernorm":
        return [nn.LayerNorm(width)]
    if kind == "attention":
        return [_Attention(width)]
    layer = nn.Linear(width, width) if kind == "mlp" else nn.Conv2d(width, width, 3, padding=1)
    # He et al. 2015 (arXiv:1502.01852) keeps activations of the same size.
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return [layer, nn.ReLU()]


class _Attention(nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """``x + attention(norm(x))``; without the norms the sizes would run off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class _Recurrent(nn.Module):  # type: ignore[misc] # as above
    """The output of every step; the last states are in it."""

    def __init__(self, kind: str, layers: int, width: int) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(width, width, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


# --- a graph network: every node adds up what its neighbours send ---------------------------------

GRAPH_LAYERS, GRAPH_WIDTH = 4, 128
NODES, EDGES = 256, 1024
TWIN_NODES, TWIN_EDGES = 8, 16


class _Convolution(nn.Module):  # type: ignore[misc] # as above
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


class _Graph(nn.Module):  # type: ignore[misc] # as above
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


def graph(name: str, workload: Workload) -> Model:
    """Build the graph network in float32 on the CPU; the twin is 1 wide on a tiny graph.

    Kipf and Welling's layer (arXiv:1609.02907), with the edges as a list, as graph libraries run
    it: gather, scatter-add. Every sample is a graph of its own with as many nodes and edges, so
    that a batch is a tensor.
    """
    width = wide(GRAPH_WIDTH, workload)
    nodes, edges = (TWIN_NODES, TWIN_EDGES) if workload.twin else (NODES, EDGES)
    network = _Graph(deep(GRAPH_LAYERS, workload), width)
    return model_of(network, normal(nodes, width), integers(nodes, 2, edges))


# --- a recommender: embedding bags, products of features, two MLPs --------------------------------

NUMBERS, TABLES, ROWS, BAG = 13, 26, 10_000, 4
TABLE_WIDTH, HIDDEN = 64, (512, 256)


def _mlp(widths: list[int], last: nn.Module) -> nn.Sequential:
    stack = nn.Sequential()
    for inner, outer in pairwise(widths):
        linear = nn.Linear(inner, outer)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        stack.append(linear)
        stack.append(nn.ReLU())
    stack[-1] = last
    return stack


class _Recommender(nn.Module):  # type: ignore[misc] # as above
    """Numbers (batch, 13) and ids (batch, 26, 4) → probability of a click (batch, 1)."""

    def __init__(self, width: int, hidden: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        for table in self.tables:
            nn.init.normal_(table.weight, std=(BAG * width) ** -0.5)
        self.bottom = _mlp([NUMBERS, *hidden, width], nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = _mlp([width + pairs, *hidden, 1], nn.Sigmoid())
        rows, columns = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("pairs", rows * (TABLES + 1) + columns, persistent=False)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([dense, *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, products[:, self.pairs]], dim=1))


def recommender(name: str, workload: Workload) -> Model:
    """Build the recommender in float32 on the CPU; depth repeats the MLPs' hidden layers.

    After DLRM, Naumov et al. 2019 (arXiv:1906.00091), with Criteo's 13 numbers and 26 categories;
    the tables are small, so that the model is about looking up and not about memory. The twin is
    1 wide everywhere, with as many tables.
    """
    count, last = deep(len(HIDDEN), workload), len(HIDDEN) - 1
    hidden = [wide(HIDDEN[min(i, last)], workload) for i in range(count)]  # the last one repeats
    module = _Recommender(wide(TABLE_WIDTH, workload), hidden)
    return model_of(module, normal(NUMBERS), integers(ROWS, TABLES, BAG))
