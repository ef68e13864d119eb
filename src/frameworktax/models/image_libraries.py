"""``torchvision:NAME`` and ``timm:NAME``: any of their models, with random weights, calibrated.

Of torchvision: classification, segmentation, video and optical flow. Detection models take a list
of images and return boxes through torchvision's compiled operators; they are refused.

torch is imported at the top: the registry imports this file only to build a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from frameworktax.errors import UsageError, nearest
from frameworktax.models.base import SEED, Inputs, Model, drawn, model_of, normal
from frameworktax.models.calibrate import calibrate
from frameworktax.models.torchvision_operators import loaded

if TYPE_CHECKING:
    from frameworktax.records import Workload

FRAMES = 16
"""Frames of a clip: what torchvision's video models were trained on, or a multiple of it."""
FLOW_SIZE = 128
"""Smallest image of RAFT, whose default of 520 by 960 is none of a square."""
CALIBRATION_BATCHES, LEAST_BATCH, MOST_BATCH = 2, 4, 32


def build_torchvision(name: str, workload: Workload) -> Model:
    """Build a model of torchvision's in float32 on the CPU.

    Raises:
        UsageError: no such model, a detection model, or an image size it does not take.
    """
    from torchvision import models

    wanted = name.partition(":")[2]
    _check_name("torchvision", wanted, models.list_models(), "torchvision.models.list_models()")
    kind = models.get_model_builder(wanted).__module__
    if ".detection" in kind:
        why = "" if loaded() else "; its compiled operators do not load beside this torch either"
        raise UsageError(
            f"{name} is a detection model, which takes lists of images and returns lists of "
            f"boxes{why}; wrap it in a function of your own (file.py:function)"
        )
    size = _own_size(models, wanted, kind) if workload.image_size is None else workload.image_size
    shapes = [normal(*shape) for shape in _shapes(kind, size)]
    with _size_errors(name, workload):
        with torch.device("cpu"):  # some compute their widths with tensors
            module = models.get_model(wanted, weights=None, **_settings(wanted, kind, size))
        calibrate(module, _batches(drawn(*shapes), size))
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
        calibrate(module, _batches(drawn(images), size or height))
    return model_of(module, images, has_twin=False)


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
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{name} takes no image of {workload.image_size} pixels a side ({text}); "
            "choose another --image-size"
        ) from error


def _batches(inputs: Callable[[int], Inputs], size: int) -> Iterable[Inputs]:
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


def _shapes(kind: str, size: int) -> list[tuple[int, ...]]:
    if "optical_flow" in kind:
        return [(3, size, size)] * 2
    return [(3, FRAMES, size, size) if ".video" in kind else (3, size, size)]


def _settings(name: str, kind: str, size: int) -> dict[str, Any]:
    """Return what keeps training's auxiliary heads, downloads and slow initialisation out."""
    if ".segmentation" in kind:
        return {"weights_backbone": None}
    if "googlenet" in name or "inception" in name:
        return {"init_weights": False, "aux_logits": False}
    return {"image_size": size} if name.startswith("vit_") else {}
