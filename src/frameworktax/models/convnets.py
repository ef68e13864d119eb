"""Convolutional networks of torchvision, at any width.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from frameworktax.models.base import SEED, Model, wide
from frameworktax.models.calibrate import calibrate, images, rouse
from frameworktax.models.registry import BUILT_IN
from frameworktax.models.vision import CLASSES, image_model

if TYPE_CHECKING:
    from frameworktax.records import Workload

_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": ("alexnet", {}),
    "vgg16": ("vgg16", {"init_weights": False}),
    "squeezenet": ("squeezenet1_0", {}),
    "shufflenet-v2": ("shufflenet_v2_x1_0", {}),
    "mnasnet": ("mnasnet1_0", {}),
    "efficientnet-b0": ("efficientnet_b0", {}),
    "regnet-y-400mf": ("regnet_y_400mf", {}),
    "densenet-121": ("densenet121", {}),
    # Without the auxiliary classifiers, which only training runs.
    "googlenet": ("googlenet", {"init_weights": False, "aux_logits": False}),
    "inception-v3": ("inception_v3", {"init_weights": False, "aux_logits": False}),
}
_READS = ("regnet-y-400mf",)
_SPLITS = "shufflenet-v2"
"""Splits its channels in two halves: all channels are even."""


def build(name: str, workload: Workload) -> Model:
    """Build a convolutional network in float32 on the CPU, batch norms calibrated.

    The twin has one channel (two where channels are split) wherever the full network has many.
    """
    import torchvision

    torch.manual_seed(SEED)
    network, settings = _NAMES[name]
    # torchvision computes RegNet's widths with tensors, which must hold data.
    with torch.device("cpu") if name in _READS else nullcontext():
        module = getattr(torchvision.models, network)(weights=None, **settings)
    least = BUILT_IN[name].min_image_size or 0
    step = 2 if name == _SPLITS else 1

    def width(channels: int) -> int:
        is_head = channels == CLASSES and not workload.twin
        return channels if is_head else wide(channels, workload, step)

    if workload.twin or workload.width != 1.0:
        shrink(module, width, torch.zeros(1, 3, least, least))
    rouse(module)
    calibrate(module, images(least))
    return image_model(module, workload)


Width = Callable[[int], int]
"""Channels of the full network → channels of the other."""


def shrink(module: torch.nn.Module, width: Width, example: torch.Tensor) -> None:
    """Change every layer's channels in place; weights are new, from torch's current seed.

    Only what each layer gives out is decided; what it takes in is read off the data that reaches
    it in one forward pass. So concatenations, splits and flattened maps need no special case.

    Args:
        module: of ``Conv2d``, ``BatchNorm2d``, ``Linear``, and layers without parameters; each is
            called once in a forward pass.
        width: applied to the channels that convolutions and linear maps give out.
        example: an input, (batch, channels, height, width); its channels stay.
    """

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
    old = getattr(layer, name)
    if old is None:
        return
    new = torch.empty(shape, dtype=old.dtype, device=old.device)
    is_parameter = isinstance(old, torch.nn.Parameter)
    setattr(layer, name, torch.nn.Parameter(new) if is_parameter else new)
