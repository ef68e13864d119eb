"""A sweep of 20,000 points over 200 nodes that are not there, on a clock that only jumps.

    python benchmarks/sweep_simulation.py [--quick] [--only campaign,killed]

The sweep, its schedule and its store on disk are the real ones; the nodes are numbers
(``tests/data/simulated_cluster.py``): sessions crash and hang, nodes leave and join, jobs end in
any order, are reported twice or come home after they were given up, and a few points kill every
session they are in. The report has the driver's processor time for each point, its memory, and how
soon the points of a lost node are out again; then the driver is killed half-way and another goes
on. Everything in the store and in the table is compared with what the nodes did: nothing lost,
doubled or invented.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from common import ROOT, Bench, BenchmarkError, Row, child, options

sys.path.insert(0, str(ROOT / "tests" / "data"))
from simulated_cluster import (
    DriverKilled,
    Faults,
    SimulatedCluster,
    Truth,
    faults_of,
)

from frameworktax.measure.reporter import Reporter
from frameworktax.sweep.plan import plan, scan
from frameworktax.sweep.run import Sweep
from frameworktax.sweep.study import Study, load
from frameworktax.testing import FakeClock

NODES = {"big": 120, "small": 80}
SEED = 20230213
ATTEMPTS = 2
POISON, FAILING, FLAKY = 10, 50, 100
KILLED_S = 0.0125
"""When the driver is killed in the second part, for each point: about half-way."""
RUNTIMES = ["eager", "inference-mode", "torchscript-frozen", "onnxruntime"]
TARGETS = {
    "scheduling_us": 1000.0,
    "peak_bytes": 1_000_000_000,
    "table_us": 250.0,
    "out_again_s": 10.0,
}


def study(points: int) -> Study:
    """Return a study: two platforms, four runtimes, five batch sizes, widths and depths."""
    configs = points // (len(NODES) * len(RUNTIMES) * 5)
    widths = max(1, configs // 20)
    grid = {
        "models": ["mlp"],
        "runtimes": RUNTIMES,
        "batch": "1..16",
        "width": [round(0.25 + i / 8, 3) for i in range(widths)],
        "depth": [1 + i for i in range(configs // widths)],
        "platform": list(NODES),
    }
    data = {"study": {"attempts": ATTEMPTS}, "grid": grid}
    return load(data, platforms=dict.fromkeys(NODES, "cpu"))


def faults(planned: Study, driver_s: float | None = None) -> Faults:
    """Return what goes wrong: drawn, and the same every time."""
    drawn = random.Random(SEED).sample(planned.points, POISON + FAILING + FLAKY)
    return Faults(
        crash=0.03, hang=0.01, twice=0.05, late=0.2, node_s=10.0, joining=(100.0, 200.0, 300.0),
        poison=frozenset(drawn[:POISON]), failing=frozenset(drawn[POISON : POISON + FAILING]),
        flaky=frozenset(drawn[POISON + FAILING :]), driver_s=driver_s,
    )  # fmt: skip


class Timed(Sweep):
    """A sweep that keeps the processor time of its parts, ns; the nodes' own comes off."""

    cpu_ns: Counter[str]
    plan_ns = 0
    cluster: SimulatedCluster

    def _timed(self, name: str, run: Any, *arguments: Any) -> Any:
        begin, inside = time.process_time_ns(), self.cluster.cpu_ns
        try:
            return run(*arguments)
        finally:
            own = time.process_time_ns() - begin - (self.cluster.cpu_ns - inside)
            self.cpu_ns[name] += own

    def run(self) -> Any:
        self.plan_ns = -time.process_time_ns()
        return super().run()

    def _measure(self, *arguments: Any) -> None:
        self.plan_ns += time.process_time_ns()
        self._timed("schedule", super()._measure, *arguments)
        self.cpu_ns["peak after scheduling"] = peak_bytes()

    def _results(self, *arguments: Any) -> Any:
        return self._timed("table", super()._results, *arguments)


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def simulate(points: int, *, killed: bool) -> Row:
    """Run the sweep in this process and compare it with the truth."""
    begin = time.process_time_ns()
    planned = study(points)
    load_ns = time.process_time_ns() - begin
    truth, clock = Truth(), FakeClock()
    found: Row = {"points": len(planned.points), "nodes": NODES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "store"
        if killed:
            cluster = _cluster(folder, clock, faults(planned, KILLED_S * points), truth, SEED)
            try:
                _sweep(planned, folder, cluster, clock).run()
            except DriverKilled:
                found["measured before"] = len(truth.measured)
            else:
                raise BenchmarkError("the sweep ended before its driver was killed")
        drawn = faults(planned)
        cluster = _cluster(folder, clock, drawn, truth, SEED + 1)
        went_on_ns = clock.now_ns
        run = _sweep(planned, folder, cluster, clock)
        begin, wall = time.process_time_ns(), time.monotonic_ns()
        results = run.run()
        spent_ns = time.process_time_ns() - begin - cluster.cpu_ns
        wall_ns = time.monotonic_ns() - wall
        peak = peak_bytes()
        wrong = faults_of(results, truth, drawn, ATTEMPTS)
        store_bytes = sum(path.stat().st_size for path in folder.iterdir())
        shards = len(list(folder.iterdir()))
        left = plan(planned, scan(folder)).groups
        too_much = {point for group in left for point in group.points} - drawn.failing
        wrong += [f"would be measured again: {point}" for point in too_much]
    out_again = [ns / 1e9 for ns, _ in cluster.recoveries]
    measured_again = [ns / 1e9 for _, ns in cluster.recoveries]
    return {
        **found,
        "jobs": len(cluster.jobs),
        "simulated_s": round((clock.now_ns - went_on_ns) / 1e9),
        "happened": dict(truth.happened),
        "stands": dict(Counter(one.status for one in results.statuses.values())),
        "store_bytes": store_bytes,
        "shards": shards,
        "wrong": wrong[:20],
        "load_us": load_ns / 1e3 / points,
        "scheduling_us": run.cpu_ns["schedule"] / 1e3 / points,
        "resume_s": run.plan_ns / 1e9,
        "table_s": run.cpu_ns["table"] / 1e9,
        "table_us": run.cpu_ns["table"] / 1e3 / points,
        "driver_cpu_s": spent_ns / 1e9,
        "wall_s": wall_ns / 1e9,
        "peak_bytes": peak,
        "peak_scheduling_bytes": run.cpu_ns["peak after scheduling"],
        "losses": len(out_again),
        "out_again_s": {"median": median(out_again), "max": max(out_again)},
        "measured_again_s": {"median": median(measured_again), "max": max(measured_again)},
    }


def _cluster(
    folder: Path, clock: FakeClock, drawn: Faults, truth: Truth, seed: int
) -> SimulatedCluster:
    return SimulatedCluster(folder, clock, NODES, drawn, seed, truth)


def _sweep(planned: Study, folder: Path, cluster: SimulatedCluster, clock: FakeClock) -> Timed:
    run = Timed(planned, folder, cluster, Reporter(), ("x",), resume=True, clock=clock)
    run.cpu_ns = Counter()
    run.cluster = cluster
    return run


def part(bench: Bench, name: str) -> Row:
    """Run a part in a process of its own, so that its memory is its own."""
    points = 2000 if bench.quick else 20_000
    found = child(Path(__file__), [name, str(points)], 900)
    whole = not found["wrong"]
    bench.check(
        f"{name}: nothing lost, doubled or invented", len(found["wrong"]),
        f"{len(found['wrong'])} wrong of {found['points']:,} points, {found['jobs']:,} jobs, "
        f"{found['losses']} recoveries",
        "0", whole,
    )  # fmt: skip
    for key, text in (
        ("scheduling_us", f"{found['scheduling_us']:.0f} µs of processor time a point"),
        ("peak_bytes", f"{found['peak_bytes'] / 1e6:.0f} MB"),
        ("table_us", f"{found['table_us']:.0f} µs a point, {found['table_s']:.1f} s in all"),
    ):
        target = TARGETS[key]
        bench.check(f"{name}: {key}", found[key], text, f"under {target:g}", found[key] < target)
    out = found["out_again_s"]
    bench.check(
        f"{name}: points of a lost session are out again", out["median"],
        f"after {out['median']:.1f} s in the middle, {out['max']:.0f} s at most (simulated)",
        f"middle under {TARGETS['out_again_s']:g} s", out["median"] < TARGETS["out_again_s"],
    )  # fmt: skip
    bench.row(f"{name}: to see what the store holds before", f"{found['resume_s']:.2f} s")
    return found


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] in ("campaign", "killed"):
        print(json.dumps(simulate(int(sys.argv[2]), killed=sys.argv[1] == "killed")))
        return 0
    bench = Bench("sweep_simulation", options(__doc__ or "").parse_args(), [120, 120])
    bench.part("campaign", "20,000 points, 200 nodes", lambda: part(bench, "campaign"))
    bench.part("killed", "the same, its driver killed half-way", lambda: part(bench, "killed"))
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
