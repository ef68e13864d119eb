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
        start_ns: per event.
        end_ns: per event, cut at its parent's.
    """

    order: Index
    parent: Index
    start_ns: Ns
    end_ns: Ns

    def nearest(self, chosen: NDArray[np.bool_], *, outermost: bool = False) -> Index:
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
