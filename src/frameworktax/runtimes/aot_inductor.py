"""AOTInductor: exported, frozen and compiled to a shared object ahead of time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.runtimes import variants
from frameworktax.runtimes.artifacts import (
    ArtifactRuntime,
    Export,
    Exported,
    Serve,
    TorchArtifactLoaded,
    static_note,
)
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.inductor import FREEZING, CompiledRuntime
from frameworktax.runtimes.torch_common import configure, use_directory

if TYPE_CHECKING:
    from frameworktax.models.base import Model

RUNNERS = 4
"""Calls of a delivered package that run at once; further ones wait."""
NOTE = ("compile-options", "torch._inductor.aoti_compile_and_package, freezing on")


class _Loaded(TorchArtifactLoaded):
    def open(self, path: Path) -> Any:
        """Load a package with its own loader, or with ``aoti_load_package`` before torch 2.7.

        The latter reads everything in the package in Python, asks for a compiler, and parses the
        structure of inputs and outputs at each call (73 against 191 µs for a small model).
        """
        # The loader unpacks the package into $TMPDIR and tidies up when it ends well; measuring
        # processes are killed, so it unpacks where the session tidies up.
        before = os.environ.get("TMPDIR")
        unpacked = tempfile.mkdtemp(prefix="unpacked-", dir=self._artifact.directory)
        os.environ["TMPDIR"] = unpacked
        try:
            return self._own_loader(path, 1)
        except (AttributeError, TypeError):
            self._through_python = True
            use_directory(self._artifact.directory)
            import torch._inductor

            return torch._inductor.aoti_load_package(str(path))  # on the current device
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
            if not self._target.is_cuda:  # GPU kernels are read when first launched
                shutil.rmtree(unpacked, ignore_errors=True)

    _through_python = False

    def _own_loader(self, path: Path, runners: int) -> Any:
        """Return a call of the shared object alone; ``runners`` of them at once."""
        import torch

        device = torch.device(self._target.device)
        at = device.index if device.index is not None else -1
        kind = torch._C._aoti.AOTIModelPackageLoader
        run = kind(str(path), "model", False, runners, at).run
        return lambda *tensors: run(list(tensors))

    def serve(self, batch: int | None) -> Serve:
        """Return a call of the package's own loader."""
        import torch

        run = self._own_loader(self._artifact.file(batch), RUNNERS)

        def serve(tensors: Sequence[Any]) -> Sequence[Any]:
            with torch.no_grad():
                return run(*tensors)  # type: ignore[no-any-return] # an engine's

        return serve

    def notes(self) -> list[tuple[str, str]]:
        if not self._through_python:
            return [*super().notes(), NOTE]
        text = "loaded in Python, which parses the structure of inputs at each call; update torch"
        return [*super().notes(), NOTE, ("python-loader", text)]


class AotInductor(CompiledRuntime, ArtifactRuntime):
    """A static package for batch 1 (torch specialises 1), a dynamic one for all others."""

    name = "aot-inductor"
    has_symbols = True
    serves_with = ("torch",)
    loaded = _Loaded
    tunings = ("static",)
    options: ClassVar[Mapping[str, str]] = {
        "static": "a package for each batch size",
        **variants.options("bfloat16"),
    }

    def exported(self, model: Model, target: Target) -> Model:
        """Return the model as the option wants it."""
        return variants.applied(model, self.option)

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export and compile."""
        directory.mkdir(parents=True, exist_ok=True)
        configure(target)
        cache = Path(tempfile.mkdtemp(prefix="compiling-", dir=directory))
        use_directory(cache)
        try:
            super().prepare(model, batches, target, directory)
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def write(self, export: Export) -> dict[int, str]:
        """Compile the packages."""
        if self.option == "static":
            each = [program for batch in export.batches for program in export.programs([batch])]
            return _compile(each, export.folder)
        larger = [b for b in export.batches if b > 1]
        files = _compile(export.programs([1]), export.folder) if 1 in export.batches else {}
        programs = export.programs(larger) if larger else []
        try:
            files |= _compile(programs, export.folder)
        # Broad on purpose: the compiler raises anything; a static one may yet work.
        except Exception as error:
            if not programs[0].is_dynamic:
                raise
            export.notes.append(static_note(error))
            for batch in larger:
                files |= _compile(export.programs([batch]), export.folder)
        return files


def _compile(programs: list[Exported], folder: Path) -> dict[int, str]:
    """Compile each program into a package; return batch size → file."""
    import torch._inductor

    files: dict[int, str] = {}
    for exported in programs:
        names = exported.files("pt2")
        torch._inductor.aoti_compile_and_package(
            exported.program,
            package_path=str(folder / names[exported.batches[0]]),
            inductor_configs=FREEZING["options"],
        )
        files |= names
    return files
