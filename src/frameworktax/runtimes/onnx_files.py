"""Models as ONNX files: exported, fixed in size, attention fused and counted, quantised."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes import decoding
from frameworktax.runtimes.artifacts import (
    Artifact,
    export,
    manifest_of,
    positional,
    split,
    staged,
    write_manifest,
)

if TYPE_CHECKING:
    from frameworktax.models.base import Model

FUSED = ("Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention")
"""Operators that are a whole attention layer; each replaces one softmax."""
COUNTABLE_BYTES = 1_500_000_000
"""Larger graphs are not counted: they cannot be written as one file."""
OPSET = 17
BATCH = "batch"


def export_onnx(
    model: Model, batches: Sequence[int], directory: Path, *, static: bool = False
) -> None:
    """Export a model to ONNX files with the names of its inputs, and write the manifest.

    A model that is an ONNX file is taken as it is. ``static`` writes one for each batch size, its
    shapes fixed.
    """
    if model.onnx_path is not None:
        if static:
            _fix(model, model.onnx_path, batches, directory)
        else:
            _take(model, model.onnx_path, batches, directory)
        return
    import torch

    notes: list[tuple[str, str]] = []
    with staged(directory) as folder, torch.no_grad():
        groups = [[batch] for batch in batches] if static else [list(batches)]
        programs = [found for group in groups for found in export(model, group, notes)]
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


def export_step(model: Model, batches: Sequence[int], directory: Path) -> None:
    """Export one step of decoding to one ONNX file for all batch sizes, and write the manifest."""
    import torch

    with staged(directory) as folder, torch.no_grad():
        step = decoding.export_step(model)
        manifest = step.manifest(model, "model.onnx", batches, folder)
        names = {"input_names": step.inputs, "output_names": step.outputs}
        program = torch.onnx.export(step.program, (), dynamo=True, verbose=False, **names)
        manifest.free_dimension = _symbol(program, [0] * len(step.inputs))
        program.save(str(folder / "model.onnx"))
        write_manifest(folder, manifest)


def _take(model: Model, path: Path, batches: Sequence[int], directory: Path) -> None:
    """Write the inputs and a manifest that names the model's own file, which stays where it is."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    with staged(directory) as folder:
        files = dict.fromkeys(batches, str(path.resolve()))
        manifest = manifest_of(model, files, folder, [])
        for name, dim in zip(manifest.names, manifest.batch_dims, strict=True):
            sizes = {port.name: port.type.tensor_type.shape.dim for port in graph.input}[name]
            if dim is not None and sizes[dim].dim_param:
                manifest.free_dimension = sizes[dim].dim_param
        write_manifest(folder, manifest)


def _symbol(program: Any, dims: Sequence[int | None]) -> str | None:
    """Return the exporter's name for the batch dimension."""
    for value, dim in zip(program.model.graph.inputs, dims, strict=True):
        if dim is not None:
            return str(value.shape[dim].value)
    return None


