"""Is one latency another? Log ratios, what is known of their noise, and many at once.

Of two sides measured in one session: blocks of one round share what the host did.

Of sessions: a session's level is the mean over processes of the median over rounds, log scale.
Beyond the spread between processes, sessions differ by three things that two of them cannot show.
*Block noise*: what disturbs single blocks lasts longer than a session, so that a session whose
blocks differ by w is itself off by about ``BLOCK_NOISE`` × w, however many blocks it has. *The
host's speed*: the calibrator's lower quartile, because disturbance only adds time; it is noisy, so
that only as much of its movement is believed, and taken out, as its noise leaves likely. *The
rest*: ``SESSION_SD``. The values of ``SESSION_SD`` and ``BLOCK_NOISE`` are near those of greatest
likelihood on one half of the recordings of ``benchmarks/calibration.py``, which judges them on the
other. ``constants_of`` finds by how much both are larger or smaller on another host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median, variance

from frameworktax.analysis.bill import DEVICE
from frameworktax.analysis.curves import Blocks
from frameworktax.records import Estimate, Measurement, device_of
from frameworktax.stats import (
    CONFIDENCE,
    MIN_PROCESSES,
    NORMAL_95,
    by_process,
    log_bias,
    log_ratios,
    t_quantile,
)

CONSTANTS_FROM = "AMD EPYC, 2 processors, a virtual machine"
"""The host whose recordings ``PROCESS_SD``, ``SESSION_SD`` and ``BLOCK_NOISE`` are from."""
PROCESS_SD = 0.012
"""Between processes of one program, where too few were measured for an estimate."""
LEAST_SD = 0.001
"""Noise is never less than this: block medians of fast calls are equal to the nanosecond."""
SESSION_SD = 0.006
"""Between sessions of one program, beyond its processes, block noise and the host's speed."""
MOST_FACTOR = 1e3
"""Beyond what any host was seen to need, of ``SESSION_SD`` and ``BLOCK_NOISE``."""
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
MOST_DEGREES = 1e6
"""Freedom from which on Student's t is the normal distribution to five digits."""
MIN_CALIBRATIONS = 3
"""Rounds of the calibrator below which its noise is not known."""
NORMAL_MAD = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
MAD_EFFICIENCY = 0.37
"""Of the median absolute deviation: it is worth this share of its values (Hampel 1974)."""

