"""Do the numbers agree with another timer?

    python benchmarks/agreement.py [--quick] [--out FILE]

Our blocks against ``torch.utils.benchmark`` on the same callable, interleaved. Results go to
``benchmarks/results/agreement.json``. One code under several names, and separate sessions, are in
``calibration.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

from common import Bench, Row, child, options
from frameworktax import host, models, runtimes
from frameworktax.measure import timing
from frameworktax.measure.timing import BLOCK_NS
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

TIMER_TARGET = 0.03

CALLABLES = (
    Workload(model="bert-tiny", length=32, batch=1),
    Workload(model="bert-tiny", length=32, batch=8),
    Workload(model="mlp", batch=1),
    Workload(model="resnet-18", image_size=64, batch=1),
)
SEED = 7


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--timers", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.timers:
        print(json.dumps(timers_here(given.timers)))
        return 0
    bench = Bench("agreement", given, [8 if given.quick else 25])
    title = "torch.utils.benchmark, same callable"
    found = bench.part("timers", title, lambda: timers(given.quick))
    if found:
        tell_timers(bench, found)
    return bench.finish()


def timers(quick: bool) -> Row:
    return child(Path(__file__), ["--timers", "5" if quick else "40"], 240)


def timers_here(rounds: int) -> Row:
    os.sched_setaffinity(0, host.pick_cpus(1))
    shuffle = random.Random(SEED)
    return {"callables": [compare_timers(workload, rounds, shuffle) for workload in CALLABLES]}


def compare_timers(workload: Workload, rounds: int, shuffle: random.Random) -> Row:
    """Time one callable by turns with both; blocks of one round lie side by side."""
    from torch.utils.benchmark import Timer

    loaded = runtimes.get("eager").load(models.build(workload, "cpu"), Target(), Path())
    call = loaded.bind(workload.batch)
    calls = timing.calls_for(timing.warm_up(call).call_ns, BLOCK_NS)
    timer = Timer("call()", globals={"call": call}, num_threads=1)
    gc.collect()
    gc.freeze()  # as in a measuring process
    median_ns: list[float] = []
    mean_ns: list[float] = []
    autorange_ns: list[float] = []
    timeit_ns: list[float] = []

    def ours() -> None:
        block = timing.host_block(call, calls=calls)
        median_ns.append(median(block.latency_ns))
        mean_ns.append(block.pipelined_ns / block.pipelined_calls)

    def autorange() -> None:
        found = timer.blocked_autorange(min_run_time=BLOCK_NS / 1e9)
        autorange_ns.append(1e9 * median(found.times))

    def timeit() -> None:
        timeit_ns.append(1e9 * timer.timeit(calls).times[0])

    turns: list[Callable[[], None]] = [ours, autorange, timeit]
    for _ in range(rounds):
        shuffle.shuffle(turns)
        for turn in turns:
            turn()
    shape = f"length {workload.length}" if workload.length else f"{workload.image_size} px"
    label = f"{workload.model}, batch {workload.batch}"
    if workload.length or workload.image_size:
        label += f", {shape}"
    return {
        "callable": label,
        "calls_per_block": calls,
        "ours_median_ns": median(median_ns),
        "autorange_median_ns": median(autorange_ns),
        "median_ratio": paired(median_ns, autorange_ns),
        "mean_ratio": paired(mean_ns, timeit_ns),
    }


def paired(a: Sequence[float], b: Sequence[float]) -> Row:
    """Return the median ratio of pairs and the quartiles they spread over."""
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {"median": median(ratios), "quartile_low": low, "quartile_high": high, "n": len(ratios)}


def tell_timers(bench: Bench, found: Row) -> None:
    for case in found["callables"]:
        for name, theirs in (("median", "blocked_autorange"), ("mean", "timeit")):
            ratio = case[f"{name}_ratio"]
            off = ratio["median"] - 1
            bench.check(
                f"{case['callable']}: {name} against {theirs}",
                off,
                f"{100 * off:+.2f} % (quartiles {100 * (ratio['quartile_low'] - 1):+.2f} to "
                f"{100 * (ratio['quartile_high'] - 1):+.2f} %, {ratio['n']} pairs)",
                f"within {TIMER_TARGET:.0%}",
                abs(off) <= TIMER_TARGET,
            )


if __name__ == "__main__":
    sys.exit(main())
