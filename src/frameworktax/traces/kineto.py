"""Kineto traces, what torch.profiler exports as Chrome trace JSON, with the standard library.

Kineto writes microseconds with three decimals (older versions: whole microseconds). As a binary
float an epoch time in microseconds has no room for nanoseconds, so times are taken from the
decimal text and become integer nanoseconds, exactly.

The measuring process reads its own profile with ``read``; what is odd there is an error, because
the file was written a moment ago. ``chrome`` reads files from anywhere, of any size, with a
compiled decoder, and leaves to this module what that decoder refuses. Flows, metadata and overhead
rows (pytorch#193392) are left out by both.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frameworktax.errors import TraceError
from frameworktax.traces.events import (
    CATEGORIES,
    COPY,
    DEVICE,
    HOST_CALLS,
    LIMIT,
    MEMSET,
    Columns,
    Trace,
)

Ns = NDArray[np.int64]
Mask = NDArray[np.bool_]
BLOCK_BYTES = 4 << 20
"""Read at a time."""
SLICE_BYTES = 1 << 16
"""Unpacked at a time, and given to be: so much is lost where a gzip file is damaged."""
GZIP = b"\x1f\x8b"
BOMB_BYTES = 64 << 20
BOMB_RATIO = 250
"""Past ``BOMB_BYTES``, a gzip file that grows more than this is refused: recorded traces grow 10
to 40 times, a run of one byte 1,030 times."""
EXACT_BELOW_US = 2.0**41
"""Microseconds below this, as a binary float, still keep every nanosecond: half a unit in the last
place times 1,000, and the rounding of that product, make a quarter of one."""
_MAX_US = 2**62 // 1000
ALIASES = {
    "memcpy": COPY,
    "memset": MEMSET,
    "runtime": "cuda_runtime",
    "hip_runtime": "cuda_runtime",
    "hip_driver": "cuda_driver",
    "xpu_runtime": "cuda_runtime",
    "xpu_driver": "cuda_driver",
    "operator": "cpu_op",
}
"""Names that versions before 2021 and other vendors' back ends give the same categories."""
Shape = tuple[int, int, int, int]
"""Blocks, threads of a block, registers of a thread, bytes of shared memory of a block."""
NAME_SIGNS = 200
"""Of a name that is no text, as many signs are kept."""


def _codes() -> dict[str, int]:
    number = {name: i for i, name in enumerate(CATEGORIES)}
    number |= {alias: number[name] for alias, name in ALIASES.items()}
    return number | {name.capitalize(): code for name, code in number.items()}


CODES = _codes()
"""Category → its number, as any version writes it."""
POINTING = np.isin(CATEGORIES, (*DEVICE, *HOST_CALLS))
"""By category: its records say which device, stream and launch they belong to."""


class DamagedError(Exception):
    """A gzip file is cut off or damaged; what stood before that has been delivered."""


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the content, unpacked, in parts of at most ``BLOCK_BYTES``.

    Raises:
        TraceError: the file cannot be read, or unpacks to too much.
        DamagedError: the gzip file is cut off or damaged.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            if not packed:
                yield from iter(lambda: file.read(BLOCK_BYTES), b"")
                return
            unpacked = 0
            with gzip.GzipFile(fileobj=file) as stream:
                while part := stream.read1(SLICE_BYTES):
                    unpacked += len(part)
                    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * file.tell():
                        raise TraceError(
                            f"{path}: unpacks to more than {BOMB_RATIO} times its size, which no "
                            "trace does; unpack it yourself if you trust it"
                        )
                    yield part
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(str(error)) from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def read(path: str | Path) -> Trace:
    """Read a trace from a file, gzipped or not.

    Raises:
        TraceError: the file cannot be read, is cut off, is not JSON, or is no trace.
    """
    try:
        data = b"".join(blocks(Path(path)))
    except DamagedError as error:
        raise TraceError(f"{path}: the gzip file is damaged or cut off: {error}") from error
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
    devices: Any = None
    if isinstance(document, dict):
        devices, document = document.get("deviceProperties"), document.get("traceEvents")
    if not isinstance(document, list):
        raise TraceError(f"{where}: no list of traceEvents; export it with torch.profiler")
    if not all(isinstance(event, dict) for event in document):
        raise TraceError(f"{where}: traceEvents holds something other than events")
    columns = Columns()
    add_plain(columns, document)
    return columns.trace(
        "kineto",
        len(document),
        shapes=_shapes(document),
        properties={
            int(one["id"]): one
            for one in (devices if isinstance(devices, list) else ())
            if isinstance(one, dict) and isinstance(one.get("id"), int)
        },
    )


def _shapes(events: Iterable[dict[str, Any]]) -> dict[tuple[int, int, int], Shape]:
    """Return how each kernel was launched, as far as the trace says it."""
    found = {}
    for event in events:
        args = event.get("args")
        start = to_ns(event.get("ts"))
        if CODES.get(str(event.get("cat"))) != 0 or not isinstance(args, dict) or start is None:
            continue
        values = [
            *(_volume(args.get(name)) for name in ("grid", "block")),
            *(args.get(name) for name in ("registers per thread", "shared memory")),
        ]
        if all(isinstance(value, int) and value >= 0 for value in values):
            where = (start, index(args.get("device")), index(args.get("stream")))
            found[where] = tuple(values)
    return found  # type: ignore[return-value] # four numbers, checked above


