"""Vision transformers and what took their shape: ViT, DeiT, Swin, ConvNeXt, PoolFormer.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from frameworktax.models.base import SEED, Model, deep, wide
from frameworktax.models.calibrate import calibrate
from frameworktax.models.language import BASE, COMMON, Shape, make, scaled
from frameworktax.models.registry import BUILT_IN, image_size_of
from frameworktax.models.vision import classes, image_model

if TYPE_CHECKING:
    from frameworktax.records import Workload

PATCH = 16


def build(name: str, workload: Workload) -> Model:
    """Build an image model in float32 on the CPU."""
    size = image_size_of(workload)
    # A smaller image takes Swin's last stages another way: no shifted windows there.
    if workload.twin and name != "swin-tiny":
        size = BUILT_IN[name].min_image_size or size
    torch.manual_seed(SEED)
    module = _NETWORKS[name](workload, size)
    calibrate(module)
    return image_model(module, workload, size)


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
        num_classes=classes(workload),
    )


def _deit(workload: Workload, size: int) -> Any:
    """Touvron et al. 2021 (arXiv:2012.12877), base, with the distillation token and its head."""
    return make(
        "deit",
        "DeiTConfig",
        "DeiTForImageClassificationWithTeacher",
        image_size=size,
        patch_size=PATCH,
        num_labels=classes(workload),
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
        num_classes=classes(workload),
    )


def _convnext(workload: Workload, size: int) -> Any:
    """Liu et al. 2022 (arXiv:2201.03545), tiny."""
    from torchvision.models import ConvNeXt
    from torchvision.models.convnext import CNBlockConfig

    widths: list[int | None] = [*_widths((96, 192, 384, 768), workload), None]
    depths = _depths((3, 3, 9, 3), workload)
    blocks = [CNBlockConfig(widths[i], widths[i + 1], depths[i]) for i in range(4)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=classes(workload))


def _poolformer(workload: Workload, size: int) -> Any:
    """Yu et al. 2022 (arXiv:2111.11418), S12."""
    return make(
        "poolformer",
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        hidden_sizes=_widths((64, 128, 320, 512), workload),
        depths=_depths((2, 2, 6, 2), workload),
        num_labels=classes(workload),
    )


_NETWORKS = {
    "vit-base": _vit,
    "deit-base": _deit,
    "swin-tiny": _swin,
    "convnext-tiny": _convnext,
    "poolformer": _poolformer,
}
