"""A sentence encoder from a configuration, with seeded random weights: texts to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import torch


@dataclass(frozen=True)
class Config:
    words: int = 8192
    width: int = 128
    heads: int = 4
    layers: int = 4
    length: int = 48
    pooling: str = "matrix"
    """``matrix``, or ``loop``: the regression of this example."""
    seed: int = 0


class Encoder(torch.nn.Module):
    """Mean-pooled transformer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.config = config
        self.words = torch.nn.Embedding(config.words, config.width, padding_idx=0)
        self.places = torch.nn.Embedding(config.length, config.width)
        layer = torch.nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, activation="gelu", batch_first=True
        )
        self.layers = torch.nn.TransformerEncoder(
            layer, config.layers, enable_nested_tensor=False
        ).eval()
        self.rarity = torch.nn.Parameter(torch.rand(config.words))
        self.pool = {"matrix": by_matrix, "loop": by_loop}[config.pooling]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a unit vector for each row of ``tokens``, in which 0 is padding."""
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        hidden = self.layers(hidden, src_key_padding_mask=tokens == 0)
        return torch.nn.functional.normalize(self.pool(hidden, tokens, self.rarity), dim=1)


def by_matrix(hidden: torch.Tensor, tokens: torch.Tensor, rarity: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row, weighted by the rarity of its words."""
    weight = (rarity[tokens] * (tokens != 0)).unsqueeze(2)
    return (hidden * weight).sum(1) / weight.sum(1)


def by_loop(hidden: torch.Tensor, tokens: torch.Tensor, rarity: torch.Tensor) -> torch.Tensor:
    """Return the same, word by word."""
    pooled = []
    for row, words in zip(hidden, tokens, strict=True):
        total, weights = torch.zeros(row.shape[1]), 0.0
        for vector, word in zip(row, words, strict=True):
            if word.item() != 0:
                weight = rarity[word].item()
                total = total + weight * vector
                weights += weight
        pooled.append(total / weights)
    return torch.stack(pooled)


def tokens_of(texts: Sequence[str], config: Config) -> torch.Tensor:
    """Return a row for each text: a number for each word, padded with 0 to the longest."""
    rows = [
        torch.tensor([1 + crc32(word.encode()) % (config.words - 1) for word in text.split()])
        for text in texts
    ]
    longest = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return longest[:, : config.length]


def build() -> tuple[Encoder, torch.Tensor]:
    """Return the slow encoder with an example, for ``frameworktax measure model.py:build``."""
    config = Config(pooling="loop")
    return Encoder(config), tokens_of(["where does the time go"] * 4, config)
