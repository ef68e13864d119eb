"""Cutting Chrome trace JSON into pieces of whole events, as it comes in, in bounded memory.

The file may be gzipped.

A piece is guessed from the last ``}, {`` of a buffer and proven by decoding it: what lies
between two brackets decodes only if it was cut between events. Where that fails (the list ends
here, a number that JSON does not have, ``}, {`` inside an event) the brackets are counted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from frameworktax.errors import TraceError

BLOCK_BYTES = 4 << 20
"""Read at a time."""
SLICE_BYTES = 1 << 16
"""Unpacked at a time, and given to be: so much is lost where a gzip file is damaged."""
GZIP = b"\x1f\x8b"
BOMB_BYTES = 64 << 20
BOMB_RATIO = 250
"""Past ``BOMB_BYTES``, a gzip file that grows more than this is refused: recorded traces grow 10
to 40 times, a run of one byte 1,030 times."""
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


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
            parts = iter(lambda: file.read(SLICE_BYTES if packed else BLOCK_BYTES), b"")
            yield from _unpacked(parts, path) if packed else parts
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unpacked(parts: Iterator[bytes], path: Path) -> Iterator[bytes]:
    packed, unpacked = 0, 0
    stream = zlib.decompressobj(wbits=31)
    for data in parts:
        packed += len(data)
        more = True
        while more:
            if stream.eof:  # another member: gzip files may be concatenated
                stream = zlib.decompressobj(wbits=31)
            try:
                out = stream.decompress(data, SLICE_BYTES)
            except zlib.error as error:
                raise DamagedError(str(error)) from error
            unpacked += len(out)
            if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed:
                raise TraceError(
                    f"{path}: unpacks to more than {BOMB_RATIO} times its size, which no trace "
                    "does; unpack it yourself if you trust it"
                )
            if out:
                yield out
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
            if stream.eof:
                more = bool(data.strip(b"\0"))  # or padding after the last member
            else:
                more = bool(data) or len(out) == SLICE_BYTES  # some may wait inside
    if not stream.eof:
        raise DamagedError("cut off")


@dataclass(slots=True)
class Frame:
    """The text around the events.

    Attributes:
        head: text before the list, as a JSON object of its own; empty where the list is bare.
        tail: text after it, likewise.
        cut: why the file ends early; None if it does not.
    """

    head: bytes = b""
    tail: bytes = b""
    cut: str | None = None


class Decoder(Protocol[T_co]):
    """What becomes of a piece."""

    def whole(self, piece: bytes) -> T_co | None:
        """Decode events with commas between them; None if that is not what the piece is."""

    def single(self, piece: bytes, spans: Sequence[tuple[int, int]]) -> T_co:
        """Decode events one by one; the text between them may be anything."""


def pieces(source: Iterator[bytes], frame: Frame, where: Path, decoder: Decoder[T]) -> Iterator[T]:
    """Yield what the decoder makes of each piece.

    Args:
        source: blocks of the file.
        frame: filled as the file is read.
        where: what errors call the file.
        decoder: called with one piece after the other.

    Raises:
        TraceError: no list of events is in it, or one event is too long or too deep.
    """
    buffer = _Buffer(source, frame)
    _find_list(buffer, frame, where)
    while True:
        border = _last_border(buffer.data)
        if border is not None:
            events = decoder.whole(buffer.data[: border[0]])
            if events is not None:
                yield events
                buffer.data = buffer.data[border[1] :]
                buffer.grow()
                continue
        spans, end, closed = _count(buffer.data, where)
        if spans or closed:
            piece = buffer.data[:end]
            events = decoder.whole(piece.rstrip()) if spans else None
            yield decoder.single(piece, spans) if events is None else events
        buffer.data = buffer.data[end:]
        if closed:
            _finish(buffer, frame)
            return
        if buffer.ended:
            frame.cut = frame.cut or "it ends within the list of events"
            return
        if len(buffer.data) > EVENT_LIMIT:
            raise TraceError(f"{where}: one event of more than {EVENT_LIMIT >> 20} MiB; no trace")
        buffer.grow()


@dataclass(slots=True)
class _Buffer:
    source: Iterator[bytes]
    frame: Frame
    data: bytes = b""
    ended: bool = False

    def grow(self) -> None:
        """Double what is in memory, by at least a block; note where the file ends."""
        wanted = max(BLOCK_BYTES, len(self.data))
        parts = [self.data]
        while wanted > 0 and not self.ended:
            try:
                block = next(self.source, None)
            except DamagedError as error:
                self.frame.cut = f"the gzip file is damaged or cut off ({error})"
                block = None
            if block is None:
                self.ended = True
            else:
                wanted -= len(block)
                parts.append(block)
        self.data = b"".join(parts)


def _find_list(buffer: _Buffer, frame: Frame, where: Path) -> None:
    """Move the buffer to what follows the opening bracket of the list."""
    buffer.grow()
    buffer.data = buffer.data.lstrip(BLANK)
    while not (found := _LIST.search(buffer.data)):
        if buffer.data[:1] == b"[":
            buffer.data = buffer.data[1:]
            return
        if buffer.ended or len(buffer.data) > EVENT_LIMIT or buffer.data[:1] not in (b"{", b""):
            cut = f" ({frame.cut})" if frame.cut else ""
            raise TraceError(f"{where}: no list of traceEvents{cut}; {ACCEPTED}")
        buffer.grow()
        buffer.data = buffer.data.lstrip(BLANK)
    if buffer.data[:1] == b"[":
        buffer.data = buffer.data[1:]  # the word stands inside a bare list
        return
    frame.head = buffer.data[: found.start()].rstrip(BLANK + b",") + b"}"
    buffer.data = buffer.data[found.end() :]


def _last_border(data: bytes) -> tuple[int, int] | None:
    """Return where the last event but one seems to end, and where the last begins."""
    at = len(data)
    for _ in range(BORDERS):
        at = data.rfind(b"{", 0, at)
        if at <= 0:
            return None
        before = data[max(0, at - GAP) : at].rstrip(BLANK)
        if before[-1:] == b"," and (cut := before[:-1].rstrip(BLANK))[-1:] == b"}":
            return max(0, at - GAP) + len(cut), at
    return None


def _count(data: bytes, where: Path) -> tuple[list[tuple[int, int]], int, bool]:
    """Count brackets: where each event lies, where the last ends, and whether the list closed.

    If it did, the end is where its bracket stands.
    """
    spans: list[tuple[int, int]] = []
    at, depth, begin, end = 0, 0, 0, 0
    while found := _BRACKET.match(data, at):
        at = found.end()
        if found[1] in (b"{", b"["):
            if not depth:
                begin = at - 1
            depth += 1
            if depth > DEPTH_LIMIT:
                raise TraceError(f"{where}: brackets nested more than {DEPTH_LIMIT} deep; no trace")
        elif not depth:
            return spans, at - 1, True
        else:
            depth -= 1
            if not depth:
                spans.append((begin, at))
                end = at
    return spans, end, False


def _finish(buffer: _Buffer, frame: Frame) -> None:
    """Read what follows the list, within the limit; ``data`` begins with its closing bracket."""
    while not buffer.ended and len(buffer.data) <= EVENT_LIMIT:
        buffer.grow()
    rest = buffer.data[1:].strip(BLANK)
    if frame.head:
        frame.tail = b"{" + rest.lstrip(BLANK + b",")
        if rest[-1:] != b"}" and buffer.ended:
            frame.cut = frame.cut or "it ends within what follows the list of events"
