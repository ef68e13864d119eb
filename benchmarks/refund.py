"""What `optimize` delivers over six models, and whether each delivery is worth its place.

    python benchmarks/refund.py [--quick] [--only lstm,recommender] [--out FILE] [--page] [--judge]
    python benchmarks/refund.py --dispatch deploy

A cell is a model at a batch size and a length. After the race one more session measures, in turn:
the delivered callable, eager, each runtime of ``SINGLES`` with its defaults, the candidates that
came close, and at the smallest batch `torch.compile(mode="max-autotune")`. Runtimes and candidates
are called as they would be delivered: torch's tensors in and out. Targets, each with its interval:
the delivered callable takes at most 2 % longer than the best candidate and less than eager; over
the grid it is faster than any one runtime used everywhere, eager where that one failed.

Two processes of one engine differ by several percent. So what may be faster than the delivered
callable is loaded beside it, in further processes, and both are timed in turn in each of them; what
was delivered is called as a candidate over the same engine. The ratio with the narrower interval
decides, unless the other proves a loss. The best candidate is the one whose interval reaches
lowest. Beside them, without a target: the engine's own call, and at the smallest shape ONNX Runtime
with what Olive's automatic optimiser makes of the model. Last: in fresh processes time and memory
until the first answer, delivered and eager.

A run that was killed goes on after its last whole model. ``--page`` writes docs/results/refund.md
of the results there are, ``--judge`` judges them anew, ``--dispatch`` shows the cost of a call of
any deployment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Bench, BenchmarkError, child, options, run_command, shown
from frameworktax import api, runtimes
from frameworktax.analysis.advice import proven
from frameworktax.analysis.estimates import paired_ratio
from frameworktax.errors import FrameworktaxError
from frameworktax.measure.parity import compare
from frameworktax.measure.plan import Plan
from frameworktax.measure.template import Templates
from frameworktax.optimize.delivery import Prover
from frameworktax.optimize.run import Asked, Optimized, optimize_model
from frameworktax.records import DEPLOYED, REFERENCE, Estimate, Measurement, Point
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.deployment import Shape, shape_name
from frameworktax.runtimes.serving import Deployment, StandIn, load
from frameworktax.runtimes.torch_common import to_arrays
from frameworktax.stats import ratio_interval
from question import table

MODELS: dict[str, dict[str, Any]] = {
    "bert-small": {"length": [8, 32]},
    "distilbert": {"length": [8, 16]},
    "resnet-50": {"image_size": 64},
    "mobilenet-v2": {"image_size": 96},
    "recommender": {},
    "lstm": {"length": [8, 32]},
}
"""Small versions of BERT, a sentence encoder, two vision models, a recommender and an LSTM."""
BATCHES, QUICK_BATCHES = (1, 4, 16), (1, 16)
BUDGET_S, BESIDE_S, QUICK_S = 240.0, 160.0, 60.0
"""Of measuring a model in its race, and beside what was delivered."""
SETUP_S, QUICK_SETUP_S = 300.0, 100.0
QUICK_RUNTIMES = ("torchscript-frozen", "onnxruntime", "openvino")
"""So few that there are no heats, and none that compiles for minutes."""
TUNED, OLIVE = "inductor-max-autotune", "olive"
SINGLES, OWN = (
    ("torchscript-frozen", "onnxruntime", "openvino"),
    "what was delivered as a candidate",
)
"""Used everywhere with their defaults, for comparison."""
CLOSE = 0.9
"""Candidates with this share of the best gain in the final are measured again, in turn."""
ESTIMATE_S, QUICK_ESTIMATE_S = 800.0, 280.0
"""Of a model: measuring, and more for set-up and the proof of outputs."""
WORSE = 0.02
NEAR, FASTER = "at most 2 % slower", "faster"
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
DISPATCH_NS = 5000
CALLS, REPEATS = 20, 1000
BLOCKS, BLOCK_NS, BLOCK_CALLS, PROCESSES = 20, 2e7, 3, 6
"""More processes than the race's three: they differ by several percent, and the target is 2 %."""
OLIVE_FOLDER = ROOT / "benchmarks" / ".olive"
OLIVE_CODE = """
from frameworktax.models import torchvision_operators
torchvision_operators.declare()
from olive.cli.launcher import main
main()
"""
PAGE = ROOT / "docs" / "results" / "refund.md"
ROUNDS, SHAPE_NS = 3, 4e9
"""Least rounds of a shape, and ns for all of its calls in a process."""
TOGETHER_PROCESSES = 12
FIRST = {
    "delivered": """
import numpy as np, frameworktax as ft
fast = ft.load(FOLDER)
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
shape = deployment.served(fast.shapes)[0]
arrays = Artifact.read(fast.folder / shape.folder).inputs(shape.batch)
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
    parser.add_argument("--judge", action="store_true", help="judge the committed results anew")
    parser.add_argument("--dispatch", type=Path, metavar="FOLDER", help="the cost of its call")
    parser.add_argument("--calls", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pair", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(json.loads((given.out or RESULTS / "refund.json").read_text())))
        return 0
    if given.dispatch:
        for shape, sides in together(given.dispatch).items():
            found = ", ".join(f"{what} {ns / 1e3:.2f} µs" for what, ns in costs(sides).items())
            print(f"{shape}: {found}")
        return 0
    if given.calls:
        print(json.dumps(calls(*given.calls)))
        return 0
    if given.pair:
        print(json.dumps(pair(*given.pair)))
        return 0
    estimate = QUICK_ESTIMATE_S if given.quick else ESTIMATE_S
    kept = json.loads((given.out or RESULTS / "refund.json").read_text()) if given.judge else {}
    benchmark = Bench("refund", given, [estimate] * len(MODELS), resume=True)
    if given.judge:
        benchmark.data = {**kept, "checks": []}
    cells: list[Row] = []
    for name in MODELS:
        if given.judge:
            found = kept["parts"].get(name)
        else:
            found = benchmark.part(name, name, lambda name=name: optimized(name, quick=given.quick))
        if found is None:
            continue
        cells += found["cells"]
        for cell in found["cells"]:
            judge(benchmark, f"{name}, {cell['shape']}", cell)
        if found["first"]:
            ns = smallest(found)[CHOICE]
            shown = f"{ns / 1e3:.2f} µs"
            benchmark.check(f"{name}, {CHOICE}", ns, shown, "under 5 µs", ns < DISPATCH_NS)
        for what, one in found["first"].items():
            shown = f"{one['seconds']:.1f} s, {one['bytes'] / 1e6:.0f} MB"
            benchmark.row(f"{name}, first answer, {what}", shown)
    everywhere(benchmark, cells)
    if given.judge:
        benchmark.save()
        return 0
    return benchmark.finish()


def optimized(name: str, *, quick: bool) -> Row:
    """Return the cells of one model."""
    given = {**MODELS[name]}
    if quick and "length" in given:
        given["length"] = given["length"][0]
    budget_s = QUICK_S if quick else BUDGET_S
    with tempfile.TemporaryDirectory(prefix="frameworktax-refund-") as scratch:
        folder = Path(scratch)
        asked = Asked(
            model=name,
            **given,
            batch=QUICK_BATCHES if quick else BATCHES,
            runtimes=QUICK_RUNTIMES if quick else "all",
            time_budget=budget_s,
            setup_limit=QUICK_SETUP_S if quick else SETUP_S,
            output=folder / "deploy",
            store=folder / "store",
        )
        found = optimize_model(asked)
        row: Row = {"cells": cells_of(found), "budget_s": budget_s, "first": {}}
        if found.folder is not None:
            beside(found, row["cells"], folder, quick=quick)
            beside_rivals(found, row["cells"], folder)
            beside_olive(found, row["cells"], folder)
            row["first"] = first_answers(name, given, found.folder)
        return row


def beside(found: Optimized, cells: list[Row], folder: Path, *, quick: bool) -> None:
    """Measure the deployment beside candidates and single runtimes; add ratios to the cells."""
    points = []
    served = [one for one in found.candidates if one.won]
    smallest = min(one.workload.batch for one in served)
    for one in served:
        gains = {
            o.runtime: o.gain.value
            for o in found.candidates
            if o.workload == one.workload and o.gain
        }
        close = [name for name, gain in gains.items() if gain >= CLOSE * max(gains.values())]
        candidates = map(runtimes.deployed, (*SINGLES, one.runtime, *close))
        names = dict.fromkeys((REFERENCE, DEPLOYED, *candidates))
        if one.workload.batch == smallest:
            names[TUNED] = None
        points += [Point(workload=one.workload, runtime=name) for name in names]
    plan = Plan(
        points=tuple(points),
        processes=PROCESSES,
        budget_s=QUICK_S if quick else BESIDE_S,
        setup_limit_s=QUICK_SETUP_S if quick else SETUP_S,
        deployment=found.folder,
        twin="none",
    )
    run = api.run_plan(plan, folder / "beside").run
    at: dict[str, dict[str, Measurement]] = defaultdict(dict)
    for m in run.measurements:
        at[shape_name(m.workload)][m.runtime] = m
    for cell in cells:
        measured = at[cell["shape"]]
        delivered = measured.get(DEPLOYED)
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


def beside_olive(found: Optimized, cells: list[Row], folder: Path) -> None:
    """Measure the deployment beside what Olive makes of the model, at the smallest shape."""
    workload = next(one.workload for one in found.candidates if one.won)
    cell = next(cell for cell in cells if cell["shape"] == shape_name(workload))
    own = folder / OLIVE
    try:
        with prover_in(folder) as prover:
            prover.export(workload, "onnxruntime", [workload.batch], own)
        artifact = Artifact.read(own)
        command = [str(olive_python()), "-c", OLIVE_CODE, "auto-opt"]
        command += ["-m", str(artifact.file(workload.batch)), "-o", str(folder / "made")]
        command += ["--device", "cpu", "--provider", "CPUExecutionProvider", "--precision", "fp32"]
        run_command(
            [*command, "--disable_telemetry"],
            SETUP_S,
            env={"PYTHONPATH": str(ROOT / "src")},
            folder=folder,
        )
        for file in (folder / "made").glob("*.onnx*"):
            shutil.copy(file, artifact.folder)
        artifact.files = {workload.batch: "model.onnx"}
        artifact.write()
        arguments = ["--pair", str(found.folder), str(own)]
        took = [child(Path(__file__), arguments, SETUP_S) for _ in range(PROCESSES)]
    except (BenchmarkError, FrameworktaxError) as error:
        cell["beside"][OLIVE] = {"why": shown(error)}
        return
    different = [one["differs"] for one in took if one["differs"]]
    if different:
        cell["beside"][OLIVE] = {"why": f"outputs not equal: {different[0]}"}
        return
    sides = [
        {(p, n): ns for p, one in enumerate(took) for n, ns in enumerate(one[side])}
        for side in (OLIVE, DEPLOYED)
    ]
    cell["over"][OLIVE] = triple(ratio_interval(*sides))


@contextlib.contextmanager
def prover_in(folder: Path) -> Iterator[Prover]:
    """Yield what exports models, with a folder for its own."""
    with (
        contextlib.closing(Templates()) as templates,
        Prover(Target("cpu"), None, folder, SETUP_S, templates) as prover,
    ):
        yield prover


def olive_python() -> Path:
    """Return the interpreter of an environment of its own that has Olive beside our torch."""
    python = OLIVE_FOLDER / "bin" / "python"
    if not (OLIVE_FOLDER / "bin" / "olive").exists():
        run_command([sys.executable, "-m", "venv", "--clear", str(OLIVE_FOLDER)], SETUP_S)
        shared = sysconfig.get_path("purelib", vars={"base": str(OLIVE_FOLDER)})
        (Path(shared) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pins = ["-c", str(ROOT / "constraints.txt")]
        run_command([str(python), "-m", "pip", "install", "-q", *pins, "olive-ai"], SETUP_S)
    return python


def pair(deploy: Path, made: Path) -> Row:
    """Return latencies of blocks of the deployment and of what Olive made, in turn, ns."""
    fast = load(deploy)
    shape = deployment.served(fast.shapes)[0]
    theirs = runtimes.get("onnxruntime").load(None, Target("cpu"), made)
    call, ours = theirs.bind(shape.batch), bound(fast, shape)
    verdict = compare(to_arrays(ours()), theirs.outputs(call()), "float32")
    differs = "" if verdict.within_tolerance else verdict.reason or verdict.worst or "no reason"
    return {**in_turn({OLIVE: call, DEPLOYED: ours}, BLOCKS), "differs": differs}


def in_turn(
    calls: dict[str, Callable[[], object]], rounds: int, least_ns: float = 0
) -> dict[str, list[float]]:
    """Return medians of blocks of calls that take turns, ns; each round in another order."""
    blocks: dict[str, list[float]] = {name: [] for name in calls}
    order, drawn = list(calls), random.Random(0)
    until = time.perf_counter_ns() + least_ns
    while len(blocks[order[0]]) < rounds or time.perf_counter_ns() < until:
        for name in order:
            took: list[int] = []
            while sum(took) < BLOCK_NS or len(took) < BLOCK_CALLS:
                begin = time.perf_counter_ns()
                calls[name]()
                took.append(time.perf_counter_ns() - begin)
            blocks[name].append(statistics.median(took))
        drawn.shuffle(order)
    return blocks


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
                "over": {},
                "beside": {},
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


CHOICE, ENGINE, CANDIDATE, TENSORS, ARRAYS = (
    "choosing the artifact",
    "the engine's own call",
    "called as a candidate",
    "called as delivered",
    "called with numpy arrays",
)


def beside_rivals(found: Optimized, cells: list[Row], folder: Path) -> None:
    """Add to the cells what the delivered callable takes beside rivals in the same process.

    Rivals are what may be faster, by the ratios of ``beside``, and the engine's own call.
    """
    served = {shape_name(one.workload): one.workload for one in found.candidates if one.won}
    rivals: dict[str, dict[str, str]] = defaultdict(dict)
    with prover_in(folder) as prover:
        for number, cell in enumerate(cells):
            for name, ratio in cell["over"].items():
                is_rival = runtimes.without_deployed(name) != name and name != DEPLOYED
                if not is_rival or not ratio or ratio[1] >= 1 or is_delivered(cell, name):
                    continue
                workload, to = served[cell["shape"]], folder / f"rival-{number}-{name}"
                prover.export(workload, name, [workload.batch], to)
                rivals[cell["shape"]][name] = str(to)
    listed = folder / "rivals.json"
    listed.write_text(json.dumps(rivals))
    blocks = together(found.folder, listed)
    for cell in cells:
        if sides := blocks.get(cell["shape"]):
            ratios = {name: triple(ratio_interval(ns, sides[TENSORS])) for name, ns in sides.items()
                      if name not in (CHOICE, TENSORS, ARRAYS)}  # fmt: skip
            cell["call_ns"] = costs(sides)
            cell["over_engine"], cell["over_same"] = ratios.pop(ENGINE), ratios.pop(CANDIDATE)
            cell["over_together"] = ratios


def together(folder: Path, rivals: Path = Path(os.devnull)) -> dict[str, Row]:
    """Return blocks, by process and round, of calls over each engine of a deployment."""
    arguments = ["--calls", str(folder), str(rivals)]
    took = [child(Path(__file__), arguments, SETUP_S) for _ in range(TOGETHER_PROCESSES)]
    return {
        shape: {
            side: {
                (p, n): ns for p, one in enumerate(took) for n, ns in enumerate(one[shape][side])
            }
            for side in sides
        }
        for shape, sides in took[0].items()
    }


def costs(sides: Row) -> dict[str, float]:
    """Return what choosing takes, the engine's own call, and what others take beyond that, ns."""
    own = sides[ENGINE]
    found = {CHOICE: min(sides[CHOICE].values()), ENGINE: statistics.median(own.values())}
    for name in (TENSORS, ARRAYS):
        found[name] = statistics.median(ns - own[at] for at, ns in sides[name].items() if at in own)
    return found


def calls(folder: Path, listed: Path) -> dict[str, Row]:
    """Return medians of blocks of calls in turn, over the engine that serves each shape, ns.

    The engine's own call, with its kind of tensors at hand; the callable that a candidate is in a
    race, over that engine; the delivered callable, with torch's tensors and with arrays; and the
    rivals that ``listed`` has for the shape, over engines of their own. Of the choice, with nothing
    called, the least.
    """
    rivals = json.loads(listed.read_text() or "{}")
    fast = load(folder)
    found: dict[str, Row] = {}
    for shape in deployment.served(fast.shapes):
        if shape.is_between:
            continue
        serve, takes_torch = served = fast._served[shape.sizes]
        candidate = StandIn(fast.interface, fast.manifest.device, {shape.sizes: served})
        args, kwargs = arguments(fast, shape, on_torch=True)
        tensors = list(fast._bind(*arguments(fast, shape, on_torch=takes_torch)))
        sides: dict[str, Callable[[], object]] = {
            ENGINE: partial(serve, tensors),
            CANDIDATE: partial(candidate, *args, **kwargs),
            TENSORS: partial(fast, *args, **kwargs),
            ARRAYS: bound(fast, shape, on_torch=False),
        }
        for name, place in rivals.get(shape_name(shape), {}).items():
            loaded = runtimes.get(name).load(None, Target("cpu"), Path(place))
            sides[name] = loaded.bind(shape.batch)
        found[shape_name(shape)] = in_turn(sides, ROUNDS, SHAPE_NS)
    for key in fast._table:
        fast._table[key] = lambda tensors: None
    for shape in deployment.served(fast.shapes):
        if not shape.is_between:
            nothing = bound(fast, shape)
            found[shape_name(shape)][CHOICE] = [min(block_ns(nothing) for _ in range(REPEATS))]
    return found


def smallest(part: Row) -> dict[str, float]:
    """Return what a call costs at the smallest shape that is served."""
    return next(cell["call_ns"] for cell in part["cells"] if "call_ns" in cell)


def block_ns(call: Callable[[], object]) -> float:
    """Return ns of a call: the mean of a short block, after one that is not timed."""
    call()
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / CALLS


def bound(fast: Deployment, shape: Shape, *, on_torch: bool = True) -> Callable[[], object]:
    """Return a call of a deployment at a shape."""
    args, kwargs = arguments(fast, shape, on_torch=on_torch)
    return partial(fast, *args, **kwargs)


def arguments(fast: Deployment, shape: Shape, *, on_torch: bool) -> tuple[Any, Any]:
    """Return arguments of a call at a shape, positional ones and named ones."""
    arrays = Artifact.read(fast.folder / str(shape.folder)).inputs(shape.batch)
    named = dict(zip(fast.manifest.interface.inputs, arrays, strict=True))
    return fast.arguments(named, on_torch=on_torch)


# --- targets --------------------------------------------------------------------------------------


def judge(benchmark: Bench, what: str, cell: Row) -> None:
    """Compare a cell with the best candidate and with eager."""
    if cell["runtime"] is None:
        benchmark.row(what, "left to eager: nothing is proven faster")
        return
    if own := cell.get("over_engine"):
        benchmark.row(f"{what}, beside the engine's own call", times(own))
    best = best_candidate(cell)
    for name, least_ratio, target in (
        (best, 1 - WORSE, NEAR),
        (REFERENCE, 1.0, FASTER),
    ):
        ratio = cell["over"].get(name or "")
        label = f"{what}, {cell['runtime']} against {name or 'the best candidate'}"
        if ratio is None:
            benchmark.check(label, None, "not measured", target, False)
            continue
        value, _, high = ratio
        same = in_one_process(cell, name or "")
        told = times(ratio) + (f", in one process {times(same)}" if same else "")
        lowest, highest = narrower(ratio, same)[1], min(high, (same or ratio)[2])
        verdict = FAILS if highest < least_ratio else UNDECIDED
        if verdict != FAILS and lowest >= least_ratio:
            verdict = HOLDS
        benchmark.check(label, value, f"{told}: {verdict}", target, verdict == HOLDS)


def verdicts(checks: list[Row], target: str) -> str:
    """Return in how many cells a target holds, fails and is undecided."""
    said = [c["shown"].rpartition(": ")[2] for c in checks if c["target"] == target]
    return ", ".join(f"{verdict} in {said.count(verdict)}" for verdict in (HOLDS, FAILS, UNDECIDED))


def times(ratio: list[float]) -> str:
    value, low, high = ratio
    return f"{value:.3f} × as fast ({low:.3f} to {high:.3f})"


def narrower(one: list[float], other: list[float] | None) -> list[float]:
    """Return the ratio with the narrower interval."""
    return min((one, other or one), key=lambda ratio: ratio[2] / ratio[1])


def is_delivered(cell: Row, name: str) -> bool:
    """Return whether a candidate is what was delivered."""
    return name == runtimes.deployed(cell["runtime"] or REFERENCE)


def in_one_process(cell: Row, name: str) -> list[float] | None:
    """Return the ratio to a candidate in the same process, over one engine if it was delivered."""
    found = cell.get("over_same") if is_delivered(cell, name) else None
    return found or cell.get("over_together", {}).get(name)


def best_candidate(cell: Row) -> str | None:
    """Return the candidate, called as delivered, whose ratio reaches lowest."""
    rivals = {
        name: narrower(ratio, in_one_process(cell, name))[1]
        for name, ratio in cell["over"].items()
        if ratio and runtimes.without_deployed(name) != name
    }
    return min(rivals, key=lambda name: rivals[name], default=None)


def everywhere(benchmark: Bench, cells: list[Row]) -> None:
    """Compare with each runtime used everywhere, and with what was delivered as a candidate.

    Geometric means over the grid. The last is between processes: it shows whether the process of a
    delivery is slower than one that holds a candidate alone.
    """
    for against in (*SINGLES, OWN):
        ratios = []
        for cell in cells:
            name = runtimes.deployed(cell["runtime"] or REFERENCE if against == OWN else against)
            same = in_one_process(cell, name) if against != OWN else None
            ratio = cell["over"].get(name) or cell["over"].get(REFERENCE)
            ratios.append(narrower(ratio, same) if ratio else same)
        logs = [[math.log(x) for x in ratio] for ratio in ratios if ratio]
        if not logs:
            continue
        mean = statistics.fmean(value for value, _, _ in logs)
        half = math.hypot(*((high - low) / 2 for _, low, high in logs)) / len(logs)
        found = [math.exp(x) for x in (mean, mean - half, mean + half)]
        told = f"{times(found)}, {len(logs)} of {len(cells)} cells"
        least, target = (1.0, FASTER) if against in SINGLES else (1 - WORSE, NEAR)
        label = f"over the grid, against {against}"
        benchmark.check(label, found[0], told, target, found[1] > least)


# --- the page -------------------------------------------------------------------------------------


def page(data: Row) -> str:
    """Return the page of what was measured."""
    where, parts = data["environment"], data["parts"]
    cells = [cell for part in parts.values() for cell in part.get("cells", [])]
    budgets = {part["budget_s"] for part in parts.values() if "budget_s" in part}
    missing = [name for name in MODELS if "budget_s" not in parts.get(name, {})]
    heads = ["model, shape", "delivered", "eager, ms", "tax", "delivered, ms", "over eager"]
    heads += ["over max-autotune", "over Olive", *(f"over {name}" for name in SINGLES)]
    heads += ["best candidate", "over it", "over it, one process", "over the engine's own call"]
    singles = map(runtimes.deployed, SINGLES)
    others = (REFERENCE, TUNED, OLIVE, *singles)
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
                *(ratio(over, at, name) for name in others),
                runtimes.without_deployed(best := best_candidate(cell) or "–"),
                ratio(over, at, best),
                ratio({best: in_one_process(cell, best)}, {}, best),
                ratio({best: cell.get("over_engine")}, {}, best),
            ]
        )
    firsts = [
        [name]
        + [f"{part['first'][what]['seconds']:.1f}" for what in FIRST]
        + [f"{part['first'][what]['bytes'] / 1e6:.0f}" for what in FIRST]
        + [f"{smallest(part)[what] / 1e3:.1f}" for what in (CHOICE, TENSORS, ARRAYS, ENGINE)]
        for name, part in parts.items()
        if part.get("first")
    ]
    won = Counter(cell["runtime"] or REFERENCE for cell in cells)
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
        f"Measuring in the race of a model: {', '.join(f'{s:.0f}' for s in sorted(budgets))} s.",
        *([f"Not measured: {', '.join(missing)}."] if missing else []),
        "",
        *table(heads, rows),
        "",
        "Over: how many times faster the delivered callable is, with its 95 % interval, outputs "
        "proven equal; below 1 it is slower. Tax: of eager. Candidates, and the runtimes with "
        "their defaults, are called as they would be delivered, with torch's tensors; the best is "
        "the one whose interval reaches lowest. One process: both calls are timed in turn in each "
        f"of {TOGETHER_PROCESSES} processes, over the same engine where the candidate is what was "
        "delivered; so is the engine's own call, with its kind of tensors at hand: what "
        "conversions and the choice of the artifact cost. max-autotune, at the "
        "smallest batch alone, is called as the module, Olive's model with "
        f"inputs bound. {PROCESSES} processes of each.",
        "",
        "## Which won where, and why",
        "",
        claim(cells),
        "",
        "; ".join(f"{name}: {count} of {len(cells)} cells" for name, count in won.most_common())
        + ". Saved is the difference of the latencies of the table above, and of its parts: time "
        "in math kernels, and tax; one below zero is more than eager's. The last column is where a "
        "call of the winner spends its time.",
        "",
        *table(
            ["model, shape", "winner", "saved, ms", "of it kernels", "of it tax", "a call of it"],
            [row for cell in cells if (row := why_won(cell))],
        ),
        "",
        "## The first answer, and the cost of a call",
        "",
        *table(
            [
                *("model", "delivered, s", "eager, s", "delivered, MB", "eager, MB"),
                *(f"{CHOICE}, µs", "a call beyond the engine's own, torch tensors, µs"),
                *("a call beyond the engine's own, numpy arrays, µs", f"{ENGINE}, µs"),
            ],
            firsts,
        ),
        "",
        "A fresh process from its start to its first answer at the smallest shape, the best of "
        "three; its peak memory; what a call at that shape costs beside that of its own engine.",
        "",
        "## Targets",
        "",
        *(f"- {target}: {verdicts(data['checks'], target)}" for target in (NEAR, FASTER)),
        "",
        *table(["what", "found", "target", "met"], checks),
        "",
        "## Why the others lost",
        "",
        *lost,
        "",
    ]
    return "\n".join(lines)


