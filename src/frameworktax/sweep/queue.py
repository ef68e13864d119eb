"""What is still to be measured, in order, by platform; sums are kept and not made anew."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from frameworktax.sweep.schedule import Group

Entry = tuple[int, int, Group]
"""Rank, number in which it came, group."""


class Queue:
    """Groups that wait; taking the first one for a platform costs the logarithm of their number."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.total = 0
        """Groups that were ever added."""
        self._heaps: dict[str, list[Entry]] = defaultdict(list)
        self._waiting_s: dict[str, float] = defaultdict(float)
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        return sum(len(heap) for heap in self._heaps.values())

    def labels(self) -> list[str]:
        """Return the platforms that groups wait for."""
        return [label for label, heap in self._heaps.items() if heap]

    def add(self, group: Group, rank: int | None = None) -> None:
        """Take a group, after all others or at the rank it had."""
        entry = (self.total if rank is None else rank, self.total, group)
        heapq.heappush(self._heaps[group.platform], entry)
        self._waiting_s[group.platform] += group.estimate_s
        self.total += 1

    def take(self, labels: Collection[str]) -> tuple[int, Group] | None:
        """Return the first group for one of the platforms with its rank, None if there is none."""
        heads = [(heap[0][:2], label) for label in labels if (heap := self._heaps.get(label))]
        if not heads:
            return None
        _, label = min(heads)
        rank, _, group = heapq.heappop(self._heaps[label])
        # A sum of differences leaves a rest: of nothing it is nothing.
        rest_s = self._waiting_s[label] - group.estimate_s
        self._waiting_s[label] = rest_s if self._heaps[label] else 0.0
        return rank, group

    def waiting_s(self, labels: Iterable[str]) -> float:
        """Return how long the groups of some platforms are estimated to take."""
        return sum(self._waiting_s[label] for label in labels)

    def drain(self, labels: Collection[str]) -> Iterator[Group]:
        """Take out everything that waits for some platforms, in order."""
        while (found := self.take(labels)) is not None:
            yield found[1]
