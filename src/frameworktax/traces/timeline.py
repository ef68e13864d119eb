"""A recorded step as arrays: what the host launched and when the device ran it.

Every reader of traces ends here, whatever the profiler was, and everything that judges a trace
begins here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ns = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a trace; a row is one record of the device, in the order of the launches.

    Rows are ordered by ``launch_start_ns``, rows of one launch (the kernels of a graph) and rows
    without one by ``device_start_ns``. All times stand on one clock: a device whose stamps lie
    before their launches has been shifted.

    Attributes:
        name: as the trace has it, ``ProfilerStep#6``; ``whole trace`` where no step is marked.
        begin_ns: of the step on the host.
        end_ns: of the step on the host.
        launch_start_ns: of the host call that launched the record; -1 where the trace has none.
        launch_end_ns: likewise.
        device_start_ns: of the kernel, copy or memset on the device.
        device_end_ns: likewise.
        stream: on which it ran, -1 where unknown.
        device: on which it ran, -1 where unknown.
        is_graph: launched by the launch of a whole graph.
        is_kernel: a kernel; a copy or memset otherwise.
    """

    name: str
    begin_ns: int
    end_ns: int
    launch_start_ns: Ns
    launch_end_ns: Ns
    device_start_ns: Ns
    device_end_ns: Ns
    stream: Ns
    device: Ns
    is_graph: NDArray[np.bool_]
    is_kernel: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.device_start_ns)

    @property
    def wall_ns(self) -> int:
        """Wall time of the step on the host."""
        return self.end_ns - self.begin_ns