def claim(cells: list[Row]) -> str:
    """Return whether one runtime wins everywhere: the paper says that no paradigm does."""
    plain = [(cell["runtime"] or REFERENCE).partition("@")[0] for cell in cells]
    most = Counter(plain).most_common(1)[0][0]
    others = []
    for name, cell in zip(plain, cells, strict=True):
        ratio = cell["over"].get(runtimes.deployed(most)) if name != most else None
        if ratio and ratio[1] > 1:
            others.append(f"{name} in {cell['model']}, {cell['shape']} ({times(ratio)})")
    text = "The paper says that no one paradigm is the fastest everywhere. "
    if not others:
        return f"{text}Here none is proven faster than {most} in any cell."
    return (
        f"{text}So it is here: {most} won most cells; proven faster than it: {'; '.join(others)}."
    )


def why_won(cell: Row) -> list[str]:
    """Return a row: where the winner's gain comes from, in ms; none where eager stays."""
    parts = []
    for name in (REFERENCE, DEPLOYED):
        one = cell["beside"].get(name, {})
        if not one.get("latency_ns") or not one.get("tax_share"):
            return []
        latency, share = one["latency_ns"][0] / 1e6, one["tax_share"][0]
        parts.append((latency, latency * (1 - share), latency * share))
    saved = [f"{eager - delivered:.3g}" for eager, delivered in zip(*parts, strict=True)]
    spent = cell.get("breakdown_ns", {})
    order = sorted(spent, key=lambda bucket: -spent[bucket])
    shares = [f"{b} {100 * spent[b] / sum(spent.values()):.0f} %" for b in order[:MOST_BUCKETS]]
    return [f"{cell['model']}, {cell['shape']}", cell["runtime"], *saved, ", ".join(shares)]


MOST_BUCKETS = 4
SHOWN = ("torch", "onnxruntime", "openvino", "transformers")
QUICK_NOTE = (
    f"Quick: {QUICK_S:.0f} s of measuring a model instead of {BUDGET_S:.0f}, one length, "
    f"batches {' and '.join(map(str, QUICK_BATCHES))}, {', '.join(QUICK_RUNTIMES)} alone; what "
    "took longer than "
    f"{QUICK_SETUP_S:.0f} s to set up is out."
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
