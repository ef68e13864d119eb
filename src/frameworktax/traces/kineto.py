"""Reader of Kineto traces: what torch.profiler exports as Chrome trace JSON.

Kineto writes microseconds with three decimals (older versions: whole microseconds). As a binary
float an epoch time in microseconds has no room for nanoseconds, so times are taken from the
decimal text and become integer nanoseconds, exactly.

What becomes of each complete event (``"ph": "X"``):

    kernel, gpu_memcpy, gpu_memset     time on the device: DEVICE
    cuda_runtime, cuda_driver          calls on the host; the launching ones are told apart
    user_annotation (ProfilerStep#N)   a step on the host
    gpu_user_annotation                the same step on the device
    cpu_op, python_function            host operators and Python frames

Everything else (flows, metadata, overhead rows: pytorch#193392) is left out.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.errors import TraceError
from frameworktax.traces import intervals

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
    "cuLaunch",  # cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel
    "hipLaunch",
    "hipExtLaunch",
    "hipModuleLaunch",
    "hipExtModuleLaunch",
)
COPY_LAUNCHES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy")
MEMSET_LAUNCHES = ("cudaMemset", "cuMemset", "hipMemset")
NOT_LAUNCHES = ("cudaLaunchHostFunc", "cuLaunchHostFunc", "hipLaunchHostFunc")

LIMIT = 2**62
"""Anything above is no time, and sums must fit 64 bits."""


class DecimalText(str):
    """A number with a fraction, kept as it was written."""

    __slots__ = ()


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

    def where(self, mask: NDArray[np.bool_]) -> Events:
        """Return the events under the mask."""
        return Events(self.names, *(getattr(self, c)[mask] for c in Events.__slots__[1:]))

    def take(self, order: NDArray[np.integer[Any]]) -> Events:
        """Return events by their numbers, in that order."""
        return Events(self.names, *(getattr(self, c)[order] for c in Events.__slots__[1:]))

    def of(self, *categories: str) -> Events:
        """Return the events of these categories."""
        return self.where(np.isin(self.category, [CATEGORIES.index(c) for c in categories]))

    def named(self, *prefixes: str) -> NDArray[np.bool_]:
        """Return a mask: the name starts with one of these."""
        return self._by_name([n.startswith(prefixes) for n in self.names])

    def containing(self, text: str) -> NDArray[np.bool_]:
        """Return a mask: the name contains this, whatever its case."""
        return self._by_name([text.lower() in n.lower() for n in self.names])

    def name_of(self, index: int) -> str:
        """Return the name of one event."""
        return self.names[int(self.name[index])]

    def _by_name(self, chosen: list[bool]) -> NDArray[np.bool_]:
        return np.asarray(np.array(chosen, dtype=bool)[self.name], dtype=bool)


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded timeline.

    Attributes:
        events: complete events of ``CATEGORIES``, in the file's order.
        resolution_ns: the finest step the written times show: 1, 10, 100 or 1000.
        invalid: events of these categories whose times cannot be (missing, not numbers, negative
            durations); they are in no other number.
    """

    events: Events
    resolution_ns: int
    invalid: int

    def device(self, index: int | None = None) -> Events:
        """Return kernels, copies and memsets, of one device or of all."""
        found = self.events.of(*DEVICE)
        return found if index is None else found.where(found.device == index)

    def kernel_launches(self) -> Events:
        """Return host calls that launch one kernel each."""
        calls = self.events.of(*HOST_CALLS)
        return calls.where(launches_kernel(calls))

    def graph_launches(self) -> Events:
        """Return host calls that launch a whole graph."""
        calls = self.events.of(*HOST_CALLS)
        return calls.where(calls.named(*GRAPH_LAUNCHES))

    def copy_launches(self) -> Events:
        """Return host calls that start a copy."""
        calls = self.events.of(*HOST_CALLS)
        return calls.where(calls.named(*COPY_LAUNCHES))

    def memset_launches(self) -> Events:
        """Return host calls that start a memset."""
        calls = self.events.of(*HOST_CALLS)
        return calls.where(calls.named(*MEMSET_LAUNCHES))

    def steps(self, *, on_device: bool = False) -> Events:
        """Return profiler steps as the host, or the device, saw them."""
        marks = self.events.of("gpu_user_annotation" if on_device else "user_annotation")
        return marks.where(marks.named(STEP))

    def busy_ns(self) -> dict[int, int]:
        """Return, per device, the time at least one kernel, copy or memset ran."""
        on = self.device()
        return intervals.union_ns_by(on.device, on.start_ns, on.end_ns)


