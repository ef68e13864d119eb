"""Vision transformers and what took their shape: ViT, DeiT, Swin, ConvNeXt, PoolFormer.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from frameworktax.errors import UsageError
from frameworktax.models.base import Model
from frameworktax.models.calibrate import calibrate
from frameworktax.models.language import Shape, make, scaled
from frameworktax.models.vision import CLASSES, image_model
from frameworktax.records import SEED

if TYPE_CHECKING:
    from frameworktax.records import Workload

DEFAULT_IMAGE_SIZE = 224
MIN_IMAGE_SIZE = 32
PATCH = 16
BASE = Shape(12, 768, 12, 3072)


def build(name: str, workload: Workload) -> Model:
    """Build an image model in float32 on the CPU.

    Raises:
        UsageError: patches do not tile the image.
    """
    size = DEFAULT_IMAGE_SIZE if workload.image_size is None else workload.image_size
    if name in _PATCHED and size % PATCH:
        raise UsageError(
            f"{name} takes images whose side is a multiple of {PATCH}, not {size}; "
            "choose another --image-size"
        )
    # A smaller image takes Swin's last stages another way: no shifted windows there.
    twin_size = size if name == "swin-tiny" else MIN_IMAGE_SIZE
    torch.manual_seed(SEED)
    module = _NETWORKS[name](workload, twin_size if workload.twin else size)
    calibrate(module)
    return image_model(module, workload, DEFAULT_IMAGE_SIZE, MIN_IMAGE_SIZE, twin_size)


def _classes(workload: Workload) -> int:
    return 1 if workload.twin else CLASSES


def _widths(widths: tuple[int, ...], workload: Workload) -> list[int]:
    # Two for the twin: on one channel some layouts coincide and copies fall away.
    return [2 if workload.twin else max(1, round(w * workload.width)) for w in widths]


def _depths(depths: tuple[int, ...], workload: Workload) -> list[int]:
    return [max(1, round(d * workload.depth)) for d in depths]


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
        **scaled(BASE, workload).common,
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


_PATCHED = ("vit-base", "deit-base")
_NETWORKS = {
    "vit-base": _vit,
    "deit-base": _deit,
    "swin-tiny": _swin,
    "convnext-tiny": _convnext,
    "poolformer": _poolformer,
}
