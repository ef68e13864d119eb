"""Another width for any network of convolutions, batch norms and linear maps.

Only what each layer gives out is decided; what it takes in is read off the data that reaches it
in one forward pass. So concatenations, splits and flattened maps need no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Width = Callable[[int], int]
"""Channels of the full network → channels of the other."""


def shrink(module: torch.nn.Module, width: Width, example: torch.Tensor) -> None:
    """Change every layer's channels in place; weights are new, from torch's current seed.

    Args:
        module: of ``Conv2d``, ``BatchNorm2d``, ``Linear``, and layers without parameters; each is
            called once in a forward pass.
        width: applied to the channels that convolutions and linear maps give out.
        example: an input, (batch, channels, height, width); its channels stay.
    """
    import torch

    def convolution(layer: Any, args: Any) -> None:
        inner, outer = int(args[0].shape[1]), width(layer.out_channels)
        # A depthwise convolution stays one; groups of channels stay as many as divide them.
        common = math.gcd(inner, outer)
        groups = max(g for g in range(1, min(layer.groups, common) + 1) if common % g == 0)
        layer.in_channels, layer.out_channels, layer.groups = inner, outer, groups
        _renew(layer, "weight", (outer, inner // groups, *layer.kernel_size))
        _renew(layer, "bias", (outer,))
        layer.reset_parameters()

    def norm(layer: Any, args: Any) -> None:
        layer.num_features = int(args[0].shape[1])
        for name in ("weight", "bias", "running_mean", "running_var"):
            _renew(layer, name, (layer.num_features,))
        layer.reset_parameters()

    def linear(layer: Any, args: Any) -> None:
        layer.in_features, layer.out_features = int(args[0].shape[-1]), width(layer.out_features)
        _renew(layer, "weight", (layer.out_features, layer.in_features))
        _renew(layer, "bias", (layer.out_features,))
        layer.reset_parameters()

    kinds = {
        torch.nn.Conv2d: convolution,
        torch.nn.BatchNorm2d: norm,
        torch.nn.Linear: linear,
    }
    hooks = []
    for layer in module.modules():
        change = kinds.get(type(layer))
        if change is not None:
            hooks.append(layer.register_forward_pre_hook(change))
    module.eval()
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()


def _renew(layer: torch.nn.Module, name: str, shape: tuple[int, ...]) -> None:
    import torch

    old = getattr(layer, name)
    if old is None:
        return
    new = torch.empty(shape, dtype=old.dtype, device=old.device)
    is_parameter = isinstance(old, torch.nn.Parameter)
    setattr(layer, name, torch.nn.Parameter(new) if is_parameter else new)
