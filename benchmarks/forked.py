"""What forking hides: the spread between forked and between started processes of the same points.

Forked processes share their template's address layout and the pages it never writes; started ones
load everything anew. Of each point both kinds are alive together, pinned to one processor, and time
a block in turn, in shuffled order. The effect of a process is the median over rounds of the log of
its block over the median of that round, so that the host's drift cancels. Its spread over the
processes of a kind, and the difference between the kinds, have bootstrap intervals over processes.

    python benchmarks/forked.py             20 processes of each kind, under 10 minutes
    python benchmarks/forked.py --quick     3 of each, proves nothing
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import numpy as np

from common import Bench, BenchmarkError, Row, load, options
from frameworktax import host, models
from frameworktax.measure import timing
from frameworktax.measure.process import Worker
from frameworktax.measure.template import Templates
from frameworktax.measure.worker import Server
from frameworktax.records import SEED, Workload

POINTS = {
    "mlp": Workload(model="mlp", width=0.25),
    "bert-tiny": Workload(model="bert-tiny", length=32),
}
KINDS = ("forked", "started")
BLOCK_NS = 20_000_000
PATIENCE_S = 300.0
RESAMPLES = 4000
TARGET = 0.01
"""Of the latency: a hundredth, where intervals of three processes are 3 % wide."""


@dataclass(slots=True)
class Process:
    """One process: of which kind, how long it took to be ready, its block medians by round."""

    worker: Worker
    kind: str
    ready_s: float
    calls: int
    medians_ns: list[float]


def begin(kind: str, workload: Workload, templates: Templates) -> Process:
    start = time.monotonic()
    worker = Worker(
        kind,
        environment=host.worker_environment(1),
        templates=templates if kind == "forked" else None,
        libraries=models.libraries(workload),
    )
    try:
        load(worker, workload, PATIENCE_S)
        ready_s = time.monotonic() - start
        bound = worker.request(Server.bind, PATIENCE_S, batch=1, limit_ns=2_000_000_000)
    except BaseException:
        worker.kill()
        raise
    if worker.started != kind:
        reason = ", ".join(note.text for note in worker.notes)
        worker.kill()
        raise BenchmarkError(f"no process could be forked: {reason or 'not on this system'}")
    return Process(worker, kind, ready_s, timing.calls_for(bound.call_ns, BLOCK_NS), [])


def measure(workload: Workload, each: int, rounds: int) -> Row:
    """Begin the processes of both kinds, two at a time, then time them in turn."""
    templates, processes = Templates(), []
    templates.get({**os.environ, **host.worker_environment(1)}, models.libraries(workload))
    # A started process ends with the thread that started it: the pool stays until the end.
    with ThreadPoolExecutor(2) as pool:
        try:
            wanted = [pool.submit(begin, kind, workload, templates) for kind in KINDS * each]
            for one in wanted:
                processes.append(one.result())
            in_turn(processes, rounds)
            return judged(processes)
        finally:
            for process in processes:
                process.worker.kill()
            templates.close()


def in_turn(processes: list[Process], rounds: int) -> None:
    """Time a block of each process in each round, all on one processor."""
    cpus = tuple(host.pick_cpus(1))
    for process in processes:
        process.worker.request(Server.pin, PATIENCE_S, cpus=cpus)
    draw = random.Random(SEED)
    for _ in range(rounds):
        for process in draw.sample(processes, len(processes)):
            calls = process.calls
            timed = process.worker.request(Server.block, PATIENCE_S, batch=1, calls=calls)
            process.medians_ns.append(float(median(timed.latency_ns)))


def judged(processes: list[Process]) -> Row:
    """Return the spread of both kinds, and what they differ by, with intervals."""
    blocks = np.log([process.medians_ns for process in processes])
    effects = np.median(blocks - np.median(blocks, axis=0), axis=1)
    kinds = np.array([process.kind for process in processes])
    forked, started = (effects[kinds == kind] for kind in KINDS)
    draw = np.random.default_rng(SEED)
    found: Row = {
        "rounds": blocks.shape[1],
        "latency_ns": float(np.exp(np.median(blocks))),
        "block_spread": float(np.median(np.std(blocks - np.median(blocks, axis=0), axis=1))),
    }
    pairs = [
        (draw.choice(forked, len(forked)), draw.choice(started, len(started)))
        for _ in range(RESAMPLES)
    ]
    for name, rule in (
        ("spread_forked", lambda f, s: float(np.std(f, ddof=1))),
        ("spread_started", lambda f, s: float(np.std(s, ddof=1))),
        ("hidden", hidden),
        ("forked_over_started", lambda f, s: math.expm1(float(f.mean() - s.mean()))),
    ):
        low, high = np.quantile([rule(*pair) for pair in pairs], [0.025, 0.975])
        found[name] = {"value": rule(forked, started), "low": float(low), "high": float(high)}
    for kind in KINDS:
        ready = [process.ready_s for process in processes if process.kind == kind]
        found[kind] = {"processes": len(ready), "median_ready_s": median(ready)}
        found[kind]["effects"] = [float(e) for e in effects[kinds == kind]]
    return found


def hidden(forked: np.ndarray, started: np.ndarray) -> float:
    """Return the spread of started processes beyond that of forked ones, signed."""
    more = float(np.var(started, ddof=1) - np.var(forked, ddof=1))
    return math.copysign(math.sqrt(abs(more)), more)


def main() -> int:
    chosen = options(__doc__ or "").parse_args()
    each, rounds = (3, 15) if chosen.quick else (20, 25)
    bench = Bench("forked", chosen, [30 if chosen.quick else 240] * len(POINTS))
    for name, workload in POINTS.items():

        def run(workload: Workload = workload) -> Row:
            return measure(workload, each, rounds)

        found = bench.part(name, f"{name}, {each} forked and {each} started", run)
        if found is not None:
            tell(bench, name, found)
    return bench.finish()


def tell(bench: Bench, name: str, found: Row) -> None:
    ready = " and ".join(f"{found[kind]['median_ready_s']:.2f} s {kind}" for kind in KINDS)
    bench.row(f"{name}: until ready", ready)
    spreads = " and ".join(f"{found[f'spread_{kind}']['value']:.2%} {kind}" for kind in KINDS)
    bench.row(f"{name}: spread between processes", spreads)
    for field, what in (
        ("hidden", "spread that forking hides"),
        ("forked_over_started", "forked beside started"),
    ):
        one = found[field]
        bench.check(
            f"{name}: {what}",
            one["value"],
            f"{one['value']:+.2%} ({one['low']:+.2%} to {one['high']:+.2%})",
            f"within ±{TARGET:.0%}",
            abs(one["value"]) < TARGET,
        )


if __name__ == "__main__":
    sys.exit(main())
