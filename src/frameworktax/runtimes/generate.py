"""Greedy decoding in the runtimes that call a torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from frameworktax.models.generate import Greedy, Loop, Replayed
from frameworktax.models.ragged import IDS
from frameworktax.runtimes.torch_common import TorchLoaded

if TYPE_CHECKING:
    from frameworktax.models.base import Model
    from frameworktax.runtimes.base import Call, Target


class DecodingLoaded(TorchLoaded):
    """A decoder as the callable of ``TorchLoaded``: each call makes all tokens of a batch."""

    def __init__(
        self,
        model: Model,
        target: Target,
        decoder: Greedy | Loop | Replayed,
        mode: Any,
        said: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(model, target, decoder, mode)
        self._decoder = decoder
        self._said = said
        self._hook_ns: int | None = None

    def bind(self, batch: int) -> Call:
        """Return a call that generates from this batch of prompts."""
        if self._hook_ns is None:
            prompts = self._model.inputs(batch).kwargs[IDS]
            self._hook_ns = self._decoder.hook_cost_ns(prompts)
        return super().bind(batch)

    def first_token_ns(self) -> int:
        """Return when the first token of the last call was there."""
        return self._decoder.first_token_ns

    def notes(self) -> list[tuple[str, str]]:
        """Return who decodes, and what watching for the first token costs."""
        said = [*self._said, ("decoded-by", f"decoded by {self._decoder.how}")]
        if self._hook_ns is not None:
            micro = self._hook_ns / 1e3
            said.append(
                ("first-token-hook", f"noting the first token takes {micro:.1f} µs of each call")
            )
        return said


def greedy(
    model: Model, target: Target, mode: Any, said: Sequence[tuple[str, str]] = ()
) -> DecodingLoaded | None:
    """Return the module's own ``generate`` as loaded, or None where a forward pass is asked for."""
    if model.decoding is None:
        return None
    return DecodingLoaded(model, target, Greedy(model.module, model.decoding), mode, said)


def looped(
    model: Model,
    target: Target,
    step: Callable[..., Any],
    mode: Any,
    said: Sequence[tuple[str, str]] = (),
) -> DecodingLoaded | None:
    """Return a loop over a compiled step as loaded, or None where a forward pass is asked for."""
    if model.decoding is None:
        return None
    return DecodingLoaded(model, target, Loop(model.module, model.decoding, step), mode, said)
