"""Arithmetic of estimates: what a product, a share or a median of measured values is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul, sub
from statistics import median

from frameworktax.records import Estimate, Measurement
from frameworktax.stats import NORMAL_95, mean_interval, ratio_interval


def exactly(value: float, method: str) -> Estimate:
    """Return a single value: it has no interval."""
    return Estimate(value=value, low=value, high=value, method=method, n=1)


def product(a: Estimate, b: Estimate, method: str) -> Estimate:
    """Return a × b for independent a and b; half-widths are √((b·δa)² + (a·δb)²), each side."""
    return propagate(mul, method, a, b)


def difference(a: Estimate, b: Estimate, method: str) -> Estimate:
    """Return a − b, signed, for independent a and b; half-widths add in squares."""
    return propagate(sub, method, a, b)


def quotient(a: Estimate, b: Estimate, method: str) -> Estimate:
    """Return a / b for independent a and b > 0; half-widths √((δa/b)² + (a·δb/b²)²), each side."""
    value = a.value / b.value
    down = math.hypot((a.value - a.low) / b.value, value * (b.high - b.value) / b.value)
    up = math.hypot((a.high - a.value) / b.value, value * (b.value - b.low) / b.value)
    return around(value, down, up, method, a, b)


def paired_ratio(a: Measurement, b: Measurement) -> Estimate | None:
    """Return latency of a / latency of b, paired by round; None where they share no rounds."""
    if a.session is None or a.session != b.session:
        return None  # blocks of two sessions are not pairs
    first, second = ({(p, r): float(ns) for p, r, ns in m.blocks_ns} for m in (a, b))
    return ratio_interval(first, second)


def around(value: float, down: float, up: float, method: str, *inputs: Estimate) -> Estimate:
    """Return what follows from inputs: a value with its half-widths."""
    low, high, n = value - down, value + up, min(e.n for e in inputs)
    confidence = min(e.confidence for e in inputs)
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method, n=n)


def one_minus(share: Estimate) -> Estimate:
    """Return 1 − share, its ends exchanged."""
    return share.at(1 - share.value, 1 - share.high, 1 - share.low)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate times a constant; one below zero exchanges its ends."""
    low, high = sorted((estimate.low * factor, estimate.high * factor))
    return estimate.at(estimate.value * factor, low, high)


def shifted(estimate: Estimate, by: float) -> Estimate:
    """Return the estimate plus a constant."""
    return estimate.at(estimate.value + by, estimate.low + by, estimate.high + by)


def inverse(ratio: Estimate) -> Estimate:
    """Return 1 / ratio, its ends exchanged."""
    return ratio.at(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)


def propagate(function: Callable[..., float], method: str, *inputs: Estimate) -> Estimate:
    """Return ``function`` of independent estimates: half-widths add in squares, each side.

    One input is moved to either of its ends at a time.
    """
    values = [e.value for e in inputs]
    value = function(*values)
    down = up = 0.0
    for i, estimate in enumerate(inputs):
        # where the function turns, both ends may lie on one side: the other then ends at the value
        ends = (estimate.low, estimate.high)
        reached = [value, *(function(*values[:i], end, *values[i + 1 :]) for end in ends)]
        down = math.hypot(down, value - min(reached))
        up = math.hypot(up, max(reached) - value)
    return around(value, down, up, method, *inputs)


RULE_OF_THREE = 3.0
"""Events that may have been due where none was seen, at 95 % (Hanley and Lippman-Hand 1983)."""


def share_interval(parts: Sequence[int], totals: Sequence[int], method: str) -> Estimate:
    """Return a bucket's share of samples: Student t over stretches, pooled counts as its value.

    Counts of few stretches can be alike by chance: no interval is narrower than the standard error
    of a binomial to each side. One stretch alone gives the interval of a binomial, which leaves out
    whatever varies between stretches, and says so in the method. Where all samples or none are of
    the bucket, the interval reaches 3 / samples to each side (rule of three). So it does beyond:
    samples in the operating system can be a difference of two counts, which is below zero at times.
    """
    count = sum(totals)
    value = sum(parts) / count
    found = mean_interval([p / t for p, t in zip(parts, totals, strict=True) if t > 0], method)
    if found is None:
        return counted_share(value, count, None, f"{method}, binomial", 1)
    return counted_share(value, count, (found.high - found.low) / 2, method, found.n)


def counted_share(value: float, count: int, half: float | None, method: str, n: int) -> Estimate:
    """Return a share of so many samples, whose spread over ``n`` stretches says ``half``, or None.

    As in ``share_interval`` no interval is narrower than that many samples allow.
    """
    error = math.sqrt(max(0.0, value * (1 - value)) / count)
    half = NORMAL_95 * error if half is None else max(error, half)
    half = half or RULE_OF_THREE / count
    return Estimate(value=value, low=value - half, high=value + half, method=method, n=n)


def median_interval(values: Sequence[float], method: str) -> Estimate | None:
    """Return the median between two order statistics (0.95, exact for any distribution).

    None below six values, where no pair of order statistics covers 0.95.
    """
    n = len(values)
    if n < 6:
        return None
    from scipy.special import bdtrik  # 0.1 s of import, needed only once something is measured

    ordered = sorted(values)
    rank = math.floor(bdtrik(0.025, n, 0.5))  # of n fair coins so few or fewer are heads
    return Estimate(
        value=median(ordered), low=ordered[rank], high=ordered[n - 1 - rank], method=method, n=n
    )


def duration(ns: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * size:  # 999.6 µs is 1 ms in three digits
            return (
                f"{ns / size:.0f} {unit}" if abs(ns) >= 999.5 * size else f"{ns / size:.3g} {unit}"
            )
    return f"{ns:.0f} ns"


def at_most(value: float, digits: int) -> str:
    """Return an upper bound with so many decimals, rounded up: the text is a bound as well."""
    size = 10.0**digits
    return f"{math.ceil(round(value * size, 6)) / size:.{digits}f}"  # 1.1 is not 1.1 + 2e-17


def times_at_most(factor: float) -> str:
    """Return an upper bound of a factor on latency as text, rounded up: ``1.9 ×``, ``1.05 ×``."""
    return f"{at_most(factor, 2 if factor < 1.2 else 1)} ×"


def times_range(factor: Estimate) -> str:
    """Return the interval of a factor as text: ``2.9 to 12 ×``; once where both ends read alike."""
    digits = 2 if factor.low < 1.2 else 1
    low, high = (
        f"{end:.0f}" if end >= 9.95 else f"{end:.{digits}f}" for end in (factor.low, factor.high)
    )
    return f"{low} ×" if low == high else f"{low} to {high} ×"


def percent(share: float | None) -> str:
    """Return a share as whole per cent; a dash for None."""
    return "–" if share is None else f"{round(100 * share)} %"  # -0.3 % is 0 %, and not -0 %


def power(value: float) -> str:
    """Return a number of any size with one digit, ``5e-7``."""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def share_texts(share: Estimate) -> tuple[str, str]:
    """Return a share and half of its interval in per cent, with the digits that it has.

    ``59`` and ``2``, ``0.42`` and ``0.03``; no half where there is no interval. Of one that reaches
    further to one side it is that side.
    """
    half = 100 * max(share.high - share.value, share.value - share.low)
    if half == 0:
        return f"{100 * share.value:.0f}", ""
    digits = 0 if half >= 0.95 else 1 if half >= 0.095 else 2
    return f"{100 * share.value:.{digits}f}", f"{half:.{digits}f}"
