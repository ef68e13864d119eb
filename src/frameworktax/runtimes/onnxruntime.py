"""ONNX Runtime on the CPU, and the way from a model to an ONNX file.

Exported by torch's dynamo exporter, inputs and outputs bound. ``onnxruntime@0`` to ``@2`` are its
lower levels of graph optimisation, ``onnxruntime@fused`` its transformer optimiser over the old
exporter's graph.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import (
    ArtifactLoaded,
    ArtifactRuntime,
    Export,
    Memory,
    Serve,
    copying,
    positional,
)
from frameworktax.runtimes.base import SERIAL, Call

if TYPE_CHECKING:
    import numpy as np

FUSED = ("Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention")
"""Operators that are a whole attention layer; each replaces one softmax."""
QUIET = 3
"""ONNX Runtime's log level *error*."""
OPSET = 17
COPIED_BYTES = 1 << 17
"""Inputs up to this size together are copied into a session's own memory, which takes less than to
name and check them; large ones are handed over. ``benchmarks/refund.py --dispatch`` shows what a
call costs."""
BATCH, BERT = "batch", "bert"
LEVELS = {"0": "ORT_DISABLE_ALL", "1": "ORT_ENABLE_BASIC", "2": "ORT_ENABLE_EXTENDED"}
LEVELS |= {"bare": "ORT_DISABLE_ALL"}
ALL = "ORT_ENABLE_ALL"


# --- from a model to files ------------------------------------------------------------------------


def export_onnx(export: Export, *, static: bool = False) -> dict[int, str]:
    """Export a model to ONNX files with the names of its inputs; return batch size → file.

    A model that is an ONNX file is taken as it is. ``static`` writes one for each batch size, its
    shapes fixed.
    """
    path = export.model.onnx_path
    if path is not None:
        return _fix(export, path) if static else _take(export, path)
    import torch

    def write(batches: Sequence[int], file: Path) -> None:
        exported = export.program(batches)
        program = torch.onnx.export(
            exported, (), input_names=export.names, dynamo=True, verbose=False
        )
        program.save(str(file))
        if len(batches) > 1:
            ports = zip(program.model.graph.inputs, export.batch_dims, strict=True)
            symbols = [str(port.shape[dim].value) for port, dim in ports if dim is not None]
            export.free_dimension = symbols[0] if symbols else None

    return export.save("onnx", write, static=static)


