"""Is one latency another? Log ratios, what is known of their noise, and many at once.

Of two sides measured in one session: blocks of one round share what the host did.

Of two sessions: a session's level is the mean over processes of the median over rounds, log scale.
Beyond the spread between processes, sessions differ by three things that two of them cannot show.
*Block noise*: what disturbs single blocks lasts longer than a session, so that a session whose
blocks differ by w is itself off by about ``BLOCK_NOISE`` × w, however many blocks it has. *The
host's speed*: the calibrator's lower quartile, because disturbance only adds time; it is noisy, so
that only as much of its movement is believed, and taken out, as its noise leaves likely. *The
rest*: ``SESSION_SD``. The values of ``SESSION_SD`` and ``BLOCK_NOISE`` are near those of greatest
likelihood on one half of the recordings of ``benchmarks/calibration.py``, which judges them on the
other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, variance

from frameworktax.analysis.bill import DEVICE
from frameworktax.errors import StoreError
from frameworktax.records import Estimate, Measurement, device_of
from frameworktax.stats import MIN_PROCESSES, t_quantile

Blocks = Mapping[tuple[int, int], float]
"""(process, round) → block median, ns."""

PROCESS_SD = 0.012
"""Between processes of one program, where too few were measured for an estimate."""
LEAST_SD = 0.001
"""Noise is never less than this: block medians of fast calls are equal to the nanosecond."""
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

LOADED = "wall-over-cpu"
"""The note of a point whose calls took longer than their thread was running."""
COUNTS = ("launches", "operators", "flops", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A log ratio and its variance in parts.

    Attributes:
        value: log (after / before).
        spread: variance of one independent value (a process), log scale.
        degrees: of freedom of ``spread``; infinite where it is known from elsewhere.
        scale: factor on ``spread`` that makes it the variance of ``value``.
        parts: further (variance, degrees of freedom) of ``value``.
        n: independent values on the smaller side.
        method: how it was got.
        drift: log ratio of the host, from calibrators; None where they cannot be compared.
        measured: log (after / before) before the host's drift was taken out; None where it was not.
    """

    value: float
    spread: float
    degrees: float
    scale: float
    parts: tuple[tuple[float, float], ...]
    n: int
    method: str
    drift: float | None = None
    measured: float | None = None

    @property
    def variance(self) -> float:
        """The variance of ``value``, never under ``LEAST_SD`` squared."""
        return self.spread * self.scale + sum(part for part, _ in self.parts) + LEAST_SD**2

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance (Satterthwaite 1946), at most a million."""
        parts = [(self.spread * self.scale, self.degrees), *self.parts]
        lost = sum(part**2 / degrees for part, degrees in parts if part)
        return min(1e6, self.variance**2 / lost) if lost else 1e6


def paired(before: Blocks, after: Blocks) -> Contrast | None:
    """Return the contrast of two sides measured in one session; None below two common blocks.

    Log ratios of blocks with the same process number and round, their median per process. With
    fewer than ``MIN_PROCESSES`` processes it is taken over the blocks, and ``PROCESS_SD`` stands
    for what they cannot show.
    """
    ratios: dict[int, list[float]] = defaultdict(list)
    for key in before.keys() & after.keys():
        ratios[key[0]].append(math.log(after[key] / before[key]))
    values = [median(found) for found in ratios.values()]
    parts = []
    method = "paired blocks of one session"
    processes = len(ratios)
    if processes < MIN_PROCESSES:
        values = [value for found in ratios.values() for value in found]
        parts.append((2 * PROCESS_SD**2 / max(1, processes), math.inf))
        method += ", too few processes"
    if len(values) < 2:
        return None
    return Contrast(
        value=fmean(values),
        spread=variance(values),
        degrees=len(values) - 1,
        scale=1 / len(values),
        parts=tuple(parts),
        n=len(values),
        method=method,
    )


# --- two sessions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side of a contrast between sessions: its blocks, and round → the calibrator's, ns."""

    blocks: Blocks
    calibrator: Mapping[int, float]

    def processes(self) -> list[float]:
        """Return the median of log blocks of each process."""
        return [median(values) for values in self._logs()]

    def block_noise(self) -> tuple[float, float] | None:
        """Return (robust spread of blocks in their process, degrees of freedom), log scale.

        The block next to a process's median is left out: it is the median, or as near as one can
        be. None where no process has a second block.
        """
        found = []
        for values in self._logs():
            centre = median(values)
            found += sorted(abs(value - centre) for value in values)[1:]
        if not found:
            return None
        # from two values on the efficiency leaves under one degree, which no variance has
        return NORMAL_MAD * median(found), max(1.0, MAD_EFFICIENCY * len(found))

    def _logs(self) -> Iterable[list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for (process, _), ns in self.blocks.items():
            found[process].append(math.log(ns))
        return found.values()


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
    parts = [(2 * (SESSION_SD if on_cpu else DEVICE_SESSION_SD) ** 2, math.inf)]
    for side in (before, after):
        noise = side.block_noise()
        unknown = (UNCALIBRATED_SD**2, math.inf)
        parts.append(unknown if noise is None else ((BLOCK_NOISE * noise[0]) ** 2, noise[1]))
    drift = None
    calibrations = min(len(before.calibrator), len(after.calibrator))
    if same_calibrator and calibrations >= MIN_CALIBRATIONS:
        drift, uncertainty = moved(before.calibrator, after.calibrator)
        share = (DRIFT_SD if on_cpu else DEVICE_DRIFT_SD) * drift
        parts += [(share**2, math.inf), (uncertainty, math.inf)]
    else:
        parts.append((2 * UNCALIBRATED_SD**2, math.inf))
    a, b = before.processes(), after.processes()
    n, degrees = min(len(a), len(b)), len(a) + len(b) - 2
    enough = n >= MIN_PROCESSES
    squares = variance(a) * (len(a) - 1) + variance(b) * (len(b) - 1) if enough else 0.0
    measured = fmean(b) - fmean(a)
    found = Contrast(
        value=measured,
        spread=squares / degrees if enough else PROCESS_SD**2,
        degrees=degrees if enough else math.inf,
        scale=1 / len(a) + 1 / len(b),
        parts=tuple(parts),
        n=n,
        method="process medians of two sessions",
        drift=drift,
    )
    if drift is None or not on_cpu:
        return found
    method = f"{found.method}, less the host's drift"
    return replace(found, value=measured - drift, method=method, measured=measured)


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


# --- many at once ---------------------------------------------------------------------------------


def moderate(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Let points of one comparison share what they know of the spread between processes.

    Three processes give a variance two degrees of freedom, with which nothing survives the
    correction for many points. The variances of all points are taken as drawn round a common one,
    and each moves towards it as far as they resemble each other (Smyth 2004, empirical Bayes). The
    common one counts for no more than the degrees of freedom of the other points together.
    """
    varied = [c for c in contrasts if c.spread > 0 and math.isfinite(c.degrees)]
    if len(varied) < 2:
        return list(contrasts)
    from scipy.special import digamma, polygamma

    logs = [
        math.log(c.spread) - float(digamma(c.degrees / 2)) + math.log(c.degrees / 2) for c in varied
    ]
    excess = variance(logs) - fmean(float(polygamma(1, c.degrees / 2)) for c in varied)
    total = sum(c.degrees for c in varied)
    prior = 2 * _trigamma_inverse(excess) if excess > 0 else math.inf
    shift = digamma(prior / 2) - math.log(prior / 2) if math.isfinite(prior) else 0.0
    common = math.exp(fmean(logs) + float(shift))
    moderated = []
    for c in contrasts:
        if not math.isfinite(c.degrees):
            moderated.append(c)
            continue
        weight = min(prior, total - c.degrees if c.spread > 0 else total)
        degrees = c.degrees + weight
        spread = (c.degrees * c.spread + weight * common) / degrees
        moderated.append(replace(c, spread=spread, degrees=degrees))
    return moderated


def _trigamma_inverse(value: float) -> float:
    """Return y with trigamma(y) = value, by Newton's method on its reciprocal (Smyth 2004)."""
    from scipy.special import polygamma

    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, y))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, y))
        y += step
        if abs(step) < 1e-8 * y:
            break
    return y


