"""Do the numbers agree: with another timer, with themselves, with nothing?

    python benchmarks/agreement.py [--quick] [--out FILE] [--only PART]

Two parts: our blocks against ``torch.utils.benchmark`` on the same callable, interleaved; two
runtimes that are secretly the same code. Results go to
``benchmarks/results/agreement.json``. Separate sessions are in ``calibration.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

from common import (
    ROOT,
    Bench,
    BenchmarkError,
    Row,
    SessionRun,
    child,
    measure,
    options,
    plain,
)
from frameworktax import host, models, runtimes, stats
from frameworktax.analysis.grouping import blocks, gather
from frameworktax.measure import timing
from frameworktax.measure.timing import BLOCK_NS
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

TIMER_TARGET = 0.03
SAME_TARGET = 0.02

CALLABLES = (
    Workload(model="bert-tiny", length=32, batch=1),
    Workload(model="bert-tiny", length=32, batch=8),
    Workload(model="mlp", batch=1),
    Workload(model="resnet-18", image_size=64, batch=1),
)
SAME_POINTS = ("bert-tiny", "--length", "32", "--batch", "1,4")
SAME_BUDGET_S = 45
SAME_SESSIONS = 3
SEED = 7

SAME_CODE = """
from frameworktax.runtimes.eager import Eager


class SameA(Eager):
    name = "same-a"


class SameB(Eager):
    name = "same-b"
"""
SAME_ENTRY_POINTS = """
[frameworktax.runtimes]
same-a = frameworktax_same:SameA
same-b = frameworktax_same:SameB
"""


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--timers", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.timers:
        print(json.dumps(timers_here(given.timers)))
        return 0
    quick = given.quick
    seconds = (8 if quick else 25, 20 if quick else SAME_SESSIONS * SAME_BUDGET_S)
    bench = Bench("agreement", given, seconds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = bench.part("timers", "torch.utils.benchmark, same callable", lambda: timers(quick))
        if found:
            tell_timers(bench, found)
        found = bench.part("same", "two names for one code", lambda: same(folder / "same", quick))
        if found:
            tell_same(bench, found)
    return bench.finish()


# --- another timer ------------------------------------------------------------------------------


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


# --- the same code under two names -------------------------------------------------------------


def same(folder: Path, quick: bool) -> Row:
    package = folder / "package"
    about = package / "frameworktax_same-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "frameworktax_same.py").write_text(SAME_CODE)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: frameworktax-same\nVersion: 1.0\n"
    )
    (about / "entry_points.txt").write_text(SAME_ENTRY_POINTS)
    budget = 20 if quick else SAME_BUDGET_S
    arguments = [*SAME_POINTS, "--runtimes", "same-a,same-b", "--quiet"]
    arguments += ["--time-budget", f"{budget}s"]
    found = []
    for number in range(1 if quick else SAME_SESSIONS):
        session = measure(
            arguments,
            folder / f"run-{number}",
            budget + 60,
            env={"PYTHONPATH": os.pathsep.join((str(package), str(ROOT / "src")))},
        )
        found += [{"session": number, **row} for row in ratios_of(session)]
    return {"command": " ".join(arguments), "ratios": found}


def ratios_of(session: SessionRun) -> list[Row]:
    """Return same-a over same-b, per batch size, from blocks of the same round."""
    gathered, _ = gather(session.records)
    rounds = {
        (p.point.workload.batch, p.point.runtime): {
            (process, turn): ns for process, turn, ns in blocks(p)
        }
        for p in gathered
    }
    found = []
    for batch in sorted({batch for batch, runtime in rounds if runtime == "same-a"}):
        a, b = rounds[batch, "same-a"], rounds[batch, "same-b"]
        ratio = plain(stats.ratio_interval(a, b))
        found.append({"batch": batch, "ratio": ratio, "paired_blocks": len(a.keys() & b.keys())})
    if not found:
        raise BenchmarkError("no point was measured in both runtimes")
    return found


def tell_same(bench: Bench, found: Row) -> None:
    for row in found["ratios"]:
        ratio = row["ratio"]
        bench.row(
            f"same-a over same-b, session {row['session'] + 1}, batch {row['batch']}",
            f"{100 * (ratio['value'] - 1):+.2f} % ({100 * (ratio['low'] - 1):+.2f} to "
            f"{100 * (ratio['high'] - 1):+.2f} %, {row['paired_blocks']} pairs of blocks)",
        )
    worst = max((row["ratio"]["value"] - 1 for row in found["ratios"]), key=abs)
    bench.check(
        "one code under two names, the worst ratio",
        worst,
        f"{100 * worst:+.2f} % of {len(found['ratios'])} ratios",
        f"within {SAME_TARGET:.0%}",
        abs(worst) <= SAME_TARGET,
    )


if __name__ == "__main__":
    sys.exit(main())
