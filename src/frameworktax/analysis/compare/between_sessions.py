"""Two sessions of one program: what is known of the noise between them.

A session's level is the mean over processes of the median over rounds, log scale. Beyond the spread
between processes, sessions differ by three things that two of them cannot show. *Block noise*: what
disturbs single blocks lasts longer than a session, so that a session whose blocks differ by w is
itself off by about ``BLOCK_NOISE`` × w, however many blocks it has. *The host's speed*: the
calibrator's lower quartile, because disturbance only adds time; it is noisy, so that only as much
of its movement is believed, and taken out, as its noise leaves likely. *The rest*: ``SESSION_SD``.
The values of ``SESSION_SD`` and ``BLOCK_NOISE`` are near those of greatest likelihood on one half
of the recordings of ``benchmarks/calibration.py``, which judges them on the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, variance

from frameworktax.analysis.compare.contrasts import PROCESS_SD, Blocks, Contrast
from frameworktax.stats import MIN_PROCESSES

SESSION_SD = 0.006
"""Between sessions of one program, beyond its processes, block noise and the host's speed."""
DEVICE_SESSION_SD = 0.01
"""The same on a device; not yet measured on one."""
UNCALIBRATED_SD = 0.03
"""Where no calibrator shows what the host did, or no second block how noisy it was: for either."""
BLOCK_NOISE = 0.5
"""How far a session is off, as a share of the spread of its blocks."""
DRIFT_SD = 1.0
"""How far from one the share of the host's drift can be that reaches a program on the CPU: seven
models moved by 0.4 to 5 times as much as the calibrator."""
DEVICE_DRIFT_SD = 0.5
"""How much of it may reach a program on a device, of which nothing is taken out."""
DRIFTS = (0.003, 0.3)
"""Standard deviations of a host between sessions, log-uniform: from an idle one to a shared one."""
STEPS = 60
QUARTILE = 0.25
MIN_CALIBRATIONS = 3
"""Rounds of the calibrator below which its noise is not known."""
NORMAL_MAD = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
MAD_EFFICIENCY = 0.37
"""Of the median absolute deviation: it is worth this share of its values (Hampel 1974)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side of a contrast between sessions: its blocks, and round → the calibrator's, ns."""

    blocks: Blocks
    calibrator: Mapping[int, float]

    def processes(self) -> list[float]:
        """Return the median of log blocks of each process."""
        return [median(values) for values in self._logs().values()]

    def block_noise(self) -> tuple[float, float] | None:
        """Return (robust spread of blocks in their process, degrees of freedom), log scale.

        The block next to a process's median is left out: it is the median, or as near as one can
        be. None where no process has a second block.
        """
        found = []
        for values in self._logs().values():
            centre = median(values)
            found += sorted(abs(value - centre) for value in values)[1:]
        if not found:
            return None
        return NORMAL_MAD * median(found), max(1.0, MAD_EFFICIENCY * len(found))

    @property
    def calibrated(self) -> bool:
        """Whether the calibrator ran often enough for its noise to be known."""
        return len(self.calibrator) >= MIN_CALIBRATIONS

    def _logs(self) -> Mapping[int, list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for (process, _), ns in self.blocks.items():
            found[process].append(math.log(ns))
        return found


def between(
    before: Sample, after: Sample, *, on_cpu: bool, same_calibrator: bool = True
) -> Contrast | None:
    """Return the contrast of two sessions; None where a side has no block.

    Args:
        before: one session.
        after: the other.
        on_cpu: the host's drift is taken out; on a device it only widens.
        same_calibrator: False where interpreter or numpy differ: its code is then another.
    """
    if not before.blocks or not after.blocks:
        return None
    sides = (before, after)
    parts = [(2 * (SESSION_SD if on_cpu else DEVICE_SESSION_SD) ** 2, math.inf)]
    for side in sides:
        noisy = side.block_noise()
        if noisy is None:
            parts.append((UNCALIBRATED_SD**2, math.inf))
        else:
            parts.append(((BLOCK_NOISE * noisy[0]) ** 2, noisy[1]))
    drift = None
    if same_calibrator and before.calibrated and after.calibrated:
        drift, noise = moved(before.calibrator, after.calibrator)
        share = (DRIFT_SD if on_cpu else DEVICE_DRIFT_SD) * drift
        parts += [(share**2, math.inf), (noise, math.inf)]
    else:
        parts.append((2 * UNCALIBRATED_SD**2, math.inf))
    over = drift is not None and on_cpu
    a, b = (side.processes() for side in sides)
    measured = fmean(b) - fmean(a)
    enough = min(len(a), len(b)) >= MIN_PROCESSES
    return Contrast(
        value=measured - drift if drift is not None and on_cpu else measured,
        spread=_pooled(a, b) if enough else PROCESS_SD**2,
        degrees=len(a) + len(b) - 2 if enough else math.inf,
        scale=1 / len(a) + 1 / len(b),
        parts=tuple(parts),
        n=min(len(a), len(b)),
        method="process medians of two sessions" + (", less the host's drift" if over else ""),
        drift=drift,
        measured=measured if over else None,
    )


def _pooled(a: Sequence[float], b: Sequence[float]) -> float:
    return (variance(a) * (len(a) - 1) + variance(b) * (len(b) - 1)) / (len(a) + len(b) - 2)


# --- the host's speed ---------------------------------------------------------------------------


def moved(before: Mapping[int, float], after: Mapping[int, float]) -> tuple[float, float]:
    """Return (log ratio of the host's speed after / before, its variance), from calibrators.

    The expectation given what the calibrators show, where the host's own standard deviation
    between sessions may be any of ``DRIFTS``, each as likely on a log scale: a movement within the
    calibrator's noise is mostly not believed, one far beyond it fully.
    """
    (old, old_noise), (new, new_noise) = (quartile(side.values()) for side in (before, after))
    seen, noise = new - old, old_noise + new_noise
    low, high = map(math.log, DRIFTS)
    weighted = []
    for step in range(STEPS):
        host = 2 * math.exp(low + (high - low) * step / (STEPS - 1)) ** 2
        likely = math.exp(-(seen**2) / (host + noise) / 2) / math.sqrt(host + noise)
        believed = host / (host + noise)
        weighted.append((likely, believed * seen, believed * noise))
    whole = sum(likely for likely, _, _ in weighted)
    if whole == 0:  # a calibrator far outside every prior: nothing of it is noise
        return seen, noise
    value = sum(likely * mean for likely, mean, _ in weighted) / whole
    square = sum(likely * (own + mean**2) for likely, mean, own in weighted) / whole
    return value, square - value**2


def quartile(values: Iterable[float]) -> tuple[float, float]:
    """Return the lower quartile of log values and its variance.

    Weights of all order statistics (Harrell and Davis 1982), and the variance that they give to
    one (Maritz and Jarrett 1978), a little more than theirs: no distribution is assumed, and a few
    disturbed rounds move little.
    """
    from scipy.special import betainc

    ordered = sorted(map(math.log, values))
    n = len(ordered)
    steps = [
        float(betainc((n + 1) * QUARTILE, (n + 1) * (1 - QUARTILE), i / n)) for i in range(n + 1)
    ]
    weights = [high - low for low, high in pairwise(steps)]
    centre = math.fsum(w * x for w, x in zip(weights, ordered, strict=True))
    return centre, math.fsum(w * (x - centre) ** 2 for w, x in zip(weights, ordered, strict=True))
