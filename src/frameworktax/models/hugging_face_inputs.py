"""Inputs for a model of transformers' that is known by its class only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import Inputs
from frameworktax.records import SEED

if TYPE_CHECKING:
    from frameworktax.records import Workload

DEFAULT_LENGTH = 128
TWO_SECONDS = 32_000
DEFAULT_IMAGE_SIZE = 224
DECODER_TOKENS = 16

Draw = Callable[[int], Inputs]


def inputs_of(name: str, module: Any, workload: Workload) -> tuple[Draw, int | None, int | None]:
    """Return inputs, most tokens a sample may have, and the vocabulary's size.

    What a model takes is told by its main input: token ids, pixels, raw audio or mel frames.

    Raises:
        UsageError: it takes something else, or the length does not fit its positions.
    """
    main = module.main_input_name
    config = module.config
    if main not in _KINDS:
        raise UsageError(
            f"{name} takes '{main}', which cannot be drawn; write a function that returns the "
            "model and its inputs (file.py:function)"
        )
    if workload.length is not None and main not in ("input_ids", "input_values"):
        raise UsageError(f"{name} has no length; leave out --length")
    if workload.image_size is not None and main != "pixel_values":
        raise UsageError(f"{name} has no image size; leave out --image-size")
    if workload.input == "ragged" and main != "input_ids":
        raise UsageError(f"{name} takes no sentences; leave out --input ragged")
    positions = _positions(module) if main == "input_ids" else None
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    shape = _KINDS[main](name, config, workload, positions)
    takes = inspect.signature(module.forward).parameters

    def inputs(batch: int) -> Inputs:
        import torch

        generator = torch.Generator().manual_seed(SEED)

        def ids(length: int) -> Any:
            return torch.randint(0, int(vocabulary or 2), (batch, length), generator=generator)

        if main == "input_ids":
            kwargs = {"input_ids": ids(*shape)}
            if "attention_mask" in takes:
                kwargs["attention_mask"] = torch.ones((batch, *shape), dtype=torch.int64)
        else:
            kwargs = {main: torch.randn(batch, *shape, generator=generator)}
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
            kwargs["decoder_input_ids"] = ids(DECODER_TOKENS)
        return Inputs(kwargs=kwargs)

    return inputs, positions, vocabulary


def _tokens(name: str, config: Any, workload: Workload, positions: int | None) -> tuple[int, ...]:
    length = workload.length
    if length is None:
        length = DEFAULT_LENGTH if positions is None else min(DEFAULT_LENGTH, positions)
    if positions is not None and length > positions:
        raise UsageError(
            f"{name} takes lengths from 1 to {positions}, not {length}; choose another --length"
        )
    return (length,)


def _pixels(name: str, config: Any, workload: Workload, positions: int | None) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or config
    own = getattr(vision, "image_size", None) or DEFAULT_IMAGE_SIZE
    height, width = own if isinstance(own, list | tuple) else (own, own)
    size = workload.image_size
    return int(getattr(vision, "num_channels", 3)), size or int(height), size or int(width)


def _audio(name: str, config: Any, workload: Workload, positions: int | None) -> tuple[int, ...]:
    return (TWO_SECONDS if workload.length is None else workload.length,)


def _frames(name: str, config: Any, workload: Workload, positions: int | None) -> tuple[int, ...]:
    mels = getattr(config, "num_mel_bins", None)
    steps = getattr(config, "max_source_positions", None)
    if mels is None or steps is None:
        raise UsageError(
            f"{name} takes features of a shape that its configuration does not tell; write a "
            "function that returns the model and its inputs (file.py:function)"
        )
    return int(mels), 2 * int(steps)


_KINDS = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "input_values": _audio,
    "input_features": _frames,
}


def _positions(module: Any) -> int | None:
    """Return how many tokens have a position; some count on from the padding token's id."""
    most = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    for path, layer in module.named_modules():
        padding = getattr(layer, "padding_idx", None)
        if path.endswith("position_embeddings") and padding is not None:
            return int(most - padding - 1)
    return most
