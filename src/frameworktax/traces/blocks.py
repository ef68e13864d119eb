"""A file as blocks of bytes, gzipped or not, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from frameworktax.errors import TraceError

BLOCK_BYTES = 4 << 20
"""Read, and unpacked, at a time."""
GZIP = b"\x1f\x8b"
BOMB_BYTES = 64 << 20
BOMB_RATIO = 250
"""Past ``BOMB_BYTES``, a gzip file that grows more than this is refused: recorded traces grow 10
to 40 times, a run of one byte 1,030 times."""


class DamagedError(Exception):
    """A gzip file is cut off or damaged; what stood before that has been delivered."""


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the content, unpacked, at most ``BLOCK_BYTES`` at a time.

    Raises:
        TraceError: the file cannot be read, or unpacks to too much.
        DamagedError: the gzip file is cut off or damaged.
    """
    try:
        with path.open("rb") as file:
            first = file.read(BLOCK_BYTES)
            parts = iter(lambda: file.read(BLOCK_BYTES), b"")
            if first[:2] != GZIP:
                if first:
                    yield first
                yield from parts
                return
            yield from _unpacked(first, parts, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unpacked(first: bytes, parts: Iterator[bytes], path: Path) -> Iterator[bytes]:
    packed, unpacked = 0, 0
    stream = zlib.decompressobj(wbits=31)
    data: bytes | None = first
    while data is not None:
        packed += len(data)
        while data:
            if stream.eof:  # another member: gzip files may be concatenated
                stream = zlib.decompressobj(wbits=31)
            try:
                out = stream.decompress(data, BLOCK_BYTES)
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
            if stream.eof and not data.strip(b"\0"):
                data = b""  # padding after the last member
        data = next(parts, None)
    if not stream.eof:
        raise DamagedError("cut off")
