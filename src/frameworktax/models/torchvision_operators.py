"""Let torchvision be imported beside a torch that it was not compiled for.

The wheel on the package index belongs to a CUDA build. Beside a CPU build its compiled operators
do not load, and torchvision's own import then fails, for it describes two operators that do not
exist. transformers imports torchvision wherever it is installed, so even a text model fails. Two
schemas without an implementation are enough: everything but detection works.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[Any] = []
"""A library's schemas vanish with the object."""


def declare() -> None:
    """Declare what torchvision's import needs, where its compiled operators do not load.

    Call it before anything that may import torchvision: transformers, timm, a user's own code.
    Costs milliseconds; does nothing without torchvision, or a second time.
    """
    spec = importlib.util.find_spec("torchvision")
    if _kept or spec is None or spec.origin is None:
        return
    import torch

    try:
        for compiled in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(compiled))
            return  # the real ones are there
    except OSError:  # linked to libraries of another build of torch
        pass
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _kept.append(library)
