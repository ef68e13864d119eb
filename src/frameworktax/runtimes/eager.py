"""Eager execution: the module is called as a user calls it. And the floor: nothing is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.generate import Greedy
from frameworktax.records import KV_CACHES, PRECISIONS
from frameworktax.runtimes import variants
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.torch_common import (
    FLOATS,
    TorchLoaded,
    TorchRuntime,
    configure,
    given,
    quantized,
)

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model


class Eager(TorchRuntime):
    """``with torch.no_grad(): module(...)``; the reference of every parity check.

    int8 quantises linear layers dynamically (``torch.ao``), on a CPU only.
    """

    name = "eager"
    paradigm = "eager"
    precisions: ClassVar[tuple[str, ...]] = (*FLOATS, "int8")
    kv_caches = KV_CACHES
    keeps_channels_last = True
    places = ("module", "operator", "line")
    enters: ClassVar[str] = "no_grad"
    """What of torch's is entered around a call, unless an option says otherwise."""
    options: ClassVar[Mapping[str, str]] = variants.options(
        "autograd",
        "unfused",
        "autograd-unfused",
        "autograd-malloc",
        "autograd-jemalloc",
        "autograd-unfused-malloc",
        "autograd-unfused-jemalloc",
    )

    def variables(self) -> Mapping[str, str]:
        """Return what sets the allocator."""
        return variants.variables(self.option)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module."""
        configure(target)
        plain = given(model)
        if target.precision == "int8":
            plain = replace(plain, module=quantized(plain.module))
        built = variants.applied(plain, self.option)
        decoding = built.decoding
        called = built.module if decoding is None else Greedy(built.module, decoding)
        import torch

        mode = variants.mode(self.option, getattr(torch, self.enters))
        return TorchLoaded(built, target, called, mode, built.notes[len(plain.notes) :])


class InferenceMode(Eager):
    """``with torch.inference_mode(): module(...)``: no version counters, no view tracking."""

    name = "inference-mode"
    precisions = FLOATS
    enters = "inference_mode"
    options: ClassVar[Mapping[str, str]] = variants.options("unfused", "malloc", "jemalloc")


class Null(Runtime):
    """The floor: a call that does nothing, so that its time is the harness's own.

    On any device and in any precision; on a device that includes the synchronise which ends every
    call there.
    """

    name = "null"
    paradigm = "floor"
    devices = ("cpu", "cuda")
    precisions = PRECISIONS
    kv_caches = KV_CACHES
    keeps_channels_last = True
    needs_model = False

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Return the call that does nothing."""
        return _NullLoaded(target)


class _NullLoaded(Loaded):
    def __init__(self, target: Target) -> None:
        self._target = target

    def bind(self, batch: int) -> Call:
        return lambda: None

    def outputs(self, result: Any) -> list[np.ndarray]:
        return []