def _volume(sides: Any) -> int | None:
    whole = isinstance(sides, list) and sides and all(isinstance(n, int) for n in sides)
    return math.prod(sides) if whole else None


# --- events -------------------------------------------------------------------------------------


class Args(NamedTuple):
    """What a record says of where it ran; -1 where it does not say."""

    device: int
    stream: int
    correlation: int


class Event(NamedTuple):
    """The fields of an event besides its times."""

    name: str
    pid: int | str
    tid: int | str
    args: Args


def add_plain(columns: Columns, events: Iterable[dict[str, Any]]) -> None:
    """Append the profiler's events among objects from ``json``, whose fields may be anything."""
    kept, codes, starts, durations, good = [], [], [], [], []
    for event in events:
        code = CODES.get(str(event.get("cat")), -1)
        if event.get("ph") != "X" or code < 0:
            continue
        start, duration = to_ns(event.get("ts")), to_ns(event.get("dur"))
        kept.append(_event(event))
        codes.append(code)
        good.append(start is not None and duration is not None and duration >= 0)
        starts.append(start or 0)
        durations.append(duration or 0)
    if kept:
        add(columns, kept, codes, np.array(starts), np.array(durations), np.array(good))


def _event(event: dict[str, Any]) -> Event:
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    device = index(args.get("device"))
    name, pid, tid = event.get("name", ""), event.get("pid", -1), event.get("tid", -1)
    return Event(
        name if isinstance(name, str) else str(name)[:NAME_SIGNS],
        pid if isinstance(pid, int) else str(pid)[:NAME_SIGNS],
        tid if isinstance(tid, int) else str(tid)[:NAME_SIGNS],
        Args(
            device if device < 2**31 else -1,
            index(args.get("stream")),
            index(args.get("correlation")),
        ),
    )


def add(
    columns: Columns,
    events: Sequence[Any],
    codes: Sequence[int],
    start: Ns,
    duration: Ns,
    good: Mask,
) -> None:
    """Append events: objects with the fields of ``Event``, their categories and times in ns."""
    code = np.array(codes, np.int8)
    # Operators and Python frames have none of these; they are most of a trace.
    pointing = np.flatnonzero(POINTING[code])
    args = [events[i].args for i in pointing.tolist()]
    device, stream, correlation = (np.full(len(events), -1, np.int64) for _ in range(3))
    device[pointing] = [a.device for a in args]
    stream[pointing] = [a.stream for a in args]
    correlation[pointing] = [a.correlation for a in args]
    # Old versions write device and stream of a record only as its process and thread.
    for i in np.flatnonzero((code < len(DEVICE)) & (device < 0)).tolist():
        device[i], stream[i] = index(events[i].pid), index(events[i].tid)
    columns.add(
        good,
        name=columns.name_ids([e.name for e in events]),
        category=code,
        start_ns=start,
        end_ns=start + duration,
        thread=columns.thread_ids([(e.pid, e.tid) for e in events]),
        device=device,
        stream=stream,
        correlation=correlation,
    )


def index(value: Any) -> int:
    """Return a number of a device, stream or launch; -1 for what is none."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT
    return value if usable else -1


# --- times --------------------------------------------------------------------------------------


class DecimalText(str):
    """A number with a fraction, kept as it was written."""

    __slots__ = ()


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


def from_numbers(values: Sequence[Any]) -> tuple[Ns, Mask] | None:
    """Return nanoseconds, and which of the numbers are a time; None if only the text is exact.

    Args:
        values: integers and floats, microseconds.
    """
    us = np.array(values)
    if us.dtype.kind == "i":
        good = np.abs(us) < _MAX_US
        return np.where(good, us, 0) * 1000, good
    if us.dtype.kind != "f" or (np.abs(us[np.isfinite(us)]) >= EXACT_BELOW_US).any():
        return None
    return _rounded(us)


def from_text(texts: Sequence[bytes]) -> tuple[Ns, Mask]:
    """Return nanoseconds, and which of the texts are a time; digits past those are rounded.

    The 64 bits of a ``longdouble``'s fraction hold every time below the limit to the nanosecond.
    """
    try:
        return _rounded(np.array(texts, dtype=bytes).astype(np.longdouble))
    except ValueError:  # one of them is no number
        single = [text_to_ns(text) for text in texts]
        good = np.array([ns is not None for ns in single])
        return np.array([ns or 0 for ns in single], np.int64), good


def _rounded(us: NDArray[np.floating[Any]]) -> tuple[Ns, Mask]:
    good = np.isfinite(us) & (np.abs(us) < _MAX_US)
    return np.rint(np.where(good, us, 0) * 1000).astype(np.int64), good
