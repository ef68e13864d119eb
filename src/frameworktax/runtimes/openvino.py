"""OpenVINO on the CPU: converted from torch's exported program, saved as its own format."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes import decoding
from frameworktax.runtimes.artifacts import (
    Artifact,
    ArtifactLoaded,
    ArtifactRuntime,
    export,
    split,
    staged,
    write_manifest,
)
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.onnx_files import export_onnx
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model

HINTS = {"float32": "f32", "bfloat16": "bf16"}
"""What OpenVINO may compute in. Unasked, it takes bfloat16 for a float32 model where the CPU
has it, and is off by 0.02."""


class OpenVino(ArtifactRuntime):
    """Latency hint, static shapes, one infer request per batch size, no cache of compilations."""

    name = "openvino"
    precisions = ("float32", "bfloat16")
    packages = ("torch", "openvino")
    extra = "openvino"
    takes_onnx = True
    kv_caches = decoding.KV_CACHES

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Convert; weights stay float32, the hint at compilation sets the precision."""
        configure(target)
        full = model if target.precision == "float32" else _widened(model)
        if model.onnx_path is not None:
            export_onnx(model, batches, directory)  # OpenVINO reads the file itself
        elif model.decoding is not None:
            _export_step(full, batches, directory)
        else:
            super().prepare(full, batches, target, directory)

    def write(
        self, model: Model, batches: Sequence[int], folder: Path, notes: list[tuple[str, str]]
    ) -> dict[int, str]:
        """Export and convert."""
        import openvino

        files: dict[int, str] = {}
        for exported in export(model, batches, notes):
            first = exported.batches[0]
            name = "model.xml" if exported.is_dynamic else f"model-{first}.xml"
            converted = openvino.convert_model(exported.program)
            if len(converted.inputs) != len(split(model.inputs(first))[0]):
                raise WorkerError("failed", "OpenVINO's conversion lost an input of the model")
            openvino.save_model(converted, folder / name, compress_to_fp16=False)
            files |= dict.fromkeys(exported.batches, name)
        return files

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Start the engine; models compile when a batch size is bound."""
        artifact = Artifact(directory)
        if artifact.manifest.new_tokens is not None:
            return _DecodingLoaded(artifact, target)
        return _Loaded(artifact, target)


def _export_step(model: Model, batches: Sequence[int], directory: Path) -> None:
    import openvino
    import torch

    with staged(directory) as folder, torch.no_grad():
        step = decoding.export_step(model)
        converted = openvino.convert_model(step.program)
        for ports, names in ((converted.inputs, step.inputs), (converted.outputs, step.outputs)):
            for port, name in zip(ports, names, strict=True):
                port.tensor.set_names({name})
        openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)
        write_manifest(folder, step.manifest(model, "model.xml", batches, folder))


def _widened(model: Model) -> Model:
    """Return a copy of the model in float32, with the values it has in its own precision."""
    import torch

    def wider(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.float() if is_float else value

    return replace(
        model,
        module=copy.deepcopy(model.module).float(),
        inputs=lambda batch: model.inputs(batch).map(wider),
    )


class _Compiler:
    """Compiles for a target, and notes where the engine computes in another precision."""

    def __init__(self, target: Target) -> None:
        import openvino

        self.core = openvino.Core()
        self.notes: list[tuple[str, str]] = []
        self._target = target

    def __call__(self, model: Any) -> Any:
        hint = HINTS[self._target.precision]
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": self._target.threads,
            "NUM_STREAMS": 1,
        }
        compiled = self.core.compile_model(model, "CPU", settings)
        got = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        note = ("precision-differs", f"OpenVINO computes in {got}, asked for {hint}")
        if got != hint and note not in self.notes:
            self.notes.append(note)
        return compiled


class _Loaded(ArtifactLoaded):
    def __init__(self, artifact: Artifact, target: Target) -> None:
        super().__init__(artifact, target)
        self._compile = _Compiler(target)
        self._alive: list[Any] = []

    def bind(self, batch: int) -> Call:
        import openvino

        arrays = self._artifact.inputs(batch)
        model = self._compile.core.read_model(self._artifact.file(batch))
        model.reshape({i: openvino.PartialShape(a.shape) for i, a in enumerate(arrays)})
        request = self._compile(model).create_infer_request()
        tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
        for index, tensor in enumerate(tensors):
            request.set_input_tensor(index, tensor)
        # The request does not keep them: without this it reads freed memory.
        self._alive.append((arrays, tensors))
        infer = request.infer

        def call() -> Any:
            return infer(share_outputs=True)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        return super().outputs(result[index] for index in range(len(result)))

    def notes(self) -> list[tuple[str, str]]:
        return super().notes() + self._compile.notes


class _DecodingLoaded(decoding.DecodingLoaded):
    """A stateful model: the cache stays inside the engine, tokens go in and out."""

    def __init__(self, artifact: Artifact, target: Target) -> None:
        super().__init__(artifact, target)
        self._compile = _Compiler(target)

    def starts(self, batch: int) -> Callable[[], Callable[[np.ndarray], np.ndarray]]:
        from openvino._offline_transformations import apply_make_stateful_transformation

        cache = self._artifact.manifest.cache
        past, present = decoding.past_names(cache), decoding.present_names(cache)
        model = self._compile.core.read_model(self._artifact.file(batch))
        sizes = [[batch, -1], *([batch, heads, -1, head] for heads, head in cache)]
        model.reshape(dict(enumerate(sizes)))
        if cache:
            apply_make_stateful_transformation(model, dict(zip(past, present, strict=True)))
        request = self._compile(model).create_infer_request()

        def step(tokens: np.ndarray) -> np.ndarray:
            # Copied out: the next step writes where this one's token is.
            made: np.ndarray = request.infer([tokens], share_inputs=True)[0]
            return made

        def start() -> Callable[[np.ndarray], np.ndarray]:
            request.reset_state()
            return step

        return start

    def notes(self) -> list[tuple[str, str]]:
        return super().notes() + self._compile.notes
