"""What a sweep costs over the time it spends measuring.

    python benchmarks/sweep.py [--quick] [--only PART]

``overhead``: 200 small points in one session (one model, four runtimes, fifty batch sizes); target
under 15 %. ``configurations``: 200 points over five widths, each runtime of each width in
processes of its own: what loading costs a sweep of many small models. ``templates``: the command
line on 48 points of six widths, of this version and of the last one that started a process each
(from git's history), one after the other; target 3 times as fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, Bench, BenchmarkError, Row, options, run_command
from frameworktax.records import FLOOR
from frameworktax.sweep.run import sweep as run_sweep

RUNTIMES = ["eager", "inference-mode", "torchscript-frozen", "onnxruntime"]
TARGET = 0.15
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


BEFORE = "f033207^"
"""The last version that started every measuring process."""
FASTER = 3.0
STUDY = """
[grid]
models = ["mlp"]
runtimes = ["eager", "inference-mode", "torchscript-frozen", "onnxruntime"]
width = {widths}
batch = [1, 2]
"""
LIMIT_S = 1800


def templates(bench: Bench) -> Row:
    """Run a study with this version and with the one before templates, and compare wall times."""
    widths = [0.125, 0.25, 0.5, 1.0, 1.5, 2.0][: 1 if bench.quick else 6]
    found: dict[str, tuple[float, int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "study.toml").write_text(STUDY.format(widths=widths))
        archive = ["git", "-C", str(ROOT), "archive", BEFORE, "src"]
        packed = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", temporary], check=True, input=packed)
        for name, source in (("now", ROOT / "src"), ("before", folder / "src")):
            words = [sys.executable, "-m", "frameworktax", "sweep", str(folder / "study.toml")]
            words += ["--store", str(folder / name), "--json", str(folder / f"{name}.json")]
            env = {
                "PYTHONPATH": str(source),
                "FRAMEWORKTAX_CACHE": str(folder / f"cache-{name}"),  # sets up anew
            }
            _, wall_s = run_command(words, LIMIT_S, env=env, folder=folder)
            rows = json.loads((folder / f"{name}.json").read_text())["measurements"]
            asked = [one for one in rows if one["runtime"] != FLOOR]
            found[name] = wall_s, sum(one["latency_ns"] is not None for one in asked)
            bench.row(f"  {name}", f"{wall_s:.1f} s, {found[name][1]} points measured")
    ratio = found["before"][0] / found["now"][0]
    points = 8 * len(widths)
    ok = ratio >= FASTER and {count for _, count in found.values()} == {points}
    bench.check(
        f"a study of {points} small points, against the version before templates",
        ratio,
        f"{ratio:.1f} × as fast",
        f"≥ {FASTER:g} ×, all points measured",
        ok,
    )
    return {name: {"wall_s": round(s, 2), "measured": n} for name, (s, n) in found.items()}


def main() -> int:
    bench = Bench("sweep", options(__doc__.splitlines()[0]).parse_args(), [900, 1500, 900])
    bench.part("overhead", "200 small points, one session", lambda: sweep(
        bench, "overhead", "200 small points, one session"))  # fmt: skip
    bench.part("configurations", "200 small points, five widths", lambda: sweep(
        bench, "configurations", "200 small points, five widths"))  # fmt: skip
    bench.part("templates", "48 small points, against the version before templates", lambda: (
        templates(bench)))  # fmt: skip
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
