"""What a thread is doing at each moment: the innermost of its open events.

Calls of one thread lie inside each other. Writers that round to whole microseconds let a child
end after its parent; it is then cut at the parent's end, as the call itself was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ns = NDArray[np.int64]
Index = NDArray[np.signedinteger[Any]]
"""Numbers of events, of 32 bits where there are as many: a trace of 2 GB has 8 million."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Disjoint stretches of time in order; ``owner`` is the innermost open event, -1 for none."""

    start_ns: Ns
    end_ns: Ns
    owner: Index


@dataclass(frozen=True, slots=True)
class Nesting:
    """How the events of one thread lie inside each other.

    Attributes:
        order: events by start, outer ones first.
        parent: per event, the event around it, -1 for none.
        level: per event, how many are around it.
        start_ns: per event.
        end_ns: per event, cut at its parent's.
    """

    order: Index
    parent: Index
    level: Index
    start_ns: Ns
    end_ns: Ns

    def nearest(self, chosen: NDArray[np.bool_], *, outermost: bool = False) -> Index:
        """Return, per event, the innermost event at or around it that is chosen; -1 for none.

        With ``outermost``, the outermost such event.
        """
        own = np.where(chosen, np.arange(len(chosen), dtype=np.int32), np.int32(-1))
        found = own.copy()
        for members in self._levels()[1:]:
            around = found[self.parent[members]]
            if outermost:
                found[members] = np.where(around >= 0, around, own[members])
            else:
                found[members] = np.where(own[members] >= 0, own[members], around)
        return found

    def stretches(self) -> Stretches:
        """Return who is innermost when, from the first start to the last end."""
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
        return Stretches(times[:-1], times[1:], owner[:-1])

    def _levels(self) -> list[Index]:
        by = np.argsort(self.level, kind="stable")
        return np.split(by, np.cumsum(np.bincount(self.level))[:-1]) if len(by) else [by]


def nest(start_ns: Ns, end_ns: Ns) -> Nesting:
    """Return how events of one thread lie inside each other; any order, no end before its start."""
    order = np.lexsort((-end_ns, start_ns)).astype(np.int32)
    s, e = start_ns[order], end_ns[order]
    fast = _by_level(s, e)
    parent, level, cut = fast if fast is not None else _one_by_one(s, e)
    del s, e
    n = len(order)
    result = Nesting(
        order,
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        start_ns,
        end_ns if fast is not None else np.empty(n, np.int64),
    )
    result.parent[order] = np.where(parent >= 0, order[parent], -1) if n else parent
    result.level[order] = level
    if fast is None:
        result.end_ns[order] = cut
    return result


def _by_level(s: Ns, e: Ns) -> tuple[Index, Index, Ns] | None:
    """Nest sorted events level by level; None if they do not lie inside each other.

    The level of an event is the number of those begun before it and not ended at its start.
    """
    n = len(s)
    # An event without length ends where it starts: it is around no other.
    level = np.arange(n, dtype=np.int32)
    level -= np.searchsorted(np.sort(e), s, side="right").astype(np.int32)
    level += _own_ends(s, e)
    if n and level.min() < 0:
        return None
    parent = np.full(n, -1, np.int32)
    above: Index = np.empty(0, np.int32)
    for depth in range(int(level.max()) + 1 if n else 0):
        members = np.flatnonzero(level == depth).astype(np.int32)
        if depth:
            at = np.searchsorted(above, members) - 1
            if len(at) and at.min() < 0:
                return None
            parent[members] = above[at]
            if (e[members] > e[parent[members]]).any() or (s[members] >= e[parent[members]]).any():
                return None
        if len(members) > 1 and (s[members][1:] < e[members][:-1]).any():
            return None
        above = members
    return parent, level, e


def _own_ends(s: Ns, e: Ns) -> Index:
    """Return, per sorted event, how many ends at or before its start are its own or a later one's.

    Only events without length end at their start.
    """
    point = e == s
    if not point.any():
        return np.zeros(len(s), np.int32)
    _, first, group = np.unique(s, return_index=True, return_inverse=True)
    # Sorted by descending end, the events without length are the last of those with one start.
    upto = np.cumsum(point)
    before = np.concatenate(([0], upto[:-1]))
    total = np.append(before[first[1:]], upto[-1])[group]
    return np.asarray(total - before, np.int32)


def _one_by_one(s: Ns, e: Ns) -> tuple[Index, Index, Ns]:
    """Nest sorted events with a stack, cutting each at the end of the one around it."""
    parent, level, cut = np.empty(len(s), np.int32), np.empty(len(s), np.int32), e.copy()
    stack: list[tuple[int, int]] = []
    for i, (start, end) in enumerate(zip(s.tolist(), e.tolist(), strict=True)):
        while stack and stack[-1][1] <= start:
            stack.pop()
        level[i] = len(stack)
        parent[i] = stack[-1][0] if stack else -1
        if stack:
            end = min(end, stack[-1][1])
        cut[i] = end
        stack.append((i, end))
    return parent, level, cut
