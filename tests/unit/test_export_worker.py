"""The set-up process: taken over by the next session where that wants the same, else a new one."""

import pytest

from frameworktax import host
from frameworktax.errors import WorkerError
from frameworktax.measure.export_worker import ExportWorker
from frameworktax.measure.protocol import Memory


class FakeProcess:
    def __init__(self, python, temporary):
        self.python, self.temporary = python, temporary
        self.alive, self.stopped, self.here, self.resident_bytes = True, False, True, 1_000

    def request(self, request, timeout_s):
        if not self.alive:
            raise WorkerError("crashed", "it has ended")
        return Memory(resident_bytes=self.resident_bytes)

    def stop(self):
        self.stopped = True

    def go_on(self):
        self.stopped = False
        return self.here

    def kill(self):
        self.alive = False


@pytest.fixture
def shop(tmp_path):
    made = ExportWorker(tmp_path / "cache")
    made.serve(FakeProcess, 1, lasting=True)
    return made


def test_the_next_session_takes_it_over_and_it_rests_between(shop):
    first = shop.process()
    assert shop.process() is first
    shop.rest()
    assert first.alive and first.stopped
    first.temporary.rmdir()  # by a prune of the cache
    shop.serve(FakeProcess, 1, lasting=True)
    assert shop.process() is first
    assert not first.stopped and first.temporary.is_dir()
    shop.close()
    assert not first.alive and not first.temporary.exists()


@pytest.mark.parametrize("change", ["kind", "interpreter", "fresh", "ended", "killed"])
def test_what_is_not_wanted_or_not_well_is_ended(shop, tmp_path, change):
    first = shop.process()
    python = None
    if change == "kind":
        shop.serve(FakeProcess, 2, lasting=True)
    elif change == "interpreter":
        python = tmp_path / "python"
    elif change == "ended":
        first.alive = False
    elif change == "killed":
        first.here = False
    second = shop.process(python, fresh=change == "fresh")
    assert second is not first and second.python == python
    assert not first.alive and not first.temporary.exists()
    assert second.temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", ["of one session", "large", "ended"])
def test_what_may_not_last_ends_with_the_set_up(shop, monkeypatch, change):
    monkeypatch.setattr(host, "memory_available_bytes", lambda: 20_000)
    if change == "of one session":
        shop.serve(FakeProcess, 1, lasting=False)
    first = shop.process()
    if change == "large":
        first.resident_bytes = 1_001  # 5 % of what is free
    elif change == "ended":
        first.alive = False
    shop.rest()
    assert not first.alive and not first.temporary.exists()


def test_without_a_process_there_is_nothing_to_rest(shop):
    shop.rest()
    shop.close()
