"""Reader of Kineto traces of any size and origin: what torch.profiler exports, as Chrome JSON.

What cannot be used is counted and reported; only a file without events is an error. msgspec
decodes typed fields and skips the rest: 0.37 s for 82 MB where orjson takes 1.1 s, ijson's yajl
0.8 s and json 1.6 s, and it never builds what is skipped. Of events that it refuses together it is
found which cannot be read. Flows, metadata and overhead rows (pytorch#193392) are left out.

The file is cut into pieces of whole events as it comes in, in bounded memory. A piece is guessed
from the last ``}, {`` of a buffer and proven by decoding it. Where that fails (the list ends here,
a number that JSON does not have, ``}, {`` inside an event) the brackets are counted.

Kineto writes microseconds with three decimals (older versions: whole microseconds); they become
integer nanoseconds, exactly. A time in microseconds above 2**41 with decimals does not survive a
binary float to the nanosecond (half a unit in the last place, times 1,000, must stay under half a
nanosecond); such pieces are decoded again with times as text.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from frameworktax.errors import TraceError
from frameworktax.traces.events import (
    CATEGORIES,
    COPY,
    DEVICE,
    HOST_CALLS,
    KERNEL,
    MEMSET,
    STEP,
    Events,
    Trace,
)
from frameworktax.traces.intervals import LIMIT, Mask, Ns

LATEST_US, LONGEST_NS = 2**61 // 1000, 2**53
"""Wide enough for every clock, and narrow enough that sums and differences of ns fit 64 bits. An
event of 104 days is none."""
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
UNREAD = (
    *("mtia_runtime", "mtia_ccp_events", "hpu_op", "glow_runtime", "privateuse1_runtime"),
    *("privateuse1_driver", "cuda_profiler_range"),
)
"""Categories of devices whose records are not read."""
Shape = tuple[int, int, int, int]
"""Blocks, threads of a block, registers of a thread, bytes of shared memory of a block."""
EVENT_LIMIT = 16 << 20
"""No event, and nothing before or after the list, is longer, bytes."""
DEPTH_LIMIT = 500
BLANK = b" \t\r\n"
LAST_BYTES = 1 << 16
"""Of a buffer's end, in which the last event is looked for; if it is longer, brackets are counted.
"""
ACCEPTED = "export a trace with torch.profiler's export_chrome_trace"
_LIST = re.compile(rb'(?<!\\)"traceEvents"\s*+:\s*+\[')
_NO_NUMBER = re.compile(rb"(?<=[\s:,\[])-?(?:nan|inf|infinity)(?=[\s,\]}])", re.IGNORECASE)
"""What JSON does not have, and profilers write behind arguments that are not read here."""
_BORDER = re.compile(rb"\}[ \t\r\n]*+,[ \t\r\n]*+(?=\{)")
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)


CODES = {name: i for i, name in enumerate(CATEGORIES)}
CODES |= {alias: CODES[name] for alias, name in ALIASES.items()}
CODES |= {name.capitalize(): code for name, code in CODES.items()}
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


def read(path: Path, *, own: bool = False) -> Trace:
    """Read a trace, gzipped or not, in memory that grows by some 40 bytes an event.

    Args:
        path: of the file.
        own: it was written a moment ago: what is odd in it is an error, it may hold no events, and
            how kernels were launched is read as well.

    Raises:
        TraceError: the file cannot be read, holds no events, is no trace, or is of several
            processes whose launches cannot be distinguished.
    """
    file, events = _File(path, blocks(path)), _Events(shapes={} if own else None)
    _decode(file, events)
    malformed = events.malformed
    if own and (file.cut or malformed):
        raise TraceError(f"{path}: {file.cut or f'{malformed} of its events cannot be read'}")
    joined = {  # forgotten one by one as they are joined
        column: np.concatenate(events.parts.pop(column, []) or [np.empty(0, np.int64)])
        for column in Events.__slots__[1:]
    }
    if not own and not len(joined["name"]):
        why = f"; {file.cut}" if file.cut else ""
        unusable = events.invalid + malformed
        bad = f", {unusable} of them unusable" if unusable else ""
        raise TraceError(
            f"{path}: none of its {events.records} events is one of a profiler's{bad}{why}; "
            f"{ACCEPTED}"
        )
    if not own and (first := joined["start_ns"].min()) < 0:  # a tool moved the times
        joined["start_ns"] -= first
        joined["end_ns"] -= first
    found = Events(tuple(events.names), **joined)
    marks = found.named(STEP)
    if not (marks & (found.category == CODES["user_annotation"])).any():
        # torch 1.8 to 1.10 write the profiler's steps as operators
        joined["category"][marks & (found.category == CODES["cpu_op"])] = CODES["user_annotation"]
    if _collide(found, list(events.threads)):
        raise TraceError(
            f"{path}: launches of several processes have the same numbers, so that kernels cannot "
            "be given to their launches; explain the trace of each process by itself"
        )
    return Trace(
        events=found,
        resolution_ns=next(
            ns for ns in (1000, 100, 10, 1) if not (found.start_ns % ns | found.end_ns % ns).any()
        ),
        invalid=events.invalid,
        records=events.records,
        malformed=malformed,
        cut=file.cut,
        unread=events.unread,
        shapes=events.shapes or {},
        properties=_devices(file.head) or _devices(file.tail),
    )


def _collide(events: Events, threads: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether calls of two processes have the correlation of one record of a device."""
    process = np.unique([str(pid) for pid, _ in threads], return_inverse=True)[1]
    calls, work = events.of(*HOST_CALLS), events.of(*DEVICE)
    calls = calls.where((calls.correlation > 0) & np.isin(calls.correlation, work.correlation))
    both = np.unique(np.stack((calls.correlation, process[calls.thread])), axis=1)
    return bool(len(np.unique(both[0])) < both.shape[1])


