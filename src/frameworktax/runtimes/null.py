"""The floor: a call that does nothing, so that its time is the harness's own.

On a device that includes the synchronise which ends every call there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.records import KV_CACHES, PRECISIONS
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.torch_common import synchronize

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model


def _nothing() -> None:
    """Do nothing."""


class _NullLoaded(Loaded):
    def __init__(self, target: Target) -> None:
        self._target = target

    def synchronize(self) -> None:
        """Wait for the device, as every call there does."""
        synchronize(self._target)

    def bind(self, batch: int) -> Call:
        return _nothing

    def outputs(self, result: Any) -> list[np.ndarray]:
        return []


class Null(Runtime):
    """Computes nothing, on any device and in any precision."""

    name = "null"
    paradigm = "floor"
    devices = ("cpu", "cuda")
    precisions = PRECISIONS
    kv_caches = KV_CACHES
    keeps_channels_last = True
    needs_model = False

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Return the call that does nothing."""
        return _NullLoaded(target)
