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
    words = ("study.time_budget=900s", "study.until=50%", "grid.models=mlp")
    expected = [point for point in sweep_faults.EXPECTED if point[0] == "mlp"]
    lost: list[tuple[str, str]] = []
    for number in range(20):  # on a busy machine all may be done before one is killed
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "study.toml").write_text(sweep_faults.STUDY)
        child = sweep_faults.start(folder, *words)
        sweep_faults.kill_while_timed(child, folder)
        _, error = child.communicate(timeout=900)
        assert child.returncode == 0, error
        assert sweep_faults.check(folder, expected) == 4
        if lost := sweep_faults.failures(folder):
            break
    assert lost and all(status == "out-of-memory" for status, _ in lost)
