"""Whether nominal 95 % intervals cover 0.95: latency, share, ratio and free batch, simulated.

    python benchmarks/intervals.py [--sessions 2000]

Hosts whose speed is constant (white noise alone), drifts, jumps between two states, or is disturbed
in bursts; 1, 3 and 5 processes; and processes that are in one of two states for good, of which few
processes cannot tell. Each process has ten blocks of each point, or the two that it has at least:
the first process one from the first pass and the others one from a round without it, all of them
one from a common round, and one more where these two disagree, as ``Rounds.settle``. Truth is of
the session: what the processes of the program take at the speed that the host had in its rounds;
with one process it is that process's own. Beside the coverage stands the mean width over that of an
oracle: it knows how far the estimate is off at large (the standard deviation of its error over all
sessions), and has the same degrees of freedom. The interval of a free batch ends at measured sizes,
of which the upper one is not free itself. The truth is one of them, too: only one end can err.
Last, latencies on a constant host that are measured until ``schedule`` says that all runtimes at a
batch size are done: in three processes, or in as many as that takes, up to twelve.
Written to benchmarks/results/intervals.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from frameworktax import host as this_host
from frameworktax.analysis.bill import from_samples
from frameworktax.analysis.curves import FREE, free_batch_interval
from frameworktax.measure import schedule
from frameworktax.records import Attribution, Block, Estimate
from frameworktax.stats import (
    FURTHER_PROCESSES,
    UNTIL,
    process_interval,
    ratio_interval,
    t_quantile,
)
from frameworktax.store.columns import Batch, Blocks

RESULT = Path(__file__).with_name("results") / "intervals.json"
SEED = 20261122
HOSTS = ("white", "drifting", "two-state", "bursty", "processes in two states")
PROCESSES = (1, 3, 5)
ROUNDS, LEAST_ROUNDS = 10, 2
BLOCK_SD, PROCESS_SD = 0.015, 0.02
BETWEEN_POINTS_SD = 0.007
"""How far processes differ in the ratio of two points."""
DRIFT_SD, DRIFT_ROUNDS = 0.05, 8
JUMP, STAY = 1.15, 0.85
BURST, BURST_SHARE = 1.3, 0.1
SLOW_STATE, SLOW_SHARE = 1.25, 0.55
"""A process in its other state: its latency over that of the first, and its tax share."""
SHARE, SHARE_SD = 0.40, 0.03
SAMPLES = 33
"""In one sample of 50 ms."""
NS = 1_000_000.0
OTHER = 0.5
OVERHEAD, KERNEL = 9.0, 1.0
"""L(n) = overhead + kernel · n: free up to 1 + 0.1 · 10 / 1 = 2."""
BATCHES = (1, 2, 4)
TARGET, WIDEST = (0.93, 0.97), 1.3
ONE_END = 0.955, 1.0
"""Coverage where one end can err: 0.975 at the border itself, as it is with several processes."""
STOPPED_PROCESSES, RUNTIMES, NOISE_SDS = 3, (1, 3), (BLOCK_SD, 0.05, 0.1)
PROCESS_SDS = 0.005, 0.02, 0.05
"""Between processes; with the first, rounds end by the half-width, not since processes differ."""


@dataclass(frozen=True, slots=True)
class Session:
    """Blocks of four points in common rounds, what is true of them, and each process's share."""

    blocks: dict[str, dict[tuple[int, int], float]]
    truth: dict[str, float]
    shares: list[float]


def host_path(name: str, rng: np.random.Generator, rounds: int = ROUNDS) -> np.ndarray:
    """Return what a host multiplies the latency of each round by."""
    if name == "drifting":
        keep = math.exp(-1 / DRIFT_ROUNDS)
        level, path = rng.normal(0, DRIFT_SD), []
        for _ in range(rounds):
            path.append(level)
            level = keep * level + rng.normal(0, DRIFT_SD * math.sqrt(1 - keep**2))
        return np.exp(path)
    if name == "two-state":
        flips = np.cumsum(rng.random(rounds) > STAY) + rng.integers(2)
        return np.where(flips % 2, JUMP, 1.0)
    return np.ones(rounds)


