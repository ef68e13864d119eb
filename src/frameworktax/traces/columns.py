"""Events gathered piece by piece into narrow columns: about 40 bytes an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces.kineto import Events

Integers = NDArray[np.signedinteger[Any]]
LATEST_NS = 2**61
LONGEST_NS = 2**53
"""An event of 104 days is none."""
DTYPES: dict[str, type[np.signedinteger[Any]]] = {
    "name": np.int32,
    "category": np.int8,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.int32,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
}


@dataclass(slots=True)
class Columns:
    """Columns under construction, and the tables that ``name`` and ``thread`` point into."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[Any, int] = field(default_factory=dict)
    parts: dict[str, list[Integers]] = field(default_factory=lambda: {c: [] for c in DTYPES})
    invalid: int = 0
    resolution_ns: int = 1000

    def name_ids(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of names, new ones given the next."""
        return _numbered(self.names, names)

    def thread_ids(self, threads: Sequence[Any]) -> list[int]:
        """Return the numbers of threads, new ones given the next."""
        return _numbered(self.threads, threads)

    def add(self, good: NDArray[np.bool_] | None = None, **columns: Any) -> None:
        """Append rows; those not under ``good`` and those whose times cannot be are counted.

        Args:
            good: None where every time could be read.
            columns: one of each of ``DTYPES``, of equal length.
        """
        start, end = np.asarray(columns["start_ns"]), np.asarray(columns["end_ns"])
        # Wide enough for every clock, and narrow enough that sums and differences fit 64 bits.
        keep = (end >= start) & (np.abs(start) < LATEST_NS) & (end - start < LONGEST_NS)
        if good is not None:
            keep &= good
        whole = bool(keep.all())
        if not whole:
            self.invalid += int(len(keep) - keep.sum())
        for column, dtype in DTYPES.items():
            values = np.asarray(columns[column], dtype)
            self.parts[column].append(values if whole else values[keep])
        while self.resolution_ns > 1 and any(
            (self.parts[c][-1] % self.resolution_ns).any() for c in ("start_ns", "end_ns")
        ):
            self.resolution_ns //= 10

    def events(self) -> Events:
        """Return the columns, and forget them one by one as they are joined."""
        joined = {}
        for column, dtype in DTYPES.items():
            parts = self.parts.pop(column)
            joined[column] = np.concatenate(parts) if parts else np.empty(0, dtype)
        return Events(tuple(self.names), **joined)


def _numbered(table: dict[Any, int], values: Sequence[Any]) -> list[int]:
    """Return the numbers of values in a table; only where one is new is each of them entered."""
    known = list(map(table.get, values))
    if None in known:
        return [table.setdefault(value, len(table)) for value in values]
    return known  # type: ignore[return-value]  # None was looked for
