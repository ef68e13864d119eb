"""LiteRT: converted by litert-torch, run by LiteRT's interpreter with its XNNPACK delegate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import Artifact, staged, write_manifest
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.export import manifest_of, positional, split
from frameworktax.runtimes.onnxruntime import wide
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model


class LiteRt(Runtime):
    """A static program for each batch size; the interpreter imports no torch."""

    name = "litert"
    paradigm = "ahead-of-time"
    packages = ("torch", "litert_torch", "ai_edge_litert")
    extra = "litert"
    environment = "litert"
    recipe = Recipe(("litert-torch==0.10.0", "ai-edge-litert==2.3.0"), 950)
    needs_model = False
    has_symbols = False
    prepares = True

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Convert for each batch size."""
        configure(target)
        import litert_torch
        import torch

        module = positional(model)
        files: dict[int, str] = {}
        with staged(directory) as folder, torch.no_grad():
            for batch in batches:
                tensors = tuple(tensor.contiguous() for tensor in split(model.inputs(batch))[1])
                files[batch] = f"model-{batch}.tflite"
                litert_torch.convert(module, tensors).export(str(folder / files[batch]))
            write_manifest(folder, manifest_of(model, files, folder, []))

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Start nothing yet; an interpreter starts when a batch size is bound."""
        return _Loaded(Artifact(directory), target)


class _Loaded(Loaded):
    def __init__(self, artifact: Artifact, target: Target) -> None:
        self._artifact = artifact
        self._target = target

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
        return [wide(interpreter.get_tensor(index)) for index in indices]

    def notes(self) -> list[tuple[str, str]]:
        return self._artifact.manifest.notes


def _number(name: str, kind: str) -> int:
    """Return which input or output a name like ``serving_default_args_1:0`` means."""
    found = re.search(rf"{kind}_(\d+)", name)
    return int(found[1]) if found else 0
