"""A recommender: embedding bags, products of features, two MLPs.

After DLRM, Naumov et al. 2019 (arXiv:1906.00091), with Criteo's 13 numbers and 26 categories; the
tables are small, so that the model is about looking up and not about memory.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from frameworktax.models.base import SEED, Model, deep, integers, model_of, normal, wide

if TYPE_CHECKING:
    from frameworktax.records import Workload

NUMBERS, TABLES, ROWS, BAG = 13, 26, 10_000, 4
WIDTH = 64
BOTTOM, TOP = (512, 256), (512, 256)


def _mlp(widths: list[int], last: nn.Module) -> nn.Sequential:
    stack = nn.Sequential()
    for inner, outer in pairwise(widths):
        linear = nn.Linear(inner, outer)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        stack.append(linear)
        stack.append(nn.ReLU())
    stack[-1] = last
    return stack


class _Recommender(nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """Numbers (batch, 13) and ids (batch, 26, 4) → probability of a click (batch, 1)."""

    def __init__(self, width: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        for table in self.tables:
            nn.init.normal_(table.weight, std=(BAG * width) ** -0.5)
        self.bottom = _mlp([NUMBERS, *bottom, width], nn.ReLU())
        pairs = (TABLES + 1) * TABLES // 2
        self.top = _mlp([width + pairs, *top, 1], nn.Sigmoid())
        rows, columns = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.register_buffer("pairs", rows * (TABLES + 1) + columns, persistent=False)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([dense, *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, products[:, self.pairs]], dim=1))


def build(name: str, workload: Workload) -> Model:
    """Build the recommender in float32 on the CPU; depth repeats the MLPs' hidden layers.

    The twin is 1 wide everywhere, with as many tables.
    """
    torch.manual_seed(SEED)

    def hidden(widths: tuple[int, ...]) -> list[int]:
        count = deep(len(widths), workload)
        return [wide(widths[min(i, len(widths) - 1)], workload) for i in range(count)]

    module = _Recommender(wide(WIDTH, workload), hidden(BOTTOM), hidden(TOP))
    return model_of(module, normal(NUMBERS), integers(ROWS, TABLES, BAG))
