"""Inductor: ``torch.compile`` in three modes, AMD's ZenTorch behind it, and ahead of time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.host.machine import missing_compiler
from frameworktax.models.base import Model
from frameworktax.models.generate import Loop
from frameworktax.models.libraries import not_installed
from frameworktax.runtimes import variants
from frameworktax.runtimes.artifacts import ArtifactRuntime, Export, TorchArtifactLoaded
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.torch_common import (
    TorchLoaded,
    TorchRuntime,
    configure,
    given,
    use_directory,
)

MAX_BATCHES = 64
"""Compilations of one module before Dynamo gives up and runs it eagerly; its default is 8.

Set as ``cache_size_limit``, the name that torch 2.6 knows; ``recompile_limit`` came later.
"""
FREEZING: dict[str, Any] = {"options": {"freezing": True}}


class CompiledRuntime(TorchRuntime):
    """What Inductor compiles: a CPU needs a C++ compiler, a GPU Triton too."""

    libraries = ("triton",)
    compiles = True
    places = ("operator",)

    def missing(self, target: Target) -> str | None:
        """Return what is missing, the compiler included."""
        reason = super().missing(target) or "; ".join(missing_compiler() or ())
        return reason or (not_installed(["triton"], "") if target.is_cuda else None)


class _CompiledLoaded(TorchLoaded):
    """What ``torch.compile`` made of a module, parts that it left alone included."""

    _is_bound = False

    def bind(self, batch: int) -> Call:
        self._is_bound = True
        return super().bind(batch)

    def notes(self) -> list[tuple[str, str]]:
        """Return also what was not compiled, or not as asked, which torch counts and only logs.

        That is known once a batch size was called (``torch/_dynamo/utils.py``).
        """
        from torch._dynamo.utils import counters

        found = super().notes()
        reasons = [str(why).partition("\n")[0] for why in counters["graph_break"]]
        if self._is_bound and not counters["stats"]["unique_graphs"]:
            found.append(("graph-breaks", "torch.compile compiled nothing: all runs as eager"))
        elif reasons:
            more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            text = "torch.compile made parts of the model, between which Python runs"
            found.append(("graph-breaks", f"{text}: {reasons[0]}{more}"))
        if skipped := counters["inductor"]["cudagraph_skips"]:
            text = f"Inductor compiled {skipped} parts without CUDA graphs"
            found.append(("graphs-skipped", f"{text}; they are launched as ever"))
        return found


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
        use_directory(directory, in_cpp=not target.is_cuda)
        import torch
        import torch._dynamo.utils

        configure(target)
        torch._dynamo.config.cache_size_limit = MAX_BATCHES
        torch._dynamo.utils.counters.clear()
        plain = given(model)
        built = variants.applied(plain, self.option)
        settings, how = self._settings(target)
        # Without dynamic=False, the second batch size would turn the shapes dynamic and slow
        # both down.
        compiled = self._wrapped(torch.compile(built.module, dynamic=False, **settings))
        text = f"{how}: static shapes, one compilation for each batch size"
        notes = [("compile-options", text), *built.notes[len(plain.notes) :]]
        decoding = built.decoding
        called = compiled if decoding is None else Loop(built.module, decoding, compiled)
        return _CompiledLoaded(built, target, called, torch.no_grad, notes)

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
    extra = "zentorch"
    options: ClassVar[Mapping[str, str]] = {}

    def _settings(self, target: Target) -> tuple[dict[str, Any], str]:
        """Return its backend; freezing, as its documentation has it."""
        import torch._inductor.config
        import zentorch  # noqa: F401 - registers the backend

        torch._inductor.config.freezing = True
        text = 'torch.compile(backend="zentorch", dynamic=False), freezing'
        return {"backend": "zentorch"}, text


# --- AOTInductor: exported, frozen and compiled to a shared object ahead of time ------------------

RUNNERS = 4
"""Calls of a delivered package that run at once; further ones wait."""


class _Loaded(TorchArtifactLoaded):
    def open(self, path: Path) -> Any:
        """Load a package with its own loader.

        ``aoti_load_package`` parses the structure of inputs and outputs in Python at each call (191
        against 73 µs for a small model).

        Raises:
            WorkerError: this torch has none.
        """
        # The loader unpacks the package into $TMPDIR and tidies up when it ends well. Measuring
        # processes are killed: their $TMPDIR is a folder that the session removes.
        above, unpacked = tempfile.gettempdir(), tempfile.mkdtemp(prefix="unpacked-")
        os.environ["TMPDIR"] = unpacked
        try:
            return self._own_loader(path, 1)
        except (AttributeError, TypeError) as error:
            text = "packages are loaded by torch 2.7 or newer; update torch"
            raise WorkerError("unavailable", text) from error
        finally:
            os.environ["TMPDIR"] = above
            if not self._target.is_cuda:  # GPU kernels are read when first launched
                shutil.rmtree(unpacked, ignore_errors=True)

    def _own_loader(self, path: Path, runners: int) -> Any:
        """Return a call of the shared object alone; ``runners`` of them at once, one in a graph.

        A graph can hold none of the events by which it counts its runners.
        """
        import torch

        device = torch.device(self._target.device)
        at = device.index if device.index is not None else -1
        kind = torch._C._aoti.AOTIModelPackageLoader
        run = kind(str(path), "model", self._is_graph, 1 if self._is_graph else runners, at).run
        return lambda *tensors: run(list(tensors))

    def servable(self, batch: int | None) -> Any:
        """Return a call of the package's own loader, which unpacks outside of the deployment."""
        path = self._artifact.file(batch)
        if path not in self._programs:
            self._programs[path] = self._own_loader(path, RUNNERS)
        return self._programs[path]

    def start(self) -> None:
        super().start()
        self.note("compile-options", "torch._inductor.aoti_compile_and_package, freezing on")


class AotInductor(CompiledRuntime, ArtifactRuntime):
    """A static package for batch 1 (torch specialises 1), a dynamic one for all others."""

    name = "aot-inductor"
    serves_with = ("torch",)
    loaded = _Loaded
    tunings = ("static",)
    options: ClassVar[Mapping[str, str]] = {
        "static": "a package for each batch size",
        **variants.options("bfloat16", "graph"),
    }

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export and compile."""
        with tempfile.TemporaryDirectory(prefix="compiling-", ignore_cleanup_errors=True) as cache:
            use_directory(Path(cache))
            super().prepare(model, batches, target, directory)

    def write(self, export: Export) -> dict[int, str]:
        """Compile the packages."""
        import torch._inductor

        def write(batches: Sequence[int], file: Path) -> None:
            torch._inductor.aoti_compile_and_package(
                export.program(batches),
                package_path=str(file),
                inductor_configs=FREEZING["options"],
            )

        if self.option == "static":
            return export.save("pt2", write, static=True)
        first = export.save("pt2", write, [batch for batch in export.batches if batch == 1])
        return first | export.save("pt2", write, [batch for batch in export.batches if batch > 1])
