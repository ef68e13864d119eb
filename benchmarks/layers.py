"""Known answers of layers: a spin in one of six comes back as that layer's, equal layers are equal.

Six equal blocks, each of a module that spins and of two small products; the spin of the third
lasts, that of the others has no turns. Each spin is sampled for two seconds, in rounds. The Python
that the spinning module has beyond the mean of the others, times the processor time of the calls
that were sampled, is held against the clocks in the very same calls: a host that is faster a second
later changes neither.

Spins once came back as 0.95 to 1.11 of what was put in, for three reasons. They read the clock
every 8 µs, which is no Python: of 1 ms a tenth was in the operating system and a twentieth in libc.
What followed a spin in its layer was slower, by the layer's own clock too: caches cool. (All lines
together were what the clocks said, within 20 µs.) So the spin is a module of its own now, reads no
clock, and what follows it is a row. And a run had one period of sampling: rounds of 100 µs differed
by 13 % (1 σ) where so many samples differ by 3 % by chance, as they do in a simulation in which a
tick costs more where caches matter: ticks and a steady call lock into step. The period is varied
since, every 10 ms.

Also: how often a layer without a spin is within its 95 % interval, as documents
have it, of what the layers' own clocks say in a run without samples; how equal the layers truly
are; and how much longer a call takes while its modules read the clock.

Then, on four models, beside torch.profiler: which share of a call each says a layer has by itself,
and how much more processor time a call takes under each. Last, sessions with and without layers, in
turn: what latency they give, and how long they take.

    python benchmarks/layers.py             eight rounds, 12 minutes
    python benchmarks/layers.py --quick     two rounds, proves nothing
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from common import Bench, BenchmarkError, Row, SessionRun, measure, options, plain
from frameworktax import models, runtimes
from frameworktax.analysis.estimates import share_interval
from frameworktax.attribution.layers import ModuleClock, attribute_modules
from frameworktax.records import Estimate, Workload
from frameworktax.runtimes.base import Target
from frameworktax.stats import mean_interval

SPINS_US = (0, 100, 300, 1000)
LAYERS, SPINNING, WIDTH = 6, 2, 192
DURATION_NS = 2_000_000_000
WITHIN = 0.10
EQUAL, CHANCE = 0.95, 1.645
"""Of layers without a spin 19 of 20 are wanted, less what chance takes of so many in 5 of 100."""
TURNS = 2_000_000
"""Whose time says how many turns last a microsecond."""
CLOCKED_CALLS = 400
SLOWER = 0.10
LONGER, WIDEST = 0.15, 0.2
"""By how much a session with layers may be longer, and how wide an interval may be that holds 1."""
BESIDE = (
    Workload(model="bert-tiny", length=32),
    Workload(model="gpt2", length=32, depth=0.25),
    Workload(model="resnet-18", image_size=64),
    Workload(model="mobilenet-v2", image_size=64),
)
PROFILED_CALLS = 10


class Spin(torch.nn.Module):
    """Python that does nothing, for so many turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.spun: list[int] = []

    def forward(self) -> None:
        """Spin, and note the processor time of it."""
        begin = time.thread_time_ns()
        for _ in range(self.turns):
            pass
        self.spun.append(time.thread_time_ns() - begin)


class Layer(torch.nn.Module):
    """Two products, after a spin."""

    def __init__(self) -> None:
        super().__init__()
        self.spin = Spin()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Spin, for no time in most layers, then call what is inside."""
        self.spin()
        return x + self.second(torch.relu(self.first(x)))


class Calls:
    """Calls of a model, and the processor time that they took."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._x = model, torch.randn(1, WIDTH)
        self.made = self.took_ns = 0

    def __call__(self) -> None:
        self.made += 1
        with torch.no_grad():
            begin = time.thread_time_ns()
            self._model(self._x)
            self.took_ns += time.thread_time_ns() - begin


def cpu_ns(call: Callable[[], Any], calls: int = 200) -> float:
    """Return the processor time of a call."""
    begin = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - begin) / calls