def noise(name: str, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Return what single blocks are off by."""
    found = np.exp(rng.normal(0, BLOCK_SD, size))
    return (
        found * np.where(rng.random(size) < BURST_SHARE, BURST, 1.0) if name == "bursty" else found
    )


def rounds_of(processes: int, rounds: int) -> np.ndarray:
    """Return in which rounds the blocks of each process are, shape (processes, rounds)."""
    if rounds == LEAST_ROUNDS:  # the first by itself, all together, and one to settle
        return np.array([[min(p, 1), 2, 3 + p] for p in range(processes)])
    return np.tile(np.arange(rounds), (processes, 1))


def blocks_of(times: Mapping[str, np.ndarray], rounds: int) -> list[int]:
    """Return how many blocks each process has: a third settles where two of a point disagree."""
    if rounds != LEAST_ROUNDS:
        return [rounds] * len(times["first"])
    first = np.stack([found[:, :LEAST_ROUNDS] for found in times.values()])
    disagree = first.max(axis=2) > (1 + schedule.DISAGREE) * first.min(axis=2)
    return [LEAST_ROUNDS + bool(any_does) for any_does in disagree.any(axis=0)]


def session(name: str, processes: int, rng: np.random.Generator, rounds: int = ROUNDS) -> Session:
    """Simulate one session."""
    at = rounds_of(processes, rounds)
    path = host_path(name, rng, at.max() + 1)[at]
    slow = (rng.random(processes) < 0.5) & (name == HOSTS[-1])
    own = rng.normal(1, PROCESS_SD, processes) * np.where(slow, SLOW_STATE, 1.0)
    shares = rng.normal(SHARE, SHARE_SD, processes)
    shares = np.where(slow, shares + SLOW_SHARE - SHARE, shares)
    levels = {"first": NS, "other": NS * OTHER}
    levels |= {f"batch {n}": NS * (OVERHEAD + KERNEL * n) / 10 for n in BATCHES[1:]}
    times, curve = {}, {}
    for point, level in levels.items():
        apart = 1.0 if point == "first" else rng.normal(1, BETWEEN_POINTS_SD, processes)
        times[point] = (level * own * apart)[:, None] * path * noise(name, rng, at.shape)
        curve[point] = level * (
            float(np.broadcast_to(apart, processes)[0]) if processes == 1 else 1
        )
    counts = blocks_of(times, rounds)
    blocks = {
        point: {
            (p, int(at[p, block])): float(ns)
            for (p, block), ns in np.ndenumerate(found)
            if block < counts[p]
        }
        for point, found in times.items()
    }
    # the median of a process's blocks over noise, or the mean where one process gives the interval
    several = noise(name, rng, (400,))
    seen = [
        np.multiply.outer(one[:count], several) for one, count in zip(path, counts, strict=True)
    ]
    centre = np.mean if processes == 1 else np.median
    at_host = float(np.mean([centre(one) for one in seen]))
    population = (1 + SLOW_STATE) / 2 if name == HOSTS[-1] else 1.0
    level = float(own[0]) if processes == 1 else population
    share = float(shares[0])
    if processes > 1:
        share = SHARE
        if name == HOSTS[-1]:  # a slow process counts for as long as it takes
            share = (SHARE + SLOW_STATE * SLOW_SHARE) / (1 + SLOW_STATE)
    truth = {
        "latency": NS * level * at_host,
        "share": share,
        "ratio": curve["other"] / curve["first"],
        "free batch": largest_free(curve),
    }
    return Session(blocks, truth, [float(s) for s in shares])


def largest_free(curve: Mapping[str, float]) -> float:
    """Return the largest measured batch size that is free, by the true latencies."""
    limit = curve["first"] * (1 + FREE) * (1 + 1e-12)  # one lies at it
    return max([1, *(n for n in BATCHES[1:] if curve[f"batch {n}"] <= limit)])


def estimates(one: Session, processes: int, rng: np.random.Generator) -> dict[str, Estimate | None]:
    """Return quantity → its estimate."""
    first = one.blocks["first"]
    timed = [
        [_block(p, r, ns) for (q, r), ns in sorted(first.items()) if q == p]
        for p in range(processes)
    ]
    latency = process_interval([[float(b.latency_ns[0]) for b in own] for own in timed])
    attributions = [
        _sample(p, r, int(rng.binomial(SAMPLES, 1 - one.shares[p]))) for p, r in sorted(first)
    ]
    levels = Blocks([Batch.of(own) for own in timed]).levels[0]
    bill = from_samples(latency, attributions, levels) if latency is not None else None
    columns = [first, *(one.blocks[f"batch {n}"] for n in BATCHES[1:])]
    free, _ = free_batch_interval(BATCHES, columns)
    return {
        "latency": latency,
        "share": bill.share if bill else None,
        "ratio": ratio_interval(one.blocks["other"], first),
        "free batch": free,
    }


def _block(process: int, round_: int, ns: float) -> Block:
    return Block(
        session="s",
        point="p",
        process=process,
        round=round_,
        latency_ns=(round(ns),),
        pipelined_ns=round(ns),
        pipelined_calls=1,
        cpu_ns=round(ns),
    )


def _sample(process: int, round_: int, kernel: int) -> Attribution:
    return Attribution(
        session="s",
        point="p",
        process=process,
        round=round_,
        method="perf-event",
        calls=1,
        wall_ns=round(NS),
        latency_ns=round(NS),
        off_cpu_ns=0,
        samples=({"kernel": kernel, "python": SAMPLES - kernel},),
    )


def simulate(
    name: str, processes: int, sessions: int, rounds: int = ROUNDS, seed: int = SEED
) -> list[dict[str, Any]]:
    """Return a row for each quantity: coverage, and mean width over the oracle's."""
    rng = np.random.default_rng([seed, HOSTS.index(name), processes, rounds])
    hits: dict[str, list[bool]] = defaultdict(list)
    errors: dict[str, list[float]] = defaultdict(list)
    widths: dict[str, list[float]] = defaultdict(list)
    degrees: dict[str, int] = {}
    for _ in range(sessions):
        one = session(name, processes, rng, rounds)
        for quantity, estimate in estimates(one, processes, rng).items():
            truth = one.truth[quantity]
            if estimate is None:
                raise ValueError(f"{quantity} has no interval")
            is_under = truth < estimate.high if quantity == "free batch" else truth <= estimate.high
            hits[quantity].append(estimate.low <= truth and is_under)
            errors[quantity].append((estimate.value - truth) / truth)
            widths[quantity].append((estimate.high - estimate.low) / truth)
            degrees[quantity] = estimate.n - 1
    rows = []
    for quantity, covered in hits.items():
        oracle = 2 * t_quantile(0.95, degrees[quantity]) * float(np.std(errors[quantity]))
        row = {
            "host": name,
            "processes": processes,
            "rounds": rounds,
            "quantity": quantity,
            "coverage": round(fmean(covered), 4),
            "width_over_oracle": round(fmean(widths[quantity]) / oracle, 3),
            "bias": round(fmean(errors[quantity]), 5),
        }
        low, high = ONE_END if quantity == "free batch" else TARGET
        row["met"] = low <= row["coverage"] <= high
        if quantity == "free batch":
            del row["width_over_oracle"], row["bias"]
        else:
            row["met"] &= row["width_over_oracle"] <= WIDEST
        rows.append(row)
    return rows


def stopped(
    runtimes: int, block_sd: float, process_sd: float, most: int, sessions: int
) -> dict[str, Any]:
    """Return the coverage of latencies in sessions that end as measuring does.

    They begin with three processes, and may have up to ``most``.
    """
    rng = np.random.default_rng(
        [SEED, runtimes, *(round(1000 * n) for n in (block_sd, process_sd))]
    )
    covered, rounds, processes = [], [], []
    for _ in range(sessions):
        levels = rng.normal(1, process_sd, (runtimes, most))
        points: list[list[list[float]]] = [[] for _ in levels]

        def more_blocks(count: int, begun: int, points: Any = points, levels: Any = levels) -> None:
            for point, own in zip(points, levels, strict=True):
                for blocks, level in zip(point[begun:], own[begun:], strict=False):
                    blocks += (level * np.exp(rng.normal(0, block_sd, count))).tolist()

        def more_processes(count: int, points: Any = points, add: Any = more_blocks) -> None:
            begun = len(points[0])
            for point in points:
                point += [[] for _ in range(count)]
            add(schedule.FIRST_ROUNDS, begun)

        more_processes(STOPPED_PROCESSES)
        while (begun := len(points[0])) < most and not all(
            schedule.is_narrow(point, UNTIL) for point in points
        ):
            more_processes(min(begun, most - begun))
        while not schedule.processes_differ(points) and not all(
            schedule.has_converged(point, UNTIL) for point in points
        ):
            more_blocks(1, 0)
        rounds.append(len(points[0][0]))
        processes.append(len(points[0]))
        for point in points:
            found = process_interval(point)
            covered.append(found is not None and found.low <= 1 <= found.high)
    return {
        "most_processes": most,
        "runtimes": runtimes,
        "block_sd": block_sd,
        "process_sd": process_sd,
        "coverage": round(fmean(covered), 4),
        "rounds": round(fmean(rounds), 1),
        "processes": round(fmean(processes), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=2000)
    given = parser.parse_args()
    rows = []
    for rounds, name, processes in product((ROUNDS, LEAST_ROUNDS), HOSTS, PROCESSES):
        for row in simulate(name, processes, given.sessions, rounds):
            rows.append(row)
            print(
                f"{name:24s} {processes} {rounds:2d} {row['quantity']:11s} {row['coverage']:.3f} "
                f"{row.get('width_over_oracle', '')} {'' if row['met'] else 'MISSED'}",
                flush=True,
            )
    ended = [
        stopped(runtimes, block_sd, process_sd, most, given.sessions)
        for most in (STOPPED_PROCESSES, FURTHER_PROCESSES)
        for runtimes, block_sd, process_sd in product(RUNTIMES, NOISE_SDS, PROCESS_SDS)
    ]
    for row in ended:
        print("stopped:", ", ".join(f"{name} {value}" for name, value in row.items()))
    document = {
        "seed": SEED,
        "sessions": given.sessions,
        "cpu": this_host.cpu_model(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "met": sum(row["met"] for row in rows),
        "of": len(rows),
        "rows": rows,
        "stopped": ended,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
