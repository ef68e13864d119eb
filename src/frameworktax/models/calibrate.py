"""Give image models outputs of ordinary size, in which every layer has its part.

Random weights make parity meaningless otherwise. Untouched, MobileNetV2's outputs are about 4e-21
(denormal, and slow for that), ResNet-152's 7e+8. Heads start as zeros in torchvision's vision
transformer, and layers that are scaled by 1e-6, as ConvNeXt's, could be wrong without a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from frameworktax.models.base import SEED, Inputs

if TYPE_CHECKING:
    import torch

BATCHES = 4
BATCH = 8
SIDE = 64
"""Pixels a side of the images to calibrate on; one size, so that a model's weights do not depend
on the image size it is measured at. The smallest map of most networks here is then 2 by 2."""
FAINT = 1e-2
"""A constant scale below this stands for "learn me": trained ones are 0.1 and more."""
SCALE = 0.1


def images(side: int = SIDE, batches: int = BATCHES, batch: int = BATCH) -> Iterable[Inputs]:
    """Return seeded batches of noise, shape (batch, 3, side, side)."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    for _ in range(batches):
        yield Inputs((torch.randn(batch, 3, side, side, generator=generator, device="cpu"),))


def calibrate(module: torch.nn.Module, batches: Iterable[Inputs] | None = None) -> None:
    """Set every batch norm to weight 1, bias 0 and statistics averaged over seeded batches.

    ``momentum = None`` makes the running statistics a plain average over the batches. Layers of
    zeros and faint scales are given values first. Leaves the module in eval mode; does nothing to
    a module without data (device ``meta``).

    Args:
        module: on the CPU.
        batches: to average over; seeded images by default.
    """
    import torch

    module.eval()
    if any(p.is_meta for p in module.parameters()):
        return
    _wake(module)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        if norm.affine:
            torch.nn.init.ones_(norm.weight)
            torch.nn.init.zeros_(norm.bias)
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()  # alone: dropout and stochastic depth would average over themselves
    if norms:
        with torch.no_grad():
            for inputs in images() if batches is None else batches:
                module(*inputs.args, **inputs.kwargs)
    module.eval()


def _wake(module: torch.nn.Module) -> None:
    """Give values to layers that start as zeros, and size to scales that start as next to none."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    for layer in module.modules():
        zeros = isinstance(layer, torch.nn.Linear | torch.nn.Conv2d) and not layer.weight.any()
        if zeros:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
    with torch.no_grad():
        for parameter in module.parameters():
            first = parameter.flatten()[:1]
            if 0 < float(first.abs().sum()) < FAINT and bool((parameter == first).all()):
                parameter.fill_(SCALE)


def rouse(module: torch.nn.Module) -> None:
    """Draw every convolution and linear map anew so that sizes survive the depth without norms.

    He et al. 2015 (arXiv:1502.01852), by the number of inputs; biases are zero.
    """
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                torch.nn.init.zeros_(layer.bias)
