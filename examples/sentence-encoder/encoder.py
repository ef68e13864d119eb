"""A sentence encoder: a BERT of MiniLM's size, the mean over the tokens, unit length."""

import torch
from transformers import BertConfig, BertModel

TOKENS = 32


class SentenceEncoder(torch.nn.Module):
    """Sentences as unit vectors; what a search service calls on every query."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.encoder = BertModel(BertConfig(**sizes), add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return vectors (sentences, width) for tokens and mask (sentences, length)."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


def example(vocabulary: int = 30522) -> dict[str, torch.Tensor]:
    """Return one sentence of 32 tokens."""
    ids = torch.randint(vocabulary, (1, TOKENS))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def build() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return MiniLM-L6: six layers, 384 wide, 22.6 million parameters."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    return SentenceEncoder(**sizes, intermediate_size=1536), example()


def small() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return the same with two layers of 64, to try the commands."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return SentenceEncoder(**sizes, intermediate_size=128), example()
