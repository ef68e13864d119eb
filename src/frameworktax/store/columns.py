"""Blocks as columns: what is asked of every point of a study is computed of all of them at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from frameworktax.records import Estimate
from frameworktax.stats import block_medians, process_intervals


class Part:
    """Blocks in any order, as columns."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        """Take in ``Block`` records, or ``CompactBlock``."""
        self.groups: dict[tuple[str, str], int] = {}
        self.aside: tuple[dict[int, Sequence[int]], ...] = ({}, {})
        numbers, times, latency_ns = array("q"), array("d"), array("I")
        groups, (enqueue_ns, first_token_ns) = self.groups, self.aside
        for row, block in enumerate(blocks):
            own = block.latency_ns
            group = groups.setdefault((block.session, block.point), len(groups))
            numbers.extend((group, block.process, block.round, len(own)))
            calls = block.pipelined_calls
            times.extend((block.cpu_ns, block.pipelined_ns / calls if calls else np.nan))
            try:
                latency_ns += array(latency_ns.typecode, own)
            except OverflowError:  # from 4.3 s on
                latency_ns = array("q", latency_ns)
                latency_ns += array("q", own)
            if block.enqueue_ns is not None:
                enqueue_ns[row] = block.enqueue_ns
            if block.first_token_ns is not None:
                first_token_ns[row] = block.first_token_ns
        self.numbers = np.array(numbers).reshape(-1, 4)
        self.latency_ns = np.array(latency_ns)
        calls_of = self.numbers[:, 3]
        medians, sums = block_medians(self.latency_ns, np.cumsum(calls_of) - calls_of, calls_of)
        self.times = np.column_stack([np.array(times).reshape(-1, 2), medians, sums])


class Blocks:
    """Blocks of any points, sorted by group, process and round.

    Attributes:
        groups: (session, point's key) → number of the group.
        start: shape (groups + 1,); the rows of a group are ``start[group]`` to the next.
        group: shape (blocks,), like those below.
        process: of the point.
        round: of the session.
        calls: how many latencies there are.
        median_ns: of the latencies.
        sum_ns: of the latencies.
        cpu_ns: as in ``Block``.
        pipelined_ns: of a call; nan where none was pipelined.
        enqueue_ns: row → as in ``Block``, of blocks that have it.
        first_token_ns: the same.
    """

    kind: ClassVar[str] = "blocks"

    def __init__(self, parts: Sequence[Part]) -> None:
        """Take parts together, of equal group, process and round the first."""
        self.groups: dict[tuple[str, str], int] = {}
        numbers = np.concatenate([np.empty((0, 4), np.int64), *(part.numbers for part in parts)]).T
        row, before = 0, []
        for part in parts:
            known = [self.groups.setdefault(key, len(self.groups)) for key in part.groups]
            own = slice(row, row + len(part.numbers))
            numbers[0, own] = np.array(known, np.int64)[numbers[0, own]]
            before.append(row)
            row = own.stop
        order = np.lexsort(numbers[2::-1])  # stable
        same = np.all(np.diff(numbers[:3, order]) == 0, axis=0)
        order = np.delete(order, np.flatnonzero(same) + 1)
        self.latencies = [part.latency_ns for part in parts]
        self._ends = np.cumsum([len(latency_ns) for latency_ns in self.latencies])
        self.first = (np.cumsum(numbers[3]) - numbers[3])[order]
        self.group, self.process, self.round, self.calls = numbers[:, order]
        times = np.concatenate([np.empty((0, 4)), *(part.times for part in parts)])[order]
        self.cpu_ns, self.pipelined_ns, self.median_ns, self.sum_ns = times.T
        self.start = np.searchsorted(self.group, np.arange(len(self.groups) + 1))
        has_more = any(any(part.aside) for part in parts)
        rows = {old: new for new, old in enumerate(order.tolist())} if has_more else {}
        self.enqueue_ns, self.first_token_ns = (
            {
                rows[row + at]: times_ns
                for row, part in zip(before, parts, strict=True)
                for at, times_ns in part.aside[which].items()
                if row + at in rows
            }
            for which in (0, 1)
        )

    def rows(self, group: int) -> range:
        """Return the rows of a group, by process and round."""
        first, end = self._bounds[group : group + 2]
        return range(first, end)

    @cached_property
    def _bounds(self) -> list[int]:
        bounds: list[int] = self.start.tolist()
        return bounds

    @cached_property
    def levels(self) -> list[dict[int, tuple[float, float]]]:
        """Of each group: process → medians of its blocks' latencies and pipelined calls, ns."""
        change = (np.diff(self.group) != 0) | (np.diff(self.process) != 0)
        run = np.concatenate([[0][: len(self.group)], np.cumsum(change)]).astype(np.int64)
        first = np.searchsorted(run, np.arange(run.max(initial=-1) + 1))
        found: list[dict[int, tuple[float, float]]] = [{} for _ in self.groups]
        columns = (self.group[first], self.process[first])
        medians = (_medians(run, column) for column in (self.median_ns, self.pipelined_ns))
        for group, process, *both in zip(*(c.tolist() for c in (*columns, *medians)), strict=True):
            found[group][process] = (both[0], both[1])
        return found

    @cached_property
    def times(self) -> list[tuple[float, float]]:
        """Of each group: wall and CPU time of all calls, ns."""
        both = (np.bincount(self.group, c, len(self.groups)) for c in (self.sum_ns, self.cpu_ns))
        return list(zip(*(column.tolist() for column in both), strict=True))

    def samples(self, rows: Iterable[int]) -> list[int]:
        """Return the latencies of some rows, one after the other, ns."""
        found: list[int] = []
        for row in rows:
            part = int(np.searchsorted(self._ends, self.first[row], side="right"))
            first = self.first[row] - self._ends[part] + len(self.latencies[part])
            found += self.latencies[part][first : first + self.calls[row]].tolist()
        return found

    @cached_property
    def latency(self) -> list[Estimate | None]:
        """The latency of each group, ns, over processes and their blocks."""
        return process_intervals(self.median_ns, self.group, self.process, len(self.groups))

    @cached_property
    def _turns(self) -> tuple[np.ndarray, int]:
        """Of each block the number of its process and round, and how many there are."""
        turns, turn = np.unique(self.process << 31 | self.round, return_inverse=True)
        return turn, len(turns)

    def ratios(self, above: Sequence[int], below: Sequence[int]) -> list[Estimate | None]:
        """Return ``stats.ratio_interval`` of groups over others, pair by pair."""
        turn, turns = self._turns
        at = self.group * turns + turn
        own, others = np.asarray(above), np.asarray(below)
        first, count = self.start[own], np.diff(self.start)[own]
        pair = np.repeat(np.arange(len(first)), count)
        rows = np.arange(len(pair)) + np.repeat(first - np.cumsum(count) + count, count)
        wanted = np.repeat(others, count) * turns + turn[rows]
        other = np.searchsorted(at, wanted)
        found = at[np.minimum(other, len(at) - 1)] == wanted
        rows, other, pair = rows[found], other[found], pair[found]
        logs = np.log(self.median_ns[rows] / self.median_ns[other])
        return process_intervals(logs, pair, self.process[rows], len(first), logs=True)


def _medians(run: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return the median of what is not nan in each run of a column; nan where nothing is left."""
    known = ~np.isnan(column)
    count = np.bincount(run[known], minlength=run.max(initial=-1) + 1)
    some = count > 0
    found = np.full(len(count), np.nan)
    found[some], _ = block_medians(column[known], (np.cumsum(count) - count)[some], count[some])
    return found
