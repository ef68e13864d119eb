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
from resource import RUSAGE_SELF, RUSAGE_THREAD, getrusage

SCHEDSTAT = Path("/proc/thread-self/schedstat")
_opened = threading.local()


def queued_ns() -> int | None:
    """Return how long the calling thread was ready to run while others had the processor.

    Linux keeps it as the second number of ``schedstat``; None where the kernel does not. The file
    stays open: where others wait for the processor they get it as a system call returns, so that
    a reading of many calls would draw the waiting into itself. Of one call it comes after the
    number is read: read wall time first, at both ends.
    """
    try:
        if getattr(_opened, "process", None) != os.getpid():  # a forked child has its own thread
            _opened.file = SCHEDSTAT.open("rb", buffering=0)
            _opened.process = os.getpid()
        return int(os.pread(_opened.file.fileno(), 128, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return None


def waits() -> int:
    """Return how often the calling thread gave its processor up to wait."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def page_faults() -> int:
    """Return how many page faults this process has had that needed no disk."""
    return getrusage(RUSAGE_SELF).ru_minflt


Queue = tuple[int | None, int]
"""Time in the queue, ns, None where that is not known; and how often the thread waited."""


def others_ns(off_ns: int, before: Queue, after: Queue) -> int | None:
    """Return the part of time off the processor in which others had it; None if not known.

    A thread that never waited was off it only because others had it: in the system's queue, or
    where a hypervisor took the processor, which no queue knows of. Signed: of clocks that are read
    one after the other the difference of one call may be below zero, and the sum is right.

    Args:
        off_ns: wall time minus CPU time of a thread.
        before: read when that time began.
        after: read when it ended.
    """
    (queued, waits), (queued_then, waits_then) = before, after
    if waits == waits_then:
        return off_ns
    return None if queued is None or queued_then is None else queued_then - queued


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time, CPU time and queued time of the thread, in integer ns, and a way to wait.

    ``waits`` is how often it gave its processor up, ``page_faults`` those of its process.
    """

    wall_ns: Callable[[], int] = time.perf_counter_ns
    cpu_ns: Callable[[], int] = time.thread_time_ns
    sleep: Callable[[float], None] = time.sleep
    queued_ns: Callable[[], int | None] = queued_ns
    waits: Callable[[], int] = waits
    page_faults: Callable[[], int] = page_faults

    def queue(self) -> Queue:
        """Return what ``others_ns`` takes. Waits are read first: see ``queued_ns``."""
        waits = self.waits()
        return self.queued_ns(), waits


REAL = Clock()
