"""Image models: this project's own, those of torchvision and transformers by name, and any other.

ResNet and MobileNetV2 are defined here, layer for layer as in torchvision 0.28, so that a plain
torch is enough and sizes scale. Parameter counts equal torchvision's, which the tests pin.
``torchvision:NAME`` and ``timm:NAME`` are any of their models, with random weights, calibrated;
some of torchvision's have a name in the registry as well. Of torchvision: classification,
segmentation, video and optical flow. Detection models take a list of images and return boxes
through torchvision's compiled operators; they are refused.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from frameworktax.errors import UsageError, cut, nearest
from frameworktax.models import BUILT_IN, image_size_of
from frameworktax.models.base import SEED, Model, calibrate, deep, drawn, model_of, normal, wide
from frameworktax.models.hugging_face import COMMON, make, scaled
from frameworktax.records import Workload

CLASSES = 1000
LEAST_BATCH, MOST_BATCH = 4, 32
"""Samples that statistics are over."""
SIDE = 64
"""Pixels a side of the images to calibrate on; one size, so that a model's weights do not depend
on the image size it is measured at. The smallest map of most networks here is then 2 by 2."""


def build(name: str, workload: Workload) -> Model:
    """Build an image model in float32 on the CPU, batch norms calibrated.

    The twin is as narrow as its layers allow, has one class, and looks at the smallest image: what
    the framework costs does not grow with the image, kernels do.
    """
    entry = BUILT_IN[name]
    row, size = entry.row, image_size_of(workload)
    if workload.twin:
        size = entry.min_image_size or size
    if "class" in row:
        module = _of_class(row, workload, size)
    else:
        module = _resnet(row, workload) if "blocks" in row else _mobilenet_v2(row, workload)
    calibrate(module, drawn(normal(3, SIDE, SIDE))(MOST_BATCH))
    return model_of(module, normal(3, size, size))


def _classes(workload: Workload) -> int:
    return 1 if workload.twin else CLASSES


def _conv(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)


def _layer(*sizes: int, relu: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Return a convolution of these ``sizes``, as ``_conv`` takes them, its norm and its ReLU."""
    conv = _conv(*sizes)
    return [conv, nn.BatchNorm2d(conv.out_channels), relu(inplace=True)]


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


