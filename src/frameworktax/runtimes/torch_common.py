"""What the runtimes that start from a torch module share: threads, outputs, export."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Call, Loaded, Target

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.models.base import Model

FLOATS = ("float32", "float16", "bfloat16")
"""The precisions a torch module can be cast to."""


def configure(target: Target) -> None:
    """Set torch's threads and its current device, and have float32 mean float32 on a GPU.

    One thread between operators. Compilers bake the number into the loops they write, so it is
    set before compiling too. Events, graphs and compiled programs take the current device, and an
    operator on another one switches to it and back. By default cuDNN computes float32 convolutions
    in TF32, which other runtimes do not: a workload says float32, so TF32 is off.
    """
    import torch

    torch.set_num_threads(target.threads)
    if torch.get_num_interop_threads() != 1:  # settable once, and only before the pool starts
        torch.set_num_interop_threads(1)
    if target.is_cuda:
        torch.cuda.set_device(target.device)
        if target.precision == "float32":
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False


def quantized(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with the weights of its linear layers in int8, activations as they come.

    Raises:
        WorkerError: this torch has no dynamic quantisation, or the module no linear layer.
    """
    import torch

    if not any(isinstance(layer, torch.nn.Linear) for layer in module.modules()):
        raise WorkerError("unavailable", "no linear layer to quantise; choose another --precision")
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as error:
        raise WorkerError(
            "unavailable", "this torch has no dynamic quantisation; choose another --precision"
        ) from error
    return quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)


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
    """A callable that takes a model's inputs.

    ``mode`` is entered around every call, as a user's code does; ``said`` are notes.
    """

    def __init__(
        self,
        model: Model,
        target: Target,
        module: Any,
        mode: Any,
        said: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._said = said
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

    def notes(self) -> list[tuple[str, str]]:
        """Return what there is to say."""
        return list(self._said)


class TorchArtifactLoaded(Loaded):
    """Programs that take the tensors of ``Artifact`` in order; one per file, shared by batches.

    ``mode`` is entered around every call; without one it is ``torch.no_grad``.
    """

    def __init__(self, artifact: Artifact, target: Target, mode: Any = None) -> None:
        self._artifact = artifact
        self._target = target
        self._mode = mode
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
        program, mode = self._programs[path], self._mode or torch.no_grad
        inputs = self._tensors(batch)

        def call() -> Any:
            with mode():
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
