"""Known answers on a CPU: time put into a call comes back as what it is, within 5 %.

Host time in Python, in native code and in a second thread, and kernel time by a longer product, 0.1
to 10 ms. The call with it and the call without are sampled in turn; what the line of the breakdown
has more is compared with what clocks of the thread's processor time say of what was put in, in the
same calls. Beside it the call does work that is on another line and about as long, at most 0.3 ms.

The product is MKL's, called by C code that reads the clock right before and after. By torch.mm it
was not kernel time alone: a product evicts the code that dispatches it from the caches. Of 89 µs by
the clock 6 % was dispatch and 2 % the operating system, of 5.6 ms 1.9 % and 0.9 %, spread over more
than 30 functions of torch, and all lines together were what the clocks said.

Products, small operators and mixtures of both in each runtime are in ``stripped.py``.

    python benchmarks/known_answers.py           six rounds, 8 minutes; what was measured is kept
    python benchmarks/known_answers.py --quick   two rounds, proves nothing
"""

from __future__ import annotations

import ctypes
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "data"))

import native_code
from timed_parts import Part, Second, Timed, python_loop

from common import Bench, BenchmarkError, options
from frameworktax.attribution import attribute_cpu
from frameworktax.stats import t_quantile

MS = (0.1, 1.0, 10.0)
WITHIN = 0.05
SAMPLED_NS = 2_000_000_000
BESIDE_MS = 0.3
"""Other work of a call, at most: what is put in is then a good part of the samples."""
FEW_SAMPLES, MORE = ("second thread", 0.1), 4
"""Most of that call is waiting: a round has a few hundred samples of what was put in, ± 8 %."""


def lines(call: Part, threads: int = 1, sampled_ns: int = SAMPLED_NS) -> tuple[Counter[str], int]:
    """Return processor time of a call by line of the breakdown, ns, and how many calls there were.

    Time in the operating system is left out: nothing here calls it, a hypervisor's ticks are there.
    """
    found = attribute_cpu(call, threads=threads, duration_ns=sampled_ns)
    counts = sum(map(Counter, found["samples"]), Counter())
    each = (found["wall_ns"] - found["off_cpu_ns"]) / found["calls"] / counts.total()
    del counts["system"]
    return Counter({line: count * each for line, count in counts.items()}), found["calls"]


class TimesItself(Timed):
    """A part that returns the processor time of what it is."""

    def __call__(self) -> None:
        self.spent_ns += self.part()


def handed(part: Part) -> Part:
    """Return a call that has a second thread run a part, and waits for it."""
    second = Second()

    def call() -> None:
        second.begin(part)
        second.wait()

    return call


def lasting(function: Callable[[int], Any], ms: float, count: int) -> Part:
    """Return a call of a function that takes so long."""
    function(count)
    begin = time.thread_time_ns()
    function(count)
    return partial(function, round(count * ms * 1e6 / (time.thread_time_ns() - begin)))


def native(name: str, folder: Path) -> Callable[[int], int]:
    """Return a function of ``native_code.PRODUCTS``, given MKL's product in torch's library.

    Raises:
        BenchmarkError: this torch computes products by another library.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        address = ctypes.cast(library.SGEMM, ctypes.c_void_p).value
    except AttributeError:
        raise BenchmarkError("torch's library here has no product of MKL") from None
    function = native_code.load(native_code.PRODUCTS, name, folder)
    function.argtypes = [ctypes.c_long, ctypes.c_long]
    return partial(function, address)


def put_in(kind: str, ms: float, rounds: int) -> list[float]:
    """Return, for each round, what came back of what was put in, as a ratio."""
    with tempfile.TemporaryDirectory() as folder:
        spin = native_code.load(native_code.SPIN, "spin", Path(folder))
        product = native("product", Path(folder))
    line, function, count = {
        "python": ("python", python_loop, 1_000_000),
        "native": ("remainder", spin, 10_000_000),
        "second thread": ("python", python_loop, 1_000_000),
        "product": ("kernel", product, 1_000),
    }[kind]
    threads = 2 if kind == "second thread" else 1
    clock = TimesItself if kind == "product" else Timed
    other = (python_loop, 1_000_000) if kind == "product" else (product, 1_000)
    beside = lasting(other[0], min(ms, BESIDE_MS), other[1])
    calls: list[tuple[Part, Timed]] = []
    for part in (partial(function, 0), lasting(function, ms, count)):
        timed = clock(part)
        calls.append((handed(timed) if threads == 2 else timed, timed))
    found = []
    for _ in range(rounds):
        back, known = [], []
        for inner, timed in calls:
            timed.spent_ns = 0

            def call(inner: Part = inner) -> None:
                beside()
                inner()

            spent, made = lines(call, threads)
            back.append(spent[line])
            known.append(timed.spent_ns / made)
        found.append((back[1] - back[0]) / (known[1] - known[0]))
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % interval."""
    half = t_quantile(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values), half


def judge(bench: Bench, name: str, values: list[float], within: float) -> None:
    value, half = interval(values)
    shown = f"{value:.3f} ± {half:.3f} of it"
    bench.check(name, value, shown, f"within {within:.0%}", abs(value - 1) <= within)


def main() -> int:
    chosen = options(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    rounds = 2 if chosen.quick else 6
    cases = [(kind, ms) for kind in ("python", "native", "second thread", "product") for ms in MS]
    times = [rounds * (MORE if case == FEW_SAMPLES else 1) for case in cases]
    estimates = [each * 4.5 for each in times]
    bench = Bench("known_answers", chosen, estimates, resume=True)
    for (kind, ms), each in zip(cases, times, strict=True):
        name = f"{ms:g} ms, {kind}"
        found = bench.part(name, name, lambda k=kind, m=ms, n=each: {"ratios": put_in(k, m, n)})
        if found is not None:
            judge(bench, name, found["ratios"], WITHIN)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
