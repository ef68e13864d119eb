"""Standard output and error when nobody reads them: left, stuck, or a full disk."""

from __future__ import annotations

import io
import os
import select
from contextlib import suppress
from typing import Any, TextIO


def into_nothing(descriptor: int) -> None:
    """Let what is still to be written to a descriptor go nowhere: its reader has left."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def writable(descriptor: int) -> bool:
    """Return whether a line can be written at once: no full pipe, no stopped terminal."""
    with suppress(OSError, ValueError):
        return bool(select.select((), (descriptor,), (), 0)[1])
    return False


class Aside:
    """A stream for what is said beside the result: a reader that left or is stuck changes nothing.

    An hour of measuring is not lost to a log that cannot be written, and does not wait for a pager.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop what nobody would read."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, io.UnsupportedOperation):  # no file: a test, a notebook
            return self._stream.write(text)
        if writable(descriptor):
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                into_nothing(descriptor)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write was flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