def sampled(
    model: torch.nn.Module, call: Callable[[], Any]
) -> tuple[list[Estimate], list[Estimate]]:
    """Return the share of each layer, with what is inside it, of samples; and of its spin's Python.

    Layers are compared without samples in the operating system, which are a hypervisor's ticks. The
    Python is of all samples in the model: it is held against processor time, which has all in it.
    """
    found = attribute_modules(call, model, duration_ns=DURATION_NS)
    whole: list[Counter[str]] = []
    python: list[Counter[str]] = []
    every: list[int] = []
    for stretch in found["ticks"]:
        whole.append(Counter())
        python.append(Counter())
        every.append(sum(count for index, *_, count in stretch if index >= 0))
        for index, _, line, count in stretch:
            if index >= 0 and line != "system":
                full = found["modules"][index]["path"]
                path = full.partition(".")[0]
                whole[-1][path] += count
                python[-1][path] += count * (line == "python") * full.endswith(".spin")
    shares, of_python = (
        [
            share_interval([counts[str(at)] for counts in kind], totals, "samples")
            for at in range(LAYERS)
        ]
        for kind, totals in ((whole, [counts.total() for counts in whole]), (python, every))
    )
    return shares, of_python


def clocked(model: Any, call: Callable[[], Any]) -> list[float]:
    """Return the median time of each layer in a call by its own clock, nothing being sampled."""
    with ModuleClock(model) as entered:
        for _ in range(CLOCKED_CALLS):
            call()
    paths = [module["path"] for module in entered.modules()]
    took: list[list[int]] = [[] for _ in range(LAYERS)]
    inside: list[tuple[int, int]] = []
    for time_ns, index in zip(entered.events[::2], entered.events[1::2], strict=True):
        if index >= 0:
            inside.append((time_ns, index))
            continue
        begin, left = inside.pop()
        if paths[left].isdigit():
            took[int(paths[left])].append(time_ns - begin)
    return [float(median(times)) for times in took]


def known_answers(rounds: int) -> Row:
    """Return what each spin came back as in each round, and how equal the other layers were.

    Equal layers do not take equal time: the first finds caches as the calling code left them. So
    ``true`` compares with the ratio that the layers' own clocks give, ``equal`` with 1.
    """
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    call, spins = Calls(model), [layer.spin for layer in model]
    spinning = spins[SPINNING]
    for _ in range(200):
        call()
    spinning.turns = TURNS
    spinning()
    turns_us = TURNS / spinning.spun[-1] * 1e3
    back: dict[int, list[float]] = {spin: [] for spin in SPINS_US}
    spun: dict[int, list[float]] = {spin: [] for spin in SPINS_US}
    after: dict[int, list[float]] = {spin: [] for spin in SPINS_US}
    equal, true, slower = [], [], []
    places: list[list[float]] = []
    for _ in range(rounds):
        for spin in SPINS_US:
            spinning.turns = round(spin * turns_us)
            for one in spins:
                one.spun.clear()
            call.made = call.took_ns = 0
            shares, python = sampled(model, call)
            others = [share for at, share in enumerate(shares) if at != SPINNING]
            back[spin].append(
                beyond([one.value for one in python]) * call.took_ns / call.made / 1e3
            )
            spun[spin].append(beyond([fmean(one.spun) for one in spins]) / 1e3)
            by_clock = clocked(model, call)
            spins_ns = [float(median(one.spun[-CLOCKED_CALLS:])) for one in spins]
            after[spin].append((beyond(by_clock) - beyond(spins_ns)) / 1e3)
            del by_clock[SPINNING]
            places.append([one / fmean(by_clock) for one in by_clock])
            for at, share in enumerate(others):
                rest, clocks = others[:at] + others[at + 1 :], by_clock[:at] + by_clock[at + 1 :]
                equal.append(agree(share, rest, 1.0))
                true.append(agree(share, rest, by_clock[at] / fmean(clocks)))
        spinning.turns = 0
        plain = cpu_ns(call)
        with ModuleClock(model):
            slower.append(cpu_ns(call) / plain - 1)
    return {
        "back_us": {str(s): v for s, v in back.items()},
        "spun_us": {str(s): v for s, v in spun.items()},
        "after_us": {str(s): v for s, v in after.items()},
        "equal": equal,
        "true": true,
        "places": [median(column) for column in zip(*places, strict=True)],
        "slower": slower,
    }


def beyond(values: list[float]) -> float:
    """Return what the spinning layer has beyond the mean of the others."""
    return values[SPINNING] - fmean(v for at, v in enumerate(values) if at != SPINNING)


def agree(one: Estimate, rest: list[Estimate], ratio: float) -> bool:
    """Return whether a layer is ``ratio`` times the mean of others, within their intervals."""
    halves = [(each.high - each.low) / 2 for each in (one, *rest)]
    half = math.hypot(halves[0], ratio * math.hypot(*halves[1:]) / len(rest))
    return abs(one.value - ratio * fmean(each.value for each in rest)) <= half


