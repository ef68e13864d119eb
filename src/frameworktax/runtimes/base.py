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

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model

Call = Callable[[], Any]


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

    @abstractmethod
    def bind(self, batch: int) -> Call:
        """Return a call that runs the model on the inputs of this batch size."""

    @abstractmethod
    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return a call's result as float64/int64 arrays, in the order eager gives them."""

    def synchronize(self) -> None:  # noqa: B027 - a CPU runtime has nothing to wait for
        """Wait until everything enqueued is complete on the device."""

    def notes(self) -> list[tuple[str, str]]:
        """Return (code, text) notes that belong beside every number of this runtime."""
        return []


class Runtime(ABC):
    """One way to run a model."""

    name: ClassVar[str]
    paradigm: ClassVar[str]
    """One of: eager, deferred, ahead-of-time, graph-replay, sparse-input, floor."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("float32",)
    packages: ClassVar[tuple[str, ...]] = ()
    """Importable names that must be there."""
    extra: ClassVar[str] = ""
    """The extra that installs them: ``pip install 'frameworktax[extra]'``."""
    needs_model: ClassVar[bool] = True
    """Whether ``load`` needs the built model, or only what ``prepare`` left."""
    has_symbols: ClassVar[bool] = True
    """Whether kernels and executor can be told apart by symbol; otherwise the twin is used."""
    prepares: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    """Whether set-up is long (tens of seconds), so that budgets plan for it."""

    def missing(self, target: Target) -> str | None:
        """Return why this runtime cannot run here and what to do, or None if it can."""
        absent = [p for p in self.packages if importlib.util.find_spec(p) is None]
        if absent:
            return f"{', '.join(absent)} not installed; pip install 'frameworktax[{self.extra}]'"
        kind = "cuda" if target.is_cuda else "cpu"
        if kind not in self.devices:
            return f"runs on {' and '.join(self.devices)} only; choose --device {self.devices[0]}"
        if target.precision not in self.precisions:
            have = ", ".join(self.precisions)
            return f"no {target.precision} here; choose --precision {have}"
        return None

    def prepare(  # noqa: B027 - most runtimes have nothing to prepare
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export or compile ``model`` for these batch sizes into ``directory``."""

    @abstractmethod
    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Make the runtime ready in this process; ``model`` is None unless ``needs_model``."""
