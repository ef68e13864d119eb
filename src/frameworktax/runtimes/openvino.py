"""OpenVINO on the CPU: converted from torch's exported program, saved as its own format."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.models.finalize import place
from frameworktax.runtimes.artifacts import (
    ArtifactLoaded,
    ArtifactRuntime,
    Export,
    Memory,
    Serve,
    copying,
)
from frameworktax.runtimes.base import SERIAL, Call, Target
from frameworktax.runtimes.onnxruntime import export_onnx

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model

HINTS = {"float32": "f32", "bfloat16": "bf16"}
"""What OpenVINO may compute in. Unasked, it takes bfloat16 for a float32 model where the CPU
has it, and is off by 0.02."""

THREADS = "INFERENCE_NUM_THREADS"


class _Loaded(ArtifactLoaded):
    """Compiles for a target, and notes where the engine computes in another precision."""

    def start(self) -> None:
        import openvino

        self._core = openvino.Core()
        self._models: dict[Path, Any] = {}

    def compiled(self, batch: int | None) -> Any:
        """Compile the model that serves a batch size, with its sizes where there is one."""
        import openvino

        path = self._artifact.file(batch)
        if path not in self._models:
            self._models[path] = self._core.read_model(path)
        model = self._models[path].clone()  # which has the weights of the file in common
        if batch is not None:
            sizes = [array.shape for array in self._artifact.inputs(batch)]
            model.reshape({i: openvino.PartialShape(size) for i, size in enumerate(sizes)})
        hint = HINTS["bfloat16" if self._option == "bfloat16" else self._target.precision]
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": hint,
            THREADS: 1 if self._option == SERIAL else self._target.threads,
            "NUM_STREAMS": 1,
        }
        compiled = self._core.compile_model(model, "CPU", settings)
        got = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if got != hint:
            self.note("precision-differs", f"OpenVINO computes in {got}, asked for {hint}")
        threads, asked = compiled.get_property(THREADS), settings[THREADS]
        if threads != asked:  # it takes one for each core at most
            text = f"OpenVINO computes with {threads} threads, asked for {asked}"
            self.note("threads-differ", text)
        return compiled

    def bind(self, batch: int) -> Call:
        import openvino

        arrays = self._artifact.inputs(batch)
        request = self.compiled(batch).create_infer_request()
        tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
        for index, tensor in enumerate(tensors):
            request.set_input_tensor(index, tensor)
        infer = request.infer

        # The request does not keep its inputs: it would read freed memory if the call did not.
        def call(_alive: Any = (arrays, tensors)) -> Any:
            return infer(share_outputs=True)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        return super().outputs(result[index] for index in range(len(result)))

    def serve(self, batch: int | None) -> Serve:
        import openvino

        compiled = self.compiled(batch)
        ports = [*compiled.inputs, *compiled.outputs]
        if all(port.partial_shape.is_static for port in ports):

            def make() -> Memory:
                request = compiled.create_infer_request()
                inputs = [request.get_input_tensor(i).data for i in range(len(compiled.inputs))]
                outputs = [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]
                # The class below it: what it adds is for inputs that are given to the call.
                infer = super(openvino.InferRequest, request).infer  # type: ignore[misc] # untyped
                run = partial(infer, {}, share_outputs=True, decode_strings=False)
                return run, inputs, outputs

            return copying(make)
        own = threading.local()  # a request is one call's at a time
        indices = range(len(compiled.outputs))

        def serve(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            try:
                infer = own.infer
            except AttributeError:
                infer = own.infer = compiled.create_infer_request().infer
            made = infer(dict(enumerate(arrays)), share_inputs=True, share_outputs=True)
            return [made[index].copy() for index in indices]

        return serve


class OpenVino(ArtifactRuntime):
    """Latency hint, static shapes, one infer request per batch size, no cache of compilations."""

    name = "openvino"
    places = ("operator",)
    precisions = ("float32", "bfloat16")
    packages = ("torch", "openvino")
    extra = "openvino"
    serves_with = ("openvino",)
    tunings = (SERIAL,)
    options: ClassVar[Mapping[str, str]] = {
        SERIAL: "one thread, whatever --threads says",
        "bfloat16": "computes in bfloat16; float32 inputs and outputs",
    }
    takes_onnx = True
    loaded = _Loaded

    def exported(self, model: Model, target: Target) -> Model:
        """Return it in float32: the hint at compilation sets the precision."""
        if target.precision == "float32":
            return model
        return place(replace(model, module=copy.deepcopy(model.module)), "float32", "cpu")

    def write(self, export: Export) -> dict[int, str]:
        """Export and convert; an ONNX file is read by the engine itself."""
        if export.model.onnx_path is not None:
            return export_onnx(export)
        import openvino

        def write(batches: Sequence[int], file: Path) -> None:
            converted = openvino.convert_model(export.program(batches))
            if len(converted.inputs) != len(export.names):
                raise WorkerError("failed", "OpenVINO's conversion lost an input of the model")
            if any(port.element_type == openvino.Type.bf16 for port in converted.outputs):
                text = "OpenVINO's Python cannot read outputs in bfloat16; return float32"
                raise WorkerError("unavailable", text)
            openvino.save_model(converted, file, compress_to_fp16=False)

        return export.save("xml", write)
