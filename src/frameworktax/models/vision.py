"""ResNets and MobileNetV2 in plain torch, layer for layer as in torchvision 0.28.

Own definitions because widths and depths must scale, and so that a plain torch is enough.
Parameter counts equal torchvision's, which the tests pin.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from frameworktax.models.base import SEED, Model, deep, model_of, normal, wide
from frameworktax.models.calibrate import calibrate
from frameworktax.models.registry import BUILT_IN, image_size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworktax.records import Workload

CLASSES = 1000


def build(name: str, workload: Workload) -> Model:
    """Build a vision model in float32 on the CPU, batch norms calibrated.

    The twin has one channel wherever the full network has many, one class, and looks at the
    smallest image.
    """
    torch.manual_seed(SEED)
    module = _NETWORKS[name](workload)
    calibrate(module)
    return image_model(module, workload)


def image_model(module: nn.Module, workload: Workload, size: int | None = None) -> Model:
    """Return an image model with its inputs: noise, shape (batch, 3, size, size).

    ``size`` is that of the workload unless given; a twin's is the smallest that the network takes:
    what the framework costs does not grow with the image, kernels do.
    """
    if size is None:
        least = BUILT_IN[workload.model].min_image_size or 0
        size = least if workload.twin else image_size_of(workload)
    return model_of(module, normal(3, size, size))


def classes(workload: Workload) -> int:
    """Return the classes that the head distinguishes; a twin's is one wide."""
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
    net.append(nn.Linear(inner, classes(workload)))
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


def _mobilenet_v2(workload: Workload) -> nn.Module:
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
    net.append(nn.Linear(last, classes(workload)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    return net


_DOUBLED = partial(_bottleneck, widen=2)
"""Zagoruyko and Komodakis 2016 (arXiv:1605.07146): twice the channels inside."""
_GROUPED = partial(_bottleneck, widen=2, groups=32)
"""Xie et al. 2017 (arXiv:1611.05431), 32x4d: twice the channels inside, in 32 groups."""

_NETWORKS: dict[str, Callable[[Workload], nn.Module]] = {
    "resnet-18": partial(_resnet, _basic, (2, 2, 2, 2)),
    "resnet-34": partial(_resnet, _basic, (3, 4, 6, 3)),
    "resnet-50": partial(_resnet, _bottleneck, (3, 4, 6, 3)),
    "resnet-101": partial(_resnet, _bottleneck, (3, 4, 23, 3)),
    "resnet-152": partial(_resnet, _bottleneck, (3, 8, 36, 3)),
    "wide-resnet-50-2": partial(_resnet, _DOUBLED, (3, 4, 6, 3)),
    "resnext-50": partial(_resnet, _GROUPED, (3, 4, 6, 3)),
    "mobilenet-v2": _mobilenet_v2,
}
