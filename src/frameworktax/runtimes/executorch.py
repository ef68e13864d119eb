"""ExecuTorch: exported, lowered to XNNPACK where XNNPACK can, the rest on portable kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import (
    Artifact,
    ArtifactRuntime,
    TorchArtifactLoaded,
    export,
)
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.torch_common import configure, confine

if TYPE_CHECKING:
    from frameworktax.models.base import Model

DELEGATED = "executorch_call_delegate"


class ExecuTorch(ArtifactRuntime):
    """A static program for each batch size, through ExecuTorch's Python bindings."""

    name = "executorch"
    packages = ("torch", "executorch")
    needs_torch = True
    extra = "executorch"
    environment = "executorch"
    recipe = Recipe(("executorch==1.5.1",), 550)

    def write(
        self, model: Model, batches: Sequence[int], folder: Path, notes: list[tuple[str, str]]
    ) -> dict[int, str]:
        """Export and lower for each batch size."""
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        files: dict[int, str] = {}
        for batch in batches:
            (exported,) = export(model, [batch], notes)
            lowered = to_edge_transform_and_lower(
                exported.program, partitioner=[XnnpackPartitioner()]
            )
            if not files:
                notes.append(("not-delegated", _remaining(lowered.exported_program().graph)))
            files[batch] = f"model-{batch}.pte"
            (folder / files[batch]).write_bytes(lowered.to_executorch().buffer)
        return files

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Start the engine; programs are read when a batch size is bound."""
        confine(target.threads)
        configure(target)
        return _Loaded(Artifact(directory), target)


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
