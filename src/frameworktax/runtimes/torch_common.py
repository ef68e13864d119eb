"""What the runtimes that call a torch module share: threads, outputs, decoding, a compiler."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.host.cache import cache_folder, own_entry
from frameworktax.host.machine import ROOT, compiler, read
from frameworktax.models.generate import Decoder
from frameworktax.runtimes import variants
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.models.base import Model

FLOATS = ("float32", "float16", "bfloat16")
"""The precisions a torch module can be cast to."""
NO_TF32 = "float32 is computed without TF32"
CUDNN = ("cudnn", "cudnn.conv", "cudnn.rnn")
MATMULS = ("cuda.matmul", "mkldnn.matmul")


class TorchRuntime(Runtime):
    """What needs torch alone, on any device that it reaches."""

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = FLOATS
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    extra: ClassVar[str] = "torch"
    imports: ClassVar[tuple[str, ...]] = ("torch",)
    has_symbols: ClassVar[bool] = True

    def missing(self, target: Target) -> str | None:
        """Return what is missing, for the option too."""
        return super().missing(target) or variants.missing(self.option, target)


def configure(target: Target) -> None:
    """Have torch compute in this process as measured: for processes that are the tool's own.

    One thread between operators, which can be set once. Compilers bake the number of threads into
    the loops they write, so it is set before compiling too.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    _set(target)


def _set(target: Target) -> None:
    """Set torch's threads and its current device, and have float32 mean float32 on a GPU.

    Events, graphs and compiled programs take the current device, and an operator on another one
    switches to it and back. By default cuDNN computes float32 convolutions in TF32, which other
    runtimes do not: a workload says float32, so TF32 is off.
    """
    import torch

    torch.set_num_threads(target.threads)
    if target.is_cuda:
        torch.cuda.set_device(target.device)
        if target.precision == "float32":
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            # From torch 2.9 on that leaves cuDNN to what is said of all (``fp32_precision``), which
            # the model's own code may have said.
            for place in _precisions(*CUDNN):
                place.fp32_precision = "ieee"


def _precisions(*names: str) -> list[Any]:
    """Return those of torch's backends, by name, that have a precision of float32 (torch 2.9)."""
    import torch

    places = []
    for name in names:
        with contextlib.suppress(AttributeError):
            place = attrgetter(name)(torch.backends)
            places += [place] if hasattr(place, "fp32_precision") else []
    return places


_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def configured(target: Target) -> Iterator[None]:
    """Have torch compute for a while as measured, then again as the program has it.

    Torch's threads, its device and autocast are those of the calling thread; TF32 is on or off for
    all of them, so that on a GPU this is for one thread at a time.
    """
    import torch

    alone = _ONE_AT_A_TIME if target.is_cuda else contextlib.nullcontext()
    with alone, torch.autocast(target.device.partition(":")[0], enabled=False):
        undo: list[Callable[[], object]] = [partial(torch.set_num_threads, torch.get_num_threads())]
        if target.is_cuda:
            undo.append(partial(torch.cuda.set_device, torch.cuda.current_device()))
        if target.is_cuda and target.precision == "float32":
            cudnn: Any = torch.backends.cudnn
            with contextlib.suppress(RuntimeError):  # set by the new names: they are put back below
                found = torch.get_float32_matmul_precision()
                undo.append(partial(torch.set_float32_matmul_precision, found))
            with contextlib.suppress(RuntimeError):
                undo.append(partial(setattr, cudnn, "allow_tf32", cudnn.allow_tf32))
            for place in _precisions(*MATMULS, *CUDNN):
                undo.append(partial(setattr, place, "fp32_precision", place.fp32_precision))
        try:
            _set(target)
            yield
        finally:
            for put_back in undo:
                put_back()


