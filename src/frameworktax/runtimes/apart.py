"""Engines that take a static program for each batch size: JAX, ExecuTorch, LiteRT, IREE, tract.

They run it without the model's library.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import (
    ArtifactLoaded,
    ArtifactRuntime,
    Export,
    TorchArtifactLoaded,
    example,
    positional,
)
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.onnxruntime import export_onnx
from frameworktax.runtimes.torch_common import confine

if TYPE_CHECKING:
    import numpy as np

# --- JAX: the exported program as a JAX function (torchax), compiled by XLA in each process -------

WEIGHTS = "weights.npz"


@contextmanager
def _named_overloads() -> Iterator[None]:
    """Have torch answer for overloads with named dimensions, which 2.13 no longer has.

    torchax 0.0.13 names them in its tables when it is imported, and calls none of them.
    """
    import torch

    packet = torch._ops.OpOverloadPacket
    original = packet.__getattr__

    def lenient(self: Any, key: str) -> Any:
        try:
            return original(self, key)
        except AttributeError:
            if "name" not in key.lower():
                raise
            return (str(self), key)

    packet.__getattr__ = lenient
    try:
        yield
    finally:
        packet.__getattr__ = original


class _JaxLoaded(ArtifactLoaded):
    def start(self) -> None:
        confine(self._target.threads)  # before JAX starts its threads
        import jax
        import numpy as np

        # Inline on the calling thread: the call ends when its outputs are complete.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # What one process compiled, the next one reads.
        cache = self._artifact.directory / "xla-cache"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        with np.load(self._artifact.folder / WEIGHTS) as stored:
            self._weights = [jax.device_put(stored[f"arr_{i}"]) for i in range(len(stored.files))]

    def bind(self, batch: int) -> Call:
        import jax
        import jax.export

        program = jax.export.deserialize(bytearray(self._artifact.file(batch).read_bytes()))
        function, weights = jax.jit(program.call), self._weights
        inputs = tuple(jax.device_put(array) for array in self._artifact.inputs(batch))
        return lambda: function(weights, inputs)

    def outputs(self, result: Any) -> list[np.ndarray]:
        import jax
        import numpy as np

        return super().outputs(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result))


class Jax(ArtifactRuntime):
    """``jax.jit`` of the model's function, weights as arguments as JAX programs pass them.

    Integers are 32 bits wide there by default; token ids fit.
    """

    name = "jax"
    paradigm = "deferred"
    packages = ("torch", "jax", "torchax")
    extra = "jax"
    libraries = ("jaxlib",)
    loaded = _JaxLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Convert and write StableHLO for each batch size, weights apart."""
        import numpy as np

        with _named_overloads():
            import torchax.export
        import jax
        import jax.export

        def write(batches: Sequence[int], file: Path) -> None:
            exported = export.program(batches)
            weights, function = torchax.export.exported_program_to_jax(exported)
            weights = [np.asarray(weight) for weight in weights]
            if not (export.folder / WEIGHTS).exists():  # they are the same for every batch size
                np.savez(export.folder / WEIGHTS, *weights)
            inputs = [np.asarray(t) for t in exported.example_inputs[0]]
            program = jax.export.export(jax.jit(function))(weights, tuple(inputs))
            file.write_bytes(program.serialize())

        return export.save("stablehlo", write, static=True)


# --- ExecuTorch: exported, lowered to XNNPACK where XNNPACK can, the rest on portable kernels -----

DELEGATED = "executorch_call_delegate"


def _remaining(graph: Any) -> str:
    """Say how many operators run on portable kernels, which are plain loops."""
    names = [str(n.target.__name__) for n in graph.nodes if n.op == "call_function"]
    others = Counter(name for name in names if name not in (DELEGATED, "getitem"))
    parts = names.count(DELEGATED)
    if not others:
        return f"all operators run in XNNPACK, in {parts} parts"
    named = ", ".join(f"{name} {count}" for name, count in others.most_common(4))
    return f"{others.total()} operators run outside XNNPACK ({named}), between {parts} parts of it"


class _ExecuTorchLoaded(TorchArtifactLoaded):
    def start(self) -> None:
        confine(self._target.threads)
        super().start()

    def open(self, path: Path) -> Any:
        from executorch.runtime import Runtime as Engine

        program = Engine.get().load_program(path)
        method = program.load_method("forward")
        return program, method  # the method does not keep its program alive

    def bind(self, batch: int) -> Call:
        _, method = self.program(batch)
        execute, inputs = method.execute, self.tensors(batch)
        return lambda: execute(inputs)


