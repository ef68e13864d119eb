"""Reader of XPlane protocol buffers: what ``jax.profiler`` writes as ``*.xplane.pb``.

A space holds planes, a plane lines, a line events; an event names its metadata and statistics by
number (tsl/profiler/protobuf/xplane.proto). What becomes of them:

    plane /device:GPU:N, lines "Stream #…"      kernels, copies and memsets on that stream
    plane /device:…, line "XLA Ops"             kernels, where no stream is shown (TPU)
    plane /host:…, events with a step number    steps
        events named cuda…, cu…, hip…           calls of the device's runtime and driver
        events named $file:line function        Python frames
        all others                              operators

Times are picoseconds after the line's nanoseconds, and become whole nanoseconds.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from frameworktax.errors import TraceError
from frameworktax.traces.events import CATEGORIES, LIMIT, Columns, Trace

GPU = re.compile(r"/device:(?:GPU|ROCM):(\d+)")
DEVICE = re.compile(r"/device:[^:]+:(\d+)")
STREAM = re.compile(r"Stream #(\d+)")
API = re.compile(r"(?:cuda|cu|hip)[A-Z]")
CORRELATION, STEP_NUMBER = "correlation_id", "step_num"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = 2**64 - 1
CODES = {name: i for i, name in enumerate(CATEGORIES)}


class WireError(ValueError):
    """The bytes are no protocol buffer."""


def fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, value and end of each field of the message in ``data[start:end]``.

    Of a varint, the value is the number and the end -1; of bytes and messages, the two are where
    they begin and end; fixed numbers are skipped.

    Raises:
        WireError: the bytes are no message, or a field reaches past the end.
    """
    while start < end:
        key, start = varint(data, start, end)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("field number 0")
        if kind == VARINT:
            value, start = varint(data, start, end)
            yield number, value, -1
        elif kind == BYTES:
            length, start = varint(data, start, end)
            if start + length > end:
                raise WireError(f"a field of {length} bytes where {end - start} are left")
            yield number, start, start + length
            start += length
        elif kind in (FIXED64, FIXED32):
            start += 8 if kind == FIXED64 else 4
            if start > end:
                raise WireError("a number is cut off")
        else:
            raise WireError(f"wire type {kind}")


