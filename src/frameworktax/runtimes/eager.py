"""Eager execution: the module is called as a user calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.records import KV_CACHES
from frameworktax.runtimes import variants
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
    options: ClassVar[Mapping[str, str]] = variants.options(
        "autograd",
        "unfused",
        "autograd-unfused",
        "autograd-malloc",
        "autograd-jemalloc",
        "autograd-unfused-malloc",
        "autograd-unfused-jemalloc",
    )

    def missing(self, target: Target) -> str | None:
        """Return what is missing; quantised layers run on a CPU only."""
        if target.is_cuda and target.precision == "int8":
            return "int8 runs on a CPU only; choose --device cpu"
        return super().missing(target) or variants.missing(self.option, target)

    def variables(self) -> Mapping[str, str]:
        """Return what sets the allocator."""
        return variants.variables(self.option)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        built = given(model)
        if target.precision == "int8":
            built = replace(built, module=quantized(built.module))
        return _called(built, target, self.option, torch.no_grad)


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
    options: ClassVar[Mapping[str, str]] = variants.options("unfused", "malloc", "jemalloc")

    def missing(self, target: Target) -> str | None:
        """Return what is missing, an allocator asked for included."""
        return super().missing(target) or variants.missing(self.option, target)

    def variables(self) -> Mapping[str, str]:
        """Return what sets the allocator."""
        return variants.variables(self.option)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        import torch

        configure(target)
        return _called(given(model), target, self.option, torch.inference_mode)


def _called(model: Model, target: Target, option: str, otherwise: Any) -> Loaded:
    """Return the module as an option wants it, called in the mode it leaves."""
    built, mode = variants.applied(model, option), variants.mode(option, otherwise)
    said = variants.said(built, model)
    return greedy(built, target, mode, said) or TorchLoaded(built, target, built.module, mode, said)
