"""``torchvision:NAME``: any of torchvision's models, with random weights, calibrated.

Classification, segmentation, video and optical flow. Detection models take a list of images and
return boxes through torchvision's compiled operators; they are refused.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from frameworktax.errors import UsageError, nearest
from frameworktax.models.base import Inputs, Model
from frameworktax.models.calibrate import calibrate
from frameworktax.models.torchvision_operators import loaded
from frameworktax.records import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworktax.records import Workload

FRAMES = 16
"""Frames of a clip: what torchvision's video models were trained on, or a multiple of it."""
FLOW_SIZE = 128
"""Smallest image of RAFT, whose default of 520 by 960 is none of a square."""
CALIBRATION_BATCHES, LEAST_BATCH, MOST_BATCH = 2, 4, 32


def build(name: str, workload: Workload) -> Model:
    """Build a model of torchvision's in float32 on the CPU.

    Raises:
        UsageError: no such model, a detection model, or an image size it does not take.
    """
    from torchvision import models

    wanted = name.partition(":")[2]
    known = models.list_models()
    if wanted not in known:
        raise UsageError(
            f"torchvision has no model '{wanted}'{nearest(wanted, known)} "
            "(torchvision.models.list_models() has them all)"
        )
    kind = models.get_model_builder(wanted).__module__
    if ".detection" in kind:
        why = "" if loaded() else "; its compiled operators do not load beside this torch either"
        raise UsageError(
            f"{name} is a detection model, which takes lists of images and returns lists of "
            f"boxes{why}; wrap it in a function of your own (file.py:function)"
        )
    torch.manual_seed(SEED)
    size = _own_size(models, wanted, kind) if workload.image_size is None else workload.image_size
    inputs = noise(_shapes(kind, size))
    try:
        with torch.device("cpu"):  # some compute their widths with tensors
            module = models.get_model(wanted, weights=None, **_settings(wanted, kind, size))
        calibrate(module, batches(inputs, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        if workload.image_size is None:
            raise
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{name} takes no image of {size} pixels a side ({text}); choose another --image-size"
        ) from error
    paths = [f"args.{i}" for i in range(len(inputs(1).args))]
    return Model(module, inputs, dict.fromkeys(paths, 0))


def noise(shapes: tuple[tuple[int, ...], ...]) -> Callable[[int], Inputs]:
    """Return inputs of seeded noise; ``shapes`` are those of one sample, one for each argument."""

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        return Inputs(
            args=tuple(
                torch.randn(batch, *shape, generator=generator, device="cpu") for shape in shapes
            )
        )

    return inputs


def batches(inputs: Callable[[int], Inputs], size: int) -> Iterable[Inputs]:
    """Return other samples than those that are measured, more of them if they are small.

    The last maps of a small image are a single pixel, and statistics need some.
    """
    batch = min(MOST_BATCH, max(LEAST_BATCH, (2 * 224 // size) ** 2))
    whole = inputs((1 + CALIBRATION_BATCHES) * batch)
    for first in range(batch, (1 + CALIBRATION_BATCHES) * batch, batch):
        yield Inputs(tuple(arg[first : first + batch] for arg in whole.args))


def _own_size(models: Any, name: str, kind: str) -> int:
    """Return the size that torchvision's own transforms for the trained weights give."""
    if "optical_flow" in kind:
        return FLOW_SIZE
    transforms = models.get_model_weights(name).DEFAULT.transforms()
    return int((getattr(transforms, "crop_size", None) or transforms.resize_size)[0])


def _shapes(kind: str, size: int) -> tuple[tuple[int, ...], ...]:
    if "optical_flow" in kind:
        return ((3, size, size),) * 2
    if ".video" in kind:
        return ((3, FRAMES, size, size),)
    return ((3, size, size),)


def _settings(name: str, kind: str, size: int) -> dict[str, Any]:
    """Return what keeps training's auxiliary heads, downloads and slow initialisation out."""
    if ".segmentation" in kind:
        return {"weights_backbone": None}
    if "googlenet" in name or "inception" in name:
        return {"init_weights": False, "aux_logits": False}
    if name.startswith("vit_"):
        return {"image_size": size}
    return {}