# --- events -------------------------------------------------------------------------------------


class _Args(msgspec.Struct, frozen=True, gc=False):
    """What a record says of where it ran; -1 where it does not say."""

    device: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    stream: (
        Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]
        | Annotated[str, msgspec.Meta(pattern=r"^(?:-1|0|[1-9][0-9]{0,17}|0x[0-9a-fA-F]{1,15})$")]
    ) = -1  # a call of HIP names it by its address, "0x0"
    correlation: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1


class _Launched(_Args, frozen=True, gc=False):
    """And of how it was launched: of one's own profile only, because decoding it takes time."""

    grid: tuple[int, ...] | str = ()  # a text at an operator that Inductor of torch 2.6 launches
    block: tuple[int, ...] = ()
    registers: int = msgspec.field(name="registers per thread", default=-1)
    shared: int = msgspec.field(name="shared memory", default=-1)


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: int | float = float("nan")
    dur: int | float = float("nan")
    args: _Args = _NO_ARGS


class _OwnEvent(_Event, gc=False):
    args: _Launched = _Launched()


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()


_TYPED = msgspec.json.Decoder(list[_Event], strict=False)  # "7" and 7.0 are 7
_OWN = msgspec.json.Decoder(list[_OwnEvent], strict=False)
_TIMES = msgspec.json.Decoder(list[_Times])


