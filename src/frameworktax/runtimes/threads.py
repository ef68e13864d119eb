"""Threads of engines that ask the operating system, and nobody else, how many to start."""

from __future__ import annotations

import os


def confine(threads: int) -> None:
    """Let this process use only ``threads`` processors, so that an engine starts as many threads.

    Must come before the engine is imported or first used: JAX and ExecuTorch size their pools by
    the affinity of the process and ignore torch's setting. Which processors is of no account: the
    session pins the process to those it measures on before it measures.
    """
    usable = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(usable)  # processes that set up side by side spread out
    chosen = [usable[(first + i) % len(usable)] for i in range(min(threads, len(usable)))]
    os.sched_setaffinity(0, chosen)
