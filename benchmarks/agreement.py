"""Do the numbers agree: with another timer, with themselves, between sessions, with nothing?

    python benchmarks/agreement.py [--quick] [--out FILE] [--only PART] [--sessions 40]

Four parts: our blocks against ``torch.utils.benchmark`` on the same callable, interleaved; two
runtimes that are secretly the same code; separate sessions of one point, in pairs; the null
runtime against an empty loop. Results go to ``benchmarks/results/agreement.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, quantiles, stdev

from common import (
    ROOT,
    Bench,
    BenchmarkError,
    Row,
    SessionRun,
    child,
    half_width,
    measure,
    options,
    percent,
    plain,
    say,
)
from floor import floor, tell_floor
from frameworktax import host, models, runtimes, stats
from frameworktax.analysis.grouping import gather
from frameworktax.measure import timing
from frameworktax.measure.timing import BLOCK_NS
from frameworktax.records import Calibration, Workload
from frameworktax.runtimes.base import Target

TIMER_TARGET = 0.03
SAME_TARGET = 0.02
OVERLAP_TARGET = 0.95

CALLABLES = (
    Workload(model="bert-tiny", length=32, batch=1),
    Workload(model="bert-tiny", length=32, batch=8),
    Workload(model="mlp", batch=1),
    Workload(model="resnet-18", image_size=64, batch=1),
)
SAME_POINTS = ("bert-tiny", "--length", "32", "--batch", "1,4")
SAME_BUDGET_S = 45
SAME_SESSIONS = 3
SESSION_POINT = ("mlp", "--width", "0.25", "--batch", "1", "--runtimes", "eager", "--twin", "none")
SESSION_BUDGET_S = 10
SESSIONS_LIMIT_S = 500
"""No session is begun after this: the whole benchmark stays under twelve minutes."""
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
    parser.add_argument(
        "--sessions", type=int, help="separate sessions of one point, an even number"
    )
    parser.add_argument("--timers", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.timers:
        print(json.dumps(timers_here(given.timers)))
        return 0
    quick = given.quick
    sessions = given.sessions or (4 if quick else 40)
    bench = Bench(
        "agreement",
        given,
        (8 if quick else 25, 2, 20 if quick else SAME_SESSIONS * SAME_BUDGET_S, sessions * 10.5),
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = bench.part("timers", "torch.utils.benchmark, same callable", lambda: timers(quick))
        if found:
            tell_timers(bench, found)
        found = bench.part("null", "null runtime against an empty loop", lambda: floor(quick))
        if found:
            tell_floor(bench, found)
        found = bench.part("same", "two names for one code", lambda: same(folder / "same", quick))
        if found:
            tell_same(bench, found)
        found = bench.part(
            "sessions", "separate sessions", lambda: repeat(folder / "sessions", sessions)
        )
        if found:
            tell_sessions(bench, found)
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
        block = timing.time_block(call, calls=calls)
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
    rounds = {(p.point.workload.batch, p.point.runtime): p.by_round for p in gathered}
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


# --- separate sessions --------------------------------------------------------------------------


def repeat(folder: Path, count: int) -> Row:
    """Measure one point in separate sessions, one after the other; compare disjoint pairs."""
    runs: list[Row] = []
    begin = time.monotonic()
    arguments = [*SESSION_POINT, "--time-budget", f"{SESSION_BUDGET_S}s", "--quiet"]
    for number in range(count):
        if time.monotonic() - begin > SESSIONS_LIMIT_S:
            say(f"  time is up after {number} sessions")
            break
        session = measure(arguments, folder / str(number), SESSION_BUDGET_S + 45)
        runs.append(brief(session))
        say(f"  {number + 1} of {count}: {tell_run(runs[-1])}")
    if len(runs) < 2:
        raise BenchmarkError("fewer than two sessions")
    pairs = list(zip(runs[::2], runs[1::2], strict=False))
    everyone = list(combinations(runs, 2))
    return {
        "point": " ".join(SESSION_POINT),
        "sessions": runs,
        "pairs": len(pairs),
        "pairs_overlap": sum(overlap(a, b) for a, b in pairs),
        "all_pairs": len(everyone),
        "all_pairs_overlap": sum(overlap(a, b) for a, b in everyone),
        "half_widths": distribution([half_width(run["latency_ns"]) for run in runs]),
        "wall_s": distribution([run["wall_s"] for run in runs]),
        "spread_of_latency": spread([run["latency_ns"]["value"] for run in runs]),
        "spread_of_calibrator": spread([run["calibrator_ns"] for run in runs]),
        "spread_of_their_ratio": spread(
            [run["latency_ns"]["value"] / run["calibrator_ns"] for run in runs]
        ),
    }


def brief(session: SessionRun) -> Row:
    cells = [m for m in session.document["measurements"] if m["runtime"] != "null"]
    if not cells or cells[0]["latency_ns"] is None:
        raise BenchmarkError(f"a session has no interval: {cells and cells[0]['reason']}")
    cell = cells[0]
    calibrations = [r for r in session.records if isinstance(r, Calibration)]
    return {
        "latency_ns": cell["latency_ns"],
        "process_spread": cell["process_spread"],
        "block_spread": cell["block_spread"],
        "processes": len(cell["samples_ns"]),
        "calibrator_ns": median(median(c.latency_ns) for c in calibrations),
        "notes": [note["code"] for note in cell["notes"]],
        "wall_s": round(session.wall_s, 2),
    }


def tell_run(run: Row) -> str:
    latency = run["latency_ns"]
    return (
        f"{latency['value'] / 1e3:.2f} us ±{percent(half_width(latency))}, calibrator "
        f"{run['calibrator_ns'] / 1e3:.0f} us, {run['wall_s']:.1f} s"
    )


def overlap(a: Row, b: Row) -> bool:
    one, other = a["latency_ns"], b["latency_ns"]
    return bool(one["low"] <= other["high"] and other["low"] <= one["high"])


def distribution(values: Sequence[float]) -> Row:
    return {"min": min(values), "median": median(values), "max": max(values)}


def spread(values: Sequence[float]) -> float:
    return stdev(values) / fmean(values)


def tell_sessions(bench: Bench, found: Row) -> None:
    share = found["pairs_overlap"] / found["pairs"]
    bench.check(
        "separate sessions whose intervals overlap",
        share,
        f"{found['pairs_overlap']} of {found['pairs']} disjoint pairs "
        f"({found['all_pairs_overlap']} of all {found['all_pairs']})",
        "19 of 20",
        share >= OVERLAP_TARGET,
    )
    width = found["half_widths"]
    bench.row(
        "half-width of a session's interval",
        f"{percent(width['median'])} ({percent(width['min'])} to {percent(width['max'])})",
    )
    bench.row(
        "standard deviation between sessions",
        f"latency {percent(found['spread_of_latency'])}, calibrator "
        f"{percent(found['spread_of_calibrator'])}, their ratio "
        f"{percent(found['spread_of_their_ratio'])}",
    )
    bench.row("wall time of a session", f"{found['wall_s']['median']:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
