"""Eager execution: the module is called as a user calls it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from frameworktax.records import PRECISIONS
from frameworktax.runtimes.base import Loaded, Runtime, Target
from frameworktax.runtimes.torch_common import TorchLoaded, configure, given

if TYPE_CHECKING:
    from frameworktax.models.base import Model


class Eager(Runtime):
    """``with torch.no_grad(): module(...)``; the reference of every parity check."""

    name = "eager"
    paradigm = "eager"
    devices = ("cpu", "cuda")
    precisions = PRECISIONS
    packages = ("torch",)
    extra = "torch"

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        return TorchLoaded(given(model), target, given(model).module, torch.no_grad)


class InferenceMode(Runtime):
    """``with torch.inference_mode(): module(...)``: no version counters, no view tracking."""

    name = "inference-mode"
    paradigm = "eager"
    devices = ("cpu", "cuda")
    precisions = PRECISIONS
    packages = ("torch",)
    extra = "torch"

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        return TorchLoaded(given(model), target, given(model).module, torch.inference_mode)
