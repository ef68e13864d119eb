"""LiteRT: converted by litert-torch, run by LiteRT's interpreter with its XNNPACK delegate."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import (
    ArtifactLoaded,
    ArtifactRuntime,
    Export,
    example,
    positional,
)
from frameworktax.runtimes.base import Call
from frameworktax.runtimes.environments import Recipe

if TYPE_CHECKING:
    import numpy as np


class _Loaded(ArtifactLoaded):
    def bind(self, batch: int) -> Call:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(self._artifact.file(batch)), num_threads=self._target.threads)
        interpreter.allocate_tensors()
        arrays = self._artifact.inputs(batch)
        for port in interpreter.get_input_details():
            # Integers become 32 bits wide in conversion.
            array = arrays[_number(port["name"], "args")].astype(port["dtype"], copy=False)
            interpreter.set_tensor(port["index"], array)
        ports = interpreter.get_output_details()
        ports.sort(key=lambda port: _number(port["name"], "output"))
        indices = [port["index"] for port in ports]
        invoke = interpreter.invoke

        def call() -> Any:
            invoke()
            return interpreter, indices

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        interpreter, indices = result
        return super().outputs(interpreter.get_tensor(index) for index in indices)


def _number(name: str, kind: str) -> int:
    """Return which input or output a name like ``serving_default_args_1:0`` means."""
    found = re.search(rf"{kind}_(\d+)", name)
    return int(found[1]) if found else 0


class LiteRt(ArtifactRuntime):
    """A static program for each batch size; the interpreter imports no torch."""

    name = "litert"
    packages = ("torch", "litert_torch", "ai_edge_litert")
    extra = "litert"
    environment = "litert"
    recipe = Recipe(("litert-torch==0.10.0", "ai-edge-litert==2.3.0"), 950)
    loaded = _Loaded

    def write(self, export: Export) -> dict[int, str]:
        """Convert for each batch size."""
        import litert_torch

        module, files = positional(export.model), export.each("tflite")
        for batch, name in files.items():
            converted = litert_torch.convert(module, example(export.model, batch))
            converted.export(str(export.folder / name))
        return files
