"""A stretch of the fault suite; `make bench-faults` runs every named fault and fifty seeds."""

from pathlib import Path

import fault_places
import named_faults
import pytest
import sweep_faults

SHORT = (
    "disk full: store",
    "torn last line",
)


def test_after_a_restart_every_point_is_there_once(tmp_path: Path):
    shot = sweep_faults.run(7, tmp_path)
    assert shot.fault == "kill parent" and shot.points == len(sweep_faults.EXPECTED)
    if shot.hit:
        assert shot.exit_code == -9


@pytest.mark.parametrize("name", SHORT)
def test_a_named_fault_costs_no_point(name, tmp_path: Path):
    try:
        ending = named_faults.CASES[name](tmp_path)
    except fault_places.CannotBeMade as error:
        pytest.skip(str(error))
    assert ending.message and ending.points == len(named_faults.TWO)


def test_a_measuring_process_that_is_killed_is_reported(tmp_path: Path):
    """The sweep goes on, says what happened and measures again what was lost."""
    (tmp_path / "study.toml").write_text(sweep_faults.STUDY)
    words = ("study.time_budget=300s", "study.until=50%", "grid.models=mlp")
    child = sweep_faults.start(tmp_path, *words)
    sweep_faults.kill_while_timed(child, tmp_path)
    _, error = child.communicate(timeout=900)
    assert child.returncode == 0, error
    lost = sweep_faults.failures(tmp_path)
    assert lost and all("killed by the kernel" in reason for reason in lost)
    expected = [point for point in sweep_faults.EXPECTED if point[0] == "mlp"]
    assert sweep_faults.check(tmp_path, expected) == 4
