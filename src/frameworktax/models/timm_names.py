"""``timm:NAME``: any of timm's models, with random weights, calibrated.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from frameworktax.errors import UsageError, nearest
from frameworktax.models.base import Model
from frameworktax.models.calibrate import calibrate
from frameworktax.models.torchvision_names import batches, noise
from frameworktax.records import SEED

if TYPE_CHECKING:
    from frameworktax.records import Workload


def build(name: str, workload: Workload) -> Model:
    """Build a model of timm's in float32 on the CPU.

    Raises:
        UsageError: no such model, or an image size it does not take.
    """
    import timm

    wanted = name.partition(":")[2]
    if not timm.is_model(wanted):
        raise UsageError(
            f"timm has no model '{wanted}'{nearest(wanted, timm.list_models())} "
            "(timm.list_models() has them all)"
        )
    torch.manual_seed(SEED)
    size = workload.image_size
    try:
        with torch.device("cpu"):  # drop rates come from tensors in some
            module = timm.create_model(wanted, pretrained=False)
            if size is not None and module.pretrained_cfg.get("fixed_input_size"):
                torch.manual_seed(SEED)
                module = timm.create_model(wanted, pretrained=False, img_size=size)
        channels, height, width = module.pretrained_cfg["input_size"]
        inputs = noise(((channels, size or height, size or width),))
        calibrate(module, batches(inputs, size or height))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        if size is None:
            raise
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{name} takes no image of {size} pixels a side ({text}); choose another --image-size"
        ) from error
    return Model(module, inputs, {"args.0": 0})
