"""Convolutional networks of torchvision, at any width.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from frameworktax.models.base import Model
from frameworktax.models.calibrate import calibrate, images, rouse
from frameworktax.models.registry import BUILT_IN
from frameworktax.models.shrink import shrink
from frameworktax.models.vision import CLASSES, image_model
from frameworktax.records import SEED

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
    entry = BUILT_IN[name]
    least = entry.min_image_size or 0
    step = 2 if name == _SPLITS else 1

    def width(channels: int) -> int:
        if workload.twin:
            return step
        if channels == CLASSES:
            return channels
        return step * max(1, round(channels * workload.width / step))

    if workload.twin or workload.width != 1.0:
        shrink(module, width, torch.zeros(1, 3, least, least))
    rouse(module)
    calibrate(module, images(least))
    return image_model(module, workload, entry.default_image_size or 0, least)
