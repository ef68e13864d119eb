"""The clocks measurements are made with.

``time.perf_counter_ns`` is wall time (CLOCK_MONOTONIC), ``time.thread_time_ns`` the CPU time of
the calling thread. They are handed around as one object so that tests can pass a scripted one
(``frameworktax.testing.FakeClock``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall and thread CPU time, both in integer nanoseconds, and a way to wait."""

    wall_ns: Callable[[], int] = time.perf_counter_ns
    cpu_ns: Callable[[], int] = time.thread_time_ns
    sleep: Callable[[float], None] = time.sleep


REAL = Clock()
