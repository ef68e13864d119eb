"""Image models: convolutional networks, vision transformers and what took their shape.

ResNet and MobileNetV2 are defined here, layer for layer as in torchvision 0.28, so that a plain
torch is enough and depths scale. Parameter counts equal torchvision's, which the tests pin.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frameworktax.models.base import Model, deep, model_of, normal, wide
from frameworktax.models.calibrate import calibrate, images, rouse
from frameworktax.models.registry import BUILT_IN, image_size_of
from frameworktax.models.transformers_classes import BASE, COMMON, Shape, make, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from frameworktax.records import Workload

CLASSES = 1000
PATCH = 16
ANY_SIZE = ("swin-tiny",)
"""A smaller image takes Swin's last stages another way, without shifted windows: its twin gets the
full one."""


def build(name: str, workload: Workload) -> Model:
    """Build an image model in float32 on the CPU, batch norms calibrated.

    The twin is as narrow as its layers allow, has one class, and looks at the smallest image: what
    the framework costs does not grow with the image, kernels do.
    """
    row, least = BUILT_IN[name].row, BUILT_IN[name].min_image_size or 0
    size = least if workload.twin and name not in ANY_SIZE else image_size_of(workload)
    if "network" in row:
        module = _convnet(row, workload, least)
        calibrate(module, images(least))
    else:
        module = _resnet(row, workload) if "blocks" in row else _NETWORKS[name](workload, size)
        calibrate(module)
    return model_of(module, normal(3, size, size))


def _classes(workload: Workload) -> int:
    return 1 if workload.twin else CLASSES


def _conv(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)


# --- ResNet: He et al. 2016 (arXiv:1512.03385), stride in the 3x3 convolution as in torchvision ---


class _Residual(nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
    """``relu(body(x) + shortcut(x))``; the body is a basic or a bottleneck block."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        out = self.body(x)
        out += identity
        return self.relu(out)


