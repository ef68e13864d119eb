"""Eager execution: the module is called as a user calls it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frameworktax.records import KV_CACHES
from frameworktax.runtimes.base import Loaded, Runtime, Target
from frameworktax.runtimes.generate import greedy
from frameworktax.runtimes.torch_common import FLOATS, TorchLoaded, configure, given, quantized

if TYPE_CHECKING:
    from frameworktax.models.base import Model


class Eager(Runtime):
    """``with torch.no_grad(): module(...)``; the reference of every parity check.

    int8 quantises linear layers dynamically (``torch.ao``), on a CPU only.
    """

    name = "eager"
    paradigm = "eager"
    devices = ("cpu", "cuda")
    precisions = (*FLOATS, "int8")
    packages = ("torch",)
    extra = "torch"
    kv_caches = KV_CACHES
    keeps_channels_last = True

    def missing(self, target: Target) -> str | None:
        """Return what is missing; quantised layers run on a CPU only."""
        if target.is_cuda and target.precision == "int8":
            return "int8 runs on a CPU only; choose --device cpu"
        return super().missing(target)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        built, mode = given(model), torch.no_grad
        if target.precision == "int8":
            built = replace(built, module=quantized(built.module))
        return greedy(built, target, mode) or TorchLoaded(built, target, built.module, mode)


class InferenceMode(Runtime):
    """``with torch.inference_mode(): module(...)``: no version counters, no view tracking."""

    name = "inference-mode"
    paradigm = "eager"
    devices = ("cpu", "cuda")
    precisions = FLOATS
    packages = ("torch",)
    extra = "torch"
    kv_caches = KV_CACHES
    keeps_channels_last = True

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        built, mode = given(model), torch.inference_mode
        return greedy(built, target, mode) or TorchLoaded(built, target, built.module, mode)
