"""The clocks measurements are made with.

``time.perf_counter_ns`` is wall time (CLOCK_MONOTONIC), ``time.thread_time_ns`` the CPU time of
the calling thread. They are handed around as one object so that tests can pass a scripted one
(``frameworktax.testing.FakeClock``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
_opened = threading.local()


def queued_ns(path: Path = SCHEDSTAT) -> int | None:
    """Return how long the calling thread was ready to run while others had the processor.

    Linux keeps it as the second number of ``schedstat``; None where the kernel does not. The file
    stays open: where others wait for the processor they get it as a system call returns, so that
    a reading of many calls would draw the waiting into itself. Of one call it comes after the
    number is read: read wall time first, at both ends.
    """
    owner = os.getpid(), path  # a forked child has a thread of its own
    try:
        if getattr(_opened, "owner", None) != owner:
            _opened.file = path.open("rb", buffering=0)
            _opened.owner = owner
        return int(os.pread(_opened.file.fileno(), 128, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time, CPU time and queued time of the thread, in integer ns, and a way to wait."""

    wall_ns: Callable[[], int] = time.perf_counter_ns
    cpu_ns: Callable[[], int] = time.thread_time_ns
    sleep: Callable[[float], None] = time.sleep
    queued_ns: Callable[[], int | None] = queued_ns


REAL = Clock()