PAIRED, TOO_FEW = "paired blocks of one session", ", too few processes"
LOADED = "wall-over-cpu"
"""The note of a point whose calls took longer than their thread was running."""
COUNTS = ("launches", "operators", "flops", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the sides of a contrast cannot show themselves; by default another host's.

    Of ``PROCESS_SD``, ``SESSION_SD`` and ``BLOCK_NOISE``, and with how many sessions of this host
    they were measured.
    """

    process_sd: float = PROCESS_SD
    session_sd: float = SESSION_SD
    block_noise: float = BLOCK_NOISE
    sessions: int | None = None

    @property
    def degrees(self) -> float:
        """Degrees of freedom of ``session_sd`` and ``block_noise``."""
        return math.inf if self.sessions is None else self.sessions - 1


ELSEWHERE = Constants()


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
        if not lost:
            return MOST_DEGREES
        return min(MOST_DEGREES, self.variance**2 / lost)  # beyond, t is normal to five digits


def paired(before: Blocks, after: Blocks, constants: Constants = ELSEWHERE) -> Contrast | None:
    """Return the contrast of two sides measured in one session; None below two common blocks.

    Log ratios of blocks with the same process number and round, their median per process. With
    fewer than ``MIN_PROCESSES`` processes it is taken over the blocks, and ``process_sd`` stands
    for what they cannot show.
    """
    ratios = log_ratios(after, before)
    if sum(map(len, ratios.values())) < 2:
        return None
    values = [median(found) for found in ratios.values()]
    parts = []
    method = PAIRED
    if len(ratios) < MIN_PROCESSES:
        values = [value for found in ratios.values() for value in found]
        parts.append((2 * constants.process_sd**2 / len(ratios), math.inf))
        method += TOO_FEW
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


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One side of a contrast between sessions: its blocks, and round → the calibrator's, ns.

    What is made of them is kept: ``constants_of`` compares each session with all others.
    """

    blocks: Blocks
    calibrator: Mapping[int, float]

    @cached_property
    def processes(self) -> list[float]:
        """The median of log blocks of each process."""
        return [median(values) for values in by_process(self.blocks).values()]

    @cached_property
    def squares(self) -> float:
        """The sum of squares of ``processes`` around their mean; two at least."""
        return variance(self.processes) * (len(self.processes) - 1)

    @cached_property
    def speed(self) -> tuple[float, float]:
        """The ``quartile`` of the calibrator, which has one round at least."""
        return quartile(self.calibrator.values())

    @cached_property
    def block_noise(self) -> tuple[float, float] | None:
        """The robust spread of blocks in their process, and its degrees of freedom, log scale.

        The block next to a process's median is left out: it is the median, or as near as one can
        be. None where no process has a second block.
        """
        found = []
        for values in by_process(self.blocks).values():
            centre = median(values)
            found += sorted(abs(value - centre) for value in values)[1:]
        if not found:
            return None
        # from two values on the efficiency leaves under one degree, which no variance has
        return NORMAL_MAD * median(found), max(1.0, MAD_EFFICIENCY * len(found))


def between(
    before: Sequence[Sample],
    after: Sample,
    *,
    on_cpu: bool,
    same_calibrator: bool = True,
    constants: Constants = ELSEWHERE,
) -> Contrast | None:
    """Return the contrast of a session with others of one program; None where one has no block.

    Each of k sessions before counts for 1 / k: what sessions differ by, and what is not known of a
    single one, is then (1 + 1 / k) / 2 of what it is between two.

    On a CPU the host's drift is taken out; on a device it only widens. The calibrator's code is
    another where interpreter or numpy differ.
    """
    if not after.blocks or not all(side.blocks for side in before):
        return None
    weighted = [*((side, 1 / len(before)) for side in before), (after, 1.0)]
    sessions = sum(weight**2 for _, weight in weighted)
    parts = [(sessions * DEVICE_SESSION_SD**2, math.inf)]
    if on_cpu:
        parts = [(sessions * constants.session_sd**2, constants.degrees)]
    for side, weight in weighted:
        noisy = side.block_noise
        if noisy is None:
            parts.append(((weight * UNCALIBRATED_SD) ** 2, math.inf))
        else:
            degrees = 1 / (1 / noisy[1] + 1 / constants.degrees)
            parts.append(((weight * constants.block_noise * noisy[0]) ** 2, degrees))
    drift = None
    if same_calibrator and all(len(side.calibrator) >= MIN_CALIBRATIONS for side, _ in weighted):
        drift, noise = moved([side.speed for side in before], after.speed)
        share = (DRIFT_SD if on_cpu else DEVICE_DRIFT_SD) * drift
        parts += [(share**2, math.inf), (noise, math.inf)]
    else:
        parts.append((sessions * UNCALIBRATED_SD**2, math.inf))
    levels = [(side.processes, weight) for side, weight in weighted]
    value = fmean(levels[-1][0]) - fmean(fmean(own) for own, _ in levels[:-1])
    measured = None
    enough = min(len(own) for own, _ in levels) >= MIN_PROCESSES
    count = "two sessions" if len(before) == 1 else f"{len(before)} sessions and one"
    method = f"process medians of {count}"
    if on_cpu and drift is not None:
        value, measured = value - drift, value
        method += ", less the host's drift"
    return Contrast(
        value=value,
        spread=_pooled([*before, after]) if enough else constants.process_sd**2,
        degrees=sum(len(own) - 1 for own, _ in levels) if enough else math.inf,
        scale=sum(weight**2 / len(own) for own, weight in levels),
        parts=tuple(parts),
        n=min(len(own) for own, _ in levels),
        method=method,
        drift=drift,
        measured=measured,
    )


def _pooled(sides: Sequence[Sample]) -> float:
    return sum(side.squares for side in sides) / sum(len(side.processes) - 1 for side in sides)


def constants_of(sessions: Sequence[Sample]) -> Constants:
    """Return the constants of a host from sessions of one program on it, one after the other.

    Each session is held against all the others. ``session_sd`` and ``block_noise`` are those of the
    other host times the one factor with which the squared contrasts are as large as their variances
    say, on average (Paule and Mandel 1982); 0 where without them they are not larger.

    Raises:
        ValueError: fewer than three sessions, or one without blocks in ``MIN_PROCESSES`` processes.
    """
    if len(sessions) < 3 or any(len(one.processes) < MIN_PROCESSES for one in sessions):
        raise ValueError("at least three sessions of at least three processes each")
    process_sd = math.sqrt(fmean(variance(one.processes) for one in sessions))

    def scaled(factor: float) -> Constants:
        return Constants(
            process_sd=process_sd,
            session_sd=factor * SESSION_SD,
            block_noise=factor * BLOCK_NOISE,
            sessions=len(sessions),
        )

    def compared(factor: float) -> list[Contrast]:
        constants = scaled(factor)
        found = (
            between([*sessions[:at], *sessions[at + 1 :]], one, on_cpu=True, constants=constants)
            for at, one in enumerate(sessions)
        )
        return [contrast for contrast in found if contrast is not None]

    # Variances with a factor f: the rest, and f² times the part of both constants.
    squares = [
        (without.value**2, without.variance, own.variance - without.variance)
        for without, own in zip(compared(0), compared(1), strict=True)
    ]

    def excess(factor: float) -> float:
        return fmean(square / (rest + factor**2 * part) for square, rest, part in squares) - 1

    if excess(0) <= 0:
        return scaled(0)
    from scipy.optimize import brentq

    return scaled(brentq(excess, 0, MOST_FACTOR))


# --- the host's speed ---------------------------------------------------------------------------


def moved(before: Sequence[tuple[float, float]], after: tuple[float, float]) -> tuple[float, float]:
    """Return (log ratio of the host's speed after / before, its variance), from quartiles.

    Each is the ``quartile`` of a session's calibrator. The expectation given what the calibrators
    show, where the host's own standard deviation between sessions may be any of ``DRIFTS``, each as
    likely on a log scale: a movement within the calibrator's noise is mostly not believed, one far
    beyond it fully. Of several sessions before it is the movement from their mean.
    """
    new, new_noise = after
    seen = new - fmean(level for level, _ in before)
    noise = new_noise + sum(noise for _, noise in before) / len(before) ** 2
    low, high = map(math.log, DRIFTS)
    weighted = []
    for step in range(STEPS):
        sd = math.exp(low + (high - low) * step / (STEPS - 1))
        host = (1 + 1 / len(before)) * sd**2
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
    """Let points measured the same way share what they know of the spread between processes.

    Three processes give a variance two degrees of freedom, with which nothing survives the
    correction for many points. The variances of all points are taken as drawn round a common one,
    and each moves towards it as far as they resemble each other (Smyth 2004, empirical Bayes). The
    common one counts for no more than the degrees of freedom of the other points together.
    """
    moderated: dict[int, Contrast] = {}
    for method in dict.fromkeys(c.method for c in contrasts):
        rows = [i for i, c in enumerate(contrasts) if c.method == method]
        moderated |= zip(rows, _shared([contrasts[i] for i in rows]), strict=True)
    return [moderated[i] for i in range(len(contrasts))]


def _shared(contrasts: Sequence[Contrast]) -> list[Contrast]:
    varied = [c for c in contrasts if c.spread > 0 and math.isfinite(c.degrees)]
    if len(varied) < 2:
        return list(contrasts)
    from scipy.special import polygamma

    logs = [math.log(c.spread) - log_bias(c.degrees) for c in varied]
    excess = variance(logs) - fmean(float(polygamma(1, c.degrees / 2)) for c in varied)
    total = sum(c.degrees for c in varied)
    prior = 2 * _trigamma_inverse(excess) if excess > 0 else math.inf
    shift = log_bias(prior) if math.isfinite(prior) else 0.0
    common = math.exp(fmean(logs) + shift)
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
    """Return y with trigamma(y) = value; 1 / y < trigamma(y) < 1 / (y − ½)."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    return float(brentq(lambda y: polygamma(1, y) - value, 1 / value, 0.5 + 1 / value))


def ratio(contrast: Contrast, confidence: float = CONFIDENCE) -> Estimate:
    """Return after / before with its interval."""
    half = t_quantile(confidence, contrast.freedom) * math.sqrt(contrast.variance)
    low, value, high = (math.exp(contrast.value + move) for move in (-half, 0.0, half))
    method, n = contrast.method, contrast.n
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method, n=n)


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
        # a probability: Bonferroni's product is a bound, and says nothing above one
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


# --- measurements ---------------------------------------------------------------------------------


def unusable(a: Measurement, b: Measurement) -> str | None:
    """Return why times of two sides cannot be compared; None where they can.

    A side was not measured, with the reason recorded; or in one of two sessions it was not alone on
    its processor: other load can multiply latency and leave the calibrator as it was, and what ran
    beside one session did not run beside the other. With more threads the calling one waits for its
    own.
    """
    sides = (("before", a), ("after", b))
    for side, m in sides:
        if m.status != "ok":
            return f"{m.status} {side}: {m.reason or 'no reason was recorded'}"
    for side, m in sides:
        is_loaded = m.threads == 1 and any(note.code == LOADED for note in m.notes)
        if is_loaded and not one_session(a, b):
            return f"other load was on the processor {side}; measure again, or both in one session"
    return None


def one_session(a: Measurement, b: Measurement) -> bool:
    """Return whether both sides were measured side by side."""
    return a.session is not None and a.session == b.session


def contrast(
    before: Sequence[Measurement],
    b: Measurement,
    metric: str,
    same_calibrator: bool,
    constants: Constants,
) -> Contrast | None:
    """Return the log ratio after / before of a time; None where a side has none.

    Tax and kernel time are latency × share: log ratios and variances of the two add up. Kernel
    time of a device does not hang on the host and is compared by itself. ``before`` is one program
    in one or more sessions, from ``usable``; calibrators may run other code on both sides.
    """
    if not before:
        return None
    if metric == "kernel" and all(m.bill_method == DEVICE for m in (*before, b)):
        return _device(before, b)
    found: Contrast | None
    if one_session(before[0], b) and before[0].blocks_ns and b.blocks_ns:
        found = paired(blocks(before[0]), blocks(b), constants)
    else:
        *sides, side = map(sample_of, (*before, b))
        on_cpu = device_of(b.platform) == "cpu"
        found = between(
            sides, side, on_cpu=on_cpu, same_calibrator=same_calibrator, constants=constants
        )
    if found is None or metric == "latency":
        return found
    known = [share for m in (*before, b) if (share := _share(m, metric)) is not None]
    if len(known) <= len(before) or any(m.bill_method != b.bill_method for m in before):
        return None
    *old, new = known
    move = math.log(new[0]) - fmean(math.log(share[0]) for share in old)
    return replace(
        found,
        value=found.value + move,
        measured=None if found.measured is None else found.measured + move,
        parts=(*found.parts, *_averaged([share[1:] for share in old]), new[1:]),
        method=f"{found.method}; share of the latency: {b.bill_method}",
    )


def usable(before: Sequence[Measurement], b: Measurement) -> list[Measurement]:
    """Return what of the side before a time can be compared with, a session once.

    Where one was measured in the session of the side after, that one alone: it is paired.
    """
    own = [m for m in before if one_session(m, b)]
    fit = [m for m in own[:1] or before if unusable(m, b) is None]
    return list({m.session or id(m): m for m in fit}.values())


def _averaged(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (variance, degrees of freedom) of values as parts of their mean."""
    return [(variance / len(parts) ** 2, degrees) for variance, degrees in parts]


def sample_of(m: Measurement) -> Sample:
    """Return a measurement as a side of a contrast between sessions."""
    return Sample(blocks=blocks(m), calibrator=dict(m.calibrator_ns))


def blocks(m: Measurement) -> Blocks:
    """Return (process, round) → block median, ns; one block a process where none are recorded."""
    found: Blocks = {(process, round_): ns for process, round_, ns in m.blocks_ns}
    if not found:
        found = {(p, 0): float(median(calls)) for p, calls in enumerate(m.samples_ns) if calls}
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
    if estimate.n < 2:  # a binomial's; what varies between stretches is not in it: least freedom
        return (half / NORMAL_95 / value) ** 2, 1.0
    degrees = estimate.n - 1
    return (half / t_quantile(estimate.confidence, degrees) / value) ** 2, float(degrees)


def _device(before: Sequence[Measurement], b: Measurement) -> Contrast | None:
    kernels = [m.kernel_ns for m in (*before, b)]
    known = [e for e in kernels if e is not None and e.low > 0]
    if len(known) < len(kernels):
        return None
    variances = [_log_variance(e.value, (e.high - e.low) / 2, e) for e in known]
    parts = [*_averaged(variances[:-1]), variances[-1]]
    if not one_session(before[0], b):
        parts.append(((1 + 1 / len(before)) * DEVICE_SESSION_SD**2, math.inf))
    *old, new = (math.log(e.value) for e in known)
    return Contrast(
        value=new - fmean(old),
        spread=0.0,
        degrees=math.inf,
        scale=0.0,
        parts=tuple(parts),
        n=min(e.n for e in known),
        method="kernel time of the device, by call",
    )
