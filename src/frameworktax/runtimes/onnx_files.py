"""Models as ONNX files: exported, fixed in size, attention fused and counted, quantised."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes import decoding
from frameworktax.runtimes.artifacts import positional

if TYPE_CHECKING:
    from frameworktax.runtimes.artifacts import Export, Exported

FUSED = ("Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention")
"""Operators that are a whole attention layer; each replaces one softmax."""
COUNTABLE_BYTES = 1_500_000_000
"""Larger graphs are not counted: they cannot be written as one file."""
QUIET = 3
"""ONNX Runtime's log level *error*."""
OPSET = 17
BATCH = "batch"


def export_onnx(export: Export, *, static: bool = False) -> dict[int, str]:
    """Export a model to ONNX files with the names of its inputs; return batch size → file.

    A model that is an ONNX file is taken as it is. ``static`` writes one for each batch size, its
    shapes fixed.
    """
    path = export.model.onnx_path
    if path is not None:
        return _fix(export, path) if static else _take(export, path)
    import torch

    manifest = export.manifest

    def write(exported: Exported, file: Path) -> None:
        program = torch.onnx.export(
            exported.program, (), input_names=manifest.names, dynamo=True, verbose=False
        )
        if exported.is_dynamic:
            manifest.free_dimension = _symbol(program, manifest.batch_dims)
        program.save(str(file))

    return export.save("onnx", write, static=static)


def export_step(export: Export) -> dict[int, str]:
    """Export one step of decoding to one ONNX file for all batch sizes."""
    import torch

    step, given, made = decoding.export_step(export)
    program = torch.onnx.export(
        step, (), input_names=given, output_names=made, dynamo=True, verbose=False
    )
    export.manifest.free_dimension = _symbol(program, [0] * len(given))
    program.save(str(export.folder / "model.onnx"))
    return dict.fromkeys(export.batches, "model.onnx")


def _take(export: Export, path: Path) -> dict[int, str]:
    """Name the model's own file, which stays where it is."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    sizes = {port.name: port.type.tensor_type.shape.dim for port in graph.input}
    for name, dim in zip(export.manifest.names, export.manifest.batch_dims, strict=True):
        if dim is not None and sizes[name][dim].dim_param:
            export.manifest.free_dimension = sizes[name][dim].dim_param
    return dict.fromkeys(export.batches, str(path.resolve()))


def _symbol(program: Any, dims: Sequence[int | None]) -> str | None:
    """Return the exporter's name for the batch dimension."""
    for value, dim in zip(program.model.graph.inputs, dims, strict=True):
        if dim is not None:
            return str(value.shape[dim].value)
    return None


def export_fused(export: Export) -> dict[int, str]:
    """Export with what ONNX Runtime's transformer optimiser knows how to fuse, and fuse.

    That is: eager attention, the old exporter, optimisation level 0. Other combinations fuse no
    attention at all; the note says how many were fused.

    Raises:
        WorkerError: the model is no transformer that the optimiser knows.
    """
    import torch
    from onnxruntime.transformers import optimizer

    model, manifest = export.model, export.manifest
    config = getattr(model.module, "config", None)
    if not hasattr(model.module, "set_attn_implementation") or config is None:
        raise WorkerError("unavailable", "no transformer to fuse; choose onnxruntime")
    plain = copy.deepcopy(model.module)
    plain.set_attn_implementation("eager")
    manifest.free_dimension = BATCH
    exported = export.folder / "exported.onnx"
    torch.onnx.export(
        positional(replace(model, module=plain)),
        tuple(model.inputs(max(export.batches)).tensors().values()),
        str(exported),
        dynamo=False,
        opset_version=OPSET,
        input_names=manifest.names,
        dynamic_axes={
            name: {dim: BATCH}
            for name, dim in zip(manifest.names, manifest.batch_dims, strict=True)
            if dim is not None
        },
    )
    fused = optimizer.optimize_model(
        str(exported),
        model_type=config.model_type if config.model_type in optimizer.MODEL_TYPES else "bert",
        num_heads=getattr(config, "num_attention_heads", 0),
        hidden_size=getattr(config, "hidden_size", 0),
        opt_level=0,
    )
    fused.save_model_to_file(str(export.folder / "model.onnx"))
    exported.unlink()
    return dict.fromkeys(export.batches, "model.onnx")


def _fix(export: Export, path: Path) -> dict[int, str]:
    """Write a copy of an ONNX file for each batch size, with the sizes of its inputs in it.

    For engines that want fixed shapes. What the file says of shapes inside is left out: it names
    sizes that are numbers now.
    """
    import onnx

    files = export.each("onnx")
    for batch, name in files.items():
        whole = onnx.load(str(path))
        del whole.graph.value_info[:]
        sizes = {key: tensor.shape for key, tensor in export.model.inputs(batch).kwargs.items()}
        for port in whole.graph.input:
            dims = port.type.tensor_type.shape.dim
            for dim, size in zip(dims, sizes.get(port.name, ()), strict=False):
                dim.dim_value = size
        for port in whole.graph.output:
            for dim in port.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
        onnx.save(whole, str(export.folder / name))
    return files


def quantize(export: Export, files: Mapping[int, str]) -> dict[int, str]:
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


def note_attention(export: Export, files: Mapping[int, str], level: str) -> None:
    """Note how many attention layers ONNX Runtime computes as one operator.

    Nothing where the graph has no softmax and no attention.
    """
    import onnx
    import onnxruntime

    file = export.folder / files[max(files)]
    before = _operators(onnx.load(str(file), load_external_data=False).graph)
    layers = before["Softmax"] + sum(before[name] for name in FUSED)
    if not layers or sum(f.stat().st_size for f in file.parent.glob("*.onnx*")) > COUNTABLE_BYTES:
        return
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = QUIET
    optimised = export.folder / "optimised.onnx"
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    after = _operators(onnx.load(str(optimised)).graph)
    optimised.unlink()
    fused = sum(after[name] for name in FUSED)
    text = f"ONNX Runtime computes {fused} of {layers} attention layers as one operator"
    export.notes.append(("attention-fused", text))


def _operators(graph: Any) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)