def _resnet(row: Mapping[str, Any], workload: Workload) -> nn.Module:
    """Basic blocks are two 3x3 convolutions; bottlenecks have one, between two of 1x1.

    A bottleneck's 3x3 convolution has ``widen`` times the planes, in so many ``groups``.
    """
    is_bottleneck, groups = row.get("bottleneck", False), row.get("groups", 1)
    expansion, widen = 4 if is_bottleneck else 1, row.get("widen", 1)
    inner = wide(64, workload)
    net = nn.Sequential(*_layer(3, inner, 7, 2), nn.MaxPool2d(3, 2, 1))
    for stage, depth in enumerate(row["blocks"]):
        planes = wide(64 << stage, workload)
        middle = groups * (planes * widen // groups or 1) if is_bottleneck else planes
        outer = planes * expansion
        for index in range(deep(depth, workload)):
            stride = 2 if stage and not index else 1
            if is_bottleneck:
                body = [*_layer(inner, middle, 1), *_layer(middle, middle, 3, stride, groups)]
                body.append(_conv(middle, outer, 1))
            else:
                body = [*_layer(inner, planes, 3, stride), _conv(planes, planes, 3)]
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


class _Skip(nn.Module):  # type: ignore[misc] # as above
    """``x + body(x)``."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def _mobilenet_v2(row: Mapping[str, Any], workload: Workload) -> nn.Module:
    layer, inner = partial(_layer, relu=nn.ReLU6), wide(32, workload)
    net = nn.Sequential(*layer(3, inner, 3, 2))
    for expansion, channels, depth, first_stride in row["stages"]:
        outer = wide(channels, workload)
        for index in range(deep(depth, workload)):
            stride = first_stride if index == 0 else 1
            # The twin stays 1 wide inside too: a depthwise convolution over one channel.
            hidden = 1 if workload.twin else inner * expansion
            body = nn.Sequential(
                *(layer(inner, hidden, 1) if expansion > 1 else ()),
                *layer(hidden, hidden, 3, stride, hidden),
                _conv(hidden, outer, 1),
                nn.BatchNorm2d(outer),
            )
            # By position, as above: the first block of a stage changes the channel count.
            net.append(_Skip(body) if index else body)
            inner = outer
    last = wide(1280, workload)
    for module in layer(inner, last, 1):
        net.append(module)
    return _with_head(net, nn.Dropout(0.2), nn.Linear(last, _classes(workload)))


# --- vision transformers and what took their shape ------------------------------------------------


def _of_class(row: Mapping[str, Any], workload: Workload, size: int) -> nn.Module:
    """Return a network of torchvision's or transformers' with the sizes of its row, scaled."""
    settings: dict[str, Any] = {**row.get("settings", {}), row["classes"]: _classes(workload)}
    if "shape" in row:
        settings |= scaled(row, workload).named(row.get("names", COMMON))
        settings["image_size"] = size
    else:
        settings["depths"] = [deep(depth, workload) for depth in row["depths"]]
        # Two for the twin: on one channel some layouts coincide and copies fall away.
        settings["hidden_sizes"] = [
            2 if workload.twin else wide(width, workload) for width in row["widths"]
        ]
    family, _, name = row["class"].partition(".")
    if family != "torchvision":
        return make(row, **settings)
    from torchvision import models

    module: nn.Module = getattr(models, name)(**settings)
    return module


# --- any of torchvision's and timm's --------------------------------------------------------------

FRAMES = 16
"""Frames of a clip: what torchvision's video models were trained on, or a multiple of it."""
FLOW_SIZE = 128
"""Smallest image of RAFT, whose default of 520 by 960 is none of a square."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def build_torchvision(name: str, workload: Workload) -> Model:
    """Build a model of torchvision's, by its name there or in the registry, in float32 on the CPU.

    Raises:
        UsageError: no such model, a detection model, or an image size it does not take.
    """
    from torchvision import models

    wanted = BUILT_IN[name].row["network"] if name in BUILT_IN else name.partition(":")[2]
    _check_name("torchvision", wanted, models.list_models(), "torchvision.models.list_models()")
    kind = models.get_model_builder(wanted).__module__
    if ".detection" in kind:
        raise UsageError(
            f"{name} is a detection model, which takes lists of images and returns lists of "
            "boxes; wrap it in a function of your own (file.py:function)"
        )
    is_flow, size = "optical_flow" in kind, workload.image_size
    if size is None and not is_flow:  # what the transforms for the trained weights give
        transforms = models.get_model_weights(wanted).DEFAULT.transforms()
        size = int((getattr(transforms, "crop_size", None) or transforms.resize_size)[0])
    size = FLOW_SIZE if size is None else size
    clip = (FRAMES,) if ".video" in kind else ()
    shapes = [normal(3, *clip, size, size)] * (2 if is_flow else 1)
    # Without training's auxiliary heads, downloads and slow initialisation.
    settings: dict[str, Any] = {}
    if ".segmentation" in kind:
        settings = {"weights_backbone": None}
    elif "googlenet" in wanted or "inception" in wanted:
        settings = {"init_weights": False, "aux_logits": False}
    elif wanted.startswith("vgg"):
        settings = {"init_weights": False}
    elif wanted.startswith("vit_"):
        settings = {"image_size": size}
    with _size_errors(name, workload):
        with torch.device("cpu"):  # some compute their widths with tensors
            module = models.get_model(wanted, weights=None, **settings)
        if not any(isinstance(layer, NORMS) for layer in module.modules()):
            _rouse(module)
        calibrate(module, drawn(*shapes)(_samples(size)))
    return model_of(module, *shapes, has_twin=False)


def build_timm(name: str, workload: Workload) -> Model:
    """Build a model of timm's in float32 on the CPU.

    Raises:
        UsageError: no such model, or an image size it does not take.
    """
    import timm

    wanted = name.partition(":")[2]
    if not timm.is_model(wanted):
        _check_name("timm", wanted, timm.list_models(), "timm.list_models()")
    size = workload.image_size
    with _size_errors(name, workload):
        with torch.device("cpu"):  # drop rates come from tensors in some
            module = timm.create_model(wanted, pretrained=False)
            if size is not None and module.pretrained_cfg.get("fixed_input_size"):
                torch.manual_seed(SEED)
                module = timm.create_model(wanted, pretrained=False, img_size=size)
        channels, height, width = module.pretrained_cfg["input_size"]
        images = normal(channels, size or height, size or width)
        calibrate(module, drawn(images)(_samples(size or height)))
    return model_of(module, images, has_twin=False)


def _rouse(module: nn.Module) -> None:
    """Draw every convolution and linear map anew so that sizes survive the depth without norms.

    He et al. 2015 (arXiv:1502.01852), by the number of inputs; biases are zero.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _check_name(library: str, name: str, known: list[str], lister: str) -> None:
    if name not in known:
        raise UsageError(
            f"{library} has no model '{name}'{nearest(name, known)} ({lister} has them all)"
        )


@contextmanager
def _size_errors(name: str, workload: Workload) -> Iterator[None]:
    """Raise what a model raises at a size that was asked for as a wrong size."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        if workload.image_size is None:
            raise
        raise UsageError(
            f"{name} takes no image of {workload.image_size} pixels a side "
            f"({cut(str(error))}); choose another --image-size"
        ) from error


def _samples(size: int) -> int:
    """Return how many samples statistics are over: 4, and up to 32 below 224 pixels a side.

    The last maps of a small image are a single pixel.
    """
    return min(MOST_BATCH, max(LEAST_BATCH, (2 * 224 // size) ** 2))