class ExecuTorch(ArtifactRuntime):
    """A static program for each batch size, through ExecuTorch's Python bindings."""

    name = "executorch"
    packages = ("torch", "executorch")
    imports = ("torch",)
    extra = "executorch"
    loaded = _ExecuTorchLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Export and lower for each batch size."""
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        def write(batches: Sequence[int], file: Path) -> None:
            lowered = to_edge_transform_and_lower(
                export.program(batches), partitioner=[XnnpackPartitioner()]
            )
            if batches[0] == min(export.batches):
                note = ("not-delegated", _remaining(lowered.exported_program().graph))
                export.notes.append(note)
            file.write_bytes(lowered.to_executorch().buffer)

        return export.save("pte", write, static=True)


# --- LiteRT: converted by litert-torch, run by LiteRT's interpreter with its XNNPACK delegate -----


class _LiteRtLoaded(ArtifactLoaded):
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
    loaded = _LiteRtLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Convert for each batch size."""
        import litert_torch

        module = positional(export.model)

        def write(batches: Sequence[int], file: Path) -> None:
            converted = litert_torch.convert(module, example(export.model, *batches))
            converted.export(str(file))

        return export.save("tflite", write, static=True)


# --- IREE: from ONNX, compiled for this processor by LLVM, run by IREE's own virtual machine ------

OPTIONS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")


def _compile(onnx_file: Path) -> str:
    """Return the name of the module beside the file."""
    import iree.compiler

    mlir, module = onnx_file.with_suffix(".mlir"), onnx_file.with_suffix(".vmfb")
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(onnx_file)]
    done = subprocess.run([*command, "-o", str(mlir)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise WorkerError("failed", f"IREE cannot import the ONNX file: {last[:300]}")
    compiled = iree.compiler.compile_file(
        str(mlir), target_backends=["llvm-cpu"], input_type="onnx", extra_args=list(OPTIONS)
    )
    module.write_bytes(compiled)
    mlir.unlink()
    return module.name


class _IreeLoaded(ArtifactLoaded):
    def start(self) -> None:
        import iree.runtime

        threads = self._target.threads
        if threads > 1:
            iree.runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
        self._config = iree.runtime.Config("local-sync" if threads == 1 else "local-task")

    def bind(self, batch: int) -> Call:
        import iree.runtime

        arrays = self._artifact.inputs(batch)
        context = iree.runtime.SystemContext(config=self._config)
        module = iree.runtime.VmModule.mmap(context.instance, str(self._artifact.file(batch)))
        context.add_vm_module(module)
        (entry,) = [
            name
            for name in module.function_names
            if not name.startswith("__") and not name.endswith("$async")
        ]
        function = context.modules[module.name][entry]
        inputs = [iree.runtime.asdevicearray(self._config.device, array) for array in arrays]
        return lambda: function(*inputs)

    def outputs(self, result: Any) -> list[np.ndarray]:
        values = result if isinstance(result, tuple | list) else [result]
        return super().outputs(value.to_host() for value in values)


class Iree(ArtifactRuntime):
    """A static module for each batch size; local-sync with one thread, local-task with more."""

    name = "iree"
    packages = ("torch", "onnx", "onnxscript", "iree.compiler", "iree.runtime")
    extra = "iree"
    libraries = ("iree-base-compiler", "iree-base-runtime")
    compiles = True
    takes_onnx = True
    loaded = _IreeLoaded

    def missing(self, target: Target) -> str | None:
        """Return what is missing; ``iree`` alone may be a namespace."""
        try:
            return super().missing(target)
        except ModuleNotFoundError:  # the parent of a dotted name
            return "iree not installed; pip install 'frameworktax[iree]'"

    def write(self, export: Export) -> dict[int, str]:
        """Export to ONNX, import that into MLIR, compile."""
        files = export_onnx(export, static=True)
        return {batch: _compile(export.folder / name) for batch, name in files.items()}


# --- tract: an ONNX engine in Rust; one thread, no dependencies -----------------------------------


class _TractLoaded(ArtifactLoaded):
    def bind(self, batch: int) -> Call:
        import tract

        arrays = self._artifact.inputs(batch)
        graph = tract.onnx().load(str(self._artifact.file(batch)))
        given = dict(zip(self._artifact.names, arrays, strict=True))
        inputs = []
        for number in range(graph.input_count()):
            array = given[graph.input_name(number)]
            kind = f"{array.dtype.kind}{array.dtype.itemsize * 8}".replace("b8", "bool")
            graph.set_input_fact(number, ",".join([*map(str, array.shape), kind]))
            inputs.append(tract.Tensor.from_numpy(array))
        for number in range(graph.output_count()):
            graph.set_output_fact(number, None)  # the exporter's shapes follow from the inputs'
        run = graph.into_model().into_runnable().run
        return lambda: run(inputs)

    def outputs(self, result: Any) -> list[np.ndarray]:
        return super().outputs(tensor.to_numpy() for tensor in result)


class Tract(ArtifactRuntime):
    """A static graph for each batch size."""

    name = "tract"
    packages = ("torch", "onnx", "onnxscript", "tract")
    extra = "tract"
    loaded = _TractLoaded
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
