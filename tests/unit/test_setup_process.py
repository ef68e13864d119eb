"""The set-up process: one at a time, and nothing of it stays."""

import pytest

from frameworktax.measure.setup_process import SetupProcess


class FakeProcess:
    def __init__(self, python, temporary):
        self.python, self.temporary = python, temporary
        self.alive = True

    def kill(self):
        self.alive = False


@pytest.fixture
def setup_process(tmp_path):
    return SetupProcess(tmp_path / "cache", FakeProcess)


def test_it_is_kept_until_it_is_closed(setup_process):
    first = setup_process.get()
    assert setup_process.get() is first
    assert first.temporary.stat().st_mode & 0o777 == 0o700
    setup_process.close()
    assert not first.alive and not first.temporary.exists()
    setup_process.close()


@pytest.mark.parametrize("change", ["interpreter", "fresh", "ended"])
def test_what_is_not_wanted_or_not_well_is_ended(setup_process, tmp_path, change):
    first = setup_process.get()
    python = tmp_path / "python" if change == "interpreter" else None
    first.alive = change != "ended"
    second = setup_process.get(python, fresh=change == "fresh")
    assert second is not first and second.python == python
    assert not first.alive and not first.temporary.exists()
