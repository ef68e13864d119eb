"""What a runtime is: one file, one class, one registry line.

A runtime turns a model into something that can be called. It works in up to three steps, each in
a process that may be a different one:

1. ``missing(target)``: asked in the parent, without importing anything heavy: why this runtime
   cannot run here and what to install, or None.
2. ``prepare(model, batches, target, directory)``: once per model; exports or compiles and leaves
   files in ``directory``, so that the measuring processes need not load the model's library.
3. ``load(model, target, directory)`` in each measuring process, then ``bind(batch)`` once per
   batch size: returns a call without arguments, which is what gets timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.libraries import not_installed

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model
    from frameworktax.records import By, Workload

Call = Callable[[], Any]
SERIAL = "serial"
"""The option of an engine that has one thread whatever the others have."""
LOWER = ("bfloat16", "int8")
"""Options that compute in a lower precision, from inputs to outputs in the model's own."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to run: ``device`` is ``cpu`` or ``cuda:N``."""

    device: str = "cpu"
    precision: str = "float32"
    threads: int = 1

    @property
    def is_cuda(self) -> bool:
        """Whether the device is an NVIDIA or AMD GPU driven through torch's ``cuda``."""
        return self.device.startswith("cuda")


class Loaded(ABC):
    """A runtime ready to be called."""

    _target = Target()
    _notes: Sequence[tuple[str, str]] = ()

    @abstractmethod
    def bind(self, batch: int) -> Call:
        """Return a call that runs the model on the inputs of this batch size."""

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return a call's result as float64/int64 arrays, in the order eager gives them.

        By default it is what a module returns.
        """
        from frameworktax.runtimes.torch_common import to_arrays

        return to_arrays(result)

    def synchronize(self) -> None:
        """Wait until everything enqueued on a device is complete; nothing to do on a CPU."""
        if self._target.is_cuda:
            import torch

            torch.cuda.synchronize(self._target.device)

    def first_token_ns(self) -> int | None:
        """Return the ``time.perf_counter_ns`` at which the last call's first token was there.

        None for what generates no tokens.
        """
        return None

    def root(self) -> Any:
        """Return the ``torch.nn.Module`` that calls run in Python, None for what runs elsewhere."""
        return None

    def note(self, code: str, text: str) -> None:
        """Add a note, once."""
        if (code, text) not in self._notes:
            self._notes = [*self._notes, (code, text)]

    def notes(self) -> list[tuple[str, str]]:
        """Return (code, text) notes that belong beside every number of this runtime."""
        return list(self._notes)


class Runtime(ABC):
    """One way to run a model."""

    name: str
    paradigm: ClassVar[str]
    """One of: eager, deferred, ahead-of-time, graph-replay, sparse-input, floor."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("float32",)
    packages: ClassVar[tuple[str, ...]] = ()
    """Importable names that must be there."""
    extra: ClassVar[str] = ""
    """The extra that installs them, ``pip install 'frameworktax[extra]'``; empty for none."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that move its numbers and are named like no package above."""
    options: ClassVar[Mapping[str, str]] = {}
    """What may stand behind an @ in its name (``onnxruntime@1``), each in a few words."""
    option: str = ""
    """The one that stands there."""
    needs_model: ClassVar[bool] = True
    """Whether ``load`` needs the built model, or only what ``prepare`` left."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Names in ``models.libraries`` that ``load`` and ``bind`` import, the model's left out."""
    has_symbols: ClassVar[bool] = True
    """Whether symbols distinguish kernels from executor; else machine code does, or the twin."""
    prepares: ClassVar[bool] = False
    serves_with: ClassVar[tuple[str, ...]] = ()
    """Distributions that running what it prepared needs; none: it cannot be delivered."""
    tunings: ClassVar[tuple[str, ...]] = ()
    """Those of ``options`` that may make it faster with equal outputs, for ``optimize`` to try."""
    by_name_only: ClassVar[bool] = False
    """Whether ``all`` leaves it out: set-up that would eat any ordinary budget."""
    compiles: ClassVar[bool] = False
    """Whether set-up is long (tens of seconds), so that budgets plan for it."""
    takes_onnx: ClassVar[bool] = False
    """Whether it runs an ONNX file as it is; the others start from a torch module."""
    inputs: ClassVar[tuple[str, ...]] = ("dense", "ragged")
    """Kinds of input it takes; a ragged one is to most runtimes just another mask."""
    kv_caches: ClassVar[tuple[str, ...]] = ()
    """Caches of ``--kv-cache`` it generates with; none: it runs forward passes only."""
    keeps_channels_last: ClassVar[bool] = False
    """Whether images reach it in the memory format asked for."""
    places: ClassVar[tuple[By, ...]] = ()
    """What its breakdown can be broken down by: modules where they run one by one in Python,
    operators where functions that call kernels are known by name."""

    def places_on(self, target: Target) -> tuple[By, ...]:
        """Return what the time of this runtime can be broken down by.

        On a device a profile joins kernels to modules and operators, where modules run in Python.
        """
        if target.is_cuda:
            return ("module", "operator") if "module" in self.places else ()
        return self.places

    def computes_in(self, precision: str) -> str:
        """Return the precision it computes a workload of this precision in."""
        return self.option if self.option in LOWER else precision

    def variables(self) -> Mapping[str, str]:
        """Return environment variables that its measuring processes are started with."""
        return {}

    def distributions(self) -> set[str]:
        """Return the distributions whose versions are recorded and part of its artifacts' key."""
        return {name.replace("_", "-") for name in self.packages} | {*self.libraries}

    def missing(self, target: Target) -> str | None:
        """Return why this runtime cannot run here and what to do, or None if it can."""
        if reason := not_installed(self.packages, self.extra):
            return reason
        kind = "cuda" if target.is_cuda else "cpu"
        if kind not in self.devices:
            return f"runs on {' and '.join(self.devices)} only; choose --device {self.devices[0]}"
        if target.precision not in self.precisions:
            have = ", ".join(self.precisions)
            return f"no {target.precision} here; choose --precision {have}"
        return None

    def cannot(self, workload: Workload) -> str | None:
        """Return why this runtime cannot run this workload and what to choose, or None if it can.

        Asked in the parent, without the model: what only the model shows, ``prepare`` or ``load``
        raises as ``WorkerError("unavailable", …)``.
        """
        if workload.model.startswith("onnx:") and not self.takes_onnx:
            return "runs torch modules, no ONNX file; choose --runtimes onnxruntime,openvino"
        if workload.phase == "generate" and workload.kv_cache not in self.kv_caches:
            if not self.kv_caches:
                return (
                    "runs forward passes only; leave out --phase generate, or choose --runtimes "
                    "eager,inference-mode,inductor"
                )
            have = " or ".join(self.kv_caches)
            return f"generates only with --kv-cache {have}, not {workload.kv_cache}"
        if workload.input not in self.inputs:
            return f"takes {' or '.join(self.inputs)} input only; choose --input {self.inputs[0]}"
        if workload.channels_last and not self.keeps_channels_last:
            return "keeps no memory format; leave out --channels-last"
        return None

    def prepare(  # noqa: B027 - most runtimes have nothing to prepare
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export or compile ``model`` for these batch sizes into ``directory``."""

    @abstractmethod
    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Make the runtime ready in this process; ``model`` is None unless ``needs_model``."""
