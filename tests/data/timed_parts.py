"""Parts of a call whose processor time is known, for the sampler's known answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Part = Callable[[], Any]


class Timed:
    """A part of a call that notes its thread's processor time, clocks and all."""

    def __init__(self, part: Part) -> None:
        self.part, self.spent_ns = part, 0

    def __call__(self) -> None:
        begin = time.thread_time_ns()
        self.part()
        self.spent_ns += time.thread_time_ns() - begin


class Second:
    """A second thread that runs what it is given, while the first goes on."""

    def __init__(self) -> None:
        self._begin, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._given: Part = list
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._begin.acquire()
            self._given()
            self._done.release()

    def begin(self, part: Part) -> None:
        self._given = part
        self._begin.release()

    def wait(self) -> None:
        self._done.acquire()


def python_loop(count: int) -> None:
    """Keep the interpreter busy without a system call."""
    for _ in range(count):
        pass
