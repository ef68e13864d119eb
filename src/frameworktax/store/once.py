"""Which records were seen before, and whether the second said the same."""

from __future__ import annotations

from typing import Any, Literal

from frameworktax.records import Record, record_id

Seen = Literal["new", "same", "different"]


class Once:
    """Remembers the identity of every record and a fingerprint of its line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Any, ...], int] = {}

    def add(self, record: Record, line: bytes) -> Seen:
        """Return what a record is to those added before; the first one is remembered.

        ``different``: one identity, and lines that are not equal byte by byte.
        """
        identity, fingerprint = record_id(record), hash(line.strip())
        before = self._lines.get(identity)
        if before is None:
            self._lines[identity] = fingerprint
            return "new"
        return "same" if before == fingerprint else "different"


def named(record: Record) -> str:
    """Return a record's identity in words."""
    kind, session, *rest = record_id(record)
    return f"{kind} of session {session}" + (f" ({', '.join(map(str, rest))})" if rest else "")
