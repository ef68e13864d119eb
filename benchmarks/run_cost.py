"""What `frameworktax run` costs a program: plain and observed runs in turn.

    python benchmarks/run_cost.py [--quick] [--only PART] [--out FILE]

Each part is a program that times its own calls, in one process a run: a small transformer, many
tiny calls (the worst case), and training. Plain and observed runs alternate; the cost is the ratio
of neighbouring runs, its interval Student's t over the pairs. Results go to
``benchmarks/results/run_cost.json``.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Bench, BenchmarkError, Row, options, percent, plain
from frameworktax import stats

TARGET = 0.03
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
    pairs, seconds = (3, 1.0) if given.quick else (15, 5.0)
    bench = Bench("run_cost", given, [pairs * (2 * seconds + 14)] * len(PARTS))
    for name, title in PARTS.items():
        found = bench.part(name, title, lambda name=name: cost(name, pairs, seconds))
        if found:
            ratio = found["wall"]
            text = f"{percent(ratio['value'] - 1)} ({percent(ratio['low'] - 1)} to "
            text += f"{percent(ratio['high'] - 1)}), CPU time {percent(found['cpu']['value'] - 1)}"
            is_met = ratio["value"] - 1 < TARGET
            bench.check(f"run's cost: {title}", ratio["value"] - 1, text, "under 3 %", is_met)
    return bench.finish()


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