def as_configured(target: Target, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call for which torch is ``configured``; on a CPU by next to no time."""
    import torch

    get, put, wanted = torch.get_num_threads, torch.set_num_threads, target.threads
    casts = torch.is_autocast_enabled

    def slowly(given: Any) -> Any:
        with configured(target):
            return call(given)

    def on_cpu(given: Any) -> Any:
        if casts("cpu"):
            return slowly(given)
        before = get()
        if before == wanted:
            return call(given)
        put(wanted)
        try:
            return call(given)
        finally:
            put(before)

    return slowly if target.is_cuda else on_cpu


def gpu_name(device: str) -> str:
    """Return what compiled code and engines are made for: card, compute capability, driver."""
    import torch

    try:
        card = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError):
        return "no GPU that torch reaches"
    driver = read(ROOT, "sys/module/nvidia/version") or "of unknown version"
    return f"{card.name}, compute capability {card.major}.{card.minor}, driver {driver}"


def confine(threads: int) -> None:
    """Let this process use only ``threads`` processors, so that an engine starts as many threads.

    Must come before the engine is imported or first used: JAX and ExecuTorch size their pools by
    the affinity of the process and ignore torch's setting. Which processors is of no account: the
    session pins the process to those it measures on before it measures.
    """
    usable = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(usable)  # processes that set up side by side spread out
    chosen = [usable[(first + i) % len(usable)] for i in range(min(threads, len(usable)))]
    os.sched_setaffinity(0, chosen)


def quantized(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with the weights of its linear layers in int8, activations as they come.

    Raises:
        WorkerError: this torch has no dynamic quantisation, or the module no linear layer.
    """
    import torch

    # By type, as torch does: it leaves a linear layer that belongs to attention as it is.
    if not any(type(layer) is torch.nn.Linear for layer in module.modules()):
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

    Takes a tensor, a numpy array, a tuple or list, a mapping (transformers' ``ModelOutput`` is
    one), a dataclass, nested.

    Raises:
        WorkerError: the output holds no tensor.
    """
    found = list(_tensors(output))
    if not found:
        kind = type(output).__name__
        raise WorkerError(
            "failed",
            f"the model's output ({kind}) holds no tensor to compare; return a tensor, or a tuple, "
            "list, dict or dataclass of them",
        )
    return found


def _tensors(output: Any) -> Iterable[Any]:
    import numpy as np
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, np.ndarray):
        yield torch.from_numpy(output)
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for one in fields(output):
            yield from _tensors(getattr(output, one.name))


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


def _arithmetic(target: Target) -> str:
    """Say how a device computes, as ``configure`` and the model's own code have set it."""
    import torch

    by_timing = getattr(torch.backends.cudnn, "benchmark", False)
    how = "timing them (torch.backends.cudnn.benchmark)" if by_timing else "its heuristics"
    text = f"cuDNN picks convolutions by {how}"
    return f"{text}; {NO_TF32}" if target.precision == "float32" else text


class TorchLoaded(Loaded):
    """A callable that takes a model's inputs: its module, or what decodes with it.

    ``mode`` is entered around every call, as a user's code does.
    """

    def __init__(
        self,
        model: Model,
        target: Target,
        module: Any,
        mode: Any,
        notes: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._model, self._target, self._mode, self._notes = model, target, mode, notes
        self._module = module
        self._decoder = module if isinstance(module, Decoder) else None
        if target.is_cuda:
            self.note("device-arithmetic", _arithmetic(target))
        if self._decoder is not None:
            self.note("decoded-by", f"decoded by {self._decoder.how}")

    def bind(self, batch: int) -> Call:
        """Return a call of the module on this batch; a decoder makes all tokens of it."""
        inputs = self._model.inputs(batch)
        module, args, kwargs, mode = self._module, inputs.args, inputs.kwargs, self._mode

        def call() -> Any:
            with mode():
                return module(*args, **kwargs)

        return call

    def root(self) -> Any:
        """Return the module."""
        return self._module if self._decoder is None else self._decoder.module

    def first_token_ns(self) -> int | None:
        """Return when the first token of the last call was complete; None for a forward pass."""
        return None if self._decoder is None else self._decoder.first_token_ns


# --- the C++ compiler of Inductor ---------------------------------------------------------------


def use_directory(directory: Path, *, in_cpp: bool = True) -> None:
    """Have Inductor compile with the compiler found and keep everything under ``directory``.

    Must come before Inductor is used: it reads the environment when first asked. What is the same
    for every model stays in the cache, because it takes half a minute of compiling: which vector
    instructions the compiler and this processor have, and precompiled headers. The first is left
    out without ``in_cpp``: kernels for a GPU are Triton's.
    """
    found = compiler()
    if found is not None:
        os.environ["CXX"] = found
        config = sys.modules.get("torch._inductor.config")
        if config is not None:  # a template has imported it: it has read the variable already
            config.cpp.cxx = (None, found)
    shared = own_entry(cache_folder() / "inductor-common")
    shared.mkdir(mode=0o700, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(shared)
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        before, tempfile.tempdir = tempfile.tempdir, str(shared)
        try:
            importlib.import_module("torch._inductor.codecache")
        finally:
            tempfile.tempdir = before
    elif hasattr(codecache, "_HEADER_DIR"):  # a template imported it: they would lie in its TMPDIR
        headers = shared / Path(codecache._HEADER_DIR).parent.name / "precompiled_headers"
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
    if in_cpp:
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list()  # Inductor remembers the answer in this process
    cache = directory / "inductor-cache"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
