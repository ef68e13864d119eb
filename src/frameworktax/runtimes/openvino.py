"""OpenVINO on the CPU: converted from torch's exported program, saved as its own format."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.models.base import Inputs
from frameworktax.runtimes import decoding
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
    kv_caches = decoding.KV_CACHES

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
        if model.decoding is not None:
            _export_step(full, batches, directory)
            return
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
        artifact = Artifact(directory)
        if artifact.manifest.new_tokens is not None:
            return _DecodingLoaded(artifact, target)
        return _Loaded(artifact, target)


def _export_step(model: Model, batches: Sequence[int], directory: Path) -> None:
    import openvino
    import torch

    with staged(directory) as folder, torch.no_grad():
        step = decoding.export_step(model)
        manifest = manifest_of(model, dict.fromkeys(batches, "model.xml"), folder, [])
        converted = openvino.convert_model(step.program)
        for ports, names in ((converted.inputs, step.inputs), (converted.outputs, step.outputs)):
            for port, name in zip(ports, names, strict=True):
                port.tensor.set_names({name})
        openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)
        step.tell(manifest, model.decoding.new_tokens if model.decoding else 0)
        write_manifest(folder, manifest)


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


class _Loaded(Loaded):
    def __init__(self, artifact: Artifact, target: Target) -> None:
        self._artifact = artifact
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
        return [wide(result[index]) for index in range(len(result))]

    def notes(self) -> list[tuple[str, str]]:
        return self._artifact.manifest.notes + self._compile.notes


class _DecodingLoaded(decoding.DecodingLoaded):
    """A stateful model: the cache stays inside the engine, tokens go in and out."""

    def __init__(self, artifact: Artifact, target: Target) -> None:
        self._artifact = artifact
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