def ratio(contrast: Contrast, confidence: float = 0.95) -> Estimate:
    """Return after / before with its interval."""
    half = t_quantile(confidence, contrast.freedom) * math.sqrt(contrast.variance)
    return Estimate(
        value=math.exp(contrast.value),
        low=math.exp(contrast.value - half),
        high=math.exp(contrast.value + half),
        confidence=confidence,
        method=contrast.method,
        n=contrast.n,
    )


def p_value(contrast: Contrast) -> float:
    """Return how often a ratio at least this far from one comes of noise alone, either way."""
    from scipy.special import stdtr

    t = abs(contrast.value) / math.sqrt(contrast.variance)
    return float(2 * stdtr(contrast.freedom, -t))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that bound the error over all points together (Holm 1979).

    Step-down Bonferroni: valid however the points depend on each other, as points of one session
    do, and never weaker than Bonferroni.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


# --- two measurements -----------------------------------------------------------------------------


def why_not(a: Measurement, b: Measurement) -> str | None:
    """Return why a point has no ratio: which side was not measured, and the reason recorded."""
    for side, m in (("before", a), ("after", b)):
        if m.status != "ok":
            return f"{m.status} {side}: {m.reason or 'no reason was recorded'}"
    return None


def loaded(a: Measurement, b: Measurement) -> str | None:
    """Return why times of two sessions cannot be compared: one was not alone on its processor.

    Other load can multiply latency and leave the calibrator as it was, and what ran beside one
    session did not run beside the other. With more threads the calling one waits for its own.
    """
    if one_session(a, b):
        return None
    for side, m in (("before", a), ("after", b)):
        if m.threads == 1 and any(note.code == LOADED for note in m.notes):
            return f"other load was on the processor {side}; measure again, or both in one session"
    return None


