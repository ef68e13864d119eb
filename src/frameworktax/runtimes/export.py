"""From a torch module to an exported program and the files a measuring process needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.models.base import Inputs
from frameworktax.runtimes.artifacts import Manifest, inputs_name
from frameworktax.runtimes.torch_common import flatten

if TYPE_CHECKING:
    import torch

    from frameworktax.models.base import Model


def split(inputs: Inputs) -> tuple[list[str], list[Any]]:
    """Return the paths and values of all tensors in the inputs, in order."""
    import torch

    named = [(f"args.{i}", value) for i, value in enumerate(inputs.args)]
    named += [(f"kwargs.{name}", value) for name, value in inputs.kwargs.items()]
    tensors = [(path, value) for path, value in named if isinstance(value, torch.Tensor)]
    return [path for path, _ in tensors], [value for _, value in tensors]


def positional(model: Model) -> torch.nn.Module:
    """Return the model as a module from tensors in order to a tuple of tensors in order.

    This is what every exporter takes. Values that are not tensors become constants; None in the
    output is dropped, as ``flatten`` does for eager, so that outputs pair up.
    """
    import torch

    example = model.inputs(1)
    paths, _ = split(example)

    class Positional(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(paths, tensors, strict=True))
            args = [given.get(f"args.{i}", value) for i, value in enumerate(example.args)]
            kwargs = {k: given.get(f"kwargs.{k}", value) for k, value in example.kwargs.items()}
            return tuple(flatten(self.module(*args, **kwargs)))

    return Positional(model.module).eval()


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported program and the batch sizes it serves."""

    program: torch.export.ExportedProgram
    batches: tuple[int, ...]
    is_dynamic: bool


def export(model: Model, batches: Sequence[int], notes: list[tuple[str, str]]) -> list[Exported]:
    """Export with a dynamic batch; where that fails, once for each batch size, and say so.

    A single batch size is exported as it is. Where the batch is dynamic, the example has a batch
    above 1: torch specialises sizes 0 and 1.
    """
    import torch

    module = positional(model)
    if len(batches) > 1:
        size = min(b for b in batches if b > 1)
        try:
            program = torch.export.export(
                module, _example(model, size), dynamic_shapes=_dynamic_shapes(model)
            )
            return [Exported(program, tuple(batches), True)]
        except Exception as error:  # noqa: BLE001 - exporters raise anything; the note tells
            notes.append(static_note(error))
    return [Exported(torch.export.export(module, _example(model, b)), (b,), False) for b in batches]


def static_note(error: Exception) -> tuple[str, str]:
    """Return the note that says why each batch size was exported on its own."""
    first = str(error).strip().partition("\n")[0][:200]
    text = (
        f"exported once for each batch size, a dynamic one fails: {type(error).__name__}: {first}"
    )
    return ("exported-per-batch", text)


def _example(model: Model, batch: int) -> tuple[Any, ...]:
    # Contiguous copies: some exporters trip over views of an example.
    return tuple(tensor.contiguous() for tensor in split(model.inputs(batch))[1])


def _dynamic_shapes(model: Model) -> dict[str, Any]:
    import torch

    batch = torch.export.Dim("batch", min=1)
    paths, _ = split(model.inputs(1))
    return {
        "tensors": tuple(
            {model.batch_dims[path]: batch} if path in model.batch_dims else None for path in paths
        )
    }


def save_inputs(
    model: Model, batches: Sequence[int], folder: Path
) -> tuple[list[str], list[str], list[int | None]]:
    """Write the inputs of every batch size; return names, dtypes and batch dimensions."""
    import numpy as np
    import torch

    for batch in batches:
        _, tensors = split(model.inputs(batch))
        arrays = {
            f"{i}": (t.float() if t.dtype == torch.bfloat16 else t).cpu().numpy()
            for i, t in enumerate(tensors)
        }
        np.savez(folder / inputs_name(batch), **arrays)
    paths, tensors = split(model.inputs(batches[0]))
    names = [
        f"input_{p.removeprefix('args.')}" if p.startswith("args.") else p.removeprefix("kwargs.")
        for p in paths
    ]
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    return names, dtypes, [model.batch_dims.get(path) for path in paths]


def manifest_of(
    model: Model,
    files: Mapping[int, str],
    folder: Path,
    notes: list[tuple[str, str]],
) -> Manifest:
    """Write the inputs of every batch size in ``files`` and return the manifest to write."""
    names, dtypes, dims = save_inputs(model, sorted(files), folder)
    return Manifest(
        files=dict(files), names=names, dtypes=dtypes, batch_dims=dims, notes=model.notes + notes
    )
