"""A sentence encoder as a module whose inputs have names."""

from __future__ import annotations

from typing import Any

import torch


class Sentences(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """All modules of a SentenceTransformer, from tokens (batch, tokens) to (batch, width)."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the embedding of each sentence."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            features["token_type_ids"] = token_type_ids
        return self.encoder(features)["sentence_embedding"]
