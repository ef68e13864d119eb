"""What `frameworktax run` costs a program, and whether it agrees with `measure`.

    python benchmarks/run_cost.py [--quick] [--only PART] [--out FILE]

Three parts are programs that time their own calls, in one process a run: a small transformer, many
tiny calls (the worst case), and training. Plain and observed runs alternate; the cost is the ratio
of neighbouring runs, its interval Student's t over the pairs. In the fourth, rounds of `run` of a
script that calls the transformer, and of `measure` of the same module: the ratio of latencies and
the difference of tax shares, their intervals Student's t over the rounds. Results go to
``benchmarks/results/run_cost.json``; five minutes on an idle machine.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Bench, BenchmarkError, Row, measure, options, percent, plain, run_command
from frameworktax import stats

TARGET = 0.03
WIDEST = 0.2
"""Of an interval of a ratio or a difference: a wider one agrees with anything."""
MODULE = """
import torch

def build():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4).eval(), torch.randn(1, 64, 256)

if __name__ == "__main__":
    torch.set_num_threads(1)
    model, x = build()
    with torch.no_grad():
        for _ in range(2000):
            model(x)
"""
PROGRAM = """
import json, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
how, seconds = sys.argv[1], float(sys.argv[2])
if how == "transformer":
    layer = torch.nn.TransformerEncoderLayer(128, 2, 512, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 4), torch.randn(1, 32, 128)
else:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    x = torch.randn(4, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def step():
    out = model(x)
    if how == "training":
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
for _ in range(50):
    step()
calls, begin, end = 0, time.perf_counter(), time.perf_counter() + seconds
cpu = time.thread_time()
while time.perf_counter() < end:
    for _ in range(20):
        step()
    calls += 20
print(json.dumps({"wall_ns": 1e9 * (time.perf_counter() - begin) / calls,
                  "cpu_ns": 1e9 * (time.thread_time() - cpu) / calls}))
"""
PARTS = {
    "transformer": "a transformer of four layers",
    "tiny": "an MLP of three modules, called over and over",
    "training": "the MLP with backward and optimiser steps",
}


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    pairs, seconds = (2, 1.0) if given.quick else (6, 2.0)
    rounds = 2 if given.quick else 4
    estimates = [pairs * (2 * seconds + 8)] * len(PARTS)
    bench = Bench("run_cost", given, [*estimates, rounds * 30.0])
    for name, title in PARTS.items():
        found = bench.part(name, title, lambda name=name: cost(name, pairs, seconds))
        if found:
            ratio = found["wall"]
            text = f"{percent(ratio['value'] - 1)} ({percent(ratio['low'] - 1)} to "
            text += f"{percent(ratio['high'] - 1)}), CPU time {percent(found['cpu']['value'] - 1)}"
            is_met = ratio["value"] - 1 < TARGET
            bench.check(f"run's cost: {title}", ratio["value"] - 1, text, "under 3 %", is_met)
    found = bench.part("agreement", "run and measure of one module", lambda: agreement(rounds))
    if found:
        for what, none in (("latency ratio", 1.0), ("tax difference", 0.0)):
            one = found[what]
            text = f"{one['value']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
            is_in = one["low"] <= none <= one["high"] < one["low"] + WIDEST
            target = f"holds {none:g}, no wider than {WIDEST:g}"
            bench.check(f"run to measure: {what}", one["value"], text, target, is_in)
    return bench.finish()


def agreement(rounds: int) -> Row:
    """Return what ``run`` and ``measure`` say of one module, and how they differ by round."""
    pairs: list[dict[str, Row]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script = folder / "module.py"
        script.write_text(MODULE)
        document = folder / "program.json"
        command = [sys.executable, "-m", "frameworktax", "run", "--quiet", "--skip-first", "50"]
        for number in range(rounds):
            run_command([*command, "--json", str(document), str(script)], 300)
            sections = json.loads(document.read_text())["sections"]
            (run,) = [kind for one in sections for kind in one["kinds"]]
            words = [f"{script}:build", "--runtimes", "eager", "--batch", "1"]
            session = measure([*words, "--time-budget", "15"], folder / str(number), 300)
            (point,) = [m for m in session.document["measurements"] if m["runtime"] == "eager"]
            row = {"run": run, "measure": point}
            keys = ("latency_ns", "tax_share")
            if any(one[key] is None for one in row.values() for key in keys):
                raise BenchmarkError(f"no tax: {run['reason'] or point['reason']}")
            pairs.append({name: {key: one[key] for key in keys} for name, one in row.items()})
    values = {
        name: {
            key: [pair[name][key]["value"] for pair in pairs] for key in ("latency_ns", "tax_share")
        }
        for name in ("run", "measure")
    }
    by_round = zip(values["run"]["latency_ns"], values["measure"]["latency_ns"], strict=True)
    logs = plain(stats.mean_interval([math.log(run / own) for run, own in by_round], "rounds"))
    ratio = logs | {key: math.exp(logs[key]) for key in ("value", "low", "high")}
    shares = zip(values["run"]["tax_share"], values["measure"]["tax_share"], strict=True)
    difference = plain(stats.mean_interval([run - own for run, own in shares], "rounds"))
    return {"rounds": pairs, "latency ratio": ratio, "tax difference": difference}


def cost(name: str, pairs: int, seconds: float) -> Row:
    """Return observed over plain, of wall and of CPU time of a call."""
    coin = random.Random(0)
    runs: dict[str, dict[str, dict[tuple[int, int], float]]] = {
        clock: {"plain": {}, "observed": {}} for clock in ("wall", "cpu")
    }
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM)
        words = [str(script), name, str(seconds)]
        commands = {
            "plain": [sys.executable, *words],
            "observed": [sys.executable, "-m", "frameworktax", "run", "--quiet", *words],
        }
        for number in range(pairs):
            sides = list(commands)
            coin.shuffle(sides)
            for side in sides:
                ran = subprocess.run(commands[side], capture_output=True, text=True, timeout=300)
                if ran.returncode:
                    raise BenchmarkError(f"{side}: {ran.stderr.strip()[-200:]}")
                for clock, values in runs.items():
                    values[side][0, number] = json.loads(ran.stdout)[f"{clock}_ns"]
    ratios = {
        clock: plain(stats.ratio_interval(values["observed"], values["plain"]))
        for clock, values in runs.items()
    }
    return {"pairs": pairs, "seconds": seconds, **ratios}


if __name__ == "__main__":
    sys.exit(main())
