"""Exported ONNX graphs rewritten: attention fused and counted, weights quantised."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.host.files import atomic_path
from frameworktax.runtimes.artifacts import MANIFEST, Artifact, Manifest, staged, write_manifest
from frameworktax.runtimes.export import manifest_of, positional, split

if TYPE_CHECKING:
    from frameworktax.models.base import Model

FUSED = ("Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention")
"""Operators that are a whole attention layer; each replaces one softmax."""
COUNTABLE_BYTES = 1_500_000_000
"""Larger graphs are not counted: they cannot be written as one file."""
OPSET = 17
BATCH = "batch"


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
    module = positional(_with_module(model, plain))
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


def _with_module(model: Model, module: Any) -> Model:
    return replace(model, module=module)


def fix(model: Model, path: Path, batches: Sequence[int], directory: Path) -> None:
    """Write a copy of an ONNX file for each batch size, with the sizes of its inputs in it.

    For engines that want fixed shapes. What the file says of shapes inside is left out: it speaks
    of names for sizes that are numbers now.
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
    _rewrite(folder, manifest)


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
    _rewrite(artifact.folder, artifact.manifest)


def _rewrite(folder: Path, manifest: Manifest) -> None:
    with atomic_path(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(asdict(manifest)), encoding="utf-8")
