"""What each runtime costs by itself: the width-shrunk twin, side by side in one session a model.

    python benchmarks/warm_overhead.py [--quick] [--only bert-base,resnet-18] [--out FILE]

The twin has the model's operators and next to no arithmetic, so its latency is the runtime's own.
Model and twins are alive together and measured in turn, as in any session. The method's order is
eager > inference-mode > torch.compile > TorchScript > AOTInductor and ONNX Runtime; a pair that
does not keep it is a line with its numbers.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import Bench, options, percent
from frameworktax import api, runtimes
from frameworktax.plan import Plan, points_for
from frameworktax.records import Measurement, Workload
from frameworktax.runtimes.base import Target

MODELS = {
    "bert-base": Workload(model="bert-base", length=8),
    "bert-small": Workload(model="bert-small", length=8),
    "resnet-18": Workload(model="resnet-18", image_size=32),
}
ORDER = ("eager", "inference-mode", "inductor", "torchscript-frozen", "aot-inductor")
"""As METHOD has it, slowest first; ONNX Runtime stands with AOTInductor."""
LAST = ("aot-inductor", "onnxruntime")
LEFT_OUT = ("inductor-max-autotune",)
"""Takes minutes to choose kernels that are not what is asked about here."""
PROCESSES = 3
BUDGET_S, QUICK_S = 600.0, 120.0

Row = dict[str, Any]


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    budget_s = QUICK_S if given.quick else BUDGET_S
    names = ["bert-small"] if given.quick else list(MODELS)
    benchmark = Bench("warm_overhead", given, [budget_s] * len(names))
    for name in names:
        found = benchmark.part(
            name, f"twin of {name}", lambda name=name: measured(name, budget_s, quick=given.quick)
        )
        if found is None:
            continue
        for row in found["runtimes"]:
            warm = row["warm_overhead_ns"]
            value = f"{warm / 1e3:.0f} µs" if warm else row["reason"] or "no twin in time"
            benchmark.row(f"{name}, {row['runtime']}", value)
        order(benchmark, name, found["runtimes"])
    return benchmark.finish()


def available() -> list[str]:
    """Return the runtimes of this machine, the floor and the slowest left out."""
    asked = [n for n in runtimes.names() if n not in (runtimes.FLOOR, *LEFT_OUT)]
    dense = [n for n in asked if "dense" in runtimes.get(n).inputs]
    return [n for n in dense if runtimes.get(n).missing(Target()) is None]


def measured(name: str, budget_s: float, *, quick: bool) -> Row:
    """Measure the twin of one model in every runtime here, in one session."""
    with tempfile.TemporaryDirectory(prefix="warm-overhead-") as folder:
        root = Path(folder) / "store"
        chosen = [*ORDER, "onnxruntime"] if quick else available()
        plan = Plan(
            points=points_for(MODELS[name], batches=[1], runtimes=chosen),
            folder=Path(folder) / "cache",
            processes=1 if quick else PROCESSES,
            budget_s=budget_s,
            twin="all",
        )
        results = api.run_plan(plan, root, command=["warm_overhead", name])
        rows = [told(m) for m in results if m.runtime != runtimes.FLOOR]
        return {"runtimes": rows, "headline": results.run.headline}


def told(m: Measurement) -> Row:
    warm = m.warm_overhead_ns
    return {
        "runtime": m.runtime,
        "status": m.status,
        "reason": m.reason,
        "warm_overhead_ns": warm.value if warm else None,
        "warm_overhead_low_ns": warm.low if warm else None,
        "warm_overhead_high_ns": warm.high if warm else None,
        "operators": m.operators,
        "within_tolerance": m.parity.within_tolerance if m.parity else None,
    }


def order(benchmark: Bench, name: str, rows: list[Row]) -> None:
    """Check the method's order, one line for each neighbouring pair."""
    value = {row["runtime"]: row["warm_overhead_ns"] for row in rows}
    pairs = [*pairwise(ORDER), ("torchscript-frozen", "onnxruntime")]
    for slower, faster in pairs:
        a, b = value.get(slower), value.get(faster)
        if a is None or b is None:
            benchmark.check(f"{name}: {slower} > {faster}", None, "not measured", "measured", False)
            continue
        told = f"{a / 1e3:.0f} against {b / 1e3:.0f} µs, {percent(a / b - 1)} more"
        benchmark.check(f"{name}: {slower} > {faster}", a / b, told, "more", a > b)


if __name__ == "__main__":
    sys.exit(main())
