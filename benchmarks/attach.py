"""What attaching costs the process: its throughput without, with attach, and with py-spy.

The target multiplies matrices in 64 threads, each product in one of them, with Python between the
products. In pairs, so that a drifting host moves both alike, it is counted as it is and observed:
with ``attach``, with and without functions of Python (which py-spy reads), with ``attach`` as it
is without privileges (an event for each thread instead of each processor), with ``attach`` that
takes 25 times as many samples, and with ``py-spy record --rate 100``. Which comes first in a pair
is drawn. The interval of the ratio is Student's t over the logarithms of pairs.

Throughput by wall time includes what the observer takes of the target's processors; by processor
time it does not. On a host with other load both are uncertain by more than what attaching costs.
What it is made of is known better: a 25th of what 25 times the samples cost, and the processor time
that the observer takes of processors which the target would use, all of them. Samples alone cost
in proportion to their number where threads do not contend; those that do have a fast and a slow
state between which samples move them, so that a 25th is no upper bound.

With 64 threads and products of 96 × 96 (30 µs) the interpreter's lock goes from one to the next
100,000 times a second, and where each thread has an event the kernel stops one and starts another
at each of these switches: the worst case. With few threads (``--threads 2``) there is little of it,
and with products of 512 × 512 (``--size 512``, 10 ms) threads work as those of a server do.

    python benchmarks/attach.py             fourteen pairs each, 7 min; one that was ended goes on
    python benchmarks/attach.py --threads 2 --out benchmarks/results/attach_two_threads.json
    python benchmarks/attach.py --size 512 --out benchmarks/results/attach_large_products.json
    python benchmarks/attach.py --quick     two pairs each, proves nothing
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from common import Bench, BenchmarkError, Row, options
from frameworktax.programs.target import children
from frameworktax.stats import mean_interval

WINDOW_S, ROUNDS = 1.5, 14
SETTLED_S, STEADY_S = 3, 12
"""Seconds after which what observing takes of a processor is steady, and over which it is read."""
MORE = 25
LOST = 0.02
PY_SPY_HZ = 100
TARGET = """
import os, sys, threading
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
counts = np.memmap(sys.argv[1], np.int64, "r+", shape=(int(sys.argv[2]), 8))
def work(slot):
    a = np.ones((int(sys.argv[3]),) * 2, np.float32)
    while True:
        a @ a
        sum(range(100))
        counts[slot, 0] += 1
