"""Image models: convolutional networks, vision transformers and what took their shape.

ResNet and MobileNetV2 are defined here, layer for layer as in torchvision 0.28, so that a plain
torch is enough and depths scale. Parameter counts equal torchvision's, which the tests pin.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frameworktax.models.base import SEED, Model, deep, model_of, normal, wide
from frameworktax.models.calibrate import calibrate, images, rouse
from frameworktax.models.language import BASE, COMMON, Shape, make, scaled
from frameworktax.models.registry import BUILT_IN, image_size_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
    least = BUILT_IN[name].min_image_size or 0
    size = least if workload.twin and name not in ANY_SIZE else image_size_of(workload)
    torch.manual_seed(SEED)
    if name in CONVNETS:
        module = _convnet(name, workload, least)
        calibrate(module, images(least))
    else:
        module = _NETWORKS[name](workload, size)
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


def _basic(inner: int, planes: int, stride: int) -> nn.Module:
    return nn.Sequential(
        _conv(inner, planes, 3, stride),
        nn.BatchNorm2d(planes),
        nn.ReLU(inplace=True),
        _conv(planes, planes, 3),
        nn.BatchNorm2d(planes),
    )


def _bottleneck(inner: int, planes: int, stride: int, widen: int = 1, groups: int = 1) -> nn.Module:
    """The 3x3 convolution has ``widen`` times the planes, in so many groups."""
    middle = groups * max(1, planes * widen // groups)
    return nn.Sequential(
        _conv(inner, middle, 1),
        nn.BatchNorm2d(middle),
        nn.ReLU(inplace=True),
        _conv(middle, middle, 3, stride, groups),
        nn.BatchNorm2d(middle),
        nn.ReLU(inplace=True),
        _conv(middle, 4 * planes, 1),
        nn.BatchNorm2d(4 * planes),
    )


def _resnet(
    block: Callable[[int, int, int], nn.Module],
    depths: tuple[int, ...],
    workload: Workload,
    size: int,
) -> nn.Module:
    expansion = 1 if block is _basic else 4
    inner = wide(64, workload)
    net = nn.Sequential(
        _conv(3, inner, 7, 2),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )
    for stage, depth in enumerate(depths):
        planes = wide(64 << stage, workload)
        for index in range(deep(depth, workload)):
            stride = 2 if stage and not index else 1
            outer = planes * expansion
            shortcut = None
            # By position, not by equal channel counts: the twin must keep every projection.
            if index == 0 and (stage or expansion > 1):
                shortcut = nn.Sequential(_conv(inner, outer, 1, stride), nn.BatchNorm2d(outer))
            net.append(_Residual(block(inner, planes, stride), shortcut))
            inner = outer
    net.append(nn.AdaptiveAvgPool2d(1))
    net.append(nn.Flatten())
    net.append(nn.Linear(inner, _classes(workload)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
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
    net.append(nn.AdaptiveAvgPool2d(1))
    net.append(nn.Flatten())
    net.append(nn.Dropout(0.2))
    net.append(nn.Linear(last, _classes(workload)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    return net


# --- torchvision's convolutional networks, at any width -------------------------------------------

CONVNETS: dict[str, tuple[str, dict[str, Any]]] = {
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


def _convnet(name: str, workload: Workload, least: int) -> nn.Module:
    """Return a network of torchvision's at any width; a twin has one channel where it has many.

    Two channels where they are split in halves.
    """
    import torchvision

    network, settings = CONVNETS[name]
    # torchvision computes RegNet's widths with tensors, which must hold data.
    with torch.device("cpu") if name in _READS else nullcontext():
        module: nn.Module = getattr(torchvision.models, network)(weights=None, **settings)
    step = 2 if name == _SPLITS else 1

    def width(channels: int) -> int:
        is_head = channels == CLASSES and not workload.twin
        return channels if is_head else wide(channels, workload, step)

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

    kinds = {
        nn.Conv2d: convolution,
        nn.BatchNorm2d: norm,
        nn.Linear: linear,
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


_DOUBLED = partial(_bottleneck, widen=2)
"""Zagoruyko and Komodakis 2016 (arXiv:1605.07146): twice the channels inside."""
_GROUPED = partial(_bottleneck, widen=2, groups=32)
"""Xie et al. 2017 (arXiv:1611.05431), 32x4d: twice the channels inside, in 32 groups."""

_NETWORKS: dict[str, Callable[[Workload, int], nn.Module]] = {
    "resnet-18": partial(_resnet, _basic, (2, 2, 2, 2)),
    "resnet-34": partial(_resnet, _basic, (3, 4, 6, 3)),
    "resnet-50": partial(_resnet, _bottleneck, (3, 4, 6, 3)),
    "resnet-101": partial(_resnet, _bottleneck, (3, 4, 23, 3)),
    "resnet-152": partial(_resnet, _bottleneck, (3, 8, 36, 3)),
    "wide-resnet-50-2": partial(_resnet, _DOUBLED, (3, 4, 6, 3)),
    "resnext-50": partial(_resnet, _GROUPED, (3, 4, 6, 3)),
    "mobilenet-v2": _mobilenet_v2,
    "vit-base": _vit,
    "deit-base": _deit,
    "swin-tiny": _swin,
    "convnext-tiny": _convnext,
    "poolformer": _poolformer,
}
"""Name → network, from a workload and the pixels a side."""
