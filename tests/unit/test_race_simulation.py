"""Races on hosts of known truth; many more are benchmarks/race_simulation.py."""

import importlib.util
import sys
from pathlib import Path
from statistics import fmean

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # its own imports
SPEC = importlib.util.spec_from_file_location(
    "race_simulation_benchmark", BENCHMARKS / "race_simulation.py"
)
simulation = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = simulation  # dataclasses look their module up
SPEC.loader.exec_module(simulation)
sys.path.remove(str(BENCHMARKS))

SEEDS = {"noisy": (1, 21, 49), "rebuilt": (11, 21, 41), "short": (1,)}
"""Where the race before there was a run-off delivered what is 4 to 27 % slower than the best."""


@pytest.mark.parametrize("host", ["noisy", "rebuilt"])
def test_what_is_delivered_is_near_the_best_and_faster_than_eager(host):
    rows = [row for seed in SEEDS[host] for row in simulation.raced(host, seed, 300.0)]
    assert all(row["over_best"] < 1.05 for row in rows), rows
    assert fmean(row["over_best"] for row in rows) < 1.005
    assert all(row["over_eager"] <= 1 for row in rows)


def test_a_budget_that_ends_before_the_run_off_still_delivers():
    rows = simulation.raced("noisy", SEEDS["short"][0], 5.0)
    assert all(row["over_eager"] <= 1 for row in rows)
