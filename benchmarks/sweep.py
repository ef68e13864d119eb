"""What a sweep costs over the time it spends measuring.

    python benchmarks/sweep.py [--quick] [--only PART]

``overhead``: 200 small points in one session (one model, four runtimes, fifty batch sizes); target
under 15 %. ``configurations``: 200 points over five widths, each runtime of each width in
processes of its own: what loading costs a sweep of many small models.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from common import Bench, BenchmarkError, Row, options
from frameworktax.sweep.run import sweep as run_sweep

RUNTIMES = ["eager", "inference-mode", "torchscript-frozen", "onnxruntime"]
TARGET = 0.15
PARTS = {
    "overhead": "200 small points, one session",
    "configurations": "200 small points, five widths",
}
GRIDS = {
    "overhead": {"width": [0.25], "batch": list(range(1, 51))},
    "configurations": {
        "width": [0.125, 0.25, 0.5, 1.0, 2.0],
        "batch": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
    },
}


def sweep(bench: Bench, name: str, title: str) -> Row:
    """Run a grid in a store of its own and say where the time went."""
    grid = {"models": ["mlp"], "runtimes": RUNTIMES, **GRIDS[name]}
    if bench.quick:
        grid["batch"] = [1, 2]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAMEWORKTAX_CACHE"] = str(Path(folder) / "cache")  # sets up anew
        results = run_sweep({"grid": grid}, store=Path(folder) / "store")
    own = results.run.own_tax
    if own is None or not own.measuring_ns:
        raise BenchmarkError("nothing was measured")
    cost = results.wall_ns / own.measuring_ns - 1
    statuses = [one.status for one in results.statuses.values()]
    text = f"{cost:.1%} over {own.measuring_ns / 1e9:.0f} s of measuring, {len(statuses)} points"
    target = f"under {TARGET:.0%}" if name == "overhead" else "reported"
    bench.check(title, cost, text, target, name != "overhead" or cost < TARGET)
    parts = {"set-up": own.setup_ns, "measuring": own.measuring_ns, "calls": own.calls_ns}
    for part, spent in parts.items():
        bench.row(f"  {part}", f"{spent / 1e9:.1f} s")
    return {
        "points": len(statuses),
        "measured": statuses.count("measured"),
        "wall_s": round(results.wall_ns / 1e9, 2),
        "spent_s": {part: round(ns / 1e9, 2) for part, ns in parts.items()},
        "overhead": round(cost, 4),
    }


def main() -> int:
    bench = Bench("sweep", options(__doc__.splitlines()[0]).parse_args(), [900, 1500])
    for name, title in PARTS.items():
        bench.part(name, title, lambda name=name, title=title: sweep(bench, name, title))
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
