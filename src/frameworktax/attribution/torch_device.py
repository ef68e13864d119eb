"""The few things device attribution asks of a device, and how torch does them.

Kept apart so that the arithmetic around them runs, exactly, on ``tests/data/fake_device.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frameworktax.traces.events import Trace

MARKER = "nextafter"
"""In the marker kernel's name, in every torch from 1.7 on: ``nextafter_kernel_cuda`` in the name
of its lambda, ``NextafterFunctor`` later (aten/src/ATen/native/cuda/StepKernel.cu). No model takes
the next representable number."""


class TorchDevice:
    """A CUDA (or ROCm) device through torch.

    Attributes:
        index: number of the device in a profile.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self.index = self._device.index or 0
        torch.cuda.set_device(self._device)
        with torch.inference_mode(False):  # else the marker could not write to it outside
            self._one, self._two = (torch.full((1,), v, device=self._device) for v in (1.0, 2.0))
            self._next = torch.empty_like(self._one)
        self.marker()  # load the kernel now, not between two calls
        self.synchronize()

    def event(self) -> Any:
        """Return a new ``torch.cuda.Event`` that takes the time."""
        return self._torch.cuda.Event(enable_timing=True)

    def spin(self, cycles: int) -> None:
        """Enqueue a kernel that runs for so many cycles of the device's clock."""
        self._torch.cuda._sleep(cycles)

    def marker(self) -> None:
        """Enqueue a kernel whose name contains ``MARKER``; its output is allocated once before."""
        with self._torch.no_grad():
            self._torch.nextafter(self._one, self._two, out=self._next)

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        self._torch.cuda.synchronize(self._device)

    def profile(self, work: Callable[[], None], operators: bool = False) -> Trace:
        """Run ``work`` with device activity only, or also with host operators, which slow the host.

        The result goes through the exported file, because only that keeps nanoseconds, the host's
        launch calls and their correlation in every version.
        """
        from torch.profiler import ProfilerActivity, profile

        from frameworktax.traces import kineto

        # Sessions follow each other while graphs are alive, and CUPTI taken down and brought up
        # again then crashes; torch.profiler sets the same two for Inductor's graphs.
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        with tempfile.TemporaryDirectory(prefix="frameworktax-") as folder:
            path = Path(folder) / "trace.json"
            host = [ProfilerActivity.CPU] if operators else []
            with profile(activities=[*host, ProfilerActivity.CUDA]) as profiler:
                work()
            profiler.export_chrome_trace(str(path))
            return kineto.read(path, own=True)
