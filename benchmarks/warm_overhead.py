"""What each runtime costs by itself: next to no arithmetic, side by side in one session a model.

    python benchmarks/warm_overhead.py [--quick] [--only bert-small,resnet-18] [--out FILE]

Every model is as narrow as it goes (one dimension a head, one channel, a short text or small
image): all of its operators, so that latency is the runtime's own. The method's order is eager >
inference-mode > torch.compile > TorchScript > AOTInductor and ONNX Runtime. Each runtime gets its
bill, so that the order is explained by measured lines; a neighbouring pair that does not keep it,
or is not clearly different, says in which lines the two differ.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Bench, options
from frameworktax import api, runtimes
from frameworktax.measure.plan import Plan, points_for
from frameworktax.records import FLOOR, Measurement, Workload
from frameworktax.runtimes.base import Target

NARROW = 1 / 64
"""Of 64 dimensions a head, or 64 channels, one is left."""
MODELS = {
    "bert-small": (Workload(model="bert-small", length=8, width=NARROW), 100.0),
    "resnet-18": (Workload(model="resnet-18", image_size=32, width=NARROW), 100.0),
    "bert-base": (Workload(model="bert-base", length=8, width=NARROW), 160.0),
}
"""Model → workload and seconds; compiling takes most of them."""
ORDER = ("eager", "inference-mode", "inductor", "torchscript-frozen", "aot-inductor")
"""As METHOD has it, slowest first; ONNX Runtime stands with AOTInductor."""
LEAVES_OUT = {
    "inference-mode": "no version counters, no tracking of views; Python and dispatcher stay",
    "inductor": "element-wise operators in one loop, called by a generated wrapper; guards",
    "torchscript-frozen": "no Python; an interpreter in C++ goes through the dispatcher as before",
    "aot-inductor": "neither Python nor dispatcher nor guards: compiled calls in a row",
    "onnxruntime": "an engine of its own: a planned graph, no dispatcher, memory planned ahead",
    "openvino": "an engine of its own: a graph compiled when it is loaded, called by request",
}
PROCESSES = 2
UNTIL = 0.05
"""Half-width at which a point is done: neighbours differ by more, and it keeps this short."""
QUICK_S = 60.0

Row = dict[str, Any]


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    names = ["bert-small"] if given.quick else list(MODELS)
    budgets = [QUICK_S if given.quick else MODELS[name][1] for name in names]
    benchmark = Bench("warm_overhead", given, budgets)
    for name, budget_s in zip(names, budgets, strict=True):
        found = benchmark.part(
            name,
            f"narrow {name}",
            lambda name=name, budget_s=budget_s: measured(name, budget_s, quick=given.quick),
        )
        if found is None:
            continue
        rows = {row["runtime"]: row for row in found["runtimes"]}
        for row in rows.values():
            benchmark.row(f"{name}, {row['runtime']}", in_words(row))
        for slower, faster in [*pairwise(ORDER), ("torchscript-frozen", "onnxruntime")]:
            order(benchmark, name, rows.get(slower), rows.get(faster), (slower, faster))
    for runtime, what in LEAVES_OUT.items():
        benchmark.row(f"why {runtime}", what)
    return benchmark.finish()


def available(*, quick: bool) -> list[str]:
    """Return the runtimes asked about that run here; a quick run leaves out what compiles."""
    asked = ["eager", *LEAVES_OUT]
    here = [n for n in asked if runtimes.get(n).missing(Target()) is None]
    return [n for n in here if not (quick and runtimes.get(n).compiles)]


def measured(name: str, budget_s: float, *, quick: bool) -> Row:
    """Measure one narrow model in every runtime here, in one session."""
    workload, _ = MODELS[name]
    with tempfile.TemporaryDirectory(prefix="warm-overhead-") as folder:
        root = Path(folder) / "store"
        plan = Plan(
            points=points_for(workload, batches=[1], runtimes=available(quick=quick)),
            folder=Path(folder) / "cache",
            processes=1 if quick else PROCESSES,
            until=UNTIL,
            budget_s=budget_s,
            twin="none",  # the model itself is one
        )
        results = api.run_plan(plan, root, command=["warm_overhead", name])
        rows = [row_of(m) for m in results if m.runtime != FLOOR]
        return {"runtimes": rows, "headline": results.run.headline}


def row_of(m: Measurement) -> Row:
    latency = m.latency_ns
    return {
        "runtime": m.runtime,
        "status": m.status,
        "reason": m.reason,
        "warm_overhead_ns": latency.value if latency else None,
        "warm_overhead_low_ns": latency.low if latency else None,
        "warm_overhead_high_ns": latency.high if latency else None,
        "bill_ns": {line: round(ns) for line, ns in m.bill_ns.items()} if m.bill_ns else None,
        "bill_method": m.bill_method,
        "operators": m.operators,
        "setup_ns": m.setup_ns,
        "artifact_bytes": m.artifact_bytes,
        "peak_memory_bytes": m.peak_memory_bytes,
        "within_tolerance": m.parity.within_tolerance if m.parity else None,
    }


def in_words(row: Row) -> str:
    if row["warm_overhead_ns"] is None:
        return str(row["reason"] or "not measured in time")
    text = f"{row['warm_overhead_ns'] / 1e3:.0f} µs"
    if row["operators"]:
        text += f", {row['warm_overhead_ns'] / 1e3 / row['operators']:.2f} an operator of eager's"
    lines = sorted((row["bill_ns"] or {}).items(), key=lambda line: -line[1])
    named = ", ".join(f"{line} {ns / 1e3:.0f}" for line, ns in lines[:4] if ns > 500)
    return text + (f" ({named})" if named else " (no symbols for its lines)")


def order(
    benchmark: Bench, model: str, slower: Row | None, faster: Row | None, names: tuple[str, str]
) -> None:
    """Check one neighbouring pair of the method's order; where it fails, say what differs."""
    what = f"{model}: {names[0]} > {names[1]}"
    a = slower and slower["warm_overhead_ns"]
    b = faster and faster["warm_overhead_ns"]
    if slower is None or faster is None or not a or not b:
        benchmark.check(what, None, "not measured", "measured", False)
        return
    text = f"{a / 1e3:.0f} against {b / 1e3:.0f} µs, {a / b:.2f} times"
    low, high = slower["warm_overhead_low_ns"], faster["warm_overhead_high_ns"]
    if low is None or high is None or low <= high:
        text += (
            ", "
            + ("the intervals meet" if a > b else "the other way round")
            + difference(slower, faster)
        )
    benchmark.check(what, a / b, text, "more", a > b)


def difference(slower: Row, faster: Row) -> str:
    """Say which lines of the two bills differ most, in µs from the first to the second."""
    if not slower["bill_ns"] or not faster["bill_ns"]:
        return ""
    lines = slower["bill_ns"].keys() | faster["bill_ns"].keys()
    change = {n: faster["bill_ns"].get(n, 0) - slower["bill_ns"].get(n, 0) for n in lines}
    largest = sorted(change.items(), key=lambda line: -abs(line[1]))[:3]
    return ": " + ", ".join(f"{line} {ns / 1e3:+.0f}" for line, ns in largest)


if __name__ == "__main__":
    sys.exit(main())