@dataclass(slots=True)
class _Events:
    """Events as columns.

    Attributes:
        shapes: gets how each kernel was launched, unless it is None.
        records: how many were decoded or could not be.
        names: name → its number in the columns.
        threads: (pid, tid) → likewise.
        parts: of each column.
        invalid: events whose times cannot be.
        malformed: events that cannot be read.
        unread: how many events of each category of ``UNREAD`` there are.
    """

    shapes: dict[tuple[int, int, int], Shape] | None
    records: int = 0
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[Any, int] = field(default_factory=dict)
    parts: defaultdict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    invalid: int = 0
    malformed: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    def add_all(self, piece: bytes) -> bool:
        """Append events with commas between them; return whether that is what the piece is."""
        events = self._decoded(piece)
        if events is None:
            return False
        self.records += len(events)
        codes = [CODES.get(e.cat, -1) if e.ph == "X" else -1 for e in events]
        kept = [e for e, code in zip(events, codes, strict=True) if code >= 0]
        if len(kept) < len(events):
            self.unread.update(e.cat for e in events if e.ph == "X" and e.cat in UNREAD)
        if not kept:
            return True
        start = from_numbers([e.ts for e in kept])
        duration = from_numbers([e.dur for e in kept])
        if start is None or duration is None:
            times = zip(_TIMES.decode(b"[" + piece + b"]"), codes, strict=True)
            written = [t for t, code in times if code >= 0]
            start = from_text([bytes(t.ts).strip(b'"') or b"nan" for t in written])
            duration = from_text([bytes(t.dur).strip(b'"') or b"nan" for t in written])
        good = start[1] & duration[1]
        self._add(kept, [c for c in codes if c >= 0], start[0], duration[0], good)
        return True

    def add_each(self, piece: bytes, spans: Sequence[tuple[int, int]]) -> None:
        """Append those events that can be decoded; nothing but commas is to stand between them."""
        upto, readable = 0, []
        for begin, end in (*spans, (len(piece), len(piece))):
            self.malformed += bool(piece[upto:begin].strip(BLANK + b","))
            upto = end
        for begin, end in spans:
            event = piece[begin:end]
            if self._decoded(event) is None:
                event = _NO_NUMBER.sub(b"null", event).decode("utf-8", "replace").encode()
                if self._decoded(event) is None:
                    self.malformed += 1
                    self.records += 1
                    continue
            readable.append(event)
        self.add_all(b",".join(readable))

    def _decoded(self, piece: bytes) -> Sequence[_Event] | None:
        text = b"[" + piece + b"]"
        try:
            return _TYPED.decode(text) if self.shapes is None else _OWN.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    def _add(
        self, events: Sequence[_Event], codes: Sequence[int], start: Ns, duration: Ns, good: Mask
    ) -> None:
        code = np.array(codes, np.int8)
        # Operators and Python frames have none of these; they are most of a trace.
        pointing = np.flatnonzero(POINTING[code])
        args = [events[i].args for i in pointing.tolist()]
        device, stream, correlation = (np.full(len(events), -1, np.int64) for _ in range(3))
        device[pointing] = [a.device for a in args]
        stream[pointing] = [
            a.stream if isinstance(a.stream, int) else int(a.stream, 0) for a in args
        ]
        correlation[pointing] = [a.correlation for a in args]
        # Old versions write device and stream of a record only as its process and thread.
        for i in np.flatnonzero((code < len(DEVICE)) & (device < 0)).tolist():
            device[i], stream[i] = index(events[i].pid), index(events[i].tid)
        if self.shapes is not None:
            for i in np.flatnonzero(code == CATEGORIES.index(KERNEL)).tolist():
                if (shape := _shape(events[i].args)) is not None:
                    self.shapes[int(start[i]), int(device[i]), int(stream[i])] = shape
        names, threads = self.names, self.threads
        thread = [threads.setdefault((e.pid, e.tid), len(threads)) for e in events]
        columns: dict[str, NDArray[Any]] = {
            "name": np.array([names.setdefault(e.name, len(names)) for e in events], np.int32),
            "category": code,
            "start_ns": start,
            "end_ns": start + duration,
            "thread": np.array(thread, np.int32),
            "device": device.astype(np.int32),
            "stream": stream,
            "correlation": correlation,
        }
        keep = good & (duration >= 0) & (duration < LONGEST_NS)
        self.invalid += int((~keep).sum())
        for column, values in columns.items():
            self.parts[column].append(values[keep])


def index(value: Any) -> int:
    """Return a number of a device, stream or launch; -1 for what is none."""
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT
    return value if usable else -1


def _shape(args: _Args) -> Shape | None:
    """Return how a kernel was launched; None where the trace does not say all of it."""
    if not (isinstance(args, _Launched) and args.grid and args.block) or isinstance(args.grid, str):
        return None
    found = math.prod(args.grid), math.prod(args.block), args.registers, args.shared
    return found if min(found) >= 0 else None


class _Around(msgspec.Struct, gc=False):
    """Of everything around the events only this is read: the rest may hold names and secrets."""

    device_properties: list[dict[str, Any]] = msgspec.field(
        name="deviceProperties", default_factory=list
    )


def _devices(around: bytes) -> dict[int, dict[str, Any]]:
    """Return what is known of each device, by its number."""
    try:
        found = msgspec.json.decode(around, type=_Around).device_properties
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return {one["id"]: one for one in found if index(one.get("id")) >= 0}


