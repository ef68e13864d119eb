"""Protocol buffers without a library: the fields of a message, in bounds.

A message that says it is longer than the file is read as far as the file goes.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = 2**64 - 1


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
