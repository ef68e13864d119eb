"""The harness's own cost a call: the null runtime against an empty loop, and in a real worker.

Used by cost.py and agreement.py; as a script it is the process in which both loops run by turns.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from common import Bench, Row, child, load, plain
from frameworktax import host, runtimes, stats
from frameworktax.clock import REAL
from frameworktax.measure import timing
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

TARGET_NS = 1000


def floor(quick: bool) -> Row:
    found = child(Path(__file__), ["20" if quick else "200"], 60)
    return {**found, "worker_floor_ns": worker_floor(5 if quick else 30)}


def by_turns(rounds: int) -> Row:
    os.sched_setaffinity(0, host.pick_cpus(1))
    call = runtimes.get("null").load(None, Target(), Path()).bind(1)
    gc.collect()
    gc.freeze()  # as in a measuring process
    null_ns, empty_ns = [], []
    for _ in range(rounds):
        null_ns.append(fmean(timing.time_block(call, calls=timing.MAX_CALLS).latency_ns))
        empty_ns.append(fmean(empty_block(timing.MAX_CALLS)))
    return {
        "null_mean_ns": median(null_ns),
        "empty_loop_mean_ns": median(empty_ns),
        "difference_ns": median(a - b for a, b in zip(null_ns, empty_ns, strict=True)),
        "rounds": rounds,
    }


def empty_block(calls: int) -> list[int]:
    """Return what the harness's loop reads when nothing is called: the clock itself.

    Its means are compared with the null runtime's, not medians: a clock that ticks every 10 ns
    and more cannot separate medians that lie closer.
    """
    wall, stamps = REAL.wall_ns, [0] * (calls + 1)
    gc.disable()
    stamps[0] = wall()
    for i in range(1, calls + 1):
        stamps[i] = wall()
    gc.enable()
    return [b - a for a, b in pairwise(stamps)]


def worker_floor(rounds: int) -> Row:
    """Return the null runtime's block medians in a real measuring process, as sessions print it."""
    worker = Worker("null", environment=host.worker_environment(1))
    try:
        load(worker, Workload(model="null"), 30, runtime="null")
        worker.request(Server.bind, 30, batch=1, limit_ns=1_000_000_000)
        worker.request(Server.pin, 30, cpus=host.pick_cpus(1))
        medians = []
        for _ in range(rounds):
            timed = worker.request(Server.block, 30, batch=1, calls=timing.MAX_CALLS)
            medians.append(float(median(timed.latency_ns)))
    finally:
        worker.stop()
    return plain(stats.mean_interval(medians, "block-medians"))


def tell_floor(bench: Bench, found: Row) -> None:
    bench.check(
        "null runtime above an empty loop",
        found["difference_ns"],
        f"{found['difference_ns']:.0f} ns a call ({found['null_mean_ns']:.0f} against "
        f"{found['empty_loop_mean_ns']:.0f})",
        f"under {TARGET_NS} ns",
        found["difference_ns"] < TARGET_NS,
    )
    worker = found["worker_floor_ns"]
    bench.row(
        "null runtime in a measuring process",
        f"{worker['value']:.0f} ns a call ({worker['low']:.0f} to {worker['high']:.0f})",
    )


if __name__ == "__main__":
    print(json.dumps(by_turns(int(sys.argv[1]))))
