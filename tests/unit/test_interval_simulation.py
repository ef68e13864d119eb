"""Nominal 95 % intervals against simulated hosts; the whole of it is benchmarks/intervals.py."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location(
    "intervals_benchmark", ROOT / "benchmarks" / "intervals.py"
)
intervals = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = intervals  # dataclasses look their module up
SPEC.loader.exec_module(intervals)


@pytest.mark.parametrize(
    ("host", "rounds"),
    [("drifting", intervals.ROUNDS), ("two-state", intervals.ROUNDS), ("bursty", 2)],
)
def test_intervals_over_processes_cover_and_are_no_wider_than_an_oracles(host, rounds):
    """What widened by the calibrator, or resampled three processes, failed here."""
    for row in intervals.simulate(host, 3, 250, rounds):
        if row["quantity"] == "free batch":  # one end can err
            assert row["coverage"] >= 0.95, row
            continue
        assert 0.90 <= row["coverage"] <= 0.985, row  # 0.95 ± 2.5 standard errors and more
        assert row["width_over_oracle"] <= intervals.WIDEST, row


def test_the_committed_result_meets_its_target_from_three_processes_on():
    found = json.loads(intervals.RESULT.read_text(encoding="utf-8"))
    assert found["sessions"] >= 1000
    rows = [r for r in found["rows"] if r["processes"] > 1 and r["host"] in intervals.HOSTS[:4]]
    assert len(rows) == 4 * 2 * 4 * 2
    ranges = [(r, (0.96, 0.99) if r["quantity"] == "free batch" else (0.925, 0.975)) for r in rows]
    assert all(low <= r["coverage"] <= high for r, (low, high) in ranges)
    assert all(r.get("width_over_oracle", 0) <= intervals.WIDEST for r in rows)


@pytest.mark.parametrize("runtimes", [1, 3])
@pytest.mark.parametrize("most", [3, 12])
def test_rounds_that_end_by_the_interval_cost_no_coverage(runtimes, most):
    """As soon as three processes agreed, it was 0.87 of one runtime."""
    assert 0.89 <= intervals.stopped(runtimes, 0.05, 0.02, most, 300)["coverage"] <= 0.985
    rows = json.loads(intervals.RESULT.read_text(encoding="utf-8"))["stopped"]
    mine = [r for r in rows if (r["runtimes"], r["most_processes"]) == (runtimes, most)]
    assert all(0.91 <= row["coverage"] <= 0.975 for row in mine) and len(mine) == 9
    assert all(3 <= row["processes"] <= most for row in mine)
