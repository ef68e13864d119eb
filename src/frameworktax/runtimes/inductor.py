"""torch.compile: its default backend in three modes, and AMD's ZenTorch behind the same call."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.generate import Loop
from frameworktax.runtimes import variants
from frameworktax.runtimes.base import Loaded, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.torch_common import (
    TorchRuntime,
    configure,
    given,
    loaded,
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
FREEZING: dict[str, Any] = {"options": {"freezing": True}}


class CompiledRuntime(TorchRuntime):
    """What Inductor compiles: a CPU needs a C++ compiler, a GPU Triton too."""

    libraries = ("triton",)
    compiles = True
    places = ("operator",)

    def missing(self, target: Target) -> str | None:
        """Return what is missing, the compiler included."""
        reason = super().missing(target) or missing_compiler()
        if reason is None and target.is_cuda and importlib.util.find_spec("triton") is None:
            return "triton not installed; pip install triton"
        return reason


class Inductor(CompiledRuntime):
    """``torch.compile(module, dynamic=False)``; compiles at the first call of each batch size.

    Without freezing, as ``torch.compile`` is by default: weights stay the module's parameters.
    """

    name = "inductor"
    paradigm = "deferred"
    imports = ("torch", "inductor")
    kv_caches: ClassVar[tuple[str, ...]] = ("static",)
    keeps_channels_last = True
    options: ClassVar[Mapping[str, str]] = {
        "freezing": "weights are constants, packed once",
        **variants.options("unfused"),
    }

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module; compiled code is kept under ``directory`` for the next process."""
        use_directory(directory)
        import torch
        import torch._dynamo

        configure(target)
        torch._dynamo.config.cache_size_limit = MAX_BATCHES
        plain = given(model)
        built = variants.applied(plain, self.option)
        settings, how = self._settings(target)
        # Without dynamic=False, the second batch size would turn the shapes dynamic and slow
        # both down.
        compiled = self._wrapped(torch.compile(built.module, dynamic=False, **settings))
        notes = [("compile-options", f"{how}: {STATIC}"), *built.notes[len(plain.notes) :]]
        return loaded(
            built,
            target,
            compiled,
            torch.no_grad,
            lambda decoding: Loop(built.module, decoding, compiled),
            notes,
        )

    def _settings(self, target: Target) -> tuple[dict[str, Any], str]:
        """Return what ``torch.compile`` gets, and how to say it."""
        if self.option == "freezing":
            return FREEZING, "torch.compile(module, dynamic=False), freezing"
        return {}, "torch.compile(module, dynamic=False), no freezing"

    def _wrapped(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in place of the compiled module."""
        return compiled


class InductorReduceOverhead(Inductor):
    """``torch.compile(mode="reduce-overhead")``: Inductor's kernels, replayed as CUDA graphs.

    On a CPU the mode changes nothing, so there it is refused rather than measured twice.
    """

    name = "inductor-reduce-overhead"
    devices = ("cuda",)
    options: ClassVar[Mapping[str, str]] = {}

    def _settings(self, target: Target) -> tuple[dict[str, Any], str]:
        text = 'torch.compile(mode="reduce-overhead", dynamic=False), CUDA graphs'
        return {"options": {"triton.cudagraphs": True}}, text

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

    def _settings(self, target: Target) -> tuple[dict[str, Any], str]:
        settings = {"max_autotune": True, "coordinate_descent_tuning": True}
        if target.is_cuda:
            # Graphs are inductor-reduce-overhead's: this one shows what the kernels give.
            mode = 'mode="max-autotune-no-cudagraphs"'
            return {"options": settings}, f"torch.compile({mode}, dynamic=False)"
        text = 'torch.compile(mode="max-autotune", dynamic=False), freezing'
        return {"options": settings | FREEZING["options"]}, text


class ZenTorch(Inductor):
    """``torch.compile(backend="zentorch")``: AMD's kernels for its own processors."""

    name = "zentorch"
    devices = ("cpu",)
    precisions = ("float32", "bfloat16")
    packages = ("torch", "zentorch")
    environment = "zentorch"
    recipe = Recipe(("zentorch==2.13.0.2",), 120)
    options: ClassVar[Mapping[str, str]] = {}

    def _settings(self, target: Target) -> tuple[dict[str, Any], str]:
        """Return its backend; freezing, as its documentation has it."""
        import torch._inductor.config
        import zentorch  # noqa: F401 - registers the backend

        torch._inductor.config.freezing = True
        text = 'torch.compile(backend="zentorch", dynamic=False), freezing'
        return {"backend": "zentorch"}, text
