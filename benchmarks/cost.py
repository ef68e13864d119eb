"""What the tool itself costs: per call, per sample, per command.

    python benchmarks/cost.py [--quick] [--only PART] [--out FILE]

Parts: the harness per call, the sampler, starting the command, a round trip to a measuring process.
Results go to ``benchmarks/results/cost.json``. What a session takes is in ``first_answer.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from common import (
    Bench,
    BenchmarkError,
    Row,
    child,
    load,
    options,
    plain,
    run_command,
)
from frameworktax import host, models, runtimes, stats
from frameworktax.attribution import probe
from frameworktax.attribution.sampler import Sampler, open_sampler
from frameworktax.clock import REAL
from frameworktax.measure import timing
from frameworktax.measure.process import Worker
from frameworktax.measure.timing import BLOCK_NS
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

FLOOR_TARGET_NS = 1000
SAMPLER_TARGET = 0.03
SAMPLED = (
    Workload(model="bert-tiny", length=32, batch=1),
    Workload(model="bert-mini", length=128, batch=1),
)
SAMPLER_PROCESSES = 3
SEED = 11


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--sampled", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--floor", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.floor:
        print(json.dumps(by_turns(given.floor)))
        return 0
    if given.sampled:
        case, rounds = given.sampled
        print(json.dumps(sampled_blocks(SAMPLED[case], rounds)))
        return 0
    quick = given.quick
    bench = Bench("cost", given, (5, 25 if quick else 75, 5 if quick else 30, 2))
    found = bench.part("harness", "harness per call", lambda: floor(quick))
    if found:
        tell_floor(bench, found)
    found = bench.part("sampler", "sampler", lambda: sampler(quick))
    if found:
        tell_sampler(bench, found)
    found = bench.part("start", "starting a command", lambda: start(3 if quick else 20))
    if found:
        tell_start(bench, found)
    found = bench.part("round_trip", "round trip to a measuring process", lambda: round_trip(quick))
    if found:
        tell_round_trip(bench, found)
    return bench.finish()


# --- the harness a call: the null runtime against an empty loop, and in a real worker ------------


def floor(quick: bool) -> Row:
    found = child(Path(__file__), ["--floor", "20" if quick else "200"], 60)
    return {**found, "worker_floor_ns": worker_floor(5 if quick else 30)}


def by_turns(rounds: int) -> Row:
    os.sched_setaffinity(0, host.pick_cpus(1))
    call = runtimes.get("null").load(None, Target(), Path()).bind(1)
    gc.collect()
    gc.freeze()  # as in a measuring process
    null_ns, empty_ns = [], []
    for _ in range(rounds):
        null_ns.append(fmean(timing.host_block(call, calls=timing.MAX_CALLS).latency_ns))
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
        worker.kill()
    return plain(stats.mean_interval(medians, "block-medians"))


def tell_floor(bench: Bench, found: Row) -> None:
    bench.check(
        "null runtime above an empty loop",
        found["difference_ns"],
        f"{found['difference_ns']:.0f} ns a call ({found['null_mean_ns']:.0f} against "
        f"{found['empty_loop_mean_ns']:.0f})",
        f"under {FLOOR_TARGET_NS} ns",
        found["difference_ns"] < FLOOR_TARGET_NS,
    )
    worker = found["worker_floor_ns"]
    bench.row(
        "null runtime in a measuring process",
        f"{worker['value']:.0f} ns a call ({worker['low']:.0f} to {worker['high']:.0f})",
    )


# --- the sampler --------------------------------------------------------------------------------


def sampler(quick: bool) -> Row:
    """Return how much slower calls are while their program counter is sampled."""
    rounds, processes = (10, 1) if quick else (60, SAMPLER_PROCESSES)
    cases = []
    for case, workload in enumerate(SAMPLED):
        answers = [
            child(Path(__file__), ["--sampled", str(case), str(rounds)], 120)
            for _ in range(processes)
        ]
        cases.append(
            {
                "workload": f"{workload.model}, length {workload.length}, batch {workload.batch}",
                "method": answers[0]["method"],
                "period_ns": answers[0]["period_ns"],
                "processes": processes,
                "pairs": processes * rounds,
                "latency_ns": median(ns for a in answers for ns in a["medians_off_ns"]),
                "ratio": paired_ratio(answers, "means"),
                "ratio_of_medians": paired_ratio(answers, "medians"),
            }
        )
    return {"cases": cases}


def paired_ratio(answers: Sequence[Row], what: str) -> Row:
    on, off = (
        {
            (process, number): value
            for process, answer in enumerate(answers)
            for number, value in enumerate(answer[f"{what}_{side}_ns"])
        }
        for side in ("on", "off")
    )
    return plain(stats.ratio_interval(on, off))


def sampled_blocks(workload: Workload, rounds: int) -> Row:
    """Time blocks of eager with and without the sampler, side by side in shuffled order.

    The cost is told by block means: a tick comes once a millisecond, so that the median of calls
    that are shorter shows a whole tick or none.
    """
    os.sched_setaffinity(0, host.pick_cpus(1))
    if (refused := probe()) is not None:
        raise BenchmarkError(refused)
    loaded = runtimes.get("eager").load(models.build(workload, "cpu"), Target(), Path())
    call = loaded.bind(workload.batch)
    calls = timing.calls_for(timing.warm_up(call).call_ns, BLOCK_NS)
    gc.collect()
    gc.freeze()  # as in a measuring process
    shuffle = random.Random(SEED)
    found: Row = {
        f"{what}_{side}_ns": [] for what in ("means", "medians") for side in ("on", "off")
    }
    with open_sampler(50 * BLOCK_NS) as active:
        for _ in range(rounds):
            for side in shuffle.sample(("on", "off"), 2):
                with Sampling(active) if side == "on" else nullcontext():
                    block = timing.host_block(call, calls=calls)
                found[f"means_{side}_ns"].append(block.pipelined_ns / block.pipelined_calls)
                found[f"medians_{side}_ns"].append(float(median(block.latency_ns)))
        return {"method": active.name, "period_ns": active.period_ns, **found}


class Sampling:
    """Samples while it is entered."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __enter__(self) -> None:
        self._sampler.start()

    def __exit__(self, *exception: object) -> None:
        self._sampler.stop()


