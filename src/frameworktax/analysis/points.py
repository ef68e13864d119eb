"""The intervals that come straight from a point's records, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from frameworktax.analysis.grouping import PointRecords
from frameworktax.records import Block, Estimate, Note, device_of
from frameworktax.stats import (
    MIN_BLOCKS,
    MIN_PROCESSES,
    UNTIL,
    block_median,
    process_interval,
    relative_half_width,
)

WALL_OVER_CPU = 1.05
"""Wall over thread CPU time above which other load is in the numbers (METHOD, section 4)."""


def _interval(records: PointRecords, value: Callable[[Block], float | None]) -> Estimate | None:
    """Return the interval of one value a block, as of a latency; blocks with None are left out."""
    by_process = [
        [found for block in blocks if (found := value(block)) is not None]
        for blocks in records.by_process
    ]
    return process_interval(by_process)


def _median(values: Sequence[float] | None) -> float | None:
    return block_median(values) if values else None


def pipelined(records: PointRecords) -> Estimate | None:
    """Return the time per call with one synchronise per block, ns."""
    return _interval(
        records, lambda b: b.pipelined_ns / b.pipelined_calls if b.pipelined_calls else None
    )


def enqueue(records: PointRecords) -> Estimate | None:
    """Return the host time until a call returns, ns; None where there is no device."""
    return _interval(records, lambda b: _median(b.enqueue_ns))


def first_token(records: PointRecords) -> Estimate | None:
    """Return the time to the first generated token, ns; None where nothing is generated."""
    return _interval(records, lambda b: _median(b.first_token_ns))


def per_token(records: PointRecords) -> Estimate | None:
    """Return the time of each further token, ns: (latency − first token) / (tokens − 1) of a call.

    None where nothing is generated, or one token only.
    """
    tokens = records.point.workload.new_tokens
    if tokens is None or tokens < 2:
        return None
    further = tokens - 1

    def value(block: Block) -> float | None:
        first = block.first_token_ns
        calls = zip(block.latency_ns, first, strict=True) if first else ()
        return _median([(whole - begun) / further for whole, begun in calls])

    return _interval(records, value)


def samples(records: PointRecords) -> tuple[tuple[int, ...], ...]:
    """Return every latency, ns: one tuple a process."""
    return tuple(
        tuple(chain.from_iterable(block.latency_ns for block in blocks))
        for blocks in records.by_process
    )


def notes(records: PointRecords, until: float = UNTIL) -> list[Note]:
    """Return the trust notes of a point: those recorded, once each, and those its numbers ask for.

    Args:
        records: of the point.
        until: the half-width that was asked for, as a share of the value.
    """
    recorded: list[Note] = [*records.subject.notes]
    recorded.extend(note for outcome in records.outcomes for note in outcome.notes)
    recorded.extend(note for a in records.attributions for note in a.notes)
    recorded += [records.last_try] if records.last_try else []
    unique = list(dict.fromkeys(recorded))
    if not records.blocks:
        return unique
    return unique + [note for note in _judged(records, until) if note not in unique]


def _judged(records: PointRecords, until: float) -> list[Note]:
    found = []
    wall_ns = sum(sum(b.latency_ns) for b in records.blocks)
    cpu_ns = sum(b.cpu_ns for b in records.blocks)
    if (
        device_of(records.point.platform) == "cpu"
        and cpu_ns > 0
        and wall_ns / cpu_ns > WALL_OVER_CPU
    ):
        text = (
            f"wall time is {wall_ns / cpu_ns:.2f} × the CPU time of the calling thread: "
            "other load or other threads are in these numbers"
        )
        found.append(Note("wall-over-cpu", text))
    medians = records.block_medians
    half = relative_half_width(records.latency)
    if half > until and sum(map(len, medians)) > 1:
        text = f"interval ±{half:.1%}, asked for ±{until:.1%}; give it more --time-budget"
        found.append(Note("wide-interval", text))
    if len(medians) < MIN_PROCESSES:
        text = f"{len(medians)} of at least {MIN_PROCESSES} processes: " + (
            "the interval is of this process alone, how much processes differ is unknown"
            if len(medians) == 1
            else "two say little of how much processes differ, so the interval is wide"
        )
        found.append(Note("few-processes", text))
    if sum(map(len, medians)) < MIN_BLOCKS:
        text = f"{sum(map(len, medians))} blocks, {MIN_BLOCKS} are asked for"
        found.append(Note("few-blocks", text))
    failed = [o for o in records.outcomes if o.status != "ok"]
    if failed:
        text = f"{len(failed)} of its processes {failed[0].status}: {failed[0].reason}"
        found.append(Note("process-lost", text))
    return found
