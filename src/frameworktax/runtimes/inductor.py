"""torch.compile with its default backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from frameworktax.records import PRECISIONS
from frameworktax.runtimes.base import Loaded, Runtime, Target
from frameworktax.runtimes.torch_common import (
    TorchLoaded,
    configure,
    given,
    missing_compiler,
    use_directory,
)

if TYPE_CHECKING:
    from frameworktax.models.base import Model

MAX_BATCHES = 64
"""Compilations of one module before Dynamo gives up and runs it eagerly; its default is 8."""


class _Loaded(TorchLoaded):
    def notes(self) -> list[tuple[str, str]]:
        return [
            (
                "compile-options",
                "torch.compile(module, dynamic=False), no freezing: static shapes, one "
                "compilation for each batch size",
            )
        ]


class Inductor(Runtime):
    """``torch.compile(module, dynamic=False)``; compiles at the first call of each batch size."""

    name = "inductor"
    paradigm = "deferred"
    devices = ("cpu", "cuda")
    precisions = PRECISIONS
    packages = ("torch",)
    extra = "torch"
    compiles = True

    def missing(self, target: Target) -> str | None:
        """Return what is missing; a CPU needs a C++ compiler, a GPU Triton too."""
        return super().missing(target) or missing_compiler() or missing_triton(target)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module; compiled code is kept under ``directory`` for the next process."""
        use_directory(directory)
        import torch
        import torch._dynamo

        configure(target)
        torch._dynamo.config.recompile_limit = MAX_BATCHES
        # Without it, the second batch size would turn the shapes dynamic and slow both down.
        compiled = torch.compile(given(model).module, dynamic=False)
        return _Loaded(given(model), target, compiled, torch.no_grad)


def missing_triton(target: Target) -> str | None:
    """Return that Triton is missing where the target needs it, or None."""
    if target.is_cuda and importlib.util.find_spec("triton") is None:
        return "triton not installed; pip install triton"
    return None
