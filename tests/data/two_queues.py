"""A simulated device whose truth is known: launches, kernels, streams, a queue of bounded depth.

Written apart from ``analysis/replay.py`` and in another way, event by event, so that the two check
each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frameworktax.traces.timeline import Step


@dataclass(frozen=True)
class Program:
    """What a call does, ns: host work before each launch, kernel times, streams, waits."""

    host: list[int]
    kernel: list[int]
    stream: list[int]
    waits_for: dict[int, int]  # kernel → kernel of another stream it waits for
    synchronises_before: frozenset[int] = frozenset()
    launch: int = 4_000
    gap: int = 1_000
    return_: int = 3_000
    sync: int = 6_000
    depth: int = 1024
    graph_gap: float = 0.1  # share of ``gap`` in a graph
    graph_launch: int = 10_000  # the most that launching one takes


def random_program(
    rng: np.random.Generator, *, launches: int, host_ns: float, kernel_ns: float, streams: int = 1
) -> Program:
    host = rng.lognormal(np.log(host_ns), 0.5, launches).round().astype(int)
    kernel = rng.lognormal(np.log(kernel_ns), 1.0, launches).round().astype(int) + 1
    stream = rng.integers(0, streams, launches)
    waits = {}
    for i in range(1, launches):
        if streams > 1 and rng.random() < 0.2:
            waits[i] = int(rng.integers(max(0, i - 8), i))
    return Program(
        host=[int(h) for h in host],
        kernel=[int(k) for k in kernel],
        stream=[int(s) for s in stream],
        waits_for=waits,
        launch=int(rng.integers(2_000, 6_000)),
        gap=int(rng.integers(500, 1_500)),
    )


def play(
    program: Program, *, device_speed: float = 1, host_speed: float = 1, graphs: bool = False
) -> Step:
    """Run the program; the record of it, with its true latency in ``end_ns``."""
    clock = 0.0
    ends: list[float] = []
    launched, started, waited = [], [], []
    once = min(float(program.host[0]), float(np.median(program.host)), program.graph_launch)
    gap = program.gap * (program.graph_gap if graphs else 1)
    for i, work in enumerate(program.host):
        if graphs:
            work = once if i == 0 else 0
        elif i in program.synchronises_before and ends:
            if max(ends) > clock:
                waited.append((round(clock), round(max(ends))))
            clock = max(clock, max(ends))
        clock += work / host_speed
        if not graphs and len(ends) >= program.depth:
            clock = max(clock, ends[len(ends) - program.depth])
        begin = clock + program.launch
        for j in range(i - 1, -1, -1):  # the last one on the same stream
            if program.stream[j] == program.stream[i]:
                begin = max(begin, ends[j] + gap)
                break
        if i in program.waits_for:
            begin = max(begin, ends[program.waits_for[i]] + gap)
        launched.append(clock)
        started.append(begin)
        ends.append(begin + program.kernel[i] / device_speed)
    finish = max(clock + program.return_ / host_speed, max(ends)) + program.sync

    def as_ns(values):
        return np.round(np.asarray(values)).astype(np.int64)

    return Step(
        name="step",
        begin_ns=0,
        end_ns=round(finish),
        launch_start_ns=as_ns(launched),
        launch_end_ns=as_ns(launched) + 1_000,
        device_start_ns=as_ns(started),
        device_end_ns=as_ns(ends),
        stream=np.asarray(program.stream, dtype=np.int64),
        device=np.zeros(len(ends), dtype=np.int64),
        is_kernel=np.ones(len(ends), dtype=np.bool_),
        waits_ns=np.asarray(waited, dtype=np.int64).reshape(-1, 2),
        on_link=np.zeros(len(ends), dtype=np.bool_),
        begins_ns=np.zeros(1, dtype=np.int64),
        loading_ns=np.zeros((0, 2), dtype=np.int64),
    )


def busy_ns(step: Step) -> int:
    """Union of kernels, ns."""
    order = np.argsort(step.device_start_ns)
    covered, reach = 0, -1
    for i in order:
        begin, end = int(step.device_start_ns[i]), int(step.device_end_ns[i])
        covered += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return covered
