"""How a sweep is ended from outside, where a library stands between the signal and the sweep."""

import signal

import pytest

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
