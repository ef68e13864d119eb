"""tract: an ONNX engine in Rust; one thread, no dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded, ArtifactRuntime
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.onnx_files import export_onnx
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model


class Tract(ArtifactRuntime):
    """A static graph for each batch size."""

    name = "tract"
    packages = ("torch", "onnx", "onnxscript", "tract")
    extra = "tract"
    environment = "tract"
    recipe = Recipe(("tract==0.23.9",), 50)
    takes_onnx = True

    def missing(self, target: Target) -> str | None:
        """Return what is missing; it has no second thread."""
        reason = super().missing(target)
        if reason is None and target.threads > 1:
            return "computes on one thread only; choose --threads 1"
        return reason

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export to ONNX for each batch size."""
        configure(target)
        export_onnx(model, batches, directory, static=True)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Read what was exported; graphs are optimised when a batch size is bound."""
        return _Loaded(Artifact(directory), target)


class _Loaded(ArtifactLoaded):
    def bind(self, batch: int) -> Call:
        import tract

        arrays = self._artifact.inputs(batch)
        graph = tract.onnx().load(str(self._artifact.file(batch)))
        given = dict(zip(self._artifact.manifest.names, arrays, strict=True))
        inputs = []
        for number in range(graph.input_count()):
            array = given[graph.input_name(number)]
            kind = {"float": "f", "int": "i", "bool": "bool"}[array.dtype.name.rstrip("0123456789")]
            bits = "" if kind == "bool" else str(array.dtype.itemsize * 8)
            sizes = ",".join(map(str, array.shape))
            graph.set_input_fact(number, f"{sizes},{kind}{bits}")
            inputs.append(tract.Tensor.from_numpy(array))
        for number in range(graph.output_count()):
            graph.set_output_fact(number, None)  # the exporter's shapes follow from the inputs'
        run = graph.into_model().into_runnable().run

        def call() -> Any:
            return run(inputs)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        return super().outputs(tensor.to_numpy() for tensor in result)
