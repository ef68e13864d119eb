"""What do huge pages gain a deployment on a CPU, and what do they take when it is loaded?

    python benchmarks/huge_pages.py [--quick] [--only PART] [--out FILE]

Five processes with an engine's weights in huge pages, as ``ft.load`` has them, and five without,
called in turn in random order as a deployment is called. Compared is the processor time of a call
(one thread), which other programs disturb less than its wall time: the median of blocks over the
median of their round. The interval is Student's t over pairs of processes, by how much processes
of a kind differ their standard deviation. They are started one after the other, in a pair the one
with huge pages first, because the first ones get memory in more pieces. Results go to
``benchmarks/results/huge_pages.json``.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from common import ROOT, Bench, BenchmarkError, Row, options, plain
from frameworktax import host, models, runtimes
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.huge_pages import HugePages
from frameworktax.stats import mean_interval

ENGINES = ("openvino", "onnxruntime", "torchscript", "torchscript-frozen", "aot-inductor")
POINTS = {f"distilbert {name}": (Workload(model="distilbert", length=8), name) for name in ENGINES}
POINTS["bert-small openvino"] = (Workload(model="bert-small", length=8), "openvino")
POINTS["resnet-50 openvino"] = (Workload(model="resnet-50"), "openvino")
KINDS = ("huge", "small")
PREPARE = "prepare"
PAIRS, ROUNDS, BLOCK_S, WARM_CALLS = 5, 30, 0.05, 10
MEMORY = 1.1


def main() -> int:
    """Measure, print and write; with a folder, a point and what to do be such a process."""
    if sys.argv[-1] in (PREPARE, *KINDS):
        act(Path(sys.argv[1]), *sys.argv[2:])
        return 0
    asked = options(__doc__.splitlines()[0]).parse_args()
    bench = Bench("huge_pages", asked, [60] * len(POINTS))
    for name in POINTS:

        def run(name: str = name) -> Row:
            return measured(name, 3 if asked.quick else ROUNDS)

        if found := bench.part(name, name, run):
            value, low, high = (found["ratio"][key] for key in ("value", "low", "high"))
            told = f"{value:.3f} ({low:.3f} to {high:.3f})"
            bench.check(f"{name}: time", value, told, "below 1", high < 1)
            value = mean(found["rss_bytes"]["huge"]) / mean(found["rss_bytes"]["small"])
            bench.check(
                f"{name}: memory", value, f"{value:.3f}", f"at most {MEMORY}", value <= MEMORY
            )
            spread = (f"{100 * found['spread'][kind]:.1f} %" for kind in KINDS)
            bench.row(f"{name}: processes differ by", "{}, without {}".format(*spread))
            first = (f"{found['first'][kind]:.3f}" for kind in KINDS)
            bench.row(f"{name}: the first process over the last", "{}, without {}".format(*first))
            cost = f"{found['pages']}, {found['collapse_s']:.2f} s of the processor"
            bench.row(f"{name}: when loaded", cost)
    return bench.finish()


def measured(name: str, rounds: int) -> Row:
    """Return time of a call in huge pages over that in small ones, memory, and what it took."""
    env = {**os.environ, **host.worker_environment(1), "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, folder, name]
        subprocess.run([*words, PREPARE], env=env, check=True, capture_output=True)
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        started: list[subprocess.Popen[str]] = []
        ready = []
        try:
            for kind in KINDS * PAIRS:  # one after the other: each gets the memory that is left
                started.append(
                    subprocess.Popen(
                        [*words, kind], env=env, text=True, stdin=pipe, stdout=pipe, stderr=none
                    )
                )
                ready.append(answer(started[-1]))
            numbers = range(len(started))
            draws = [random.sample(numbers, len(started)) for _ in range(rounds)]
            blocks = [{n: answer(started[n], "go\n") for n in drawn} for drawn in draws]
        finally:
            for process in started:
                process.kill()
                process.wait()
    times = [median(block[n] / median(block.values()) for block in blocks) for n in numbers]
    pairs = [huge / small for huge, small in zip(times[::2], times[1::2], strict=True)]
    ratio = plain(mean_interval([math.log(pair) for pair in pairs], "processes"))
    return {
        "call_ns": median(block[n] for block in blocks for n in numbers[1::2]),
        "ratio": {key: math.exp(ratio[key]) for key in ("value", "low", "high")},
        "pairs": pairs,
        "spread": {kind: stdev(map(math.log, times[i::2])) for i, kind in enumerate(KINDS)},
        "first": {kind: times[i] / times[i - len(KINDS)] for i, kind in enumerate(KINDS)},
        "rss_bytes": {kind: [one["rss"] for one in ready[i::2]] for i, kind in enumerate(KINDS)},
        "pages": ready[0]["pages"],
        "collapse_s": mean(one["collapse_s"] for one in ready[::2]),
    }  # fmt: skip


def answer(process: subprocess.Popen[str], word: str = "") -> Any:
    """Return what a process says next, asked by a word."""
    process.stdin.write(word)
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise BenchmarkError("a process ended")
    return json.loads(line)


def act(folder: Path, name: str, kind: str) -> None:
    """Prepare an engine, or load it, print what that took, then ns of a call when asked."""
    workload, engine = POINTS[name]
    runtime = runtimes.get(f"{engine}@deployed")
    if kind == PREPARE:
        runtime.prepare(models.build(workload), [1], Target(), folder)
        return
    said: Row = {"collapse_s": 0.0, "pages": "nothing"}
    collapse = HugePages.collapse

    def timed(pages: HugePages, addresses: Any) -> None:
        if kind == "huge":
            begin = time.process_time()
            collapse(pages, addresses)
            said.update(collapse_s=time.process_time() - begin, pages=str(pages))

    HugePages.collapse = timed
    call = runtime.load(None, Target(), folder).bind(1)
    for _ in range(WARM_CALLS):
        call()
    said["rss"] = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    print(json.dumps(said), flush=True)
    for _ in sys.stdin:
        times, end = [], time.perf_counter() + BLOCK_S
        while time.perf_counter() < end:
            begin = time.process_time_ns()
            call()
            times.append(time.process_time_ns() - begin)
        print(median(times), flush=True)


if __name__ == "__main__":
    sys.exit(main())
