"""Exact arithmetic on time intervals: integer nanoseconds in, integer nanoseconds out.

Intervals are half-open, ``[start, end)``: touching intervals leave no gap, an empty one has no
length. Everything takes arrays of starts and ends, in any order, and never rounds (a tool that
rounds starts up and ends down loses about 1 µs a kernel, just where launches dominate).

An interval that ends before it starts is never dropped silently: it raises ``ValueError``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ns = NDArray[np.int64]


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


def gaps(starts: ArrayLike, ends: ArrayLike, window: tuple[int, int]) -> tuple[Ns, Ns]:
    """Return where no interval is open within the ``window`` (start, end), edges included."""
    low, high = window
    if high < low:
        raise ValueError(f"the window ends before it starts: {window}")
    s, e = merge(starts, ends)
    s, e = np.clip(s, low, high), np.clip(e, low, high)
    left, right = np.concatenate(([low], e)), np.concatenate((s, [high]))
    open_ = right > left
    return left[open_], right[open_]


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


def _checked(starts: ArrayLike, ends: ArrayLike) -> tuple[Ns, Ns]:
    """Return both as 64-bit integers; raise where they cannot be intervals."""
    s, e = np.asarray(starts), np.asarray(ends)
    if s.shape != e.shape or s.ndim != 1:
        raise ValueError(f"starts and ends differ in shape: {s.shape} and {e.shape}")
    if len(s) and "f" in (s.dtype.kind, e.dtype.kind):
        raise ValueError("times must be integers, whole nanoseconds")
    if backward := int((e < s).sum()):
        raise ValueError(f"{backward} intervals end before they start")
    return s.astype(np.int64, copy=False), e.astype(np.int64, copy=False)
