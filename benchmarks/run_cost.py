"""What `frameworktax run` costs a program, and whether it agrees with `measure`.

    python benchmarks/run_cost.py [--quick] [--only PART] [--out FILE]

In three parts a program calls a module when it is asked to: a small transformer, many tiny calls
(the worst case), and training. Of each pair of processes, one as it is and one observed, both are
alive together and have turns of 0.15 s, so that a drifting host slows both alike. The cost of a
pair is the median of the ratios of neighbouring turns, its interval Student's t over the pairs. In
the fourth a program under `run` and a measuring process of `measure` call one module in turn, and
at the end the document of `run` is compared with the blocks and samples of the other: the ratio of
latencies and the difference of tax shares, Student's t over the pairs. Results go to
``benchmarks/results/run_cost.json``; seven minutes on an idle machine. A run that was ended goes on
after its last whole part.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from common import Bench, BenchmarkError, Row, load, options, percent, plain
from frameworktax import host, models
from frameworktax.analysis.bill import from_samples
from frameworktax.measure import timing
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Estimate, Workload
from frameworktax.stats import mean_interval

TARGET = 0.03
WIDEST = 0.2
"""Of an interval of a ratio or a difference: a wider one agrees with anything."""
TURN_NS, TURNS, PAIRS = 150_000_000, 20, 5
ROUNDS, SAMPLED, AGREEING = 24, 3, 12
"""Turns of a pair that is compared, after how many there are samples, and pairs."""
PATIENCE_S = 120.0
PROGRAM = """
import json, sys, time
import torch

def build(how="measured"):
    torch.manual_seed(0)
    if how == "measured":
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        return torch.nn.TransformerEncoder(layer, 4).eval(), torch.randn(1, 64, 256)
    if how == "transformer":
        layer = torch.nn.TransformerEncoderLayer(128, 2, 512, batch_first=True)
        return torch.nn.TransformerEncoder(layer, 4), torch.randn(1, 32, 128)
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    return torch.nn.Sequential(*layers), torch.randn(4, 64)

def main(how):
    torch.set_num_threads(1)
    model, x = build(how)
    torch.set_grad_enabled(how != "measured")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    def step():
        out = model(x)
        if how == "training":
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for _ in range(50):
        step()
    print(flush=True)
    for line in sys.stdin:
        begin, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(int(line)):
            step()
        took = time.perf_counter_ns() - begin, time.thread_time_ns() - cpu
        print(json.dumps([ns / int(line) for ns in took]), flush=True)

if __name__ == "__main__":
    main(sys.argv[1])
"""
PARTS = {
    "transformer": "a transformer of four layers",
    "tiny": "an MLP of three modules, called over and over",
    "training": "the MLP with backward and optimiser steps",
}


class Program:
    """A program that calls a module when it is asked to; use as a context manager."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait(self) -> str:
        """Return its next line."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise BenchmarkError(f"a program ended: {self.process.communicate()[1].strip()[-200:]}")
        return line

    def call(self, calls: int) -> list[float]:
        """Let it call; return wall and CPU time of a call in ns."""
        if self.process.stdin:
            self.process.stdin.write(f"{calls}\n")
            self.process.stdin.flush()
        found: list[float] = json.loads(self.wait())
        return found

    def end(self) -> None:
        """Let it end by itself."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        if self.process.returncode:
            raise BenchmarkError(f"exit {self.process.returncode}: {said.strip()[-200:]}")


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    pairs, agreeing = (2, 2) if given.quick else (PAIRS, AGREEING)
    estimates = [pairs * 13.0] * len(PARTS)
    bench = Bench("run_cost", given, [*estimates, agreeing * 13.0], resume=True)
    for name, title in PARTS.items():
        found = bench.part(name, title, lambda name=name: cost(name, pairs))
        if found:
            ratio = found["wall"]
            text = f"{percent(ratio['value'] - 1)} ({percent(ratio['low'] - 1)} to "
            text += f"{percent(ratio['high'] - 1)}), CPU time {percent(found['cpu']['value'] - 1)}"
            is_met = ratio["value"] - 1 < TARGET
            bench.check(f"run's cost: {title}", ratio["value"] - 1, text, "under 3 %", is_met)
    found = bench.part("agreement", "run and measure of one module", lambda: agreement(agreeing))
    if found:
        for what, none in (("latency ratio", 1.0), ("tax difference", 0.0)):
            one = found[what]
            text = f"{one['value']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
            is_in = one["low"] <= none <= one["high"] < one["low"] + WIDEST
            target = f"holds {none:g}, no wider than {WIDEST:g}"
            bench.check(f"run to measure: {what}", one["value"], text, target, is_in)
    return bench.finish()