for slot in range(len(counts)):
    threading.Thread(target=work, args=(slot,), daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
OBSERVER = """
import sys, time
from frameworktax.attribution.threads import PROGRAM_PERIOD_NS
from frameworktax.programs import attach
from frameworktax.programs.attach import Observation, next_window_s
pid, may_read = int(sys.argv[1]), attach.probe
for line in sys.stdin:
    samples, processors, functions = map(int, line.split())
    attach.probe = may_read if functions else lambda *_: "left out"
    period_ns = PROGRAM_PERIOD_NS // samples
    with Observation(pid, period_ns=period_ns, processors=processors) as observed:
        observed.update()  # the first reads the symbols of libraries
        print(flush=True)
        import select
        spent_s = 0
        while not select.select([sys.stdin], [], [], next_window_s(spent_s))[0]:
            spent_s = time.thread_time()
            observed.update()
            spent_s = time.thread_time() - spent_s
        sys.stdin.readline()
    print(flush=True)
"""


class Cases:
    """The target, and what observes it now."""

    def __init__(self, folder: Path, threads: int, size: int) -> None:
        self.counts = np.memmap(folder / "counts", np.int64, "w+", shape=(threads, 8))
        self.target = _python(TARGET, str(folder / "counts"), str(threads), str(size))
        self.observer = _python(OBSERVER, str(self.target.pid))
        self.raw = folder / "py-spy.raw"

    def close(self) -> None:
        """End both."""
        for process in (self.observer, self.target):
            process.kill()
            process.wait()

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Observe nothing."""
        yield

    @contextmanager
    def attach(
        self, samples: int = 1, processors: bool = True, functions: bool = True
    ) -> Iterator[None]:
        """Attach, as the command does, with a table now and then; so many times its samples."""
        _ask(self.observer, f"{samples} {processors:d} {functions:d}")
        try:
            yield
        finally:
            _ask(self.observer)

    def attach_more(self) -> AbstractContextManager[None]:
        """Attach with more samples."""
        return self.attach(MORE)

    def attach_alone(self) -> AbstractContextManager[None]:
        """Attach as where py-spy is not installed, without functions of Python."""
        return self.attach(functions=False)

    def attach_threads(self) -> AbstractContextManager[None]:
        """Attach with an event for each thread."""
        return self.attach(processors=False)

    @contextmanager
    def py_spy(self) -> Iterator[None]:
        """Record with py-spy."""
        command = ["py-spy", "record", "--pid", str(self.target.pid), "--rate", str(PY_SPY_HZ)]
        with subprocess.Popen(
            [*command, "--threads", "--format", "raw", "--output", str(self.raw)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            said = process.stdout.readline() if process.stdout else ""
            if "Sampling" not in said:
                raise BenchmarkError(f"py-spy: {said.strip()}")
            try:
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()

    def observers_ns(self) -> int:
        """Return the processor time until now of what observes, which this process started."""
        pids = {*children(os.getpid())} - {self.target.pid}
        return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids)

    def switches(self) -> int:
        """Return how often its threads gave or lost a processor until now."""
        lines = [
            line
            for task in Path(f"/proc/{self.target.pid}/task").iterdir()
            for line in (task / "status").read_text().splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    def rates(self) -> tuple[float, float]:
        """Return products per second of wall time and of the target's processor time."""
        clock = ~self.target.pid << 3 | 2
        done, cpu, wall = self.counts.sum(), time.clock_gettime(clock), time.monotonic()
        time.sleep(WINDOW_S)
        done = int(self.counts.sum() - done)
        wall, cpu = time.monotonic() - wall, time.clock_gettime(clock) - cpu
        return done / wall, done / cpu


def _python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(process: subprocess.Popen[str], word: str = "") -> None:
    if process.stdin is None or process.stdout is None:
        raise BenchmarkError("the observer has no pipe")
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    if not process.stdout.readline():
        raise BenchmarkError("the observer has ended")


def compare(name: str, rounds: int, threads: int, size: int) -> Row:
    """Return the rates as it is and observed, a pair of windows each round, and the observer's."""
    found: dict[str, list[tuple[float, float]]] = {"plain": [], name: []}
    coin = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(Path(folder), threads, size)
        try:
            if cases.target.stdout is not None:
                cases.target.stdout.readline()
            with cases.attach():
                pass  # imports, and reads symbols that stay
            before = cases.switches()
            cases.rates()
            switches = (cases.switches() - before) / WINDOW_S
            for _ in range(rounds):
                for each in coin.sample(list(found), 2):
                    with getattr(cases, each)():
                        found[each].append(cases.rates())
            with getattr(cases, name)():
                time.sleep(SETTLED_S)
                begin_ns = cases.observers_ns()
                time.sleep(STEADY_S)
                share = (cases.observers_ns() - begin_ns) / STEADY_S / 1e9
        finally:
            cases.close()
    return {
        "threads": threads,
        "size": size,
        "switches_per_s": switches,
        "window_s": WINDOW_S,
        "observer_share": share,
        "rates_wall_cpu": found,
    }


CASES = {
    "attach": ("attach", 1),
    "attach_alone": ("attach without functions of Python", 1),
    "attach_threads": ("attach with an event for each thread", 1),
    "attach_more": (f"a {MORE}th of what attach with {MORE} times the samples costs", MORE),
    "py_spy": (f"py-spy at {PY_SPY_HZ} Hz", 1),
}


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--threads", type=int, default=64, help="of the target (64)")
    parser.add_argument("--size", type=int, default=96, help="of its matrices (96)")
    chosen = parser.parse_args()
    rounds = 2 if chosen.quick else ROUNDS
    estimate = 10 + rounds * 2 * (WINDOW_S + 0.4) + SETTLED_S + STEADY_S
    bench = Bench("attach", chosen, [estimate] * len(CASES), resume=True)
    parts: dict[str, Row] = {}
    for name, (words, per) in CASES.items():
        found = bench.part(
            name,
            f"{words}, {rounds} pairs",
            lambda name=name: compare(name, rounds, chosen.threads, chosen.size),
        )
        if found is not None:
            tell(bench, found, name, words, per)
            parts[name] = found
    for name in ("attach", "attach_alone"):
        if name in parts and "attach_more" in parts:
            share = parts[name]["observer_share"] / len(os.sched_getaffinity(0))
            what = f"throughput by wall time: {CASES[name][0]}, its samples and its observer"
            check(bench, what, change(parts["attach_more"], "attach_more", 0, MORE, share))
    return bench.finish()


def change(
    found: Row, name: str, clock: int, per: int, less: float = 0.0
) -> tuple[float, str] | None:
    """Return by how much throughput changes, as a share, and that in words with its interval."""
    rates = found["rates_wall_cpu"]
    pairs = zip(rates[name], rates["plain"], strict=True)
    ratio = mean_interval([math.log(a[clock] / b[clock]) for a, b in pairs], "log ratios by pair")
    if ratio is None:
        return None
    value, low, high = (math.expm1(x) / per - less for x in (ratio.value, ratio.low, ratio.high))
    return value, f"{value:+.1%} ({low:+.1%} to {high:+.1%})"


def check(bench: Bench, what: str, changed: tuple[float, str] | None) -> None:
    if changed is not None:
        bench.check(what, *changed, f"loses at most {LOST:.0%}", changed[0] >= -LOST)


def tell(bench: Bench, found: Row, name: str, words: str, per: int) -> None:
    for index, clock in enumerate(("wall", "processor")):
        changed = change(found, name, index, per)
        if changed is None:
            continue
        what = f"throughput by {clock} time: {words}"
        if name.startswith("attach") and per == 1 and name != "attach_threads":
            check(bench, what, changed)
        else:
            bench.row(what, changed[1])
    bench.row(f"what observing takes of a processor: {words}", f"{found['observer_share']:.1%}")


if __name__ == "__main__":
    sys.exit(main())
