"""One denoising step of a diffusion model: the U-Net of DDPM for 32x32 images.

Ho et al. 2020 (arXiv:2006.11239), appendix B, with the layers of google/ddpm-cifar10-32.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from frameworktax.models.base import Model, deep, integers, model_of, normal, wide
from frameworktax.models.registry import BUILT_IN, image_size_of

if TYPE_CHECKING:
    from frameworktax.records import Workload

LEVELS = (128, 256, 256, 256)
"""Channels at 32, 16, 8 and 4 pixels a side."""
ATTENDS = 1
"""Attention at the second level, 16 by 16, and in the middle."""
BLOCKS = 2
STEPS = 1000
MOST_GROUPS = 32


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(MOST_GROUPS, channels), channels, eps=1e-6)


class _Residual(nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """Two convolutions, the time step added between them, around a shortcut.

    Whether that one projects is for the level to say: widths may coincide in the twin.
    """

    def __init__(self, inner: int, outer: int, time: int, project: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inner), _norm(outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.shortcut = nn.Conv2d(inner, outer, 1) if project else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class _Attention(nn.Module):  # type: ignore[misc] # as above
    """Self-attention over all pixels, one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.query, self.key, self.value, self.out = (
            nn.Linear(channels, channels) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class _Stage(nn.Module):  # type: ignore[misc] # as above
    """A residual block, and attention where the level has it."""

    def __init__(self, inner: int, outer: int, time: int, attends: bool, project: bool) -> None:
        super().__init__()
        self.residual = _Residual(inner, outer, time, project)
        self.attention = _Attention(outer) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.attention(self.residual(x, time))


class _UNet(nn.Module):  # type: ignore[misc] # as above
    """Noisy images (batch, 3, side, side) and steps (batch) → the noise in them."""

    def __init__(self, widths: list[int], blocks: int) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.width = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.start = nn.Conv2d(3, first, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        skips, inner, last = [first], first, len(widths) - 1
        for level, outer in enumerate(widths):
            stages = nn.ModuleList()
            for block in range(blocks):
                project = not block and level > 0 and LEVELS[level] != LEVELS[level - 1]
                stages.append(_Stage(inner, outer, time, level == ATTENDS, project))
                inner = outer
                skips.append(inner)
            self.down.append(stages)
            if level < last:
                self.shrink.append(nn.Conv2d(inner, inner, 3, stride=2))
                skips.append(inner)
        self.middle = nn.ModuleList(
            [_Stage(inner, inner, time, attends, False) for attends in (True, False)]
        )
        for level, outer in reversed(list(enumerate(widths))):
            stages = nn.ModuleList()
            for _ in range(blocks + 1):
                stages.append(_Stage(inner + skips.pop(), outer, time, level == ATTENDS, True))
                inner = outer
            self.up.append(stages)
            if level:
                self.grow.append(nn.Conv2d(inner, inner, 3, padding=1))
        self.norm, self.end = _norm(inner), nn.Conv2d(inner, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time = self.time(self._embed(step, x.dtype))
        x = self.start(x)
        skips = [x]
        for level, stages in enumerate(self.down):
            for stage in stages:
                x = stage(x, time)
                skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](F.pad(x, (0, 1, 0, 1)))
                skips.append(x)
        for stage in self.middle:
            x = stage(x, time)
        for level, stages in enumerate(self.up):
            for stage in stages:
                x = stage(torch.cat([x, skips.pop()], dim=1), time)
            if level < len(self.grow):
                x = self.grow[level](F.interpolate(x, scale_factor=2.0))
        return self.end(F.silu(self.norm(x)))

    def _embed(self, step: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return sines and cosines of the step, as of positions in a transformer."""
        half = self.width // 2
        rates = torch.arange(half, device=step.device) * (-math.log(10_000.0) / max(half, 1))
        angles = step[:, None] * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)


def build(name: str, workload: Workload) -> Model:
    """Build the U-Net in float32 on the CPU; the twin is 2 wide on images of 8 pixels a side."""
    size = (BUILT_IN[name].min_image_size or 0) if workload.twin else image_size_of(workload)
    # Even, for the sines and cosines of the step.
    widths = [wide(width, workload, step=2) for width in LEVELS]
    module = _UNet(widths, deep(BLOCKS, workload))
    return model_of(module, normal(3, size, size), integers(STEPS))