def export_fused(model: Model, batches: Sequence[int], directory: Path) -> None:
    """Export with what ONNX Runtime's transformer optimiser knows how to fuse, and fuse.

    That is: eager attention, the old exporter, optimisation level 0. Other combinations fuse no
    attention at all; the note says how many were fused.

    Raises:
        WorkerError: the model is no transformer that the optimiser knows.
    """
    import torch
    from onnxruntime.transformers import optimizer

    config = getattr(model.module, "config", None)
    if not hasattr(model.module, "set_attn_implementation") or config is None:
        raise WorkerError("unavailable", "no transformer to fuse; choose onnxruntime")
    plain = copy.deepcopy(model.module)
    plain.set_attn_implementation("eager")
    module = positional(replace(model, module=plain))
    size = max(batches)
    with staged(directory) as folder, torch.no_grad():
        manifest = manifest_of(model, dict.fromkeys(batches, "model.onnx"), folder, [])
        manifest.free_dimension = BATCH
        exported = folder / "exported.onnx"
        torch.onnx.export(
            module,
            tuple(split(model.inputs(size))[1]),
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
        kind = config.model_type if config.model_type in optimizer.MODEL_TYPES else "bert"
        fused = optimizer.optimize_model(
            str(exported),
            model_type=kind,
            num_heads=getattr(config, "num_attention_heads", 0),
            hidden_size=getattr(config, "hidden_size", 0),
            opt_level=0,
        )
        fused.save_model_to_file(str(folder / "model.onnx"))
        exported.unlink()
        write_manifest(folder, manifest)


def _fix(model: Model, path: Path, batches: Sequence[int], directory: Path) -> None:
    """Write a copy of an ONNX file for each batch size, with the sizes of its inputs in it.

    For engines that want fixed shapes. What the file says of shapes inside is left out: it names
    sizes that are numbers now.
    """
    import onnx

    with staged(directory) as folder:
        files = {batch: f"model-{batch}.onnx" for batch in batches}
        manifest = manifest_of(model, files, folder, [])
        for batch, name in files.items():
            whole = onnx.load(str(path))
            del whole.graph.value_info[:]
            sizes = {key: tensor.shape for key, tensor in model.inputs(batch).kwargs.items()}
            for port in whole.graph.input:
                dims = port.type.tensor_type.shape.dim
                for dim, size in zip(dims, sizes.get(port.name, ()), strict=False):
                    dim.dim_value = size
            for port in whole.graph.output:
                for dim in port.type.tensor_type.shape.dim:
                    dim.ClearField("dim_param")
            onnx.save(whole, str(folder / name))
        write_manifest(folder, manifest)


def quantize(directory: Path) -> None:
    """Quantise the weights of an artefact's graphs to 8 bits, in place; the note counts them.

    The quantiser infers shapes and stops where an annotation of the graph says another: torch's
    exporter leaves that of a linear layer's weight as it was before it folded the transposition.
    So annotations go first; they are nothing that running needs.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    artifact = Artifact(directory)
    manifest, folder = artifact.manifest, artifact.folder
    counts: Counter[str] = Counter()
    renamed = {}
    for name in set(manifest.files.values()):
        file = folder / name  # an ONNX file given by the user has an absolute path
        renamed[name] = f"{file.stem}-int8.onnx"
        whole = onnx.load(str(file))
        del whole.graph.value_info[:]
        quantize_dynamic(whole, str(folder / renamed[name]), weight_type=QuantType.QInt8)
        graph = onnx.load(str(folder / renamed[name]), load_external_data=False).graph
        counts = Counter(node.op_type for node in graph.node)
        if file.parent == folder:
            file.unlink()
    manifest.files = {batch: renamed[name] for batch, name in manifest.files.items()}
    integer = counts["MatMulInteger"] + counts["ConvInteger"]
    rest = counts["MatMul"] + counts["Gemm"] + counts["Conv"]
    text = (
        f"quantize_dynamic: {integer} of {integer + rest} matrix products and convolutions in int8"
    )
    manifest.notes.append(("quantised-weights", text))
    write_manifest(folder, manifest)


def note_attention(directory: Path, level: str) -> None:
    """Write a note: how many attention layers ONNX Runtime computes as one operator.

    Nothing where the graph has no softmax and no attention.
    """
    import onnx
    import onnxruntime

    artifact = Artifact(directory)
    file = artifact.file(max(artifact.manifest.files))
    before = Counter(
        node.op_type for node in onnx.load(str(file), load_external_data=False).graph.node
    )
    layers = before["Softmax"] + sum(before[name] for name in FUSED)
    if not layers or sum(f.stat().st_size for f in file.parent.glob("*.onnx*")) > COUNTABLE_BYTES:
        return
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    optimised = artifact.folder / "optimised.onnx"
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    after = Counter(node.op_type for node in onnx.load(str(optimised)).graph.node)
    optimised.unlink()
    fused = sum(after[name] for name in FUSED)
    text = f"ONNX Runtime computes {fused} of {layers} attention layers as one operator"
    artifact.manifest.notes.append(("attention-fused", text))
    write_manifest(artifact.folder, artifact.manifest)
