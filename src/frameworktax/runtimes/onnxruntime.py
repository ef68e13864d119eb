"""ONNX Runtime on the CPU: exported by torch's dynamo exporter, inputs and outputs bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import Artifact, staged, write_manifest
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.export import export, manifest_of
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model

QUIET = 3
"""ONNX Runtime's log level *error*."""


class OnnxRuntime(Runtime):
    """Graph level *all*; one session per batch size with the batch fixed."""

    name = "onnxruntime"
    paradigm = "ahead-of-time"
    packages = ("torch", "onnx", "onnxscript", "onnxruntime")
    extra = "onnxruntime"
    needs_model = False
    has_symbols = False
    prepares = True

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export to ONNX."""
        configure(target)
        export_onnx(model, batches, directory)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Read what was exported; sessions start when a batch size is bound."""
        return OnnxLoaded(Artifact(directory), target)


def export_onnx(model: Model, batches: Sequence[int], directory: Path) -> None:
    """Export a model to ONNX files with the names of its inputs, and write the manifest."""
    import torch

    notes: list[tuple[str, str]] = []
    with staged(directory) as folder, torch.no_grad():
        programs = export(model, batches, notes)
        names = {
            batch: "model.onnx" if exported.is_dynamic else f"model-{batch}.onnx"
            for exported in programs
            for batch in exported.batches
        }
        manifest = manifest_of(model, names, folder, notes)
        for exported in programs:
            program = torch.onnx.export(
                exported.program, (), input_names=manifest.names, dynamo=True, verbose=False
            )
            if exported.is_dynamic:
                manifest.free_dimension = _symbol(program, manifest.batch_dims)
            program.save(str(folder / names[exported.batches[0]]))
        write_manifest(folder, manifest)


def _symbol(program: Any, dims: Sequence[int | None]) -> str | None:
    """Return the exporter's name for the batch dimension."""
    for value, dim in zip(program.model.graph.inputs, dims, strict=True):
        if dim is not None:
            return str(value.shape[dim].value)
    return None


class OnnxLoaded(Loaded):
    """Sessions over an artefact; ``provider`` and ``device`` say where they run."""

    def __init__(self, artifact: Artifact, target: Target) -> None:
        self._artifact = artifact
        self._target = target

    def session(self, batch: int) -> Any:
        """Start the session for a batch size, its shapes static."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = self._target.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = QUIET
        if self._target.threads == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._artifact.manifest.free_dimension is not None:
            options.add_free_dimension_override_by_name(
                self._artifact.manifest.free_dimension, batch
            )
        path = str(self._artifact.file(batch))
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(self, batch: int) -> Call:
        """Return a run of the session over bound inputs and preallocated outputs."""
        import onnxruntime

        session = self.session(batch)
        binding = session.io_binding()
        given = dict(zip(self._artifact.manifest.names, self._artifact.inputs(batch), strict=True))
        for port in session.get_inputs():  # those the graph still has
            value = onnxruntime.OrtValue.ortvalue_from_numpy(given[port.name])
            binding.bind_ortvalue_input(port.name, value)
        outputs = [port.name for port in session.get_outputs()]
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)  # tells the shapes
        values: list[Any] = binding.get_outputs()
        for name, value in zip(outputs, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        run = session.run_with_iobinding

        def call() -> list[Any]:
            run(binding)
            return values

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the bound outputs."""
        return [wide(value.numpy()) for value in result]

    def notes(self) -> list[tuple[str, str]]:
        """Return what export had to say."""
        return self._artifact.manifest.notes


def wide(array: np.ndarray) -> np.ndarray:
    """Return a copy as float64 or int64."""
    import numpy as np

    return array.astype(np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64)
