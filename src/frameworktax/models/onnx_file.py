"""``onnx:FILE``: an ONNX file as the model itself, for the runtimes that take one.

The file is data: parsed, checked, never executed here. Inputs are drawn by the types and shapes of
its graph. The batch is a symbolic dimension; other symbolic ones take the length or image size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, cut
from frameworktax.models.base import DEFAULT_IMAGE_SIZE, DEFAULT_LENGTH, SEED, Inputs, Model
from frameworktax.records import Workload

WEIGHTS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8")
"""Types of weights; whole numbers of 32 and 64 bits are shapes, axes and ids."""
Shape = list[int | str | None]
"""A dimension is a number, a name, or unknown."""


def check(workload: Workload) -> None:
    """Raise UsageError for a path that holds no file, or another precision; imports nothing."""
    path = Path(workload.model.partition(":")[2])
    if not path.is_file():
        raise UsageError(f"no file {path} (for {workload.model}); check the path")
    if workload.precision not in ("float32", "int8"):
        raise UsageError(
            f"{path} computes in the precision it was written in; leave out --precision"
        )


def build(name: str, workload: Workload) -> Model:
    """Read an ONNX file and find its inputs and batch dimension; the module is a stub.

    Raises:
        UsageError: the file is not whole, not valid, or its batch dimension is not clear.
    """
    import torch

    class NoModule(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise UsageError("an ONNX file has no torch module; choose onnxruntime or openvino")

    path = Path(name.partition(":")[2]).resolve()
    model = read(path)
    shapes = inputs_of(model)
    dims = _batch_dims(path, shapes)
    vocabularies = _vocabularies(model)
    types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}

    def inputs(batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(SEED)
        kwargs = {}
        for key, shape in shapes.items():
            sizes = _sizes(path, key, shape, batch, workload)
            kwargs[key] = _draw(key, types[key], sizes, vocabularies.get(key), generator)
        return Inputs(kwargs=kwargs)

    first: Shape = next(iter(shapes.values()), [])
    fixed = first[0] if first and not dims else 1
    inputs(fixed if isinstance(fixed, int) else 1)  # raises where sizes cannot be
    batch_dims = {f"kwargs.{key}": dim for key, dim in dims.items()}
    return Model(NoModule(), inputs, batch_dims, onnx_path=path)


def read(path: Path) -> Any:
    """Return the parsed file, its external weights not loaded; raises UsageError if invalid."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node:
            raise DecodeError("its graph is empty")
        onnx.checker.check_model(str(path))
    except (DecodeError, onnx.checker.ValidationError) as error:
        text = cut(str(error).strip(" ."))
        raise UsageError(f"{path} is no valid ONNX file ({text}); export it again") from error
    return model


def parameters(path: Path) -> int:
    """Return how many numbers the weights in the file hold."""
    import onnx

    weights = onnx.load(path, load_external_data=False).graph.initializer
    kind = onnx.TensorProto.DataType.Name
    return sum(math.prod(w.dims) for w in weights if kind(w.data_type) in WEIGHTS)


def inputs_of(model: Any) -> dict[str, Shape]:
    """Return the name and shape of every input that is no weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, Shape] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        found[value.name] = [
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
            for dim in value.type.tensor_type.shape.dim
        ]
    return found


def _batch_dims(path: Path, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the batch dimension of each input that has one: the first, where it is symbolic."""
    dims = {key: 0 for key, shape in shapes.items() if shape and not isinstance(shape[0], int)}
    symbolic = any(not isinstance(dim, int) for shape in shapes.values() for dim in shape)
    if not dims and symbolic:
        raise UsageError(
            f"{path}: the batch dimension does not follow from {dict(shapes)}; export it with a "
            "dynamic first dimension"
        )
    return dims


def _sizes(path: Path, name: str, shape: Shape, batch: int, workload: Workload) -> list[int]:
    if shape and isinstance(shape[0], int) and batch != shape[0]:
        raise UsageError(
            f"{path}: input '{name}' has a fixed batch of {shape[0]}; choose --batch {shape[0]}, "
            "or export it with a dynamic batch"
        )
    length, side = workload.length or DEFAULT_LENGTH, workload.image_size or DEFAULT_IMAGE_SIZE
    sizes = []
    for number, dim in enumerate(shape):
        free = length if number == 1 or len(shape) != 4 else side
        sizes.append(dim if isinstance(dim, int) else free if number else batch)
    return sizes


def _vocabularies(model: Any) -> dict[str, int]:
    """Return the rows of the smallest table that an input looks up, where it does so at once."""
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[0] in rows:
            table, ids = node.input
            found[ids] = min(rows[table], found.get(ids, rows[table]))
    return found


def _draw(name: str, kind: int, sizes: list[int], vocabulary: int | None, generator: Any) -> Any:
    """Return noise of this type: ids where a table is looked up, ones for a mask."""
    import onnx
    import torch

    text = onnx.TensorProto.DataType.Name(kind).lower()
    dtype = getattr(torch, {"float": "float32", "double": "float64"}.get(text, text), None)
    if dtype is None:
        raise UsageError(f"input '{name}' is of type {text}, which cannot be drawn")
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(dtype)
    if "mask" in name:
        return torch.ones(sizes, dtype=dtype)
    return torch.randint(0, vocabulary or 2, sizes, generator=generator).to(dtype)
