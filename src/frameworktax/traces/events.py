"""Recorded events as columns: what every reader of traces returns.

What becomes of an event, by its category:

    kernel, gpu_memcpy, gpu_memset     time on the device: DEVICE
    cuda_runtime, cuda_driver          calls on the host; the launching ones are distinguished
    user_annotation (ProfilerStep#N)   a step on the host
    gpu_user_annotation                the same step on the device
    cpu_op, python_function            host operators and Python frames
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

KERNEL, COPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
DEVICE = (KERNEL, COPY, MEMSET)
HOST_CALLS = ("cuda_runtime", "cuda_driver")
CATEGORIES = (
    *DEVICE,
    *HOST_CALLS,
    "user_annotation",
    "gpu_user_annotation",
    "cpu_op",
    "python_function",
)
STEP = "ProfilerStep"

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
KERNEL_LAUNCHES = (
    "cudaLaunch",  # cudaLaunchKernel, …ExC, cudaLaunchCooperativeKernel, cudaLaunchDevice
    "__cudaLaunch",  # what nvcc 13 makes of <<<>>>
    "cuLaunch",  # cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel
    "hipLaunch",
    "hipExtLaunch",
    "hipModuleLaunch",
    "hipExtModuleLaunch",
)
COPY_LAUNCHES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
MEMSET_LAUNCHES = ("cudaMemset", "cuMemset", "hipMemset")
NOT_LAUNCHES = ("cudaLaunchHostFunc", "cuLaunchHostFunc", "hipLaunchHostFunc")


@dataclass(frozen=True, slots=True)
class Events:
    """Complete events as columns of equal length; ``name`` and ``category`` index the tables.

    ``device``, ``stream`` and ``correlation`` are -1 where the trace does not say. ``thread``
    numbers the (pid, tid) pairs in order of appearance.
    """

    names: tuple[str, ...]
    name: NDArray[np.int64]
    category: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.name)

    def where(self, chosen: NDArray[Any]) -> Events:
        """Return the events under a mask, or those of these numbers in their order."""
        return Events(self.names, *(getattr(self, c)[chosen] for c in Events.__slots__[1:]))

    def of(self, *categories: str) -> Events:
        """Return the events of these categories."""
        return self.where(np.isin(self.category, [CATEGORIES.index(c) for c in categories]))

    def named(self, *prefixes: str) -> NDArray[np.bool_]:
        """Return a mask: the name starts with one of these."""
        return self._by_name([n.startswith(prefixes) for n in self.names])

    def containing(self, text: str) -> NDArray[np.bool_]:
        """Return a mask: the name contains this, whatever its case."""
        return self._by_name([text.lower() in n.lower() for n in self.names])

    def matching(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return a mask: the pattern is found in the name."""
        return self._by_name([pattern.search(n) is not None for n in self.names])

    def launching(self, *prefixes: str) -> NDArray[np.bool_]:
        """Return a mask: the name starts with one of these, and is not a host function's launch."""
        return self.named(*prefixes) & ~self.named(*NOT_LAUNCHES)

    def name_of(self, index: int) -> str:
        """Return the name of one event."""
        return self.names[int(self.name[index])]

    def _by_name(self, chosen: list[bool]) -> NDArray[np.bool_]:
        return np.asarray(np.array(chosen, dtype=bool)[self.name], dtype=bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One recorded timeline, and what is known of its file.

    Attributes:
        events: complete events of ``CATEGORIES``, in the file's order.
        resolution_ns: the finest step the written times show: 1, 10, 100 or 1000.
        invalid: events of these categories whose times cannot be (missing, not numbers, negative
            durations); they are in no other number.
        records: read in the file, those of no interest included.
        malformed: records that could not be read at all.
        cut: why the file ends early; None if it does not.
        unread: category → how many records, of devices whose records are not read.
        shapes: (start_ns, device, stream) of a kernel → blocks, threads of a block, registers of
            a thread, bytes of shared memory of a block; of the measuring process's own profile.
        properties: of devices by number, as Kineto writes them.
    """

    events: Events
    resolution_ns: int
    invalid: int
    records: int
    malformed: int = 0
    cut: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[tuple[int, int, int], tuple[int, int, int, int]] = field(default_factory=dict)
    properties: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def device_names(self) -> Mapping[int, str]:
        """Return the names of devices by number, as far as the file has them."""
        names = {number: one.get("name") for number, one in self.properties.items()}
        return {number: name for number, name in names.items() if name and isinstance(name, str)}

    def device(self, index: int | None = None) -> Events:
        """Return kernels, copies and memsets, of one device or of all."""
        found = self.events.of(*DEVICE)
        return found if index is None else found.where(found.device == index)