def ratio_of(logs: list[float]) -> Row:
    """Return the ratio whose logarithms these are, over pairs."""
    found = plain(mean_interval(logs, "pairs of processes"))
    return found | {key: math.exp(found[key]) for key in ("value", "low", "high")}


def cost(name: str, pairs: int) -> Row:
    """Return observed over plain, of wall and of CPU time of a call."""
    coin = random.Random(0)
    logs: dict[str, list[float]] = {"wall": [], "cpu": []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM)
        words = str(script), name
        for _ in range(pairs):
            with (
                Program(*words) as as_it_is,
                Program("-m", "frameworktax", "run", "--quiet", *words) as observed,
            ):
                both = [as_it_is, observed]
                for one in both:
                    one.wait()
                calls = round(TURN_NS / min(one.call(50)[0] for one in both))
                turns: dict[Program, list[list[float]]] = {one: [one.call(calls)] for one in both}
                for _ in range(TURNS):
                    for one in coin.sample(both, 2):
                        turns[one].append(one.call(calls))
                for one in both:
                    one.end()
                for index, values in enumerate(logs.values()):
                    ratios = [
                        b[index] / a[index]
                        for a, b in zip(turns[as_it_is], turns[observed], strict=True)
                    ]
                    values.append(math.log(median(ratios[1:])))
    return {"pairs": pairs, **{clock: ratio_of(values) for clock, values in logs.items()}}


def agreement(pairs: int) -> Row:
    """Return what ``run`` and a process of ``measure`` say of one module, and how they differ."""
    found: list[dict[str, Row]] = []
    for _ in range(pairs):
        with ExitStack() as until:
            folder = Path(until.enter_context(tempfile.TemporaryDirectory()))
            script, document = folder / "program.py", folder / "program.json"
            script.write_text(PROGRAM)
            words = ["-m", "frameworktax", "run", "--quiet", "--skip-first", "50"]
            words += ["--json", str(document), str(script), "measured"]
            program = until.enter_context(Program(*words))
            workload = Workload(model=f"{script}:build")
            worker = Worker(
                "measured",
                environment=host.worker_environment(1),
                libraries=models.libraries(workload),
            )
            until.callback(worker.kill)
            latency, share = in_turn(program, worker, workload)
            program.end()
            sections = json.loads(document.read_text())["sections"]
            (kind,) = [kind for one in sections for kind in one["kinds"]]
            if kind["tax_share"] is None:
                raise BenchmarkError(f"no tax: {kind['reason']}")
            run = {key: kind[key] for key in ("latency_ns", "tax_share")}
            own = {"latency_ns": plain(latency), "tax_share": plain(share)}
            found.append({"run": run, "measure": own})

    def values(key: str) -> list[tuple[float, float]]:
        return [(one["run"][key]["value"], one["measure"][key]["value"]) for one in found]

    differences = [run - own for run, own in values("tax_share")]
    return {
        "pairs": found,
        "latency ratio": ratio_of([math.log(run / own) for run, own in values("latency_ns")]),
        "tax difference": plain(mean_interval(differences, "pairs of processes")),
    }


def in_turn(
    program: Program, worker: Worker, workload: Workload
) -> tuple[Estimate, Estimate | None]:
    """Let both call the module in turn; return latency and tax share as ``measure`` has them."""
    load(worker, workload, PATIENCE_S)
    bound = worker.request(Server.bind, PATIENCE_S, batch=1, limit_ns=2_000_000_000)
    program.wait()
    worker.request(Server.pin, PATIENCE_S, cpus=tuple(host.pick_cpus(1)))
    calls = timing.calls_for(bound.call_ns, TURN_NS)
    blocks, sampled = [], []
    for number in range(ROUNDS):
        program.call(calls)
        blocks.append(worker.request(Server.block, PATIENCE_S, batch=1, calls=calls))
        if number % SAMPLED == 0:
            sampled.append(worker.request(Server.sample, PATIENCE_S, batch=1, duration_ns=TURN_NS))
    medians = [float(median(block.latency_ns)) for block in blocks]
    latency = mean_interval(medians, "medians of blocks")
    if latency is None:
        raise BenchmarkError("too few blocks")
    pipelined = [block.pipelined_ns / block.pipelined_calls for block in blocks]
    found = from_samples(latency, sampled, {0: (median(medians), median(pipelined))})
    return latency, found.share if found else None


if __name__ == "__main__":
    os.environ.update(host.worker_environment(1))  # of both: libraries read them as they load
    sys.exit(main())
