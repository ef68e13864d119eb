"""Exact arithmetic on time intervals: integer nanoseconds in, integer nanoseconds out.

Intervals are half-open, ``[start, end)``: touching intervals leave no gap, an empty one has no
length. Everything takes arrays of starts and ends, in any order, and never rounds (a tool that
rounds starts up and ends down loses about 1 µs a kernel, just where launches dominate).

An interval that cannot be (it ends before it starts, or is not a number) is never dropped
silently: ``split_invalid`` counts them, everything else raises ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ns = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Intervals that can be, and how many could not."""

    starts: Ns
    ends: Ns
    invalid: int


def split_invalid(starts: ArrayLike, ends: ArrayLike) -> Split:
    """Separate intervals that can be from those that cannot.

    Args:
        starts: of each interval, ns; integers, or floats that hold whole nanoseconds.
        ends: as many, ns.

    Raises:
        ValueError: the two differ in shape, or a float is not a whole number of nanoseconds.
    """
    s, e = np.asarray(starts), np.asarray(ends)
    if s.shape != e.shape or s.ndim != 1:
        raise ValueError(f"starts and ends differ in shape: {s.shape} and {e.shape}")
    good = np.ones(s.shape, dtype=bool)
    for values in (s, e):
        if values.dtype.kind == "f":
            good &= np.isfinite(values)
    s, e = _whole(s[good]), _whole(e[good])
    forward = e >= s
    return Split(s[forward], e[forward], int(len(good) - forward.sum()))


def merge(starts: ArrayLike, ends: ArrayLike) -> tuple[Ns, Ns]:
    """Return the union as sorted, disjoint, non-touching, non-empty intervals."""
    s, e = _checked(starts, ends)
    filled = e > s
    s, e = s[filled], e[filled]
    if not len(s):
        return s, e
    order = np.argsort(s, kind="stable")
    s, e = s[order], np.maximum.accumulate(e[order])
    first = np.concatenate(([True], s[1:] > e[:-1]))
    last = np.concatenate((first[1:], [True]))
    return s[first], e[last]


def union_ns(starts: ArrayLike, ends: ArrayLike) -> int:
    """Return the time during which at least one interval is open, ns."""
    s, e = merge(starts, ends)
    return int((e - s).sum())


def union_ns_by(
    keys: Sequence[Hashable] | NDArray[Any], starts: ArrayLike, ends: ArrayLike
) -> dict[Any, int]:
    """Return the union for each key (a device, a stream), ns."""
    s, e = _checked(starts, ends)
    k = np.asarray(keys)
    if k.shape != s.shape:
        raise ValueError(f"keys and starts differ in shape: {k.shape} and {s.shape}")
    return {key.item(): union_ns(s[k == key], e[k == key]) for key in np.unique(k)}


def gaps(
    starts: ArrayLike, ends: ArrayLike, window: tuple[int, int] | None = None
) -> tuple[Ns, Ns]:
    """Return where no interval is open, between the first start and the last end.

    With a ``window`` (start, end), return it within the window, edges included.
    """
    if window is None:
        s, e = merge(starts, ends)
        return e[:-1], s[1:]
    low, high = window
    if high < low:
        raise ValueError(f"the window ends before it starts: {window}")
    s, e = merge(*clip(starts, ends, low, high))
    left, right = np.concatenate(([low], e)), np.concatenate((s, [high]))
    open_ = right > left
    return left[open_].astype(np.int64), right[open_].astype(np.int64)


def clip(starts: ArrayLike, ends: ArrayLike, low: int, high: int) -> tuple[Ns, Ns]:
    """Return the parts of the intervals inside ``[low, high)``; those outside vanish."""
    s, e = _checked(starts, ends)
    s, e = np.maximum(s, low), np.minimum(e, high)
    inside = e > s
    return s[inside], e[inside]


def union_within_ns(
    starts: ArrayLike, ends: ArrayLike, window_starts: ArrayLike, window_ends: ArrayLike
) -> Ns:
    """Return, for each window (a step, a call), the union of the intervals inside it, ns.

    Windows may overlap and may be in any order. One sort of the intervals serves all windows:
    with F(t) the length of the union before t, a window holds F(end) − F(start).
    """
    s, e = merge(starts, ends)
    ws, we = _checked(window_starts, window_ends)
    before = np.concatenate(([0], np.cumsum(e - s))).astype(np.int64)

    def length_before(t: Ns) -> Ns:
        opened = np.searchsorted(s, t, side="right")
        if not len(s):
            return np.zeros(len(t), np.int64)
        # What is still open at t counts only up to t.
        still_open = np.where(opened > 0, np.maximum(e[opened - 1] - t, 0), 0)
        return np.asarray(before[opened] - still_open, dtype=np.int64)

    return length_before(we) - length_before(ws)


def overlaps(
    starts: Ns, ends: Ns, other_starts: Ns, other_ends: Ns
) -> tuple[NDArray[np.intp], NDArray[np.intp], Ns, Ns]:
    """Return every piece in which an interval of one list meets one of another.

    Args:
        starts: ascending, of intervals that do not overlap each other.
        ends: of those.
        other_starts: likewise.
        other_ends: of those.

    Returns:
        For each piece the index in the first list, that in the second, its start and its end.
    """
    low = np.searchsorted(other_ends, starts, side="right")
    high = np.maximum(np.searchsorted(other_starts, ends, side="left"), low)
    count = high - low
    mine = np.repeat(np.arange(len(starts)), count)
    first = (
        np.repeat(low - np.concatenate(([0], np.cumsum(count)[:-1])), count) if len(low) else low
    )
    theirs = np.arange(len(mine)) + first
    s = np.maximum(starts[mine], other_starts[theirs])
    e = np.minimum(ends[mine], other_ends[theirs])
    filled = e > s
    return mine[filled], theirs[filled], s[filled], e[filled]


def _whole(values: NDArray[Any]) -> Ns:
    as_int = values.astype(np.int64)
    if values.dtype.kind == "f" and not np.array_equal(as_int, values):
        raise ValueError("times must be whole nanoseconds")
    return as_int


def _checked(starts: ArrayLike, ends: ArrayLike) -> tuple[Ns, Ns]:
    split = split_invalid(starts, ends)
    if split.invalid:
        raise ValueError(f"{split.invalid} intervals end before they start; split_invalid first")
    return split.starts, split.ends
