"""OpenVINO on the CPU: converted from torch's exported program, saved as its own format."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.models.base import Inputs
from frameworktax.runtimes.artifacts import Artifact, staged, write_manifest
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.export import export, manifest_of
from frameworktax.runtimes.onnxruntime import export_onnx, wide
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model

HINTS = {"float32": "f32", "bfloat16": "bf16"}
"""What OpenVINO may compute in. Unasked, it takes bfloat16 for a float32 model where the CPU
has it, and is off by 0.02."""


class OpenVino(Runtime):
    """Latency hint, static shapes, one infer request per batch size, no cache of compilations."""

    name = "openvino"
    paradigm = "ahead-of-time"
    precisions = ("float32", "bfloat16")
    packages = ("torch", "openvino")
    extra = "openvino"
    needs_model = False
    has_symbols = False
    prepares = True
    takes_onnx = True

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Convert; weights stay float32, the hint at compilation sets the precision."""
        import openvino
        import torch

        configure(target)
        if model.onnx_path is not None:
            export_onnx(model, batches, directory)  # OpenVINO reads the file itself
            return
        notes: list[tuple[str, str]] = []
        full = model if target.precision == "float32" else _widened(model)
        with staged(directory) as folder, torch.no_grad():
            programs = export(full, batches, notes)
            files = {
                batch: "model.xml" if exported.is_dynamic else f"model-{batch}.xml"
                for exported in programs
                for batch in exported.batches
            }
            manifest = manifest_of(full, files, folder, notes)
            for exported in programs:
                converted = openvino.convert_model(exported.program)
                if len(converted.inputs) != len(manifest.names):
                    raise WorkerError("failed", "OpenVINO's conversion lost an input of the model")
                openvino.save_model(
                    converted, folder / files[exported.batches[0]], compress_to_fp16=False
                )
            write_manifest(folder, manifest)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Start the engine; models compile when a batch size is bound."""
        return _Loaded(Artifact(directory), target)


def _widened(model: Model) -> Model:
    """Return a copy of the model in float32, with the values it has in its own precision."""
    import torch

    def wider(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.float() if is_float else value

    def inputs(batch: int) -> Inputs:
        made = model.inputs(batch)
        return Inputs(
            tuple(wider(value) for value in made.args),
            {name: wider(value) for name, value in made.kwargs.items()},
        )

    return replace(model, module=copy.deepcopy(model.module).float(), inputs=inputs)


class _Loaded(Loaded):
    def __init__(self, artifact: Artifact, target: Target) -> None:
        import openvino

        self._artifact = artifact
        self._target = target
        self._core = openvino.Core()
        self._notes: list[tuple[str, str]] = []
        self._alive: list[Any] = []

    def bind(self, batch: int) -> Call:
        import openvino

        arrays = self._artifact.inputs(batch)
        model = self._core.read_model(self._artifact.file(batch))
        model.reshape({i: openvino.PartialShape(a.shape) for i, a in enumerate(arrays)})
        hint = HINTS[self._target.precision]
        compiled = self._core.compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": self._target.threads,
                "NUM_STREAMS": 1,
            },
        )
        self._check_precision(compiled, hint)
        request = compiled.create_infer_request()
        tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
        for index, tensor in enumerate(tensors):
            request.set_input_tensor(index, tensor)
        # The request does not keep them: without this it reads freed memory.
        self._alive.append((arrays, tensors))
        infer = request.infer

        def call() -> Any:
            return infer(share_outputs=True)

        return call

    def _check_precision(self, compiled: Any, hint: str) -> None:
        got = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if got != hint:
            note = ("precision-differs", f"OpenVINO computes in {got}, asked for {hint}")
            if note not in self._notes:
                self._notes.append(note)

    def outputs(self, result: Any) -> list[np.ndarray]:
        return [wide(result[index]) for index in range(len(result))]

    def notes(self) -> list[tuple[str, str]]:
        return self._artifact.manifest.notes + self._notes
