"""What `optimize` delivers over six models, and whether each delivery is worth its place.

    python benchmarks/refund.py [--quick] [--only lstm,recommender] [--out FILE]

A cell is a model at a batch size and a length. Targets: the delivered callable is within 2 % of the
best candidate of the final and never slower than eager; over the grid it is faster than any single
runtime used everywhere, eager where that one failed. Beside it: what won where, the time that
choosing the artifact takes in a call, and how long loading takes.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import Bench, options
from frameworktax.optimize.run import Optimized, optimize_model
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.serving import Deployment, load

MODELS: dict[str, dict[str, Any]] = {
    "bert-small": {"length": [16, 64]},
    "distilbert": {"length": [16, 64]},
    "resnet-50": {"image_size": 64},
    "mobilenet-v2": {"image_size": 96},
    "recommender": {},
    "lstm": {"length": [16, 64]},
}
"""Small versions of BERT, a sentence encoder, two vision models, a recommender and an LSTM."""
BATCHES = (1, 4, 16)
BUDGET_S, QUICK_S = 600.0, 60.0
ESTIMATE_S = 1200.0
"""Of a model: measuring, and as much again for set-up and the proof of outputs."""
WORSE = 0.02
DISPATCH_NS = 5000
CALLS, REPEATS = 2000, 20

Row = dict[str, Any]


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    names = ["recommender"] if given.quick else list(MODELS)
    benchmark = Bench("refund", given, [QUICK_S if given.quick else ESTIMATE_S] * len(names))
    cells: list[Row] = []
    for name in names:
        found = benchmark.part(name, name, lambda name=name: optimized(name, quick=given.quick))
        if found is None:
            continue
        cells += found["cells"]
        for cell in found["cells"]:
            judge(benchmark, f"{name}, {cell['shape']}", cell)
        if found["dispatch_ns"] is not None:
            told = f"{found['dispatch_ns'] / 1e3:.2f} µs"
            fits = found["dispatch_ns"] < DISPATCH_NS
            benchmark.check(f"{name}, dispatch", found["dispatch_ns"], told, "under 5 µs", fits)
            benchmark.row(f"{name}, loading", f"{found['load_s']:.2f} s")
    everywhere(benchmark, cells)
    return benchmark.finish()


def optimized(name: str, *, quick: bool) -> Row:
    """Return the cells of one model."""
    folder = Path(tempfile.mkdtemp(prefix="frameworktax-refund-"))
    try:
        found = optimize_model(
            name,
            **MODELS[name],
            batch=BATCHES[:1] if quick else BATCHES,
            time_budget=QUICK_S if quick else BUDGET_S,
            output=folder / "deploy",
            store=folder / "store",
        )
        row: Row = {"cells": cells_of(found), "dispatch_ns": None, "load_s": None}
        if found.folder is not None:
            begin = time.perf_counter()
            fast = load(found.folder)
            row["load_s"] = time.perf_counter() - begin
            row["dispatch_ns"] = dispatch_ns(fast)
        return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cells_of(found: Optimized) -> list[Row]:
    """Return what was delivered at each shape, and every candidate's gain in its last stage."""
    shapes = {(s.length, s.batch): s for s in found.shapes}
    rows: dict[tuple[int | None, int], Row] = {}
    for one in found.candidates:
        key = one.workload.length, one.workload.batch
        shape = shapes.get(key)
        row = rows.setdefault(
            key,
            {
                "model": one.workload.model,
                "shape": f"batch {key[1]}" + (f", length {key[0]}" if key[0] else ""),
                "runtime": shape.runtime if shape else None,
                "gain": shape.gain if shape else None,
                "gains": {},
                "lost": {},
            },
        )
        equal = one.measured is not None and one.measured.parity is not None
        if equal and one.gain is not None and one.measured.parity.within_tolerance:
            row["gains"][one.runtime] = one.gain.value
        if one.won and one.measured is not None and one.measured.bill_ns:
            row["breakdown_ns"] = dict(one.measured.bill_ns)
        if one.reason:
            row["lost"][one.runtime] = one.reason
    return list(rows.values())


def dispatch_ns(fast: Deployment) -> float:
    """Return the time from the call to the engine's own, of the first shape; the least of repeats.

    The engine is replaced by a function that returns at once.
    """
    shape = deployment.served(fast.shapes)[0]
    arrays = Artifact(fast.folder / str(shape.folder)).inputs(shape.batch)
    args, kwargs = fast.arguments(dict(zip(fast.manifest.interface.inputs, arrays, strict=True)))
    fast(*args, **kwargs)
    for key in fast._table:
        fast._table[key] = lambda tensors: None
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            fast(*args, **kwargs)
        times.append((time.perf_counter_ns() - begin) / CALLS)
    return min(times)


def judge(benchmark: Bench, what: str, cell: Row) -> None:
    """Hold a cell against the best candidate and against eager."""
    best = max([1.0, *cell["gains"].values()])
    gain = cell["gain"][0] if cell["gain"] else 1.0
    short = 1 - gain / best
    told = f"{cell['runtime'] or 'eager'}: {gain:.2f} × eager, best candidate {best:.2f} ×"
    benchmark.check(f"{what}, delivered", short, told, "within 2 %", short <= WORSE)
    if cell["gain"]:
        low = cell["gain"][1]
        benchmark.check(f"{what}, against eager", low, f"at least {low:.2f} ×", "> 1", low > 1)


def everywhere(benchmark: Bench, cells: list[Row]) -> None:
    """Compare the grid's geometric mean with that of each runtime used everywhere."""
    logs: dict[str, float] = defaultdict(float)
    for cell in cells:
        for name, gain in cell["gains"].items():
            logs[name] += math.log(gain)
    mine = sum(math.log(cell["gain"][0]) for cell in cells if cell["gain"])
    if not logs:
        return
    best = max(logs, key=lambda name: logs[name])
    delivered, single = (math.exp(total / len(cells)) for total in (mine, logs[best]))
    told = f"{delivered:.2f} × eager, {best} everywhere {single:.2f} ×"
    benchmark.check("over the grid", delivered, told, "faster than any one", delivered > single)


if __name__ == "__main__":
    sys.exit(main())