def one_session(a: Measurement, b: Measurement) -> bool:
    """Return whether both sides were measured side by side."""
    return a.session is not None and a.session == b.session


def contrast(a: Measurement, b: Measurement, metric: str, same_calibrator: bool) -> Contrast | None:
    """Return the log ratio after / before of a time; None where a side has none.

    Tax and kernel time are latency × share: log ratios and variances of the two add up. Kernel
    time of a device does not hang on the host and is compared by itself.
    """
    if metric == "kernel" and a.bill_method == b.bill_method == DEVICE:
        return _device(a, b)
    if loaded(a, b) is not None:
        return None
    found = _latency(a, b, same_calibrator)
    if found is None or metric == "latency":
        return found
    one, other = _share(a, metric), _share(b, metric)
    if one is None or other is None or a.bill_method != b.bill_method:
        return None
    move = math.log(other[0] / one[0])
    return replace(
        found,
        value=found.value + move,
        measured=None if found.measured is None else found.measured + move,
        parts=(*found.parts, one[1:], other[1:]),
        method=f"{found.method}; share of the latency: {b.bill_method}",
    )


def _latency(a: Measurement, b: Measurement, same_calibrator: bool) -> Contrast | None:
    if one_session(a, b) and a.blocks_ns and b.blocks_ns:
        return paired(blocks(a), blocks(b))
    sides = [Sample(blocks=blocks(m), calibrator=dict(m.calibrator_ns)) for m in (a, b)]
    on_cpu = device_of(b.platform) == "cpu"
    return between(*sides, on_cpu=on_cpu, same_calibrator=same_calibrator)


def blocks(m: Measurement) -> Blocks:
    """Return (process, round) → block median, ns; one block a process where none are recorded.

    Raises:
        StoreError: a time is not above zero.
    """
    found = {(process, round_): ns for process, round_, ns in m.blocks_ns}
    if not found:
        found = {(p, 0): float(median(calls)) for p, calls in enumerate(m.samples_ns) if calls}
    times = [*found.values(), *(ns for _, ns in m.calibrator_ns)]
    if not all(math.isfinite(ns) and ns > 0 for ns in times):
        raise StoreError(
            f"{m.workload.model}, {m.runtime}: a time is not above zero; "
            "the document was changed, write it anew with --json"
        )
    return found


def _share(m: Measurement, metric: str) -> tuple[float, float, float] | None:
    """Return (share of the latency, variance of its log, degrees of freedom).

    None where it is not known or its interval reaches zero: then no ratio can be taken.
    """
    share = m.tax_share
    if share is None:
        return None
    value = share.value if metric == "tax" else 1 - share.value
    half = (share.high - share.low) / 2
    if value - half <= 0:
        return None
    return (value, *_log_variance(value, half, share))


def _log_variance(value: float, half: float, estimate: Estimate) -> tuple[float, float]:
    degrees = max(1, estimate.n - 1)
    return (half / t_quantile(estimate.confidence, degrees) / value) ** 2, float(degrees)


def _device(a: Measurement, b: Measurement) -> Contrast | None:
    one, other = a.kernel_ns, b.kernel_ns
    if one is None or other is None or min(one.low, other.low) <= 0:
        return None
    parts = [_log_variance(e.value, (e.high - e.low) / 2, e) for e in (one, other)]
    if not one_session(a, b):
        parts.append((2 * DEVICE_SESSION_SD**2, math.inf))
    return Contrast(
        value=math.log(other.value / one.value),
        spread=0.0,
        degrees=math.inf,
        scale=0.0,
        parts=tuple(parts),
        n=min(one.n, other.n),
        method="kernel time of the device, by call",
    )
