"""How a command ends that is ended from outside: once, with what it measured kept."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Ctrl-C, a scheduler or a shutdown, a terminal that is closed, Ctrl-\\."""
Handler = Callable[[int, FrameType | None], None]


class Ended(KeyboardInterrupt):
    """A session or a study is ended from outside; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def handle(handler: Handler, always: Collection[int] = ()) -> Callable[[], None]:
    """Let a handler have the signals that end a command; return what gives them back.

    What is ignored stays so, but for ``always``: nohup is a wish that the closing of a terminal
    ends nothing.
    """
    before = {
        one: signal.getsignal(one)
        for one in ENDINGS
        if one in always or signal.getsignal(one) != signal.SIG_IGN
    }
    for one in before:
        signal.signal(one, handler)

    def restore() -> None:
        for one, earlier in before.items():
            signal.signal(one, earlier)

    return restore


@contextmanager
def ended_softly() -> Iterator[list[int]]:
    """Collect the first signal that asks to end; the second does what it always does."""
    came: list[int] = []

    def first(number: int, frame: FrameType | None) -> None:
        came.append(number)
        restore()

    restore = handle(first)
    try:
        yield came
    finally:
        restore()


@contextmanager
def ends_once() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM end what is measured, the second not disturb the ending."""
    came: list[int] = []

    def ending(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise Ended(number)
        restore()  # a third one ends a sweep that hangs
        if writable(2):  # not print: this may be in the middle of one
            with suppress(OSError):
                os.write(2, b"ending the measuring processes\n")

    restore = handle(ending, [signal.SIGINT])
    try:
        yield
    except Ended:
        raise  # the caller still says what to do next, without being disturbed
    except BaseException as error:
        if came and isinstance(error, KeyboardInterrupt):  # Ray raises one of its own for ours
            raise Ended(came[0]) from error
        restore()
        raise
    restore()


def writable(descriptor: int) -> bool:
    """Return whether a line can be written at once: no full pipe, no stopped terminal."""
    with suppress(OSError, ValueError):
        return bool(select.select((), (descriptor,), (), 0)[1])
    return False
