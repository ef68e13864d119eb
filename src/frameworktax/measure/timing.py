"""Warm-up, blocks, and both kinds of timing.

Everything here runs in the measuring process and touches nothing but the clock, the call and the
synchronise. ``latency`` is one call until its outputs are complete on the device. ``pipelined`` is
the time of a run of calls, one synchronise at its end, over their number: on a CPU a call is
complete when it returns, so the calls of a latency block are at the same time a pipelined run and
are not repeated.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from frameworktax.clock import REAL, Clock
from frameworktax.records import Block

BLOCK_NS = 20_000_000
"""A block is as many calls as fill this time, within the next two bounds."""
MIN_CALLS = 5
"""Calls a block has at least (METHOD: blocks of at least 5 calls), in ``LONG_NS`` at most."""
LONG_NS = 1_000_000_000
"""A block longer than ``BLOCK_NS`` takes no longer than this, or is one call: what disturbs a host
lasts for tenths of a second, so that calls as long as that are blocks of their own."""
MAX_CALLS = 200
"""A longer block makes its median no better."""
WARM_IN_NS = 15_000_000
"""Time for calls dropped at the head of a block, one at least, as many as are timed at most.

Other processes ran since the last block, and their code and data are in the caches. Calls of 3 ms
were 19 % slow at first and settled within 10 ms; dropping one call left medians 5 to 10 % high.
Before a call that is a block of its own none is dropped: it is at most 2 ms of its 500 slower.
"""
WARMUP_CALLS, LONG_WARMUP_CALLS = 10, 3
"""Calls of warm-up at least, and where each is a block of its own; some runtimes still compile on
their second call."""
STILL_FALLING = 0.98
"""A group of warm-up calls whose median is below this share of the group before is not warm."""


_block = partial(Block, session="", point="", process=0, round=0)
"""A block without session and point: those are the parent's to fill in."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """What warming up took: calls, the last group's median, whether it had settled."""

    calls: int
    call_ns: int
    settled: bool


def no_synchronize() -> None:
    """Do nothing: a CPU call is complete when it returns."""


def calls_for(call_ns: int, block_ns: int = BLOCK_NS) -> int:
    """Return how many calls fill ``block_ns``, between ``MIN_CALLS`` and ``MAX_CALLS``.

    Of long calls fewer, one at least.
    """
    if not call_ns:  # a clock may not see a short call
        return MAX_CALLS
    wanted, fit = -(-block_ns // call_ns), max(1, LONG_NS // call_ns)
    return min(MAX_CALLS, max(wanted, min(MIN_CALLS, fit)))


def warm_up_calls(call_ns: int) -> int:
    """Return how many calls warm up at least."""
    return WARMUP_CALLS if calls_for(call_ns) > 1 else LONG_WARMUP_CALLS


def block_ns(call_ns: int) -> int:
    """Return what a block takes, with the calls dropped at its head."""
    calls = calls_for(call_ns)
    return calls * call_ns + (WARM_IN_NS + call_ns if calls > 1 else 0)


def warm_up(
    call: Callable[[], Any],
    synchronize: Callable[[], None] = no_synchronize,
    *,
    limit_ns: int = 10_000_000_000,
    clock: Clock = REAL,
) -> Warmup:
    """Call until at least ``WARMUP_CALLS`` calls are done and group medians stop falling.

    A call that is a block of its own is such a group, too.

    Args:
        call: what is measured.
        synchronize: waits for the device.
        limit_ns: give up settling after this long; three calls are made whatever they take.
        clock: to read time from.

    Returns:
        What it took. ``settled`` is False where the limit came first.
    """
    group: list[int] = []
    before: float | None = None
    calls, shortest = 0, sys.maxsize
    start = clock.wall_ns()
    while True:
        t0 = clock.wall_ns()
        call()
        synchronize()
        group.append(clock.wall_ns() - t0)
        calls += 1
        shortest = min(shortest, group[-1])  # an early one may still compile
        if len(group) == MIN_CALLS or calls_for(shortest) == 1:
            now = median(group)
            is_still = before is not None and now >= STILL_FALLING * before
            if is_still and calls >= warm_up_calls(shortest):
                return Warmup(calls, int(now), True)
            before, group = now, []
        if calls >= 3 and clock.wall_ns() - start > limit_ns:
            last = group or [int(before or 0)]
            return Warmup(calls, int(median(last)), False)


@contextlib.contextmanager
def _undisturbed(
    call: Callable[[], Any], synchronize: Callable[[], None], calls: int, clock: Clock
) -> Iterator[None]:
    """Have the garbage collector off inside, after the calls that are dropped."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = clock.wall_ns()
        for _ in range(calls if calls > 1 else 0):
            call()
            synchronize()
            if clock.wall_ns() - start >= WARM_IN_NS:
                break
        yield
    finally:
        if was_on:
            gc.enable()


def host_block(call: Callable[[], Any], *, calls: int, clock: Clock = REAL) -> Block:
    """Time a block of calls that are complete when they return.

    Args:
        call: what is measured.
        calls: how many are timed.
        clock: to read time from.
    """
    wall, stamps = clock.wall_ns, [0] * (calls + 1)
    with _undisturbed(call, no_synchronize, calls, clock):
        cpu0 = clock.cpu_ns()
        stamps[0] = wall()
        for i in range(1, calls + 1):
            call()
            stamps[i] = wall()
        cpu = clock.cpu_ns() - cpu0
    return _block(
        latency_ns=tuple(b - a for a, b in pairwise(stamps)),
        pipelined_ns=stamps[-1] - stamps[0],
        pipelined_calls=calls,
        cpu_ns=cpu,
    )


def device_block(
    call: Callable[[], Any],
    synchronize: Callable[[], None],
    *,
    calls: int,
    first_token: Callable[[], int | None] | None = None,
    clock: Clock = REAL,
) -> Block:
    """Time a block of calls that return before their outputs are complete, and a pipelined run.

    ``synchronize`` waits for the device. Calls that generate wait for it themselves, token by
    token, and have no pipelined run: ``first_token`` returns the clock's reading at the first token
    of the last call, and is asked between two calls. The rest is as of ``host_block``.
    """
    wall = clock.wall_ns
    latency, enqueue, first = [0] * calls, [0] * calls, []
    with _undisturbed(call, synchronize, calls, clock):
        cpu0 = clock.cpu_ns()
        for i in range(calls):
            t0 = wall()
            call()
            t1 = wall()
            synchronize()
            latency[i] = wall() - t0
            enqueue[i] = t1 - t0
            if first_token is not None and (at := first_token()) is not None:
                first.append(at - t0)
        cpu = clock.cpu_ns() - cpu0
        pipelined_ns = sum(latency)
        if first_token is None:
            t0 = wall()
            for _ in range(calls):
                call()
            synchronize()
            pipelined_ns = wall() - t0
    return _block(
        latency_ns=tuple(latency),
        pipelined_ns=pipelined_ns,
        pipelined_calls=calls,
        cpu_ns=cpu,
        enqueue_ns=tuple(enqueue) if first_token is None else None,
        first_token_ns=tuple(first) if len(first) == calls else None,
    )
