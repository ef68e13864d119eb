"""Two models of a product: a sentence encoder of MiniLM's shape, and a ResNet-18 for frames.

Their weights are random: what a call costs does not depend on them.
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

TOKENS, PIXELS = 16, 64


class Encoder(torch.nn.Module):
    """Sentences as unit vectors."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self.encoder = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return vectors (sentences, width) for tokens and mask (sentences, length)."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


def encoder() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return the encoder and a sentence of 16 tokens."""
    torch.manual_seed(0)
    ids = torch.randint(30522, (1, TOKENS))
    return Encoder(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vision() -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the network and a frame."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(), torch.randn(1, 3, PIXELS, PIXELS)
