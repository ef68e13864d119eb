"""A short stretch of the fault suite; `make bench-faults` runs fifty seeds of it."""

from pathlib import Path

import pytest
import sweep_faults

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("seed", [6, 3, 10], ids=lambda seed: sweep_faults.FAULTS[seed % 6])
def test_after_a_restart_every_point_is_there_once(seed, tmp_path: Path):
    """The parent killed, interrupted twice, a measuring process killed."""
    shot = sweep_faults.run(seed, tmp_path)
    assert shot.points == len(sweep_faults.EXPECTED)
    if shot.hit and shot.fault == "kill parent":
        assert shot.exit_code == -9


def test_a_measuring_process_that_is_killed_is_told(tmp_path: Path):
    """The sweep goes on, says what happened and measures again what was lost."""
    (tmp_path / "study.toml").write_text(sweep_faults.STUDY)
    child = sweep_faults.start(tmp_path, "study.time_budget=30s")
    assert sweep_faults.shoot(child, "kill worker", 0.0)
    _, error = child.communicate(timeout=120)
    assert child.returncode == 0, error
    from frameworktax import store
    from frameworktax.records import Outcome

    records, _ = store.read(tmp_path / "frameworktax-results")
    lost = [r for r in records if isinstance(r, Outcome) and r.status != "ok"]
    assert lost and all("killed by the kernel" in str(r.reason) for r in lost)
    assert sweep_faults.check(tmp_path) == len(sweep_faults.EXPECTED)
