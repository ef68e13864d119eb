"""How a command is ended from outside, where a library stands in between, or nothing is kept."""

import signal
import sys

import pytest

from frameworktax import comparing
from frameworktax.cli import main
from frameworktax.cli.endings import ENDINGS, Ended, ends_once


@pytest.fixture(autouse=True)
def handlers():
    before = {one: signal.getsignal(one) for one in ENDINGS}
    yield
    for one, how in before.items():
        signal.signal(one, how)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_makes_its_own_keeps_its_signal(number) -> None:
    def library() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # as Ray does

    with pytest.raises(Ended) as ended, ends_once():
        library()
    assert ended.value.number == number


def test_an_interrupt_without_a_signal_is_not_ours() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as ended, ends_once():
        raise KeyboardInterrupt
    assert not isinstance(ended.value, Ended)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_deployment_that_is_measured_again_is_ended_in_order(tmp_path, monkeypatch, capfd):
    """Its store, in the folder for temporary files, was left behind."""
    cleaned = []

    def again(folder, **given):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(folder)

    signal.signal(signal.SIGTERM, lambda number, frame: None)
    monkeypatch.setattr(comparing, "measure_again", again)
    monkeypatch.setattr(sys, "argv", ["frameworktax", "compare", str(tmp_path)])
    (tmp_path / "manifest.json").touch()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + signal.SIGTERM
    assert cleaned == [tmp_path]
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert "SIGTERM" in last and f"frameworktax compare {tmp_path}" in last
