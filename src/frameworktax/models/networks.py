"""Networks of this project's own: stacks of one layer, a graph, a recommender, a U-Net.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from frameworktax.models import BUILT_IN, image_size_of, length_of
from frameworktax.models.base import Model, deep, integers, model_of, normal, wide
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


# --- one denoising step of a diffusion model: the U-Net of DDPM for 32x32 images ------------------

LEVELS = (128, 256, 256, 256)
"""Channels at 32, 16, 8 and 4 pixels a side."""
ATTENDS = 1
"""Attention at the second level, 16 by 16, and in the middle."""
BLOCKS = 2
STEPS = 1000
MOST_GROUPS = 32


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(MOST_GROUPS, channels), channels, eps=1e-6)


class _Residual(nn.Module):  # type: ignore[misc] # as above
    """Two convolutions, the time step added between them, around a shortcut.

    Whether that one projects is for the level to say: widths may coincide in the twin.
    """

    def __init__(self, inner: int, outer: int, time: int, project: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inner), _norm(outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.shortcut = nn.Conv2d(inner, outer, 1) if project else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class _PixelAttention(nn.Module):  # type: ignore[misc] # as above
    """Self-attention over all pixels, one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.query, self.key, self.value, self.out = (
            nn.Linear(channels, channels) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class _Stage(nn.Module):  # type: ignore[misc] # as above
    """A residual block, and attention where the level has it."""

    def __init__(self, inner: int, outer: int, time: int, attends: bool, project: bool) -> None:
        super().__init__()
        self.residual = _Residual(inner, outer, time, project)
        self.attention = _PixelAttention(outer) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.attention(self.residual(x, time))


class _UNet(nn.Module):  # type: ignore[misc] # as above
    """Noisy images (batch, 3, side, side) and steps (batch) → the noise in them."""

    def __init__(self, widths: list[int], blocks: int) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.width = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.start = nn.Conv2d(3, first, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        skips, inner, last = [first], first, len(widths) - 1
        for level, outer in enumerate(widths):
            stages = nn.ModuleList()
            for block in range(blocks):
                project = not block and level > 0 and LEVELS[level] != LEVELS[level - 1]
                stages.append(_Stage(inner, outer, time, level == ATTENDS, project))
                inner = outer
                skips.append(inner)
            self.down.append(stages)
            if level < last:
                self.shrink.append(nn.Conv2d(inner, inner, 3, stride=2))
                skips.append(inner)
        self.middle = nn.ModuleList(
            [_Stage(inner, inner, time, attends, False) for attends in (True, False)]
        )
        for level, outer in reversed(list(enumerate(widths))):
            stages = nn.ModuleList()
            for _ in range(blocks + 1):
                stages.append(_Stage(inner + skips.pop(), outer, time, level == ATTENDS, True))
                inner = outer
            self.up.append(stages)
            if level:
                self.grow.append(nn.Conv2d(inner, inner, 3, padding=1))
        self.norm, self.end = _norm(inner), nn.Conv2d(inner, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time = self.time(self._embed(step, x.dtype))
        x = self.start(x)
        skips = [x]
        for level, stages in enumerate(self.down):
            for stage in stages:
                x = stage(x, time)
                skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](F.pad(x, (0, 1, 0, 1)))
                skips.append(x)
        for stage in self.middle:
            x = stage(x, time)
        for level, stages in enumerate(self.up):
            for stage in stages:
                x = stage(torch.cat([x, skips.pop()], dim=1), time)
            if level < len(self.grow):
                x = self.grow[level](F.interpolate(x, scale_factor=2.0))
        return self.end(F.silu(self.norm(x)))

    def _embed(self, step: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return sines and cosines of the step, as of positions in a transformer."""
        half = self.width // 2
        rates = torch.arange(half, device=step.device) * (-math.log(10_000.0) / half)
        angles = step[:, None] * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)


def unet(name: str, workload: Workload) -> Model:
    """Build the U-Net in float32 on the CPU; the twin is 2 wide on images of 8 pixels a side.

    Ho et al. 2020 (arXiv:2006.11239), appendix B, with the layers of google/ddpm-cifar10-32.
    """
    size = (BUILT_IN[name].min_image_size or 0) if workload.twin else image_size_of(workload)
    # Even and above 0, for the sines and cosines of the step.
    widths = [wide(width, workload, step=2) for width in LEVELS]
    module = _UNet(widths, deep(BLOCKS, workload))
    return model_of(module, normal(3, size, size), integers(STEPS))
