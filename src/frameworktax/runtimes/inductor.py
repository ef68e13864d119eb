"""torch.compile: its default backend in three modes, and AMD's ZenTorch behind the same call."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.runtimes import variants
from frameworktax.runtimes.base import Loaded, Runtime, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.generate import looped
from frameworktax.runtimes.torch_common import (
    FLOATS,
    TorchLoaded,
    configure,
    given,
    missing_compiler,
    use_directory,
)

if TYPE_CHECKING:
    from frameworktax.models.base import Model

MAX_BATCHES = 64
"""Compilations of one module before Dynamo gives up and runs it eagerly; its default is 8.

Set as ``cache_size_limit``, the name that torch 2.6 knows; ``recompile_limit`` came later.
"""
STATIC = "static shapes, one compilation for each batch size"


class Inductor(Runtime):
    """``torch.compile(module, dynamic=False)``; compiles at the first call of each batch size.

    Without freezing, as ``torch.compile`` is by default: weights stay the module's parameters.
    """

    name = "inductor"
    paradigm = "deferred"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = FLOATS
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    extra = "torch"
    libraries = ("triton",)
    compiles = True
    kv_caches: ClassVar[tuple[str, ...]] = ("static",)
    keeps_channels_last = True
    options: ClassVar[Mapping[str, str]] = {
        "freezing": "weights are constants, packed once",
        **variants.options("unfused"),
    }
    settings: ClassVar[Mapping[str, Any]] = {}
    """Over Inductor's defaults, as ``torch.compile(options=...)`` takes them."""
    said: ClassVar[str] = f"torch.compile(module, dynamic=False), no freezing: {STATIC}"

    def missing(self, target: Target) -> str | None:
        """Return what is missing; a CPU needs a C++ compiler, a GPU Triton too."""
        return super().missing(target) or missing_compiler() or missing_triton(target)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module; compiled code is kept under ``directory`` for the next process."""
        use_directory(directory)
        import torch
        import torch._dynamo

        configure(target)
        torch._dynamo.config.cache_size_limit = MAX_BATCHES
        options, said = self._options(target)
        built, mode = variants.applied(given(model), self.option), torch.no_grad
        notes = [("compile-options", said), *variants.said(built, given(model))]
        # Without dynamic=False, the second batch size would turn the shapes dynamic and slow
        # both down.
        compiled = self._wrapped(
            torch.compile(built.module, dynamic=False, options=options or None)
        )
        decoding = looped(built, target, compiled, mode, notes)
        return decoding or TorchLoaded(built, target, compiled, mode, notes)

    def _wrapped(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in place of the compiled module."""
        return compiled

    def _options(self, target: Target) -> tuple[dict[str, Any], str]:
        """Return what to set and how to say it."""
        del target
        if self.option == "freezing":
            return {"freezing": True}, f"torch.compile(module, dynamic=False), freezing: {STATIC}"
        return dict(self.settings), self.said


class InductorReduceOverhead(Inductor):
    """``torch.compile(mode="reduce-overhead")``: Inductor's kernels, replayed as CUDA graphs.

    On a CPU the mode changes nothing, so there it is refused rather than measured twice.
    """

    name = "inductor-reduce-overhead"
    devices = ("cuda",)
    options: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, Any]] = {"triton.cudagraphs": True}
    said = f'torch.compile(mode="reduce-overhead", dynamic=False): {STATIC}, CUDA graphs'

    def _wrapped(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that first says that the last one's outputs may be overwritten.

        Without the mark, Inductor keeps outputs that are still referenced apart from the next
        run's, and records another graph for that. A step of decoding is such a call too.
        """
        import torch

        mark = torch.compiler.cudagraph_mark_step_begin

        def marked(*args: Any, **kwargs: Any) -> Any:
            mark()
            return compiled(*args, **kwargs)

        return marked


class InductorMaxAutotune(Inductor):
    """``torch.compile(mode="max-autotune")``: kernels chosen by timing them; takes minutes.

    On a CPU the choice includes generated matrix multiplications, which need frozen weights.
    """

    name = "inductor-max-autotune"
    by_name_only = True
    options: ClassVar[Mapping[str, str]] = {}

    def _options(self, target: Target) -> tuple[dict[str, Any], str]:
        settings = {"max_autotune": True, "coordinate_descent_tuning": True}
        if target.is_cuda:
            # Graphs are inductor-reduce-overhead's: this one tells what the kernels give.
            mode = 'mode="max-autotune-no-cudagraphs"'
            return settings, f"torch.compile({mode}, dynamic=False): {STATIC}"
        return (
            settings | {"freezing": True},
            f'torch.compile(mode="max-autotune", dynamic=False), freezing: {STATIC}',
        )


class ZenTorch(Inductor):
    """``torch.compile(backend="zentorch")``: AMD's kernels for its own processors."""

    name = "zentorch"
    devices = ("cpu",)
    precisions = ("float32", "bfloat16")
    packages = ("torch", "zentorch")
    environment = "zentorch"
    recipe = Recipe(("zentorch==2.13.0.2",), 120)
    options: ClassVar[Mapping[str, str]] = {}

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module; freezing, as its documentation has it."""
        use_directory(directory)
        import torch
        import torch._dynamo
        import torch._inductor.config
        import zentorch  # noqa: F401 - registers the backend

        configure(target)
        torch._dynamo.config.cache_size_limit = MAX_BATCHES
        torch._inductor.config.freezing = True
        compiled = torch.compile(given(model).module, dynamic=False, backend="zentorch")
        said = f'torch.compile(backend="zentorch", dynamic=False), freezing: {STATIC}'
        built, mode = given(model), torch.no_grad
        notes = [("compile-options", said)]
        decoding = looped(built, target, compiled, mode, notes)
        return decoding or TorchLoaded(built, target, compiled, mode, notes)


def missing_triton(target: Target) -> str | None:
    """Return that Triton is missing where the target needs it, or None."""
    if target.is_cuda and importlib.util.find_spec("triton") is None:
        return "triton not installed; pip install triton"
    return None
