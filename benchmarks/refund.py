"""What `optimize` delivers over six models, and whether each delivery is worth its place.

    python benchmarks/refund.py [--quick] [--only lstm,recommender] [--out FILE] [--page]

A cell is a model at a batch size and a length. Targets: the delivered callable is within 2 % of the
best candidate of the final and never slower than eager; over the grid it is faster than any one
runtime used everywhere, eager where that one failed. Then one more session, interleaved: the
delivered callable beside eager, `torch.compile(mode="max-autotune")`, ONNX Runtime and OpenVINO
with their defaults, and the bare call of the runtime that was delivered. Last, in fresh processes:
time and memory until the first answer, delivered and eager. ``--page`` writes
docs/results/refund.md of the results there are.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Bench, options
from frameworktax import api
from frameworktax.analysis.advice import proven
from frameworktax.analysis.estimates import paired_ratio
from frameworktax.measure.plan import Plan
from frameworktax.optimize.blocks import shape_name
from frameworktax.optimize.run import Optimized, optimize_model
from frameworktax.records import DEPLOYED, REFERENCE, Estimate, Measurement, Point, Workload
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.serving import Deployment, load
from question import table

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
BUDGET_S, QUICK_S = 600.0, 120.0
SETUP_S, QUICK_SETUP_S = 300.0, 100.0
QUICK_RUNTIMES = ("torchscript-frozen", "onnxruntime", "openvino")
"""So few that there are no heats, and none that compiles for minutes."""
TUNED = "inductor-max-autotune"
DEFAULTS = ("onnxruntime", "openvino")
ESTIMATE_S, QUICK_ESTIMATE_S = 1800.0, 200.0
"""Of a model: measuring, and more for set-up and the proof of outputs."""
WORSE = 0.02
DISPATCH_NS = 5000
CALLS, REPEATS = 2000, 20
PAGE = ROOT / "docs" / "results" / "refund.md"
FIRST = {
    "delivered": """
import numpy as np, frameworktax as ft
fast = ft.load(FOLDER)
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
shape = deployment.served(fast.shapes)[0]
arrays = Artifact(fast.folder / shape.folder).inputs(shape.batch)
args = dict(zip(fast.manifest.interface.names, arrays))
fast(**args)
""",
    "eager": """
import torch
from frameworktax import models
from frameworktax.records import Workload
model = models.build(Workload(**WORKLOAD))
with torch.no_grad():
    inputs = model.inputs(1)
    model.module(*inputs.args, **inputs.kwargs)
""",
}
"""What a process does until its first answer."""
MEMORY = """
import pathlib, re
print(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""

Row = dict[str, Any]


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="draw the page again, measure nothing")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(json.loads((given.out or RESULTS / "refund.json").read_text())))
        return 0
    estimate = QUICK_ESTIMATE_S if given.quick else ESTIMATE_S
    benchmark = Bench("refund", given, [estimate] * len(MODELS))
    cells: list[Row] = []
    for name in MODELS:
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
    everywhere(benchmark, cells)
    return benchmark.finish()


def optimized(name: str, *, quick: bool) -> Row:
    """Return the cells of one model."""
    given = {**MODELS[name]}
    if quick and "length" in given:
        given["length"] = given["length"][0]
    budget_s = QUICK_S if quick else BUDGET_S
    with tempfile.TemporaryDirectory(prefix="frameworktax-refund-") as scratch:
        folder = Path(scratch)
        found = optimize_model(
            name,
            **given,
            batch=BATCHES,
            runtimes=QUICK_RUNTIMES if quick else "all",
            time_budget=budget_s,
            setup_limit=QUICK_SETUP_S if quick else SETUP_S,
            output=folder / "deploy",
            store=folder / "store",
        )
        row: Row = {"cells": cells_of(found), "dispatch_ns": None, "first": {}}
        if found.folder is not None:
            row["dispatch_ns"] = dispatch_ns(load(found.folder))
            beside(found, row["cells"], folder, budget_s / 2, quick=quick)
            row["first"] = first_answers(name, given, found.folder)
        return row


def beside(
    found: Optimized, cells: list[Row], folder: Path, budget_s: float, *, quick: bool
) -> None:
    """Measure the deployment beside defaults and the bare call, and add ratios to the cells."""
    points = []
    served = [(one.workload, one.runtime) for one in found.candidates if one.won]
    smallest = min(workload.batch for workload, _ in served)
    for workload, winner in served:
        names = dict.fromkeys((REFERENCE, DEPLOYED, *DEFAULTS, winner))
        if workload.batch == smallest or not quick:
            names[TUNED] = None
        points += [Point(workload=workload, runtime=name) for name in names]
    plan = Plan(
        points=tuple(points),
        budget_s=budget_s,
        setup_limit_s=QUICK_SETUP_S if quick else SETUP_S,
        deployment=found.folder,
        twin="none",
    )
    run = api.run_plan(plan, folder / "beside").run
    at: dict[Workload, dict[str, Measurement]] = defaultdict(dict)
    for m in run.measurements:
        at[m.workload][m.runtime] = m
    won = dict(served)
    for cell in cells:
        workload = next((w for w in won if shape_name(w) == cell["shape"]), None)
        measured = at.get(workload, {}) if workload else {}
        delivered = measured.get(DEPLOYED)
        cell["over"], cell["beside"] = {}, {}
        for name, m in measured.items():
            fits = name in (REFERENCE, DEPLOYED) or proven(m.parity)
            ratio = paired_ratio(m, delivered) if delivered is not None and fits else None
            cell["over"][name] = triple(ratio)
            why = m.reason or ("outputs not equal" if not fits else "")
            cell["beside"][name] = {
                "latency_ns": triple(m.latency_ns),
                "tax_share": triple(m.tax_share),
                "why": why,
            }


