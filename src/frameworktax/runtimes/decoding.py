"""Greedy decoding in exported graphs: one graph for prompt and steps, the cache in and out.

The graph takes tokens and the keys and values so far, of any length, none at first; it returns
the most likely next token and the keys and values with it. Around it goes a loop of this
project's own, for an engine has none: the same in every runtime, so that they compare.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.models.generate import last_only
from frameworktax.models.ragged import IDS
from frameworktax.runtimes.artifacts import ArtifactLoaded
from frameworktax.runtimes.base import Call

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.runtimes.artifacts import Export

KV_CACHES = ("none", "dynamic")
NEXT = "next_token"
BATCH, TOKENS, PAST = 2, 4, 3
"""Sizes of the example: all different and above 1, which torch would take for constants."""
HOW = "a loop of frameworktax's own over the exported step"


Cache = list[list[int]]
"""Heads and head dimension of each tensor of the cache; empty for ``kv_cache`` none."""


def past_names(cache: Cache) -> list[str]:
    """Return the names of the cache that goes in."""
    return [f"past.{number}" for number in range(len(cache))]


def present_names(cache: Cache) -> list[str]:
    """Return the names of the cache that comes out."""
    return [f"present.{number}" for number in range(len(cache))]


def export_step(export: Export) -> tuple[torch.export.ExportedProgram, list[str], list[str]]:
    """Export one step of a causal language model; the artefact gets its cache.

    Returns:
        A program for any batch, tokens and past, and the names of its inputs and outputs: from
        token ids (batch, tokens) and the cache so far to the next token (batch, 1) and the cache
        with it, a list of keys and values by layer, each (batch, heads, past, head).

    Raises:
        WorkerError: its cache is not keys and values of all tokens, layer by layer.
    """
    import torch

    model = export.model
    if model.decoding is None:
        raise WorkerError("failed", "a forward pass has no step to export")
    module = _step(model.module, model.decoding.kv_cache != "none")
    ids = model.inputs(BATCH).kwargs[IDS]
    # Copies: a view drags its base's sizes into the guards.
    ids = ids.repeat(1, TOKENS)[:, :TOKENS].clone()
    past = [tensor[:, :, :PAST].clone() for tensor in module(ids, [])[1:]]
    batch, tokens = torch.export.Dim("batch", min=1), torch.export.Dim("tokens", min=1)
    length = torch.export.Dim("past", min=0)
    shapes = {"ids": {0: batch, 1: tokens}, "past": [{0: batch, 2: length} for _ in past]}
    program = torch.export.export(module, (ids, past), dynamic_shapes=shapes)
    cache = [[int(tensor.shape[1]), int(tensor.shape[3])] for tensor in past]
    export.cache = cache
    return program, [IDS, *past_names(cache)], [NEXT, *present_names(cache)]


def _step(module: torch.nn.Module, is_cached: bool) -> torch.nn.Module:
    import torch
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    last = last_only(module)

    class Stepping(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            if not is_cached:
                logits = self.module(input_ids=ids, use_cache=False, **last).logits
                return (logits[:, -1:].argmax(-1),)
            cache = DynamicCache(config=self.module.config)
            odd = {type(one).__name__ for one in cache.layers if type(one) is not DynamicLayer}
            if odd:
                raise WorkerError(
                    "unavailable",
                    f"exports a cache of keys and values only, not {', '.join(sorted(odd))}; "
                    "choose --kv-cache none",
                )
            for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=False):
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            made = self.module(input_ids=ids, past_key_values=cache, use_cache=True, **last)
            flat = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            return (made.logits[:, -1:].argmax(-1), *flat)

    return Stepping().eval()


class DecodingLoaded(ArtifactLoaded):
    """The loop around a step; an engine says how it starts anew and what a step is."""

    _first_ns = 0

    @abstractmethod
    def starts(self, batch: int) -> Callable[[], Callable[[np.ndarray], np.ndarray]]:
        """Return what forgets all and returns the step: token ids to the next, (batch, 1)."""

    def bind(self, batch: int) -> Call:
        """Return a call that generates from this batch of prompts."""
        import numpy as np

        artifact = self._artifact
        prompt = artifact.inputs(batch)[artifact.names.index(IDS)]
        start, is_cached = self.starts(batch), bool(artifact.cache)
        number = range(artifact.new_tokens or 0)

        def call() -> np.ndarray:
            step = start()
            ids = tokens = prompt
            for made in number:
                tokens = step(tokens if is_cached else ids)
                if not made:
                    self._first_ns = time.perf_counter_ns()
                ids = np.concatenate((ids, tokens), axis=1)
            return ids

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return prompt and new tokens, (batch, length + new tokens)."""
        import numpy as np

        return [result.astype(np.int64)]

    def first_token_ns(self) -> int:
        """Return when the first token of the last call was complete."""
        return self._first_ns

    def notes(self) -> list[tuple[str, str]]:
        """Return the notes of the export, and what decodes."""
        cache = "its keys and values handed on" if self._artifact.cache else "no cache"
        return [*super().notes(), ("decoded-by", f"decoded by {HOW}, {cache}")]
