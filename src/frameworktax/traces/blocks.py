"""A file as blocks of bytes, gzipped or not, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

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