def tell_sampler(bench: Bench, found: Row) -> None:
    for case in found["cases"]:
        ratio = case["ratio"]
        off = ratio["value"] - 1
        bench.check(
            f"sampler {case['method']}, {case['workload']}",
            off,
            f"{100 * off:+.2f} % of {case['latency_ns'] / 1e6:.2f} ms "
            f"({100 * (ratio['low'] - 1):+.2f} to {100 * (ratio['high'] - 1):+.2f} %, "
            f"{case['pairs']} pairs, {case['processes']} processes; of the median call "
            f"{100 * (case['ratio_of_medians']['value'] - 1):+.2f} %)",
            f"under {SAMPLER_TARGET:.0%}",
            off < SAMPLER_TARGET,
        )


# --- starting -----------------------------------------------------------------------------------


def start(repeats: int) -> Row:
    """Return the median wall time of short commands, run by turns."""
    script = Path(sys.executable).parent / "frameworktax"
    tool = [str(script)] if script.exists() else [sys.executable, "-m", "frameworktax"]
    commands: dict[str, Sequence[str]] = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import frameworktax"],
        "measure": [sys.executable, "-c", "from frameworktax import measure"],
        "help": [*tool, "--help"],
        "list": [*tool, "list", "runtimes", "--json"],
    }
    for command in commands.values():  # once unmeasured: byte code is written, files are read
        run_command(command, 60)
    walls: dict[str, list[float]] = {name: [] for name in commands}
    shuffle = random.Random(SEED)
    for _ in range(repeats):
        for name in shuffle.sample(list(commands), len(commands)):
            walls[name].append(run_command(commands[name], 60)[1])
    return {
        "repeats": repeats,
        "commands": {
            name: shlex.join(Path(c).name if c[:1] == "/" else c for c in command)
            for name, command in commands.items()
        },
        "median_s": {name: median(values) for name, values in walls.items()},
        "min_s": {name: min(values) for name, values in walls.items()},
        "max_s": {name: max(values) for name, values in walls.items()},
    }


def tell_start(bench: Bench, found: Row) -> None:
    bare = found["median_s"]["python"]
    for name, command in found["commands"].items():
        wall = found["median_s"][name]
        more = "" if name == "python" else f", {1e3 * (wall - bare):+.0f} ms over bare Python"
        bench.row(command, f"{1e3 * wall:.0f} ms{more}")


# --- a round trip -------------------------------------------------------------------------------


def round_trip(quick: bool) -> Row:
    """Return how long the cheapest request takes, and how long a process takes to start."""
    begin = time.monotonic()
    worker = Worker("round trip", environment=host.worker_environment(1))
    trips_ns = []
    try:
        worker.request(Server.memory, 30)
        start_s = time.monotonic() - begin
        for _ in range(50 if quick else 1000):
            before = time.perf_counter_ns()
            worker.request(Server.memory, 30)
            trips_ns.append(time.perf_counter_ns() - before)
    finally:
        worker.kill()
    return {"start_s": start_s, "median_ns": median(trips_ns), "max_ns": max(trips_ns)}


def tell_round_trip(bench: Bench, found: Row) -> None:
    bench.row(
        "round trip to a measuring process",
        f"{found['median_ns'] / 1e3:.0f} us (starting one, nothing loaded: "
        f"{found['start_s']:.2f} s)",
    )


if __name__ == "__main__":
    sys.exit(main())