def triple(estimate: Estimate | None) -> list[float] | None:
    """Return value, low and high end."""
    return [estimate.value, estimate.low, estimate.high] if estimate is not None else None


def first_answers(name: str, given: Row, folder: Path) -> Row:
    """Return seconds and peak memory of a process until its first answer; the best of three."""
    workload = repr({"model": name, **{k: first(v) for k, v in given.items()}})
    rows: Row = {}
    for what, code in FIRST.items():
        text = code.replace("FOLDER", repr(str(folder))).replace("WORKLOAD", workload) + MEMORY
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            ran = subprocess.run(
                [sys.executable, "-c", text], capture_output=True, text=True, check=True
            )
            took.append(time.perf_counter() - begin)
        rows[what] = {"seconds": min(took), "bytes": int(ran.stdout) * 1024}
    return rows


def first(value: Any) -> Any:
    return value[0] if isinstance(value, Iterable) else value


def cells_of(found: Optimized) -> list[Row]:
    """Return what was delivered at each shape, and every candidate's gain in its last stage."""
    delivered = {(s.length, s.batch): s for s in found.shapes}
    rows: dict[tuple[int | None, int], Row] = {}
    for one in found.candidates:
        key = one.workload.length, one.workload.batch
        made = delivered.get(key)
        row = rows.setdefault(
            key,
            {
                "model": one.workload.model,
                "shape": shape_name(one.workload),
                "runtime": made.runtime if made else None,
                "gain": made.gain if made else None,
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


# --- the page -------------------------------------------------------------------------------------


def page(data: Row) -> str:
    """Return the page of what was measured."""
    where, parts = data["environment"], data["parts"]
    cells = [cell for part in parts.values() for cell in part.get("cells", [])]
    heads = ["model, shape", "delivered", "eager, ms", "tax", "delivered, ms", "over eager"]
    heads += ["over max-autotune", *(f"over {name}" for name in DEFAULTS), "bare call, ms"]
    rows = []
    for cell in cells:
        over, at = cell.get("over", {}), cell.get("beside", {})
        winner = cell["runtime"]
        rows.append(
            [
                f"{cell['model']}, {cell['shape']}",
                winner or "eager",
                ms(at, REFERENCE),
                percent(at, REFERENCE),
                ms(at, DEPLOYED),
                *(ratio(over, at, name) for name in (REFERENCE, TUNED, *DEFAULTS)),
                ms(at, str(winner)),
            ]
        )
    firsts = [
        [name]
        + [f"{part['first'][what]['seconds']:.1f}" for what in FIRST]
        + [f"{part['first'][what]['bytes'] / 1e6:.0f}" for what in FIRST]
        + [f"{part['dispatch_ns'] / 1e3:.1f}"]
        for name, part in parts.items()
        if part.get("first")
    ]
    lost = [
        f"- {cell['model']}, {cell['shape']}: "
        + "; ".join(f"{name}: {why}" for name, why in cell["lost"].items())
        for cell in cells
    ]
    checks = [[c["check"], c["shown"], c["target"], "yes" if c["ok"] else "**no**"]
              for c in data["checks"]]  # fmt: skip
    lines = [
        "# What `optimize` gives back",
        "",
        f"Written by `python benchmarks/refund.py{' --quick' if data['quick'] else ''}` and "
        f"`--page` from [refund.json](../../benchmarks/results/refund.json): "
        f"{data['started'][:10]}, {where['cpu']}, {len(where['affinity'])} processors, "
        f"{', '.join(f'{n} {v}' for n, v in sorted(where['libraries'].items()) if n in SHOWN)}; "
        "one thread, small versions of the models. Other load kept "
        f"{100 * (where['foreign_load'] or 0):.0f} % of the machine busy at the beginning: "
        "latencies are those of this hour, ratios are of calls in turn and hold beyond it.",
        "",
        *([QUICK_NOTE, ""] if data["quick"] else []),
        *table(heads, rows),
        "",
        "Over: how many times faster the delivered callable is, with its 95 % interval, outputs "
        "proven equal; below 1 it is slower. Tax: of eager. Bare call: the runtime alone, inputs "
        "bound beforehand.",
        "",
        "## The first answer, and the choice of the artifact",
        "",
        *table(
            ["model", "delivered, s", "eager, s", "delivered, MB", "eager, MB", "dispatch, µs"],
            firsts,
        ),
        "",
        "A fresh process from its start to its first answer at the smallest shape, the best of "
        "three; its peak memory; the time in a call before the engine's own.",
        "",
        "## Targets",
        "",
        *table(["what", "found", "target", "met"], checks),
        "",
        "## Why the others lost",
        "",
        *lost,
        "",
    ]
    return "\n".join(lines)


SHOWN = ("torch", "onnxruntime", "openvino", "transformers")
QUICK_NOTE = (
    f"Quick: {QUICK_S:.0f} s of measuring a model instead of {BUDGET_S:.0f}, one length, "
    f"{', '.join(QUICK_RUNTIMES)} alone, `max-autotune` at the smallest batch; what took longer "
    f"than {QUICK_SETUP_S:.0f} s to set up is out."
)


def ms(at: Row, name: str) -> str:
    found = at.get(name, {}).get("latency_ns")
    return f"{found[0] / 1e6:.3g}" if found else "–"


def percent(at: Row, name: str) -> str:
    found = at.get(name, {}).get("tax_share")
    return f"{100 * found[0]:.0f} %" if found else "–"


def ratio(over: Row, at: Row, name: str) -> str:
    found = over.get(name)
    if found:
        return f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"
    why = at.get(name, {}).get("why", "")
    return f"– ({why[:60]})" if why else "–"


if __name__ == "__main__":
    sys.exit(main())