def _take(export: Export, path: Path) -> dict[int, str]:
    """Name the model's own file, which stays where it is."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    sizes = {port.name: port.type.tensor_type.shape.dim for port in graph.input}
    for name, dim in zip(export.names, export.batch_dims, strict=True):
        if dim is not None and sizes[name][dim].dim_param:
            export.free_dimension = sizes[name][dim].dim_param
    return dict.fromkeys(export.batches, str(path.resolve()))


def _export_fused(export: Export) -> dict[int, str]:
    """Export with what ONNX Runtime's transformer optimiser knows how to fuse, and fuse.

    That is: eager attention, the old exporter, optimisation level 0. Other combinations fuse no
    attention at all; the note says how many were fused.

    Raises:
        WorkerError: the model is no transformer that the optimiser knows.
    """
    import torch
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    model = export.model
    config = getattr(model.module, "config", None)
    if not hasattr(model.module, "set_attn_implementation") or config is None:
        raise WorkerError("unavailable", "no transformer to fuse; choose onnxruntime")
    plain = copy.deepcopy(model.module)
    plain.set_attn_implementation("eager")
    export.free_dimension = BATCH
    exported = export.folder / "exported.onnx"
    module = positional(replace(model, module=plain))
    tensors = tuple(model.inputs(max(export.batches)).tensors().values())
    export.note_fixed(module, tensors)  # the old exporter traces
    torch.onnx.export(
        module,
        tensors,
        str(exported),
        dynamo=False,
        opset_version=OPSET,
        input_names=export.names,
        dynamic_axes={
            name: {dim: BATCH}
            for name, dim in zip(export.names, export.batch_dims, strict=True)
            if dim is not None
        },
    )
    kind = config.model_type if config.model_type in optimizer.MODEL_TYPES else BERT
    options = FusionOptions(kind)
    if kind == BERT:  # or of each row's mask it takes the number of ones, as if all came first
        options.use_raw_attention_mask()
    fused = optimizer.optimize_model(
        str(exported),
        model_type=kind,
        num_heads=getattr(config, "num_attention_heads", 0),
        hidden_size=getattr(config, "hidden_size", 0),
        optimization_options=options,
        opt_level=0,
    )
    fused.save_model_to_file(str(export.folder / "model.onnx"))
    exported.unlink()
    counts = _operators(fused.model.graph)
    whole = sum(counts[name] for name in FUSED)
    text = (
        f"ONNX Runtime computes {whole} of {whole + counts['Softmax']} attention layers as one "
        "operator"
    )
    export.notes.append(("attention-fused", text))
    return dict.fromkeys(export.batches, "model.onnx")


def _fix(export: Export, path: Path) -> dict[int, str]:
    """Write a copy of an ONNX file for each batch size, with the sizes of its inputs in it.

    For engines that want fixed shapes. What the file says of shapes inside is left out: it names
    sizes that are numbers now.
    """
    import onnx

    def write(batches: Sequence[int], file: Path) -> None:
        whole = onnx.load(str(path))
        del whole.graph.value_info[:]
        given = export.model.inputs(*batches).kwargs
        sizes = {name: tensor.shape for name, tensor in given.items()}
        for port in whole.graph.input:
            dims = port.type.tensor_type.shape.dim
            for dim, size in zip(dims, sizes.get(port.name, ()), strict=False):
                dim.dim_value = size
        for port in whole.graph.output:
            for dim in port.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
        onnx.save(whole, str(file))

    return export.save("onnx", write, static=True)


def _quantize(export: Export, files: Mapping[int, str]) -> dict[int, str]:
    """Quantise the weights of graphs to 8 bits; return the new files, and count in a note.

    The quantiser infers shapes and stops where an annotation of the graph says another: torch's
    exporter leaves that of a linear layer's weight as it was before it folded the transposition.
    So annotations go first; they are nothing that running needs.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder, counts, renamed = export.folder, Counter[str](), {}
    for name in set(files.values()):
        file = folder / name  # an ONNX file given by the user has an absolute path
        renamed[name] = f"{file.stem}-int8.onnx"
        whole = onnx.load(str(file))
        del whole.graph.value_info[:]
        quantize_dynamic(whole, str(folder / renamed[name]), weight_type=QuantType.QInt8)
        graph = onnx.load(str(folder / renamed[name]), load_external_data=False).graph
        counts = _operators(graph)
        if file.parent == folder:
            file.unlink()
    integer = counts["MatMulInteger"] + counts["ConvInteger"]
    rest = counts["MatMul"] + counts["Gemm"] + counts["Conv"]
    text = (
        f"quantize_dynamic: {integer} of {integer + rest} matrix products and convolutions in int8"
    )
    export.notes.append(("quantised-weights", text))
    return {batch: renamed[name] for batch, name in files.items()}


def _operators(graph: Any) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)


# --- from files to calls --------------------------------------------------------------------------


