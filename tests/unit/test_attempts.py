"""Whether a failed known answer is judged or skipped, by a made-up ``/proc/stat``."""

import attempts
import pytest


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a check that fails; beside each attempt 100 ticks are busy, so many of them stolen."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(attempts, "STAT", stat)

    def failing(*stolen, columns=10):
        ticks = [50, 0, 20, 9000, 700, 3, 2, 10, 0, 0]
        left = list(stolen)

        def write():
            stat.write_text(f"cpu  {' '.join(map(str, ticks[:columns]))}\ncpu0 1 2 3\n")

        def check():
            taken = left.pop(0)
            ticks[0] += 100 - taken
            ticks[3] += 1000  # idle
            ticks[7] += taken
            write()
            raise AssertionError("7 is not 5")

        write()
        return check

    return failing


def end(check, count):
    """Return how a check that fails so often ends."""
    with pytest.raises(BaseException, match="7 is not 5") as ended:
        attempts.attempted(check, attempts=count)
    return ended


def test_failures_beside_a_hypervisor_that_took_much_are_skipped(host):
    ended = end(host(16, 40), 2)
    assert ended.type is pytest.skip.Exception
    assert ended.match("16%, 40%")


@pytest.mark.parametrize("stolen", [(40, 15), (15, 40), (0, 0)])
def test_one_attempt_without_it_is_judged(host, stolen):
    assert end(host(*stolen), 2).type is AssertionError


def test_where_stolen_time_is_not_counted_failures_are_judged(host, tmp_path, monkeypatch):
    assert end(host(40, columns=7), 1).type is AssertionError
    monkeypatch.setattr(attempts, "STAT", tmp_path / "absent")
    assert end(host(40), 1).type is AssertionError


def test_one_attempt_that_holds_is_enough(host):
    fails, made = host(40), []

    def check():
        made.append(None)
        if len(made) == 1:
            fails()

    attempts.attempted(check)
    assert len(made) == 2
