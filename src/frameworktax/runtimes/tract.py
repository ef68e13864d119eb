"""tract: an ONNX engine in Rust; one thread, no dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import ArtifactLoaded, ArtifactRuntime, Export
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.onnx_files import export_onnx

if TYPE_CHECKING:
    import numpy as np


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


class Tract(ArtifactRuntime):
    """A static graph for each batch size."""

    name = "tract"
    packages = ("torch", "onnx", "onnxscript", "tract")
    extra = "tract"
    environment = "tract"
    recipe = Recipe(("tract==0.23.9",), 50)
    loaded = _Loaded
    takes_onnx = True

    def missing(self, target: Target) -> str | None:
        """Return what is missing; it has no second thread."""
        reason = super().missing(target)
        if reason is None and target.threads > 1:
            return "computes on one thread only; choose --threads 1"
        return reason

    def write(self, export: Export) -> dict[int, str]:
        """Export to ONNX for each batch size."""
        return export_onnx(export, static=True)
