"""Exact arithmetic on time intervals: integer nanoseconds in, integer nanoseconds out.

Intervals are half-open, ``[start, end)``: touching intervals leave no gap, an empty one has no
length. Everything takes arrays of starts and ends, in any order, and never rounds (a tool that
rounds starts up and ends down loses about 1 µs a kernel, just where launches dominate).

An interval that ends before it starts is never dropped silently: it raises ``ValueError``.

``nest`` finds what a thread is doing at each moment, the innermost of its open events. Calls of one
thread lie inside each other. Writers that round to whole microseconds let a child end after its
parent; it is then cut at the parent's end, as the call itself was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ns = NDArray[np.int64]
Mask = NDArray[np.bool_]
LIMIT = 2**62
"""Anything above is no time, and sums must fit 64 bits."""


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
    before = np.append(0, np.cumsum(e - s))
    ends = np.append(e, -LIMIT)  # the last: where none has begun

    def length_before(t: Ns) -> Ns:
        opened = np.searchsorted(s, t, side="right")
        # What is still open at t counts only up to t.
        return before[opened] - np.maximum(ends[opened - 1] - t, 0)

    return length_before(we) - length_before(ws)


def owners(starts: Ns, ends: Ns, times: Ns) -> Ns:
    """Return in which interval each moment lies, -1 for none.

    Starts are ascending, and no interval overlaps another.
    """
    at = np.searchsorted(starts, times, side="right") - 1
    ends = np.append(ends, np.iinfo(np.int64).min)  # at -1, where it has begun in none
    return np.where(times < ends[at], at, -1)


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
    theirs = np.arange(len(mine)) + np.repeat(low + count - np.cumsum(count), count)
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


# --- events of one thread inside each other -------------------------------------------------------

Index = NDArray[np.signedinteger[Any]]
"""Numbers of events, of 32 bits where there are as many: a trace of 2 GB has 8 million."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """How the events of one thread lie inside each other.

    Attributes:
        order: events by start, outer ones first.
        parent: per event, the event around it, -1 for none.
        start_ns: per event.
        end_ns: per event, cut at its parent's.
    """

    order: Index
    parent: Index
    start_ns: Ns
    end_ns: Ns

    def nearest(self, chosen: Mask, *, outermost: bool = False) -> Index:
        """Return, per event, the innermost event at or around it that is chosen; -1 for none.

        With ``outermost``, the outermost such event.
        """
        found: Index = np.where(chosen, np.arange(len(chosen), dtype=np.int32), np.int32(-1))
        # What is found from here to an ancestor, and then that much further: the way doubles.
        ancestor = self.parent
        while len(inside := np.flatnonzero(ancestor >= 0)):
            own, above = found[inside], found[ancestor[inside]]
            first, second = (above, own) if outermost else (own, above)
            found[inside] = np.where(first >= 0, first, second)
            ancestor = np.where(ancestor >= 0, ancestor[ancestor], -1)
        return found

    def stretches(self) -> tuple[Ns, Ns, Index]:
        """Return starts and ends of stretches that cover all time, and who is innermost, or -1."""
        lasting = self.order[(self.end_ns > self.start_ns)[self.order]]
        rank = np.arange(len(lasting), dtype=np.int32)
        times = np.concatenate((self.start_ns[lasting], self.end_ns[lasting]))
        owner = np.concatenate((lasting, self.parent[lasting]))
        # At one moment ends come before starts, inner ends first and outer starts first: the last
        # of them says who is innermost from here on.
        starts = np.repeat([True, False], len(lasting))
        by = np.lexsort((np.concatenate((rank, -rank)), starts, times))
        times, owner = times[by], owner[by]
        last = np.append(times[1:] > times[:-1], True) if len(times) else np.zeros(0, bool)
        times, owner = times[last], owner[last]
        return np.append(-LIMIT, times), np.append(times, LIMIT), np.append(-1, owner)


def nest(start_ns: Ns, end_ns: Ns) -> Nesting:
    """Return how events of one thread lie inside each other; any order, no end before its start."""
    order = np.lexsort((-end_ns, start_ns)).astype(np.int32)
    s, e = start_ns[order], end_ns[order]
    above = _open_before(s, e)
    inside = np.flatnonzero(above >= 0)
    if (e[inside] > e[above[inside]]).any():
        above, e = _one_by_one(s, e)
    parent, cut = np.empty_like(above), np.empty_like(e)
    parent[order] = np.where(above >= 0, order[above], -1) if len(order) else above
    cut[order] = e
    return Nesting(order, parent, start_ns, cut)


def _open_before(s: Ns, e: Ns) -> Index:
    """Return, per sorted event, the last one before it that has not ended at its start, or -1.

    It is the event around it where they lie inside each other. What lies between an event and
    where its search has come has ended, so that others take all of that way at once.
    """
    above = np.arange(-1, len(s) - 1, dtype=np.int32)
    open_ = np.flatnonzero(above >= 0)
    while len(open_ := open_[(above[open_] >= 0) & (e[above[open_]] <= s[open_])]):
        above[open_] = above[above[open_]]
    return above


def _one_by_one(s: Ns, e: Ns) -> tuple[Index, Ns]:
    """Nest sorted events with a stack; return the events around them, and their ends, cut."""
    parent, cut = np.empty(len(s), np.int32), e.copy()
    stack: list[tuple[int, int]] = []
    for i, (start, end) in enumerate(zip(s.tolist(), e.tolist(), strict=True)):
        while stack and stack[-1][1] <= start:
            stack.pop()
        parent[i] = stack[-1][0] if stack else -1
        if stack:
            end = min(end, stack[-1][1])
        cut[i] = end
        stack.append((i, end))
    return parent, cut
