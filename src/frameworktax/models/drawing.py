"""Inputs drawn like a model's own: to show that two programs agree beyond one example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.models.base import SEED, Inputs, Model

if TYPE_CHECKING:
    import torch

EDGES = 3
"""Numbers 1 to 3 draw edge values: every number the least, the largest, the one nearest zero."""


def draw(model: Model, batch: int, number: int) -> Inputs:
    """Return inputs of a batch size in the place of the model's own.

    Values stay within those of the example, so that an index stays one: whole numbers between its
    least and its largest, floats normal with its mean and deviation, cut at its ends. Constants
    stay, except that of a mask of ones every second draw masks the ends of rows, as padding does.

    Args:
        model: whose inputs are drawn alike.
        batch: size.
        number: 0 is the model's own input, 1 to ``EDGES`` are edge values, others are random.
    """
    import torch

    own = model.inputs(batch)
    if number == 0:
        return own
    generator = torch.Generator().manual_seed(SEED + number)
    drawn = {
        path: _drawn(path, value, number, generator)
        for path, value in own.items()
        if isinstance(value, torch.Tensor)
    }
    return Inputs(
        tuple(drawn.get(f"args.{i}", value) for i, value in enumerate(own.args)),
        {name: drawn.get(f"kwargs.{name}", value) for name, value in own.kwargs.items()},
    )


def _drawn(path: str, example: torch.Tensor, number: int, generator: torch.Generator) -> Any:
    import torch

    if not example.numel() or example.is_complex():
        return example
    if example.dtype == torch.bool:
        found = torch.rand(example.shape, generator=generator) < example.float().mean().item()
        return found.to(example.device)
    low, high = example.min().item(), example.max().item()
    if low == high:
        is_mask = "mask" in path and low == 1 and example.dim() >= 2
        return _padded(example, generator) if is_mask and number % 2 else example
    if number <= EDGES:
        nearest = min(max(low, 0), high)
        return torch.full_like(example, (low, high, nearest)[number - 1])
    if not example.is_floating_point():
        found = torch.randint(int(low), int(high) + 1, example.shape, generator=generator)
        return found.to(example.device, example.dtype)
    wide = example.float()
    found = torch.randn(example.shape, generator=generator).to(example.device)
    return (found * wide.std() + wide.mean()).clamp(low, high).to(example.dtype)


def _padded(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a mask of ones with the ends of its rows zero, at least one left in each."""
    import torch

    width = mask.shape[-1]
    kept = torch.randint(1, width + 1, mask.shape[:-1], generator=generator).to(mask.device)
    return (torch.arange(width, device=mask.device) < kept.unsqueeze(-1)).to(mask.dtype)