def varint(data: memoryview, start: int, end: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and where it ends."""
    value = shift = 0
    while start < end:
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MASK, start
        shift += 7
        if shift > 63:
            break
    raise WireError("a number is cut off or too long")


def signed(value: int) -> int:
    """Return a varint as the 64-bit number with a sign that it stands for."""
    return value - 2**64 if value >= 2**63 else value


def text(data: memoryview, start: int, end: int) -> str:
    """Return bytes as text."""
    return bytes(data[start:end]).decode("utf-8", "replace")


@dataclass(slots=True)
class _Space:
    data: memoryview
    columns: Columns = field(default_factory=Columns)
    records: int = 0
    cut: str | None = None


@dataclass(slots=True)
class _Plane:
    name: str = ""
    lines: list[tuple[int, int]] = field(default_factory=list)
    events: dict[int, str] = field(default_factory=dict)
    statistics: dict[int, str] = field(default_factory=dict)


def read(path: Path) -> Trace:
    """Read a space.

    Raises:
        TraceError: it cannot be read, is no space, or holds no events.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map_:
            view = memoryview(map_)
            try:
                space = _Space(view)
                _read_space(space)
            finally:
                space.data = memoryview(b"")
                view.release()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise TraceError(f"{path}: the file is empty") from error
    columns = space.columns
    if not columns:
        why = f" ({space.cut})" if space.cut else ""
        raise TraceError(f"{path}: no events of an XPlane in it{why}; give a whole .xplane.pb")
    return columns.trace("xplane", space.records, cut=space.cut)


def _read_space(space: _Space) -> None:
    try:
        for number, start, end in fields(space.data, 0, len(space.data)):
            if number == 1 and end >= 0:
                _read_plane(space, start, end)
    except WireError as error:
        space.cut = f"{error}"


def _read_plane(space: _Space, start: int, end: int) -> None:
    plane, data = _Plane(), space.data
    for number, begin, stop in fields(data, start, end):
        if stop < 0:
            continue
        if number == 2:
            plane.name = text(data, begin, stop)
        elif number == 3:
            plane.lines.append((begin, stop))
        elif number == 4:
            key, name = _entry(data, begin, stop)
            plane.events[key] = name
        elif number == 5:
            key, name = _entry(data, begin, stop)
            plane.statistics[key] = name
    device = DEVICE.match(plane.name)
    if device is None and not plane.name.startswith("/host:"):
        return
    for begin, stop in plane.lines:
        _read_line(space, plane, begin, stop)


def _entry(data: memoryview, start: int, end: int) -> tuple[int, str]:
    """Return number and name of an entry of a plane's tables."""
    key, name = 0, ""
    for number, begin, stop in fields(data, start, end):
        if number == 1 and stop < 0:
            key = signed(begin)
        elif number == 2 and stop >= 0:
            for inner, first, last in fields(data, begin, stop):
                if inner == 2 and last >= 0:
                    name = text(data, first, last)
    return key, name


def _read_line(space: _Space, plane: _Plane, start: int, end: int) -> None:
    data, name, identity, origin = space.data, "", 0, 0
    events: list[tuple[int, int]] = []
    for number, begin, stop in fields(data, start, end):
        if number == 1 and stop < 0:
            identity = signed(begin)
        elif number == 2 and stop >= 0:
            name = text(data, begin, stop)
        elif number == 3 and stop < 0:
            origin = signed(begin)
        elif number == 4 and stop >= 0:
            events.append((begin, stop))
    space.records += len(events)
    device = DEVICE.match(plane.name)
    stream = STREAM.match(name)
    if device and not (stream if GPU.match(plane.name) else name == "XLA Ops"):
        return  # derived from the others: modules, steps, sources
    read = (_read_event(space, plane, at, origin, on_device=device is not None) for at in events)
    rows = [row for row in read if row is not None]
    names, categories, starts, ends, correlations = zip(*rows, strict=True) if rows else [()] * 5
    space.columns.add(
        name=space.columns.name_ids(names),
        category=categories,
        start_ns=starts,
        end_ns=ends,
        thread=space.columns.thread_ids([(plane.name, identity)] * len(rows)),
        device=[int(device[1]) % 2**31 if device else -1] * len(rows),
        stream=[int(stream[1]) % 2**31 if stream else 0 if device else -1] * len(rows),
        correlation=correlations,
    )


def _read_event(
    space: _Space, plane: _Plane, where: tuple[int, int], origin: int, *, on_device: bool
) -> tuple[str, int, int, int, int] | None:
    """Return name, category, start, end and correlation; None, and count it, without a time."""
    data = space.data
    name, offset, duration, correlation, step = "", 0, 0, -1, None
    for number, begin, stop in fields(data, *where):
        if number == 1 and stop < 0:
            name = plane.events.get(signed(begin), "")
        elif number == 2 and stop < 0:
            offset = signed(begin)
        elif number == 3 and stop < 0:
            duration = signed(begin)
        elif number == 4 and stop >= 0:
            key, value = _statistic(data, begin, stop)
            what = plane.statistics.get(key)
            if what == CORRELATION and 0 <= value < 2**62:
                correlation = value
            elif what == STEP_NUMBER:
                step = value
    start_ns, end_ns = origin + _ns(offset), origin + _ns(offset + duration)
    if max(abs(start_ns), abs(end_ns)) >= LIMIT:
        space.columns.invalid += 1
        return None
    if step is not None and not on_device:
        name = f"step {step}: {name}"
    return name, CODES[_category(name, step is not None, on_device)], start_ns, end_ns, correlation


def _statistic(data: memoryview, start: int, end: int) -> tuple[int, int]:
    """Return number and value of a statistic; -1 where the value is no integer."""
    key, value = 0, -1
    for number, begin, stop in fields(data, start, end):
        if stop < 0:
            if number == 1:
                key = signed(begin)
            elif number in (3, 4):
                value = signed(begin)
    return key, value


def _ns(ps: int) -> int:
    return (ps + 500) // 1000


def _category(name: str, is_step: bool, on_device: bool) -> str:
    if on_device:
        lower = name.lower()
        return (
            "gpu_memcpy" if "memcpy" in lower else "gpu_memset" if "memset" in lower else "kernel"
        )
    if is_step:
        return "user_annotation"
    if name.startswith("$"):
        return "python_function"
    return "cuda_runtime" if API.match(name) else "cpu_op"
