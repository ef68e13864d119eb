"""Greedy decoding, with the moment of the first token.

``Greedy`` calls transformers' ``generate``, what users run and what the paper timed: its own
Python is part of the tax. ``Loop`` is a loop over one step with a static cache, for steps that a
compiler needs in fixed shapes. ``Replayed`` is the same loop over recorded steps, for CUDA graphs.
A note names which of them is measured.

Decoding always makes the number of tokens asked for: no token ends a sequence.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frameworktax.models.base import Decoding

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]


class Decoder:
    """What generates greedily: called with a prompt and its mask, (batch, length).

    It returns prompt and new tokens, (batch, length + new tokens).

    Attributes:
        how: for a note.
        module: the causal language model.
        first_token_ns: the reading of ``time.perf_counter_ns`` when the first token of the last
            call was there.
    """

    how: str

    def __init__(self, module: Any, decoding: Decoding) -> None:
        self.module = module
        self.first_token_ns = 0
        self._new_tokens = decoding.new_tokens


class Greedy(Decoder):
    """``module.generate``, greedy; its own streamer, which notes when the first new token is there.

    ``generate`` hands over the prompt first, then each token, moved to the CPU and so complete.
    """

    how = "transformers' generate"

    def __init__(self, module: Any, decoding: Decoding) -> None:
        from transformers import GenerationConfig

        super().__init__(module, decoding)
        self._config = GenerationConfig(
            max_new_tokens=decoding.new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=decoding.kv_cache != "none",
            cache_implementation="static" if decoding.kv_cache == "static" else None,
            disable_compile=True,  # eager is eager: a static cache alone would compile on a GPU
            pad_token_id=0,
        )
        # What the given one leaves open is filled from the module's own, which knows an end token.
        module.generation_config = self._config

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return prompt and new tokens."""
        self._handed = 0  # the last call may have failed between two tokens
        made: torch.Tensor = self.module.generate(
            input_ids, attention_mask=attention_mask, generation_config=self._config, streamer=self
        )
        return made

    def put(self, tokens: Any) -> None:
        """Take the prompt or a token of each sequence."""
        self._handed += 1
        if self._handed == 2:
            self.first_token_ns = time.perf_counter_ns()

    def end(self) -> None:
        """Do nothing: ``generate`` calls this at the end."""


class _Stepping(Decoder):
    """Decodes step by step over a static cache; all ones is the only mask."""

    def __init__(self, module: Any, decoding: Decoding) -> None:
        super().__init__(module, decoding)
        # Logits of the last token alone, where the module can.
        takes = inspect.signature(module.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def _new_cache(self, length: int) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.module.config, max_cache_len=length + self._new_tokens)

    def _next(self, step: Callable[..., Any], tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        """Return the token that follows these in each sequence, (batch, 1)."""
        logits = step(input_ids=tokens, past_key_values=cache, use_cache=True, **self._last).logits
        following: torch.Tensor = logits[:, -1].argmax(dim=-1, keepdim=True)
        return following

    def _note_first(self, token: torch.Tensor) -> None:
        import torch

        if token.is_cuda:
            torch.cuda.synchronize(token.device)
        self.first_token_ns = time.perf_counter_ns()


class Loop(_Stepping):
    """Greedy decoding over one step with a static cache, reused from call to call.

    Args:
        module: a causal language model.
        decoding: how many tokens.
        step: called like the module; compiled, or the module itself. Prompt and single tokens are
            two shapes of it.
    """

    how = "a loop of frameworktax's own over the step, static cache"

    def __init__(self, module: Any, decoding: Decoding, step: Callable[..., Any]) -> None:
        super().__init__(module, decoding)
        self._step = step
        self._caches: dict[torch.Size, Any] = {}

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return prompt and new tokens."""
        import torch

        if input_ids.shape not in self._caches:
            cache = self._new_cache(int(input_ids.shape[1]))
            # Uncompiled, so that what is compiled never meets a cache without its tensors.
            self._next(self.module, input_ids, cache)
            self._caches[input_ids.shape] = cache
        cache = self._caches[input_ids.shape]
        cache.reset()
        made = [input_ids]
        for number in range(self._new_tokens):
            made.append(self._next(self._step, made[-1], cache))
            if not number:
                self._note_first(made[-1])
        return torch.cat(made, dim=1)


class Replayed(_Stepping):
    """Greedy decoding whose steps are recorded once and replayed: tensors stay where they are.

    Args:
        module: a causal language model.
        decoding: how many tokens.
        record: takes a function that works on tensors in place, and one that makes ready for it;
            returns what does the same as the first again, and its result. It may call the first
            before, each time after the second.
    """

    how = "two CUDA graphs, of the prompt and of one step, static cache"

    def __init__(
        self, module: Any, decoding: Decoding, record: Callable[[Call, Call], tuple[Call, Any]]
    ) -> None:
        super().__init__(module, decoding)
        self._record = record
        self._recorded: dict[int, tuple[torch.Tensor, Call, Call, torch.Tensor]] = {}

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return prompt and new tokens."""
        where = input_ids.data_ptr()  # a prompt that stands elsewhere is recorded anew
        if where not in self._recorded:  # the prompt is kept, so that nothing else gets its place
            self._recorded[where] = (input_ids, *self._steps(input_ids))
        _, prompt, step, made = self._recorded[where]
        prompt()
        self._note_first(input_ids)
        for _ in range(self._new_tokens - 1):
            step()
        return made

    def _steps(self, input_ids: torch.Tensor) -> tuple[Call, Call, torch.Tensor]:
        """Return the prompt and a step as recorded, and where the tokens are written."""
        import torch

        batch, length = map(int, input_ids.shape)
        cache = self._new_cache(length)
        made = torch.cat([input_ids, input_ids.new_zeros(batch, self._new_tokens)], dim=1)
        token, place = input_ids.new_zeros(batch, 1), input_ids.new_zeros(1)

        def forward(ids: torch.Tensor) -> None:
            token.copy_(self._next(self.module, ids, cache))
            made.index_copy_(1, place, token)
            place.add_(1)

        def prompt() -> None:
            cache.reset()
            place.fill_(length)
            forward(input_ids)

        def step() -> None:
            forward(token)

        prompt()  # the cache gets its tensors with the first call, which no recording may hold
        first, _ = self._record(prompt, lambda: None)
        if self._new_tokens == 1:
            return first, lambda: None, made
        following, _ = self._record(step, prompt)
        return first, following, made