def launches_kernel(calls: Events) -> NDArray[np.bool_]:
    """Return a mask: the host call launches one kernel."""
    return calls.named(*KERNEL_LAUNCHES) & ~calls.named(*NOT_LAUNCHES)


def read(path: str | Path) -> Trace:
    """Read a trace from a file, gzipped or not.

    Raises:
        TraceError: the file cannot be read, is cut off, is not JSON, or is no trace.
    """
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the gzip file is damaged or cut off: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse(data, str(path))


def parse(data: bytes | str, where: str = "trace") -> Trace:
    """Parse a trace; ``where`` is what errors call it.

    Raises:
        TraceError: the text is not JSON, or is no trace.
    """
    try:
        document = json.loads(data, parse_float=DecimalText)
    except (ValueError, RecursionError) as error:  # also bad UTF-8, numbers of 5,000 digits
        raise TraceError(f"{where}: not JSON, or cut off: {error}") from error
    if isinstance(document, dict):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise TraceError(f"{where}: no list of traceEvents; export it with torch.profiler")
    if not all(isinstance(event, dict) for event in document):
        raise TraceError(f"{where}: traceEvents holds something other than events")
    return _collect(document)


def to_ns(value: Any) -> int | None:
    """Return microseconds, as JSON gave them, in whole nanoseconds; None if that is no time.

    Digits past the nanosecond, which some writers leave behind a binary float, are rounded.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        ns = value * 1000
    elif isinstance(value, DecimalText):
        number = Decimal(value)
        if number.adjusted() > 18:  # before it becomes an integer of a million digits
            return None
        ns = round(number * 1000)
    else:
        return None
    return ns if abs(ns) < LIMIT else None


def text_to_ns(text: bytes) -> int | None:
    """Return microseconds, as written, in whole nanoseconds; None if that is no time."""
    try:
        return to_ns(json.loads(text, parse_float=DecimalText))
    except (ValueError, RecursionError):  # not a number, or one of 5,000 digits
        return None


def _collect(document: list[dict[str, Any]]) -> Trace:
    number = {category: i for i, category in enumerate(CATEGORIES)}
    names: dict[str, int] = {}
    threads: dict[tuple[Any, Any], int] = {}
    rows: list[tuple[int, ...]] = []
    decimals = 0
    invalid = 0
    for event in document:
        category = number.get(str(event.get("cat")).lower())
        if event.get("ph") != "X" or category is None:
            continue
        start, duration = to_ns(event.get("ts")), to_ns(event.get("dur"))
        if start is None or duration is None or duration < 0:
            invalid += 1
            continue
        for value in (event["ts"], event["dur"]):
            if decimals < 3 and isinstance(value, DecimalText):
                decimals = max(decimals, min(3, len(value.partition(".")[2].rstrip("0"))))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name = str(event.get("name", ""))
        thread = (str(event.get("pid")), str(event.get("tid")))
        rows.append(
            (
                names.setdefault(name, len(names)),
                category,
                start,
                start + duration,
                threads.setdefault(thread, len(threads)),
                index(args.get("device")),
                index(args.get("stream")),
                index(args.get("correlation")),
            )
        )
    table = np.array(rows, dtype=np.int64).reshape(-1, 8)
    return Trace(Events(tuple(names), *table.T.copy()), 10 ** (3 - decimals), invalid)


def index(value: Any) -> int:
    """Return a number of a device, stream or launch; -1 for what is none."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT
    return value if usable else -1
