"""How often a race delivers what is slower than the best that raced: races on hosts of known truth.

    python benchmarks/race_simulation.py [--quick] [--only HOST] [--out FILE]

The race, its sessions, rounds and intervals are the real ones; the processes answer in scripted
times on a clock that only jumps (``tests/data/fake_workers.py``). Five runtimes with two options
each race at three batch sizes; some are within a few per cent of one another. Hosts: *calm*,
processes alone differ; *noisy*, the speed drifts by 3 % and bursts of half a second take 30 % more;
*states*, beside all that one process in ten is a quarter slower for good; *rebuilt*, beside the
noise one delivered artifact in ten is a quarter slower than it was in the race. Counted over races
and shapes: delivered more than 2 % slower than the best truly is, slower than eager, and left to
eager where something is faster.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from common import ROOT, Bench, Row, options

sys.path.insert(0, str(ROOT / "tests" / "data"))
from fake_workers import AtOnce, FakeHost

from frameworktax import api, runtimes, store
from frameworktax.analysis.document import build
from frameworktax.measure import session as measuring
from frameworktax.measure.plan import Plan
from frameworktax.optimize import run
from frameworktax.optimize.delivery import Delivery
from frameworktax.optimize.race import Candidate
from frameworktax.records import DEPLOYED, REFERENCE, Workload
from frameworktax.runtimes.deployment import Interface, Shape
from frameworktax.testing import FakeClock, FakeRuntime

PACKAGES = {
    "amber": ("numpy",),
    "birch": ("numpy", "rich"),
    "cedar": ("numpy", "scipy"),
    "delta": ("msgspec",),
    "elder": ("msgspec",),
}
"""Runtimes and what they need: distributions that are installed, whose versions are looked up."""
NAMES = tuple(PACKAGES)
TUNINGS = ("x", "y")
BATCHES = (1, 4, 16)
WORSE = 0.02
BLOCK_SD, PROCESS_SD = 0.01, 0.007
"""Of block medians, and of processes that run the same."""
DRIFT_SD, DRIFT_S = 0.03, 20.0
BURST, BURST_S, BETWEEN_S = 1.3, 0.5, 4.5
SLOW, SLOW_SHARE = 1.25, 0.1
STEP_NS = 250_000_000
SAMPLE_NS = 50_000_000
HOSTS = ("calm", "noisy", "states", "rebuilt")
BUDGETS_S = (60.0, 300.0)
RACES, QUICK_RACES = 60, 2
SECONDS = 2.5
"""That a race takes to simulate."""


def runtime(name: str) -> FakeRuntime:
    """Return a runtime that computes nothing, with its options and as delivered."""
    made: Any = FakeRuntime()
    made.name = name
    made.option = runtimes.without_deployed(name).partition("@")[2]
    made.serves_with = PACKAGES.get(name.partition("@")[0], ())
    made.options = dict.fromkeys(TUNINGS, "")
    made.tunings = TUNINGS
    return made  # type: ignore[no-any-return]


@dataclass
class Truth:
    """What calls take, and the host's noise, all of it from one seed."""

    host: str
    seed: int
    latency_ns: dict[tuple[str, int], float] = field(default_factory=dict)
    delivered: dict[int, str] = field(default_factory=dict)
    """Batch → what was delivered last."""

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)  # of the candidates: the same on each kind of host
        scale, grows = 10 ** draw.uniform(5.5, 7.3), draw.uniform(0.3, 1.0)
        speed = {name: math.exp(draw.gauss(0.5, 0.35)) for name in NAMES}
        if draw.random() < 0.7:  # two are near each other
            first, second = draw.sample(NAMES, 2)
            speed[second] = speed[first] * math.exp(draw.gauss(0, 0.03))
        for batch in BATCHES:
            eager = scale * batch**grows
            self.latency_ns[REFERENCE, batch] = eager
            for name in NAMES:
                own = eager / speed[name] * math.exp(draw.gauss(0, 0.08))
                self.latency_ns[name, batch] = own
                for option in TUNINGS:
                    tuned = own * math.exp(draw.gauss(0.01, 0.03))
                    self.latency_ns[f"{name}@{option}", batch] = tuned
        self.draw = random.Random(f"{self.host} {self.seed}")
        self.apart: dict[tuple[str, ...], float] = {}
        self.path: list[float] = []
        self.level = self.draw.gauss(0, DRIFT_SD)
        self.burst_left = 0.0

    def at(self, now_ns: int) -> float:
        """Return what the host multiplies latencies by at a time."""
        if self.host == "calm":
            return 1.0
        step_s = STEP_NS / 1e9
        keep = math.exp(-step_s / DRIFT_S)
        while len(self.path) <= now_ns // STEP_NS:
            self.level = keep * self.level + self.draw.gauss(
                0, DRIFT_SD * math.sqrt(1 - keep * keep)
            )
            if self.burst_left <= 0 and self.draw.random() < step_s / BETWEEN_S:
                self.burst_left = self.draw.expovariate(1 / BURST_S)
            burst = BURST if self.burst_left > 0 else 1.0
            self.burst_left -= step_s
            self.path.append(math.exp(self.level) * burst)
        return self.path[now_ns // STEP_NS]

    def of_process(self, *key: str) -> float:
        """Return what one process of a session multiplies its latencies by."""
        if key not in self.apart:
            slow = self.host == "states" and self.draw.random() < SLOW_SHARE
            self.apart[key] = math.exp(self.draw.gauss(0, PROCESS_SD)) * (SLOW if slow else 1.0)
        return self.apart[key]

    def true_ns(self, name: str, batch: int) -> float:
        """Return what a call takes by itself; of the deployment that of what serves the batch."""
        if name == DEPLOYED:
            return self.delivered_ns(self.delivered[batch], batch)
        return self.latency_ns[runtimes.without_deployed(name), batch]

    def rebuilt(self, name: str, batch: int) -> float:
        """Return by how much delivering makes a runtime slower: of a seed always the same ones."""
        once = random.Random(f"{self.seed} {batch} {name}")
        is_worse = self.host == "rebuilt" and once.random() < SLOW_SHARE
        return SLOW if is_worse and name != REFERENCE else 1.0

    def delivered_ns(self, name: str, batch: int) -> float:
        """Return what a call takes once a runtime is delivered."""
        return self.latency_ns[name, batch] * self.rebuilt(name, batch)


class Sessions:
    """Stands in for ``api.run_plan``: sessions on one clock and one host."""

    def __init__(self, truth: Truth, folder: Path) -> None:
        self.truth, self.folder, self.clock = truth, folder, FakeClock()
        self.count = 0
        self.asking: Any = None

    def __call__(self, plan: Plan, shards: Path, **_: Any) -> Any:
        self.count += 1
        name = f"{self.truth.host}-{self.truth.seed}-{self.count}"
        host = FakeHost(self.clock)
        host.random, host.noise = random.Random(name), BLOCK_SD
        host.before = self._before
        host.call_ns = lambda label, batch: self._call_ns(name, label, batch)
        with store.Writer(shards, name) as writer:
            plan = replace(plan, folder=self.folder / "cache")
            session = measuring.MeasuringSession(plan, writer, clock=self.clock)
            session._begin_templates = lambda: None  # type: ignore[method-assign]
            with patch.object(measuring, "Worker", host.process):
                session.run()
        found = build(store.read(writer.path)[0], until=plan.until, asked=plan.points)
        return type("Results", (), {"run": found})

    def _before(self, worker: Any, request: Any) -> None:
        self.asking = worker
        if request.step == "block":
            self.clock.work(SAMPLE_NS)  # what is sampled beside it

    def _call_ns(self, session: str, name: str, batch: int) -> int:
        if name == "null":
            return 100
        own = self.truth.of_process(session, name, str(self.asking.process))
        return round(self.truth.true_ns(name, batch) * own * self.truth.at(self.clock.now_ns))


class Delivered(Delivery):
    """Delivers by a note: nothing is exported or loaded, every output is equal."""

    truth: Truth

    def make(self, decided: list[Candidate]) -> None:
        self.failures = {}
        winners = {one.workload: one.runtime for one in decided if one.won}
        shapes = []
        for workload in self._asked.workloads:
            name = winners.get(workload)
            shapes.append(
                Shape(batch=workload.batch, length=None, sizes=(), runtime=name, tolerance=1e-3)
            )
            if name is not None:
                self.truth.delivered[workload.batch] = name
        self._describe(Interface(parameters=[], inputs=[], dtypes=[]), shapes)

    def finish(self, proof: Any) -> None:
        pass


@contextmanager
def simulated(truth: Truth, folder: Path) -> Iterator[Sessions]:
    """Have races run on a host."""
    sessions = Sessions(truth, folder)
    kind = type("Delivered", (Delivered,), {"truth": truth})
    with (
        patch.object(runtimes, "get", runtime),
        patch.object(measuring, "ThreadPoolExecutor", AtOnce),
        patch.object(measuring, "usable_sampler", lambda: None),
        patch.object(api, "run_plan", sessions),
        patch.object(run, "Delivery", kind),
        patch.object(run, "_refuse_unfit", lambda asked: None),
    ):
        yield sessions


def raced(host: str, seed: int, budget_s: float, **asked: Any) -> list[Row]:
    """Return what one race delivered at each shape, and the truth of it."""
    truth = Truth(host, seed)
    with tempfile.TemporaryDirectory(prefix="race-simulation-") as scratch:
        folder = Path(scratch)
        made = run.Asked(
            model="mlp", batch=BATCHES, runtimes=NAMES, device="cpu", time_budget=budget_s,
            output=folder / "deploy", store=folder / "store", **asked,
        )  # fmt: skip
        made.workloads = tuple(Workload(model="own.py:build", batch=batch) for batch in BATCHES)
        with simulated(truth, folder) as sessions:
            found = run.optimize_model(made)
    rows = []
    for shape in found.shapes or [Shape(batch=b, length=None, sizes=()) for b in BATCHES]:
        name, at = shape.runtime or REFERENCE, shape.batch
        took = truth.delivered_ns(name, at)
        names = [n for n, batch in truth.latency_ns if batch == at]
        best = min(names, key=lambda name: truth.delivered_ns(name, at))
        rows.append(
            {
                "delivered": name,
                "best": best,
                "over_best": took / truth.delivered_ns(best, at),
                "over_eager": took / truth.latency_ns[REFERENCE, at],
                "seconds": sessions.clock.now_ns / 1e9,
            }
        )
    return rows


def summary(rows: list[Row]) -> Row:
    """Return shares of shapes, and the seconds a race took on its clock."""
    return {
        "shapes": len(rows),
        "worse": fmean(row["over_best"] > 1 + WORSE for row in rows),
        "worse by 5 %": fmean(row["over_best"] > 1.05 for row in rows),
        "mean loss": fmean(row["over_best"] - 1 for row in rows),
        "largest loss": max(row["over_best"] - 1 for row in rows),
        "slower than eager": fmean(row["over_eager"] > 1 for row in rows),
        "left to eager": fmean(row["delivered"] == REFERENCE != row["best"] for row in rows),
        "seconds": fmean(row["seconds"] for row in rows),
    }


def main() -> int:
    given = options(str(__doc__).partition("\n")[0]).parse_args()
    races = QUICK_RACES if given.quick else RACES
    benchmark = Bench(
        "race_simulation", given, [races * len(BUDGETS_S) * SECONDS] * len(HOSTS), resume=True
    )
    for host in HOSTS:
        found = benchmark.part(
            host,
            host,
            lambda host=host: {
                f"{budget_s:.0f} s": summary(
                    [row for seed in range(races) for row in raced(host, seed, budget_s)]
                )
                for budget_s in BUDGETS_S
            },
        )
        for budget, row in (found or {}).items():
            if isinstance(row, dict):
                told = ", ".join(f"{what} {value:.3g}" for what, value in row.items())
                benchmark.row(f"{host}, {budget}", told)
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
