"""A simulated device with exact, known times, on ``frameworktax.testing.FakeClock``.

    clock = FakeClock()
    device = FakeDevice(clock, gap_ns=10)
    device.launch(host_ns=500, kernel_ns=2_000)   # the clock moves on by 500 ns, the device works
    device.synchronize()                          # the clock stands where the kernel ended

``FakeDevice`` follows the replay of two queues: the host spends h on a launch and blocks while Q
launches are pending; a kernel starts when it has arrived (λ after the launch) and the one before
on its stream has ended (g earlier): e_i = max(e_{i−1} + h_i, f_{i−Q}), s_i = max(e_i + λ,
f_{i−1} + g), f_i = s_i + k_i.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from frameworktax.testing import FakeClock
from frameworktax.traces import events, kineto

DEFAULT_STREAM = 7
"""What CUPTI calls the default stream."""


@dataclass
class FakeEvent:
    """An event on the default stream; it completes when all enqueued before it has."""

    device: FakeDevice
    done_ns: int | None = None

    def record(self) -> None:
        """Enqueue the event."""
        self.done_ns = self.device.event_after()

    def query(self) -> bool:
        """Return whether the device has reached the event."""
        return self.done_ns is not None and self.device.clock.now_ns >= self.done_ns

    def elapsed_time(self, later: FakeEvent) -> float:
        """Return the device time until a later event, ms."""
        if self.done_ns is None or later.done_ns is None:
            raise RuntimeError("the event was never recorded")
        return (later.done_ns - self.done_ns) / 1e6


@dataclass(frozen=True, slots=True)
class _Row:
    category: str
    name: str
    start_ns: int
    end_ns: int
    stream: int | None
    correlation: int
    shape: tuple[int, int, int, int] | None = None


LAUNCH_CALLS = {
    "cuda-12": ("cudaLaunchKernel", "cudaLaunchKernelExC"),
    "cuda-13": ("__cudaLaunchKernel", "cudaLaunchKernelExC"),
    "cuda-13-unnamed": ("INVALID", "cudaLaunchKernelExC"),
    "rocm": ("hipLaunchKernel", "hipExtModuleLaunchKernel"),
}
"""What a profile calls the launches of ``<<<>>>`` and of a cluster: CUDA 12; CUDA 13, whose
compiler launches in another way; CUDA 13 with a Kineto from before May 2026, which knows calls up
to 12.2; AMD's runtime, where every other call is ``hip…`` too."""


