"""ExecuTorch: exported, lowered to XNNPACK where XNNPACK can, the rest on portable kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from frameworktax.runtimes.artifacts import Artifact, ArtifactRuntime, Export, TorchArtifactLoaded
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.torch_common import confine

DELEGATED = "executorch_call_delegate"


def _remaining(graph: Any) -> str:
    """Say how many operators run on portable kernels, which are plain loops."""
    names = [str(n.target.__name__) for n in graph.nodes if n.op == "call_function"]
    others = Counter(name for name in names if name not in (DELEGATED, "getitem"))
    parts = names.count(DELEGATED)
    if not others:
        return f"all operators run in XNNPACK, in {parts} parts"
    named = ", ".join(f"{name} {count}" for name, count in others.most_common(4))
    return f"{others.total()} operators run outside XNNPACK ({named}), between {parts} parts of it"


class _Loaded(TorchArtifactLoaded):
    def __init__(self, artifact: Artifact, target: Target, option: str = "") -> None:
        confine(target.threads)
        super().__init__(artifact, target, option)

    def open(self, path: Path) -> Any:
        from executorch.runtime import Runtime as Engine

        program = Engine.get().load_program(path)
        method = program.load_method("forward")
        return program, method  # the method does not keep its program alive

    def bind(self, batch: int) -> Call:
        _, method = self.program(batch)
        execute, inputs = method.execute, self.tensors(batch)

        def call() -> Any:
            return execute(inputs)

        return call


class ExecuTorch(ArtifactRuntime):
    """A static program for each batch size, through ExecuTorch's Python bindings."""

    name = "executorch"
    packages = ("torch", "executorch")
    imports = ("torch",)
    extra = "executorch"
    environment = "executorch"
    recipe = Recipe(("executorch==1.5.1",), 550)
    loaded = _Loaded

    def write(self, export: Export) -> dict[int, str]:
        """Export and lower for each batch size."""
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        files = export.each("pte")
        for batch, name in files.items():
            (exported,) = export.programs([batch])
            lowered = to_edge_transform_and_lower(
                exported.program, partitioner=[XnnpackPartitioner()]
            )
            if batch == min(files):
                note = ("not-delegated", _remaining(lowered.exported_program().graph))
                export.notes.append(note)
            (export.folder / name).write_bytes(lowered.to_executorch().buffer)
        return files