def _norm_relu(width: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


def _resnet(row: Mapping[str, Any], workload: Workload) -> nn.Module:
    """Basic blocks are two 3x3 convolutions; bottlenecks have one, between two of 1x1.

    A bottleneck's 3x3 convolution has ``widen`` times the planes, in so many ``groups``.
    """
    is_bottleneck, groups = row.get("bottleneck", False), row.get("groups", 1)
    expansion, widen = 4 if is_bottleneck else 1, row.get("widen", 1)
    inner = wide(64, workload)
    net = nn.Sequential(_conv(3, inner, 7, 2), *_norm_relu(inner), nn.MaxPool2d(3, 2, 1))
    for stage, depth in enumerate(row["blocks"]):
        planes = wide(64 << stage, workload)
        middle = groups * (planes * widen // groups or 1) if is_bottleneck else planes
        outer = planes * expansion
        for index in range(deep(depth, workload)):
            stride = 2 if stage and not index else 1
            if is_bottleneck:
                first = [_conv(inner, middle, 1), *_norm_relu(middle)]
                second = [_conv(middle, middle, 3, stride, groups), *_norm_relu(middle)]
                body = [*first, *second, _conv(middle, outer, 1)]
            else:
                first = [_conv(inner, planes, 3, stride), *_norm_relu(planes)]
                body = [*first, _conv(planes, planes, 3)]
            body.append(nn.BatchNorm2d(outer))
            shortcut = None
            # By position, not by equal channel counts: the twin must keep every projection.
            if index == 0 and (stage or is_bottleneck):
                shortcut = nn.Sequential(_conv(inner, outer, 1, stride), nn.BatchNorm2d(outer))
            net.append(_Residual(nn.Sequential(*body), shortcut))
            inner = outer
    return _with_head(net, nn.Linear(inner, _classes(workload)), nonlinearity="relu")


def _with_head(net: nn.Sequential, *head: nn.Module, **settings: Any) -> nn.Module:
    """Return a network with what follows its last maps, convolutions drawn by their fan-out."""
    for module in (nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head):
        net.append(module)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", **settings)
    return net


# --- MobileNetV2: Sandler et al. 2018 (arXiv:1801.04381), table 2 ---------------------------------

_INVERTED = (
    # expansion, channels, blocks, stride
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class _Skip(nn.Module):  # type: ignore[misc] # as above
    """``x + body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def _conv_norm_relu6(
    inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = _conv(inner, outer, kernel, stride, groups)
    return [conv, nn.BatchNorm2d(outer), nn.ReLU6(inplace=True)]


def _mobilenet_v2(workload: Workload, size: int) -> nn.Module:
    inner = wide(32, workload)
    net = nn.Sequential(*_conv_norm_relu6(3, inner, 3, 2))
    for expansion, channels, depth, first_stride in _INVERTED:
        outer = wide(channels, workload)
        for index in range(deep(depth, workload)):
            stride = first_stride if index == 0 else 1
            # The twin stays 1 wide inside too: a depthwise convolution over one channel.
            hidden = 1 if workload.twin else inner * expansion
            body = nn.Sequential(
                *(_conv_norm_relu6(inner, hidden, 1) if expansion > 1 else ()),
                *_conv_norm_relu6(hidden, hidden, 3, stride, groups=hidden),
                _conv(hidden, outer, 1),
                nn.BatchNorm2d(outer),
            )
            # By position, as above: the first block of a stage changes the channel count.
            net.append(_Skip(body) if index else body)
            inner = outer
    last = wide(1280, workload)
    for module in _conv_norm_relu6(inner, last, 1):
        net.append(module)
    return _with_head(net, nn.Dropout(0.2), nn.Linear(last, _classes(workload)))


# --- torchvision's convolutional networks, at any width -------------------------------------------


def _convnet(row: Mapping[str, Any], workload: Workload, least: int) -> nn.Module:
    """Return a network of torchvision's at any width; a twin has one channel where it has many."""
    import torchvision

    network = getattr(torchvision.models, row["network"])
    with torch.device("cpu") if row.get("needs_data") else nullcontext():
        module: nn.Module = network(weights=None, **row.get("settings", {}))

    def width(channels: int) -> int:
        is_head = channels == CLASSES and not workload.twin
        return channels if is_head else wide(channels, workload, row.get("channels", 1))

    if workload.twin or workload.width != 1.0:
        shrink(module, width, torch.zeros(1, 3, least, least))
    rouse(module)
    return module


def shrink(module: nn.Module, width: Callable[[int], int], example: torch.Tensor) -> None:
    """Change every layer's channels in place; weights are new, from torch's current seed.

    Only what each layer gives out is decided; what it takes in is read off the data that reaches
    it in one forward pass. So concatenations, splits and flattened maps need no special case.

    Args:
        module: of ``Conv2d``, ``BatchNorm2d``, ``Linear``, and layers without parameters; each is
            called once in a forward pass.
        width: channels that a convolution or linear map of the full network gives out → those of
            the other.
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

    kinds = {nn.Conv2d: convolution, nn.BatchNorm2d: norm, nn.Linear: linear}
    hooks = [
        layer.register_forward_pre_hook(kinds[type(layer)])
        for layer in module.modules()
        if type(layer) in kinds
    ]
    module.eval()
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()


def _renew(layer: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    old = getattr(layer, name)
    if old is None:
        return
    new = torch.empty(shape, dtype=old.dtype, device=old.device)
    is_parameter = isinstance(old, nn.Parameter)
    setattr(layer, name, nn.Parameter(new) if is_parameter else new)


# --- vision transformers and what took their shape ------------------------------------------------


def _widths(widths: tuple[int, ...], workload: Workload) -> list[int]:
    # Two for the twin: on one channel some layouts coincide and copies fall away.
    return [2 if workload.twin else wide(width, workload) for width in widths]


def _depths(depths: tuple[int, ...], workload: Workload) -> list[int]:
    return [deep(depth, workload) for depth in depths]


def _vit(workload: Workload, size: int) -> Any:
    """Dosovitskiy et al. 2021 (arXiv:2010.11929), ViT-B/16."""
    from torchvision.models import VisionTransformer

    shape = scaled(BASE, workload)
    return VisionTransformer(
        image_size=size,
        patch_size=PATCH,
        num_layers=shape.layers,
        num_heads=shape.heads,
        hidden_dim=shape.hidden,
        mlp_dim=shape.inner,
        num_classes=_classes(workload),
    )


def _deit(workload: Workload, size: int) -> Any:
    """Touvron et al. 2021 (arXiv:2012.12877), base, with the distillation token and its head."""
    return make(
        "deit",
        "DeiTConfig",
        "DeiTForImageClassificationWithTeacher",
        image_size=size,
        patch_size=PATCH,
        num_labels=_classes(workload),
        **scaled(BASE, workload).named(COMMON),
    )


def _swin(workload: Workload, size: int) -> Any:
    """Liu et al. 2021 (arXiv:2103.14030), tiny."""
    from torchvision.models import SwinTransformer

    shape = scaled(Shape(1, 96, 3, 384), workload, least_head=2)
    return SwinTransformer(
        patch_size=[4, 4],
        embed_dim=shape.hidden,
        depths=_depths((2, 2, 6, 2), workload),
        num_heads=[3, 6, 12, 24],
        window_size=[7, 7],
        stochastic_depth_prob=0.2,
        num_classes=_classes(workload),
    )


def _convnext(workload: Workload, size: int) -> Any:
    """Liu et al. 2022 (arXiv:2201.03545), tiny."""
    from torchvision.models import ConvNeXt
    from torchvision.models.convnext import CNBlockConfig

    widths: list[int | None] = [*_widths((96, 192, 384, 768), workload), None]
    depths = _depths((3, 3, 9, 3), workload)
    blocks = [CNBlockConfig(widths[i], widths[i + 1], depths[i]) for i in range(4)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=_classes(workload))


def _poolformer(workload: Workload, size: int) -> Any:
    """Yu et al. 2022 (arXiv:2111.11418), S12."""
    return make(
        "poolformer",
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        hidden_sizes=_widths((64, 128, 320, 512), workload),
        depths=_depths((2, 2, 6, 2), workload),
        num_labels=_classes(workload),
    )


_NETWORKS: dict[str, Callable[[Workload, int], nn.Module]] = {
    "mobilenet-v2": _mobilenet_v2,
    "vit-base": _vit,
    "deit-base": _deit,
    "swin-tiny": _swin,
    "convnext-tiny": _convnext,
    "poolformer": _poolformer,
}
"""Name → network, from a workload and the pixels a side."""