# --- beside torch.profiler ------------------------------------------------------------------------


def beside(workload: Workload, rounds: int) -> Row:
    """Return what a model's layers have by themselves, by either tool."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = runtimes.get("eager").load(models.build(workload, "cpu"), Target(), Path(folder))
        call, root = loaded.bind(workload.batch), loaded.root()
        for _ in range(20):
            call()
        slower: dict[str, list[float]] = {"clocks": [], "profiler": [], "profiler, modules": []}
        for _ in range(rounds):
            plain = cpu_ns(call, PROFILED_CALLS)
            with ModuleClock(root):
                slower["clocks"].append(cpu_ns(call, PROFILED_CALLS) / plain)
            for name, stacks in (("profiler", False), ("profiler, modules", True)):
                with profile(activities=[ProfilerActivity.CPU], with_stack=stacks):
                    call()
                    slower[name].append(cpu_ns(call, PROFILED_CALLS) / plain)
        ours: Counter[str] = Counter()
        found = attribute_modules(call, root, duration_ns=DURATION_NS)
        for stretch in found["ticks"]:
            for index, _, _, count in stretch:
                if index >= 0:
                    ours[found["modules"][index]["path"]] += count
        theirs = profiled(call, Path(folder) / "trace.json")
        shares, others = _shares(ours), _shares(theirs)
        return {
            "model": workload.model,
            "slower": slower,
            "layers": [
                [path, kind, shares[path], others.get(name, 0.0)]
                for path, kind, name in entered(call, root)
                if path in shares
            ],
        }


def entered(call: Callable[[], Any], root: torch.nn.Module) -> list[tuple[str, str, str]]:
    """Return path, class, and torch.profiler's name of each module, in the order of first entry.

    The profiler numbers the modules of a class as they are first entered.
    """
    with ModuleClock(root) as clock:
        call()
    modules, numbers = clock.modules(), Counter[str]()
    found = []
    for index in dict.fromkeys(index for index in clock.events[1::2] if index >= 0):
        path, kind = modules[index]["path"], modules[index]["type"]
        found.append((path, kind, f"{kind}_{numbers[kind]}"))
        numbers[kind] += 1
    return found


def profiled(call: Callable[[], Any], file: Path) -> Counter[str]:
    """Return module, by class and number → time of its own in a trace of torch.profiler, µs."""
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recorded:
        for _ in range(PROFILED_CALLS):
            call()
    recorded.export_chrome_trace(str(file))
    events = [
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in json.loads(file.read_text())["traceEvents"]
        if event.get("cat") == "python_function" and event["name"].startswith("nn.Module: ")
    ]
    own: Counter[str] = Counter()
    inside: list[tuple[float, str]] = []  # (end, name) of the modules around
    for begin, end, name in sorted(events, key=lambda event: (event[0], -event[1])):
        while inside and inside[-1][0] <= begin:
            inside.pop()
        module = name.removeprefix("nn.Module: ")
        if inside:
            own[inside[-1][1]] -= end - begin
        own[module] += end - begin
        inside.append((end, module))
    return own


def _shares(own: Counter[str]) -> dict[str, float]:
    total = own.total()
    return {path: value / total for path, value in own.items()}


# --- sessions with and without layers -------------------------------------------------------------


def sessions(long_pairs: int, short_pairs: int) -> Row:
    """Return wall time and latency of sessions with layers over without.

    Wall time is of sessions as they come unasked. Sessions of one code differ by 15 % in latency on
    a virtual machine, so that many short ones say more of it than few long ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        long = [_pair(Path(folder) / f"long-{n}", n, "auto") for n in range(long_pairs)]
        short = [
            _pair(Path(folder) / f"short-{n}", n, "module", "--time-budget", "3")
            for n in range(short_pairs)
        ]
    return {"wall": [wall for wall, _ in long], "latency": [latency for _, latency in short]}


def _pair(folder: Path, number: int, with_layers: str, *more: str) -> tuple[float, float]:
    """Return wall time and latency of a session with layers over those of one without."""
    runs = {}
    for by in (with_layers, "none") if number % 2 else ("none", with_layers):
        arguments = ["bert-tiny", "--runtimes", "eager", "--length", "32", "--by", by, *more]
        runs[by] = measure(arguments, folder / by, 300)
    there, without = runs[with_layers], runs["none"]
    if not _point(there)["layers"] or _point(without)["layers"]:
        raise BenchmarkError("layers were not where they were asked for")
    return there.wall_s / without.wall_s, _latency(there) / _latency(without)