class OnnxLoaded(ArtifactLoaded):
    """Sessions over an artefact, one for each batch size, the batch fixed; inputs are bound."""

    place: tuple[Any, ...] = ()
    """Where inputs and outputs are: the CPU, or device and number."""
    run_options: Any = None
    """Of every run; None for the defaults."""
    trial_options: Any = None
    """Of the run that gives the outputs' shapes."""

    def session(self, batch: int | None) -> Any:
        """Start the session for a batch size on the CPU; for None one that takes any.

        Memory is planned ahead (arena and pattern), or taken as it comes with the option *bare*.
        """
        options = self.session_options(batch)
        options.enable_cpu_mem_arena = options.enable_mem_pattern = self._option != "bare"
        if self._threads() == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return self.open(batch, options, providers=["CPUExecutionProvider"])

    def session_options(self, batch: int | None) -> Any:
        """Return the options of a session for a batch size on any device."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS.get(self._option, ALL))
        options.graph_optimization_level = level
        options.intra_op_num_threads = self._threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = QUIET
        symbol = self._artifact.free_dimension
        if symbol is not None and batch is not None:
            options.add_free_dimension_override_by_name(symbol, batch)
        return options

    def _threads(self) -> int:
        return 1 if self._option == SERIAL else self._target.threads

    def open(self, batch: int | None, options: Any, **settings: Any) -> Any:
        """Start a session on the file that serves a batch size."""
        import onnxruntime

        return onnxruntime.InferenceSession(str(self._artifact.file(batch)), options, **settings)

    def bind(self, batch: int) -> Call:
        """Return a run of the session over bound inputs and preallocated outputs."""
        import onnxruntime

        session = self.session(batch)
        binding = session.io_binding()
        given = dict(zip(self._artifact.names, self._artifact.inputs(batch), strict=True))
        for port in session.get_inputs():  # those the graph still has
            value = onnxruntime.OrtValue.ortvalue_from_numpy(given[port.name], *self.place)
            binding.bind_ortvalue_input(port.name, value)
        outputs = [port.name for port in session.get_outputs()]
        for name in outputs:
            binding.bind_output(name, *self.place)
        session.run_with_iobinding(binding, self.trial_options)  # gives the outputs' shapes
        self.synchronize()
        values: list[Any] = binding.get_outputs()
        for name, value in zip(outputs, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        run, options = session.run_with_iobinding, self.run_options

        # On the CPU a binding reads the arrays' own memory, which older versions do not keep alive.
        def call(_alive: Any = given) -> list[Any]:
            run(binding, options)
            return values

        return call

    def serve(self, batch: int | None) -> Serve:
        """Return a run of the session over the caller's arrays; ONNX Runtime takes many threads.

        Small inputs of known sizes are copied: to name and check arrays takes longer.
        """
        session, names = self.session(batch), self._artifact.names
        if batch is not None and _is_static(session):
            given = self._artifact.inputs(batch)
            if sum(array.nbytes for array in given) <= COPIED_BYTES:
                return copying(lambda: self._memory(session, given))
        run, outputs = session.run, [port.name for port in session.get_outputs()]
        # Those the graph still has.
        places = [(port.name, names.index(port.name)) for port in session.get_inputs()]

        def serve(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            return run(outputs, {name: arrays[at] for name, at in places})  # type: ignore[no-any-return] # an engine's

        return serve

    def _memory(self, session: Any, given: Sequence[np.ndarray]) -> Memory:
        """Return a run over memory of its own; the inputs have the sizes of those given."""
        import numpy as np
        import onnxruntime

        inputs = [array.copy() for array in given]
        named = dict(zip(self._artifact.names, inputs, strict=True))
        here = {port.name: named[port.name] for port in session.get_inputs()}
        outputs = [np.empty_like(made) for made in session.run(None, here)]
        binding = session.io_binding()
        of_array = onnxruntime.OrtValue.ortvalue_from_numpy  # on the CPU it is the array's memory
        for name, array in here.items():
            binding.bind_ortvalue_input(name, of_array(array))
        for port, made in zip(session.get_outputs(), outputs, strict=True):
            binding.bind_ortvalue_output(port.name, of_array(made))
        return partial(session.run_with_iobinding, binding), inputs, outputs

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the bound outputs."""
        return super().outputs(value.numpy() for value in result)


def _is_static(session: Any) -> bool:
    """Return whether all outputs of a session are tensors of known sizes."""
    return all(
        port.type.startswith("tensor(") and all(isinstance(size, int) for size in port.shape)
        for port in session.get_outputs()
    )


class OnnxRuntime(ArtifactRuntime):
    """Graph level *all* by default; one session per batch size with the batch fixed.

    int8 is ``quantize_dynamic``: weights of matrix multiplications in 8 bits, activations
    quantised as they come.
    """

    name = "onnxruntime"
    places = ("operator",)
    precisions: ClassVar[tuple[str, ...]] = ("float32", "int8")
    packages: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime")
    extra = "onnxruntime"
    serves_with: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    tunings: ClassVar[tuple[str, ...]] = ("2", "fused", SERIAL)
    options: ClassVar[Mapping[str, str]] = {
        "0": "no graph optimisation",
        "1": "basic: constants folded, redundant nodes removed",
        "2": "extended: operators fused",
        "fused": "all, after the transformer optimiser has fused attention",
        "bare": "no graph optimisation, no memory planned ahead: no arena, no pattern",
        SERIAL: "one thread, whatever --threads says",
        "int8": "quantize_dynamic; floating-point inputs and outputs",
    }
    takes_onnx = True
    loaded: ClassVar[type[ArtifactLoaded]] = OnnxLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Export to ONNX; fuse or quantise where that was asked for."""
        files = _export_fused(export) if self.option == "fused" else export_onnx(export)
        if self.computes_in(export.target.precision) == "int8":
            files = _quantize(export, files)
        return files