# --- pieces -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """A file as it comes in.

    Attributes:
        path: what errors call it.
        source: blocks of it.
        data: what is in memory.
        ended: all of the file is, or was, in memory.
        head: text before the list, as a JSON object of its own; empty where the list is bare.
        tail: text after it, likewise.
        cut: why the file ends early; None if it does not.
    """

    path: Path
    source: Iterator[bytes]
    data: bytes = b""
    ended: bool = False
    head: bytes = b""
    tail: bytes = b""
    cut: str | None = None

    def grow(self) -> None:
        """Double what is in memory, by at least a block; note where the file ends."""
        wanted = max(BLOCK_BYTES, len(self.data))
        parts = [self.data]
        while wanted > 0 and not self.ended:
            try:
                block = next(self.source, None)
            except DamagedError as error:
                self.cut = f"the gzip file is damaged or cut off ({error})"
                block = None
            if block is None:
                self.ended = True
            else:
                wanted -= len(block)
                parts.append(block)
        self.data = b"".join(parts)


def _decode(file: _File, events: _Events) -> None:
    """Append the events of one piece after the other.

    Raises:
        TraceError: no list of events is in it, or one event is too long or too deep.
    """
    _find_list(file)
    while True:
        border = _last_border(file.data)
        if border is not None and events.add_all(file.data[: border[0]]):
            file.data = file.data[border[1] :]
            file.grow()
            continue
        spans, end, closed = _count(file)
        piece, file.data = file.data[:end], file.data[end:].lstrip(BLANK + b",")
        if not (spans and events.add_all(piece)):
            events.add_each(piece, spans)
        if closed:
            _finish(file)
            return
        if file.ended:
            file.cut = file.cut or "it ends within the list of events"
            return
        if len(file.data) > EVENT_LIMIT:
            limit = EVENT_LIMIT >> 20
            raise TraceError(f"{file.path}: one event of more than {limit} MiB; no trace")
        file.grow()


def _find_list(file: _File) -> None:
    """Move to what follows the opening bracket of the list."""
    while True:
        file.grow()
        file.data = file.data.lstrip(BLANK)
        if file.data[:1] == b"[":  # a bare list, whatever words stand inside it
            file.data = file.data[1:]
            return
        if found := _LIST.search(file.data):
            file.head = file.data[: found.start()].rstrip(BLANK + b",") + b"}"
            file.data = file.data[found.end() :]
            return
        if file.ended or len(file.data) > EVENT_LIMIT or file.data[:1] not in (b"{", b""):
            cut = f" ({file.cut})" if file.cut else ""
            raise TraceError(f"{file.path}: no list of traceEvents{cut}; {ACCEPTED}")


def _last_border(data: bytes) -> tuple[int, int] | None:
    """Return where the last event but one seems to end, and where the last begins."""
    found = deque(_BORDER.finditer(data, max(0, len(data) - LAST_BYTES)), maxlen=1)
    return (found[0].start() + 1, found[0].end()) if found else None


def _count(file: _File) -> tuple[list[tuple[int, int]], int, bool]:
    """Count brackets: where each event lies, where the last ends, and whether the list closed.

    If it did, the end is where its bracket stands.
    """
    spans: list[tuple[int, int]] = []
    at, depth, begin, end = 0, 0, 0, 0
    while found := _BRACKET.match(file.data, at):
        at = found.end()
        if found[1] in (b"{", b"["):
            if not depth:
                begin = at - 1
            depth += 1
            if depth > DEPTH_LIMIT:
                text = f"brackets nested more than {DEPTH_LIMIT} deep; no trace"
                raise TraceError(f"{file.path}: {text}")
        elif not depth:
            return spans, at - 1, True
        else:
            depth -= 1
            if not depth:
                spans.append((begin, at))
                end = at
    return spans, end, False


def _finish(file: _File) -> None:
    """Read what follows the list, within the limit; ``data`` begins with its closing bracket."""
    while not file.ended and len(file.data) <= EVENT_LIMIT:
        file.grow()
    rest = file.data[1:].strip(BLANK)
    if file.head:
        file.tail = b"{" + rest.lstrip(BLANK + b",")
        if rest[-1:] != b"}" and file.ended:
            file.cut = file.cut or "it ends within what follows the list of events"


# --- times --------------------------------------------------------------------------------------


def from_numbers(values: Sequence[Any]) -> tuple[Ns, Mask] | None:
    """Return nanoseconds, and which of the numbers are a time; None if only the text is exact.

    Args:
        values: integers and floats, microseconds.
    """
    us = np.array(values)
    if us.dtype.kind == "i":
        good = (us > -LATEST_US) & (us < LATEST_US)  # the least integer has no absolute value
        return np.where(good, us, 0) * 1000, good
    if us.dtype.kind != "f" or (np.abs(us[np.isfinite(us)]) >= EXACT_BELOW_US).any():
        return None
    return _rounded(us)


def from_text(texts: Sequence[bytes]) -> tuple[Ns, Mask]:
    """Return nanoseconds, and which of the numbers as text are a time; further digits are rounded.

    The 64 bits of a ``longdouble``'s fraction hold every time below the limit to the nanosecond.
    """
    return _rounded(np.array(texts, dtype=bytes).astype(np.longdouble))


def _rounded(us: NDArray[np.floating[Any]]) -> tuple[Ns, Mask]:
    good = np.isfinite(us) & (np.abs(us) < LATEST_US)
    return np.rint(np.where(good, us, 0) * 1000).astype(np.int64), good
