"""How far a host's own speed moved in a session, by its calibrator.

It stands beside the results and is in none of their intervals: those are of the session they were
measured in, and blocks of one round, whose ratio is taken, share what the host did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev

from frameworktax.stats import NORMAL_95

MIN_STRETCHES = 3
"""A session has at least so many; with fewer rounds nothing is said of its host's drift."""


def host_drift(calibrator_ns: Mapping[int, float]) -> float | None:
    """Return how far the host's speed moved between stretches of a session: half of 95 %, a share.

    The rounds are divided into stretches of √n neighbours (of n / 3, if that is less); the result
    is 1.96 standard deviations of the stretches' mean logs. That is the long-run variance by batch
    means (Flegal and Jones 2010): what disturbs single rounds is averaged out, what neighbours
    share stays, and more rounds do not make it larger, as they do a range.

    Args:
        calibrator_ns: round → median of its calls, ns.

    Returns:
        None where there are fewer than ``MIN_STRETCHES`` rounds.
    """
    logs = [math.log(ns) for _, ns in sorted(calibrator_ns.items())]
    if len(logs) < MIN_STRETCHES:
        return None
    size = min(math.isqrt(len(logs)), len(logs) // MIN_STRETCHES)
    first = len(logs) % size  # what fills no stretch is left out at the beginning
    stretches = [fmean(logs[i : i + size]) for i in range(first, len(logs), size)]
    return NORMAL_95 * stdev(stretches)