@dataclass
class FakeDevice:
    """A device with streams, events and a launch queue; see the module for its arithmetic.

    Attributes:
        launch_latency_ns: λ, from the end of the launch call to the earliest start.
        gap_ns: g, between two kernels of one stream.
        queue_depth: Q, launches that may be pending before the host blocks.
        cycles_per_ns: of the clock that spin kernels count.
        rise_ns: of work after which the clock has risen; before, it counts ``idle_clock`` as fast.
        idle_clock: share of ``cycles_per_ns`` at which the clock begins.
        event_ns: device time that each event takes.
        calls: which of ``LAUNCH_CALLS`` a profile shows.
        properties: of the device, as Kineto writes them; None leaves them out.
        lose: kernel records a profile loses, given the number of the record in that profile.
        stray: by how much kernels of a graph miss the number of its launch, in every profile but
            the first: CUPTI before 13.1 update 1.
    """

    clock: FakeClock
    launch_latency_ns: int = 0
    gap_ns: int = 0
    queue_depth: int = 1024
    cycles_per_ns: float = 1.0
    rise_ns: int = 0
    idle_clock: float = 1.0
    event_ns: int = 0
    calls: str = "cuda-12"
    properties: dict[str, int] | None = None
    index: int = 0
    lose: Callable[[int], bool] = field(default=lambda number: False)
    stray: int = 0
    _free: dict[int, int] = field(default_factory=dict)
    _pending: list[int] = field(default_factory=list)
    _rows: list[_Row] | None = None
    _correlation: int = 0
    _worked_ns: int = 0
    _shows_operators: bool = False
    _profiles: int = 0

    def event_after(self) -> int:
        """Return when an event that is enqueued now completes."""
        done = max(self.clock.now_ns, self.free_ns(DEFAULT_STREAM)) + self.event_ns
        if self.event_ns:
            self._free[DEFAULT_STREAM] = done
        return done

    def free_ns(self, stream: int) -> int:
        """Return when the stream has done all that is enqueued."""
        return self._free.get(stream, 0)

    def launch(
        self,
        *,
        kernel_ns: int,
        host_ns: int = 0,
        stream: int = DEFAULT_STREAM,
        category: str = events.KERNEL,
        name: str = "kernel",
        cluster: bool = False,
        shape: tuple[int, int, int, int] | None = None,
    ) -> None:
        """Launch one kernel (or copy, or memset, by ``category``).

        Args:
            kernel_ns: on the device.
            host_ns: of the launch call.
            stream: on which it runs.
            category: of ``traces.events.DEVICE``.
            name: of the kernel.
            cluster: launch it by the call that takes attributes, as clusters of blocks need.
            shape: blocks, threads of a block, registers of a thread, bytes of shared memory.
        """
        api = {
            events.KERNEL: LAUNCH_CALLS[self.calls][cluster],
            events.COPY: "cudaMemcpyAsync",
            events.MEMSET: "cudaMemsetAsync",
        }[category]
        self._enqueue(api, [(category, name, kernel_ns)], host_ns, stream, shape)

    def copy_out(self, *, copy_ns: int, host_ns: int = 0) -> None:
        """Copy to pageable memory, by a call that returns when the copy is done."""
        at = len(self._rows) if self._rows is not None else 0
        self.launch(
            kernel_ns=copy_ns, host_ns=host_ns, category=events.COPY,
            name="Memcpy DtoH (Device -> Pageable)",
        )  # fmt: skip
        self.clock.wait_until(self.free_ns(DEFAULT_STREAM))
        if self._rows is not None:
            self._rows[at] = replace(self._rows[at], end_ns=self.clock.now_ns)

    def replay(self, kernels_ns: Sequence[int], *, host_ns: int = 0) -> None:
        """Launch a graph: one launch, many kernels."""
        rows = [(events.KERNEL, f"node {i}", ns) for i, ns in enumerate(kernels_ns)]
        self._enqueue("cudaGraphLaunch", rows, host_ns, DEFAULT_STREAM)

    def host_call(self, name: str, host_ns: int = 0) -> None:
        """Make a call of the driver that launches nothing."""
        self._correlation += 1
        called = self.clock.now_ns
        self.clock.work(host_ns)
        self._note(_Row("cuda_runtime", name, called, self.clock.now_ns, None, self._correlation))

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        self._correlation += 1
        called = self.clock.now_ns
        self.clock.wait_until(max(self._free.values(), default=0))
        name = "cudaDeviceSynchronize"
        self._note(_Row("cuda_runtime", name, called, self.clock.now_ns, None, self._correlation))

    def event(self) -> FakeEvent:
        """Return a new event."""
        return FakeEvent(self)

    def spin(self, cycles: int) -> None:
        """Enqueue a kernel that runs for so many cycles."""
        rate = self.cycles_per_ns * (self.idle_clock if self._worked_ns < self.rise_ns else 1)
        self.launch(kernel_ns=round(cycles / rate), name="spin_kernel")

    def marker(self) -> None:
        """Enqueue the kernel that marks the border between two calls."""
        self.launch(kernel_ns=1_000, host_ns=100, name="NextafterFunctor<float>")

    @contextmanager
    def operator(self, name: str) -> Iterator[None]:
        """Be inside a host operator, which a profile shows if it was asked for operators."""
        begin = self.clock.now_ns
        at = len(self._rows) if self._rows is not None else 0
        yield
        if self._rows is not None and self._shows_operators:
            self._rows.insert(at, _Row("cpu_op", name, begin, self.clock.now_ns, None, -1))

    def profile(self, work: Callable[[], None], operators: bool = False) -> events.Trace:
        """Run ``work`` and return what a profile of it holds."""
        self._shows_operators = operators
        self._profiles += 1
        self._rows = []
        try:
            work()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "trace.json")
                path.write_text(self._export(self._rows), encoding="utf-8")
                return kineto.read(path, own=True)
        finally:
            self._rows = None

    def _enqueue(
        self,
        api: str,
        rows: Sequence[tuple[str, str, int]],
        host_ns: int,
        stream: int,
        shape: tuple[int, int, int, int] | None = None,
    ) -> None:
        called = self.clock.now_ns
        self.clock.work(host_ns)
        self._pending = [end for end in self._pending if end > self.clock.now_ns]
        if len(self._pending) >= self.queue_depth:
            self.clock.wait_until(sorted(self._pending)[-self.queue_depth])
        self._correlation += 1
        self._note(_Row("cuda_runtime", api, called, self.clock.now_ns, None, self._correlation))
        end = self.free_ns(stream)
        for category, name, duration in rows:
            arrived = self.clock.now_ns + self.launch_latency_ns
            start = max(arrived, end + self.gap_ns) if stream in self._free else arrived
            end = self._free[stream] = start + duration
            self._worked_ns += duration
            number = self._correlation
            if api == "cudaGraphLaunch" and self._profiles > 1:
                number += self.stray
            self._note(_Row(category, name, start, end, stream, number, shape))
        self._pending.append(end)

    def _note(self, row: _Row) -> None:
        if self.calls == "rocm" and row.name.startswith("cuda"):
            row = replace(row, name=f"hip{row.name.removeprefix('cuda')}", category="hip_runtime")
        if self._rows is not None:
            self._rows.append(row)

    def _export(self, rows: Sequence[_Row]) -> str:
        lines = []
        for row in rows:
            on_device = row.stream is not None
            place = f'"device":{self.index},"stream":{row.stream},' if on_device else ""
            if row.shape is not None:
                blocks, threads, registers, shared = row.shape
                place += (
                    f'"grid":[{blocks},1,1],"block":[{threads},1,1],'
                    f'"registers per thread":{registers},"shared memory":{shared},'
                )
            start, length = row.start_ns, row.end_ns - row.start_ns
            lines.append(
                f'{{"ph":"X","cat":"{row.category}","name":"{row.name}","pid":0,"tid":0,'
                f'"ts":{start // 1000}.{start % 1000:03d},'
                f'"dur":{length // 1000}.{length % 1000:03d},'
                f'"args":{{{place}"correlation":{row.correlation}}}}}'
            )
        device = [i for i, row in enumerate(rows) if row.stream is not None]
        lost = {i for number, i in enumerate(device) if self.lose(number)}
        kept = (line for i, line in enumerate(lines) if i not in lost)
        devices = [{"id": self.index, **self.properties}] if self.properties else []
        head = f'"deviceProperties": {json.dumps(devices)}'
        return "{" + head + ', "traceEvents": [' + ",\n".join(kept) + "]}"