def _point(run: SessionRun) -> Row:
    return next(m for m in run.document["measurements"] if m["runtime"] == "eager")


def _latency(run: SessionRun) -> float:
    return float(_point(run)["latency_ns"]["value"])


def main() -> int:
    chosen = options(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    rounds, *pairs = (2, 2, 2) if chosen.quick else (8, 3, 21)
    planned_s = pairs[0] * 55 + pairs[1] * 18
    bench = Bench("layers", chosen, [rounds * 11, *[20] * len(BESIDE), planned_s])
    found = bench.part(
        "layers", f"spins in one of six layers, {rounds} rounds", lambda: known_answers(rounds)
    )
    if found is not None:
        tell(bench, found)
    for workload in BESIDE:
        title = f"{workload.model} beside torch.profiler"
        row = bench.part(workload.model, title, lambda w=workload: beside(w, 2 * rounds))
        if row is not None:
            tell_beside(bench, row)
    row = bench.part("sessions", "sessions with and without layers", lambda: sessions(*pairs))
    if row is not None:
        tell_sessions(bench, row)
    return bench.finish()


def tell_beside(bench: Bench, row: Row) -> None:
    slower = ", ".join(f"{tool} {median(v):.2f} ×" for tool, v in row["slower"].items())
    bench.row(f"{row['model']}, processor time of a call", slower)
    for path, kind, share, other in sorted(row["layers"], key=lambda one: -one[2])[:4]:
        bench.row(f"{row['model']}, {path} ({kind})", f"{share:.1%}; profiler {other:.1%}")


def tell_sessions(bench: Bench, row: Row) -> None:
    for what, key in (("wall time", "wall"), ("latency", "latency")):
        found = plain(mean_interval(row[key], "pairs of sessions"))
        low, high = found["low"], found["high"]
        target, ok = f"at most {1 + LONGER}", found["value"] <= 1 + LONGER
        if key == "latency":
            target, ok = f"holds 1, no wider than {WIDEST}", low <= 1 <= high <= low + WIDEST
        bench.check(
            f"{what} of a session with layers over one without",
            found["value"],
            f"{found['value']:.3f} ({low:.3f} to {high:.3f})",
            target,
            ok,
        )


def tell(bench: Bench, found: Row) -> None:
    for spin in map(str, SPINS_US[1:]):
        pairs = zip(found["back_us"][spin], found["spun_us"][spin], strict=True)
        ratio = plain(mean_interval([back / spun for back, spun in pairs], "rounds"))
        bench.check(
            f"a spin of {spin} µs in one layer",
            ratio["value"],
            f"{ratio['value']:.3f} of it ({ratio['low']:.3f} to {ratio['high']:.3f})",
            f"within {WITHIN:.0%}",
            abs(ratio["value"] - 1) <= WITHIN,
        )
        after = plain(mean_interval(found["after_us"][spin], "rounds"))
        bench.row(
            f"what follows a spin of {spin} µs in its layer, by clocks",
            f"{after['value']:+.1f} µs beyond other layers ({after['low']:+.1f} to "
            f"{after['high']:+.1f})",
        )
    values = found["back_us"]["0"]
    bench.row("no spin", f"{fmean(values):+.1f} µs beyond the other layers")
    true, count = fmean(found["true"]), len(found["true"])
    least = EQUAL - CHANCE * math.sqrt(EQUAL * (1 - EQUAL) / count)
    bench.check(
        "layers without a spin within their interval of what their own clocks say",
        true,
        f"{true:.1%} of {count}",
        f"at least {least:.1%}: {EQUAL:.0%} less chance",
        true >= least,
    )
    shown = ", ".join(f"{one - 1:+.1%}" for one in found["places"])
    bench.row("equal layers by their clocks, in order, beyond their mean", shown)
    bench.row("layers within their interval of the others' mean", f"{fmean(found['equal']):.1%}")
    slower = median(found["slower"])
    bench.check(
        "processor time of a call while its modules read the clock",
        slower,
        f"{slower:+.1%}",
        f"at most +{SLOWER:.0%}",
        slower <= SLOWER,
    )


if __name__ == "__main__":
    sys.exit(main())
