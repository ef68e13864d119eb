"""IREE: from ONNX, compiled for this processor by LLVM, run by IREE's own virtual machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded, ArtifactRuntime, Export
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.onnx_files import export_onnx

if TYPE_CHECKING:
    import numpy as np

OPTIONS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")


def _compile(onnx_file: Path, module: Path) -> None:
    import iree.compiler

    mlir = module.with_suffix(".mlir")
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(onnx_file)]
    done = subprocess.run([*command, "-o", str(mlir)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise WorkerError("failed", f"IREE cannot import the ONNX file: {last[:300]}")
    compiled = iree.compiler.compile_file(
        str(mlir), target_backends=["llvm-cpu"], input_type="onnx", extra_args=list(OPTIONS)
    )
    module.write_bytes(compiled)
    mlir.unlink()


class _Loaded(ArtifactLoaded):
    def __init__(self, artifact: Artifact, target: Target, option: str = "") -> None:
        import iree.runtime

        super().__init__(artifact, target, option)
        if target.threads > 1:
            iree.runtime.flags.parse_flags(f"--task_topology_max_group_count={target.threads}")
        self._config = iree.runtime.Config("local-sync" if target.threads == 1 else "local-task")

    def bind(self, batch: int) -> Call:
        import iree.runtime

        arrays = self._artifact.inputs(batch)
        context = iree.runtime.SystemContext(config=self._config)
        module = iree.runtime.VmModule.mmap(context.instance, str(self._artifact.file(batch)))
        context.add_vm_module(module)
        (entry,) = [
            name
            for name in module.function_names
            if not name.startswith("__") and not name.endswith("$async")
        ]
        function = context.modules[module.name][entry]
        inputs = [iree.runtime.asdevicearray(self._config.device, array) for array in arrays]

        def call() -> Any:
            return function(*inputs)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        values = result if isinstance(result, tuple | list) else [result]
        return super().outputs(value.to_host() for value in values)


class Iree(ArtifactRuntime):
    """A static module for each batch size; local-sync with one thread, local-task with more."""

    name = "iree"
    packages = ("torch", "onnx", "onnxscript", "iree.compiler", "iree.runtime")
    extra = "iree"
    environment = "iree"
    recipe = Recipe(("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0"), 400)
    compiles = True
    takes_onnx = True
    loaded = _Loaded

    def absent(self) -> list[str]:
        """Return the packages that cannot be imported here; ``iree`` alone may be a namespace."""
        try:
            return super().absent()
        except ModuleNotFoundError:  # the parent of a dotted name
            return ["iree"]

    def write(self, export: Export) -> dict[int, str]:
        """Export to ONNX, import that into MLIR, compile."""
        files = export.each("vmfb")
        for batch, name in export_onnx(export, static=True).items():
            _compile(export.folder / name, export.folder / files[batch])
        return files
