"""What the runtimes that start from a torch module share: threads, outputs, export."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.models.base import Inputs
from frameworktax.runtimes.artifacts import Artifact, Manifest, inputs_name
from frameworktax.runtimes.base import Call, Loaded, Target

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.models.base import Model


def pin_threads(target: Target) -> None:
    """Give torch this many threads inside an operator and one between operators.

    Compilers bake the number into the loops they write, so it is set before compiling too.
    """
    import torch

    torch.set_num_threads(target.threads)
    if torch.get_num_interop_threads() != 1:  # settable once, and only before the pool starts
        torch.set_num_interop_threads(1)


def flatten(output: Any) -> list[Any]:
    """Return the tensors of a model's output in a stable order, None and plain values left out.

    Takes a tensor, a tuple or list, a mapping (transformers' ``ModelOutput`` is one), nested.

    Raises:
        WorkerError: the output holds no tensor.
    """
    found = list(_tensors(output))
    if not found:
        kind = type(output).__name__
        raise WorkerError("failed", f"the model's output ({kind}) holds no tensor to compare")
    return found


def _tensors(output: Any) -> Iterable[Any]:
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def to_arrays(output: Any) -> list[np.ndarray]:
    """Return an output's tensors as float64 or int64 arrays; complex as pairs of float64."""
    import torch

    arrays = []
    for tensor in flatten(output):
        plain = tensor.detach()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        dtype = torch.float64 if plain.is_floating_point() else torch.int64
        # On the CPU first: not every device has float64. A copy: the next call may write here.
        arrays.append(plain.to("cpu").to(dtype, copy=True).numpy())
    return arrays


def given(model: Model | None) -> Model:
    """Return the model.

    Raises:
        WorkerError: there is none although the runtime needs it.
    """
    if model is None:
        raise WorkerError("failed", "this runtime was loaded without the model it needs")
    return model


class TorchLoaded(Loaded):
    """A callable that takes a model's inputs, called without gradients.

    ``mode`` is entered around every call, as a user's code does.
    """

    def __init__(self, model: Model, target: Target, module: Any, mode: Any) -> None:
        self._model = model
        self._target = target
        self._module = module
        self._mode = mode

    def bind(self, batch: int) -> Call:
        """Return a call of the module on this batch."""
        inputs = self._model.inputs(batch)
        module, args, kwargs, mode = self._module, inputs.args, inputs.kwargs, self._mode

        def call() -> Any:
            with mode():
                return module(*args, **kwargs)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the outputs in the order of the module's own."""
        return to_arrays(result)

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self._target)


class TorchArtifactLoaded(Loaded):
    """Programs that take the tensors of ``Artifact`` in order; one per file, shared by batches."""

    def __init__(self, artifact: Artifact, target: Target) -> None:
        self._artifact = artifact
        self._target = target
        self._programs: dict[Path, Any] = {}

    def open(self, path: Path) -> Any:
        """Load one program; subclasses say how."""
        raise NotImplementedError

    def bind(self, batch: int) -> Call:
        """Return a call of the program that serves this batch."""
        import torch

        path = self._artifact.file(batch)
        if path not in self._programs:
            self._programs[path] = self.open(path)
        program, no_grad = self._programs[path], torch.no_grad
        inputs = self._tensors(batch)

        def call() -> Any:
            with no_grad():
                return program(*inputs)

        return call

    def _tensors(self, batch: int) -> tuple[torch.Tensor, ...]:
        import torch

        arrays = self._artifact.inputs(batch)
        return tuple(
            torch.from_numpy(array).to(self._target.device, getattr(torch, dtype))
            for array, dtype in zip(arrays, self._artifact.manifest.dtypes, strict=True)
        )

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the outputs in the order of the module's own."""
        return to_arrays(result)

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self._target)

    def notes(self) -> list[tuple[str, str]]:
        """Return what export had to say."""
        return self._artifact.manifest.notes


def synchronize(target: Target) -> None:
    """Wait until everything enqueued on a CUDA device is complete; nothing to do on a CPU."""
    if target.is_cuda:
        import torch

        torch.cuda.synchronize(target.device)


# --- export -----------------------------------------------------------------------------------


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


# --- the C++ compiler of Inductor ---------------------------------------------------------------


def missing_compiler() -> str | None:
    """Return why loops cannot be compiled here and what to install, or None if they can."""
    import sysconfig

    if compiler() is None:
        return "no C++ compiler; install g++ (apt install g++) or set CXX"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python headers; install them (apt install python3-dev)"
    return None


def compiler() -> str | None:
    """Return the first C++ compiler found: ``$CXX``, g++, clang++."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def use_directory(directory: Path) -> None:
    """Have Inductor compile with the compiler found and keep everything under ``directory``.

    Must come before Inductor is used: it reads the environment when first asked.
    """
    found = compiler()
    if found is not None:
        os.environ["CXX"] = found
    cache = directory / "inductor-cache"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
