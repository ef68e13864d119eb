"""Blocks as columns: what is asked of every point of a study is computed of all of them at once."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, count, pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from frameworktax.records import Estimate
from frameworktax.stats import block_medians, process_intervals
from frameworktax.store import shards


class Batch(NamedTuple):
    """Blocks with their latencies one after the other, ns, and how many each of them has."""

    blocks: Sequence[Any]
    calls: Sequence[int]
    latency_ns: np.ndarray

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> Batch:
        """Take ``Block`` records, or ``CompactBlock``."""
        own = [block.latency_ns for block in blocks]
        return cls(blocks, [*map(len, own)], np.array([*chain.from_iterable(own)], np.int64))

    @classmethod
    def read(cls, lines: Sequence[bytes]) -> Batch | None:
        """Decode lines without an object for each latency: in half of the time.

        None where one of them is no block, or has more times than its latencies.
        """
        try:
            blocks = shards.raw_blocks(b"".join(lines))
            text = b"".join([block.latency_ns for block in blocks])
            # lists become one, with a 0, which no latency is, before what was in each
            joined = text.replace(b"]", b"").replace(b"[", b",0,")[1:]
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of what is no number, in older versions of numpy
                numbers = np.fromstring(joined, np.int64, sep=",")
        except (*shards.NOT_A_RECORD, DeprecationWarning):
            return None
        if not len(lines) == len(blocks) > 0:
            return None
        begins = np.flatnonzero(numbers == 0)
        calls = np.diff(begins, append=len(numbers)) - 1
        is_whole = text.count(b"[") == len(begins) == len(blocks) and calls.min() > 0
        if not is_whole or numbers.min() < 0 or numbers.max() >= shards.LONGEST_NS:
            return None
        return cls(blocks, calls.tolist(), numbers[numbers > 0])


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

    def __init__(self, batches: Iterable[Batch]) -> None:
        """Take in batches one at a time; of equal group, process and round the first block."""
        groups: dict[tuple[str, str], int] = defaultdict(count().__next__)
        every, times = [np.empty((4, 0), np.int64)], [np.empty((4, 0))]
        more: dict[str, dict[int, Sequence[int]]] = {"enqueue_ns": {}, "first_token_ns": {}}
        self.latencies: list[np.ndarray] = []
        row = 0
        for blocks, calls, latency_ns in batches:
            group = [groups[b.session, b.point] for b in blocks]
            turn = [b.process for b in blocks], [b.round for b in blocks]
            every.append(np.array([group, *turn, calls], np.int64))
            cpu_ns = [float(b.cpu_ns) for b in blocks]
            pipelined_ns = [
                b.pipelined_ns / b.pipelined_calls if b.pipelined_calls else np.nan for b in blocks
            ]
            is_short = latency_ns.max(initial=0) < 2**32  # half the memory, for less than 4.3 s
            self.latencies.append(latency_ns.astype(np.uint32) if is_short else latency_ns)
            medians = block_medians(latency_ns, np.cumsum(calls) - calls, np.array(calls))
            times.append(np.array([cpu_ns, pipelined_ns, *medians]))
            for name, found in more.items():
                column = [getattr(block, name) for block in blocks]
                if any(column):
                    found.update({at: ns for at, ns in enumerate(column, row) if ns})
            row += len(blocks)
        self.groups = dict(groups)
        numbers = np.concatenate(every, axis=1)
        order = np.lexsort(numbers[2::-1])  # stable
        same = np.all(np.diff(numbers[:3, order]) == 0, axis=0)
        order = np.delete(order, np.flatnonzero(same) + 1)
        self._ends = np.cumsum([len(latency_ns) for latency_ns in self.latencies])
        self.first = (np.cumsum(numbers[3]) - numbers[3])[order]
        self.group, self.process, self.round, self.calls = numbers[:, order]
        columns = np.concatenate(times, axis=1)[:, order]
        self.cpu_ns, self.pipelined_ns, self.median_ns, self.sum_ns = columns
        self.start = np.searchsorted(self.group, np.arange(len(self.groups) + 1))
        rows = {old: new for new, old in enumerate(order.tolist())} if any(more.values()) else {}
        self.enqueue_ns, self.first_token_ns = (
            {rows[at]: times_ns for at, times_ns in found.items() if at in rows}
            for found in more.values()
        )

    @cached_property
    def rows(self) -> list[range]:
        """Of each group: its rows, by process and round."""
        return [range(first, end) for first, end in pairwise(self.start.tolist())]

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
            batch = int(np.searchsorted(self._ends, self.first[row], side="right"))
            first = self.first[row] - self._ends[batch] + len(self.latencies[batch])
            found += self.latencies[batch][first : first + self.calls[row]].tolist()
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
