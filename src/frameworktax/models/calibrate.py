"""Give batch-norm models outputs of ordinary size.

Random weights make parity meaningless otherwise: untouched, MobileNetV2's outputs are about
4e-21 (denormal, and slow for that), ResNet-152's 7e+8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frameworktax.models.base import SEED

if TYPE_CHECKING:
    import torch

BATCHES = 4
BATCH = 8
SIDE = 64
"""Pixels a side of the images to calibrate on; one size, so that a model's weights do not depend
on the image size it is measured at. The smallest map of the networks here is then 2 by 2."""


def calibrate(module: torch.nn.Module) -> None:
    """Set every batch norm to weight 1, bias 0 and statistics averaged over seeded batches.

    ``momentum = None`` makes the running statistics a plain average over the batches. Leaves the
    module in eval mode.
    """
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.ones_(norm.weight)
        torch.nn.init.zeros_(norm.bias)
        norm.reset_running_stats()
        norm.momentum = None
    generator = torch.Generator().manual_seed(SEED)
    module.train()
    with torch.no_grad():
        for _ in range(BATCHES):
            module(torch.randn(BATCH, 3, SIDE, SIDE, generator=generator))
    module.eval()
