"""Reader of Kineto / Chrome trace JSON of any size and origin: compiled, forgiving, exact.

What cannot be used is counted and reported; only a file without events is an error. msgspec
decodes typed fields and skips the rest: 0.37 s for 82 MB where orjson takes 1.1 s, ijson's yajl
0.8 s and json 1.6 s, and it never builds what is skipped. What it refuses is decoded event by event
with ``kineto.add_plain``.

The file is cut into pieces of whole events as it comes in, in bounded memory. A piece is guessed
from the last ``}, {`` of a buffer and proven by decoding it: what lies between two brackets decodes
only if it was cut between events. Where that fails (the list ends here, a number that JSON does not
have, ``}, {`` inside an event) the brackets are counted.

A time in microseconds above 2**41 with decimals does not survive a binary float to the nanosecond
(half a unit in the last place, times 1,000, must stay under half a nanosecond); such pieces are
decoded again with times as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from frameworktax.errors import TraceError
from frameworktax.traces import kineto
from frameworktax.traces.events import Columns, Trace
from frameworktax.traces.kineto import CODES, DamagedError

EVENT_LIMIT = 16 << 20
"""No event, and nothing before or after the list, is longer, bytes."""
DEPTH_LIMIT = 500
BLANK = b" \t\r\n"
BORDERS = 64
"""Opening brackets looked at, from the end of a buffer, for one that may begin an event."""
GAP = 64
"""White space between two events is shorter, bytes; if not, brackets are counted."""
ACCEPTED = "export a trace with torch.profiler's export_chrome_trace"
_LIST = re.compile(rb'(?<!\\)"traceEvents"\s*+:\s*+\[')
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}])', re.DOTALL)


def read(path: Path) -> Trace:
    """Read a trace, gzipped or not, in memory that grows by some 40 bytes an event.

    Raises:
        TraceError: the file cannot be read, holds no events, or is no trace.
    """
    file, events = _File(path, kineto.blocks(path)), _Events()
    records = sum(_decoded(file, events))
    columns = events.columns
    if not columns:
        why = f"; {file.cut}" if file.cut else ""
        unusable = columns.invalid + events.malformed
        bad = f", {unusable} of them unusable" if unusable else ""
        raise TraceError(
            f"{path}: none of its {records} events is one of a profiler's{bad}{why}; {ACCEPTED}"
        )
    return columns.trace(
        "kineto",
        records,
        malformed=events.malformed,
        cut=file.cut,
        device_names=_device_names(file.head) or _device_names(file.tail),
    )


# --- events -------------------------------------------------------------------------------------


class _Args(msgspec.Struct, frozen=True, gc=False):
    device: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    stream: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1
    correlation: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1


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


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()


_TYPED = msgspec.json.Decoder(list[_Event])
_TIMES = msgspec.json.Decoder(list[_Times])


@dataclass(slots=True)
class _Events:
    """Events as columns; both methods append a piece and return how many events it has."""

    columns: Columns = field(default_factory=Columns)
    malformed: int = 0

    def add_all(self, piece: bytes) -> int | None:
        """Decode events with commas between them; None if that is not what the piece is."""
        text = b"[" + piece + b"]"
        try:
            events = _TYPED.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        get = CODES.get
        codes = [get(e.cat, -1) if e.ph == "X" else -1 for e in events]
        kept = [e for e, code in zip(events, codes, strict=True) if code >= 0]
        if not kept:
            return len(events)
        start = kineto.from_numbers([e.ts for e in kept])
        duration = kineto.from_numbers([e.dur for e in kept])
        if start is None or duration is None:
            written = [t for t, c in zip(_TIMES.decode(text), codes, strict=True) if c >= 0]
            start = kineto.from_text([bytes(t.ts) for t in written])
            duration = kineto.from_text([bytes(t.dur) for t in written])
        good = start[1] & duration[1] & (duration[0] >= 0)
        used = [c for c in codes if c >= 0]
        kineto.add(self.columns, kept, used, start[0], duration[0], good)
        return len(events)

    def add_each(self, piece: bytes, spans: Sequence[tuple[int, int]]) -> int:
        """Decode events one by one; the text between them may be anything."""
        events = []
        upto = 0
        for begin, end in spans:
            self.malformed += bool(piece[upto:begin].strip(BLANK + b","))
            upto = end
            try:
                event = json.loads(piece[begin:end], parse_float=kineto.DecimalText)
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                events.append(event)
            else:
                self.malformed += 1
        self.malformed += bool(piece[upto:].strip(BLANK + b","))
        kineto.add_plain(self.columns, events)
        return len(spans)


class _Device(msgspec.Struct, gc=False):
    id: int = -1
    name: str = ""


class _Around(msgspec.Struct, gc=False):
    """Of everything around the events only this is read: the rest may hold names and secrets."""

    device_properties: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)


def _device_names(around: bytes) -> dict[int, str]:
    try:
        found = msgspec.json.decode(around, type=_Around)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return {d.id: d.name for d in found.device_properties if d.id >= 0 and d.name}


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
        wanted = max(kineto.BLOCK_BYTES, len(self.data))
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


def _decoded(file: _File, events: _Events) -> Iterator[int]:
    """Append the events of one piece after the other; yield how many each has.

    Raises:
        TraceError: no list of events is in it, or one event is too long or too deep.
    """
    _find_list(file)
    while True:
        border = _last_border(file.data)
        if border is not None:
            found = events.add_all(file.data[: border[0]])
            if found is not None:
                yield found
                file.data = file.data[border[1] :]
                file.grow()
                continue
        spans, end, closed = _count(file)
        if spans or closed:
            piece = file.data[:end]
            found = events.add_all(piece.rstrip()) if spans else None
            yield events.add_each(piece, spans) if found is None else found
        file.data = file.data[end:]
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
    file.grow()
    file.data = file.data.lstrip(BLANK)
    while not (found := _LIST.search(file.data)):
        if file.data[:1] == b"[":
            file.data = file.data[1:]
            return
        if file.ended or len(file.data) > EVENT_LIMIT or file.data[:1] not in (b"{", b""):
            cut = f" ({file.cut})" if file.cut else ""
            raise TraceError(f"{file.path}: no list of traceEvents{cut}; {ACCEPTED}")
        file.grow()
        file.data = file.data.lstrip(BLANK)
    if file.data[:1] == b"[":
        file.data = file.data[1:]  # the word stands inside a bare list
        return
    file.head = file.data[: found.start()].rstrip(BLANK + b",") + b"}"
    file.data = file.data[found.end() :]


def _last_border(data: bytes) -> tuple[int, int] | None:
    """Return where the last event but one seems to end, and where the last begins."""
    at = len(data)
    for _ in range(BORDERS):
        at = data.rfind(b"{", 0, at)
        if at <= 0:
            return None
        start = max(0, at - GAP)  # a negative one would count from the end
        before = data[start:at].rstrip(BLANK)
        if before[-1:] == b"," and (cut := before[:-1].rstrip(BLANK))[-1:] == b"}":
            return start + len(cut), at
    return None


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
