"""The answer in a sentence, and what to do about it, ranked by gain, each with its evidence.

Advice whose interval includes 1.0 is not given. ``measured`` gains were measured; ``predicted``
ones, a share of the bill that would go away, are given only where nothing of their kind was
measured; ``bound`` is the most that a change could give.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frameworktax.analysis.bill import TWIN, Bill
from frameworktax.analysis.curves import FREE, whole_ends
from frameworktax.analysis.estimates import (
    duration,
    inverse,
    one_minus,
    paired_ratio,
    percent,
    power,
    quotient,
    scaled,
    share_texts,
    times_at_most,
    times_range,
)
from frameworktax.analysis.where import where
from frameworktax.errors import counted
from frameworktax.records import (
    FLOOR,
    REFERENCE,
    Advice,
    Curve,
    Estimate,
    FamilyKey,
    Measurement,
    Note,
    Parity,
    device_of,
    point_name,
)
from frameworktax.stats import simultaneous, within_one_process

PACKING = 0.10
"""Share of latency spent packing weights above which advice is given."""
WORTH = 1.03
"""A gain below this is no advice: it costs more to act on than it gives."""
PREPACKING = ("torchscript-frozen", "inductor", "aot-inductor", "openvino", "onnxruntime")
"""Runtimes that pack weights once and not at every call."""
KEEP = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184"
"""glibc's settings that give no freed memory back to the system (mallopt(3))."""
ALLOCATOR = 0.08
"""Share of latency in malloc and the operating system above which advice is given."""
NOISIER = 3.0
"""Neighbouring batch sizes share a line of advice where the interval of neither is more than this
many times as wide, in logarithms, as the other's: a noisy one is a line of its own."""
SURE = 1.25
"""An interval whose ends are at most this factor apart is not noisy."""
VAGUE = 2.0
"""A bound that lies further above its value than by this factor says nothing."""
EMPTY = 10.0
"""Nor does one above this: hardly anything is in the way of what it bounds."""
ENQUEUED = "latency / host time"
"""How a bound by the host's time was found."""
KINDS = ("measured", "predicted", "bound")
UNDETERMINED = 0.2
"""Half-width of the interval of a tax share from which on the headline gives no number for it."""


def without(share: Estimate, method: str) -> Estimate | None:
    """Return L / (L − part) = 1 / (1 − share), the gain if that part of the latency went away.

    None where the interval of the share reaches 1 and the gain has no upper end.
    """
    if share.high >= 1:
        return None
    return replace(inverse(one_minus(share)), method=method)


def proven(parity: Parity | None) -> bool:
    """Return whether the outputs were compared with eager and found equal."""
    return parity is not None and parity.within_tolerance is True


def unranked(points: Sequence[Measurement]) -> list[Note]:
    """Return notes on runtimes, of one workload, that are faster than eager but not ranked."""
    eager = next((m for m in points if m.runtime == REFERENCE), None)
    others = [m for m in points if m.runtime not in (REFERENCE, FLOOR)]
    if eager is None or all(proven(m.parity) for m in others):
        return []
    compared = [(m, gain) for m in others if (gain := paired_ratio(eager, m)) is not None]
    gains = simultaneous([gain for _, gain in compared])
    return [
        Note(
            "not-ranked",
            f"{m.runtime} is {times_range(gain)} faster but not ranked "
            f"({point_name(m.point, runtime=False)}): {difference(m.parity)}",
        )
        for (m, _), gain in zip(compared, gains, strict=True)
        if not proven(m.parity) and gain.low > 1
    ]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use at some batch sizes.

    Attributes:
        batches: that have the same recommendation, ascending.
        runtimes: the fastest with equal outputs that is proven faster than eager, and others of
            the kind that no interval separates from it; empty where there is none.
        gain: of all of them over eager at these batches, from the lowest end of an interval to
            the highest; its value is the fastest one's at the smallest batch. The intervals of
            all runtimes compared at a batch hold together.
    """

    batches: tuple[int, ...]
    runtimes: tuple[str, ...]
    gain: Estimate | None


def recommend(family: Iterable[Measurement]) -> list[Recommendation]:
    """Return what to use at each batch size, neighbours with the same runtimes together.

    The points differ in runtime and batch alone. A batch size whose interval is far wider than its
    neighbour's stays alone, one at which nothing is compared with eager is left out.
    """
    by_batch: dict[int, list[Measurement]] = defaultdict(list)
    for m in family:
        if m.ratio_to_eager is not None and proven(m.parity):
            by_batch[m.workload.batch].append(m)
    found: list[Recommendation] = []
    last: Recommendation | None = None
    for batch in sorted(by_batch):
        one = _recommend_at(batch, by_batch[batch])
        alike = last is not None and set(last.runtimes) == set(one.runtimes)
        if last is None or not alike or not _is_as_sure(last.gain, one.gain):
            found.append(one)
        else:
            gain = found[-1].gain
            if gain is not None and one.gain is not None:
                low, high = min(gain.low, one.gain.low), max(gain.high, one.gain.high)
                gain = gain.at(gain.value, low, high)
            found[-1] = replace(found[-1], batches=(*found[-1].batches, batch), gain=gain)
        last = one
    return found


def _recommend_at(batch: int, compared: Sequence[Measurement]) -> Recommendation:
    over_eager = [inverse(m.ratio_to_eager) for m in compared if m.ratio_to_eager]
    gains = dict(zip((m.runtime for m in compared), simultaneous(over_eager), strict=True))
    order = sorted(compared, key=lambda m: -gains[m.runtime].value)
    faster = [m for m in order if gains[m.runtime].low > 1]
    if not faster:
        return Recommendation((batch,), (), None)
    best = faster[0]
    pairs = {m.runtime: r for m in faster[1:] if (r := paired_ratio(best, m)) is not None}
    every = math.comb(len(faster), 2)  # any two could have been the best and the worst
    together = zip(pairs, simultaneous(list(pairs.values()), every), strict=True)
    slower = {name for name, ratio in together if ratio.high < 1}
    runtimes = tuple(m.runtime for m in faster if m.runtime not in slower)
    gain = gains[best.runtime].at(
        gains[best.runtime].value,
        min(gains[name].low for name in runtimes),
        max(gains[name].high for name in runtimes),
    )
    return Recommendation((batch,), runtimes, gain)


def _is_as_sure(a: Estimate | None, b: Estimate | None) -> bool:
    """Return whether one line may say both: a noisy batch size would widen what others show."""
    if a is None or b is None:
        return True
    widths = [math.log(gain.high / gain.low) for gain in (a, b)]
    return max(widths) <= max(NOISIER * min(widths), math.log(SURE))


def either(runtimes: Sequence[str]) -> str:
    """Return ``openvino``, or ``onnxruntime or openvino (not separable)``; at most three names."""
    if len(runtimes) == 1:
        return runtimes[0]
    names = [*runtimes[:3], *([f"{len(runtimes) - 3} more"] if len(runtimes) > 3 else [])]
    return f"{', '.join(names[:-1])} or {names[-1]} (not separable)"


def difference(parity: Parity | None) -> str:
    """Return what the comparison of outputs found, in words."""
    if parity is None:
        return "outputs were not compared with eager"
    if parity.within_tolerance is None:
        return f"outputs prove nothing: {parity.reason}"
    found = parity.max_relative_difference
    if found is None:
        return f"outputs differ: {parity.reason}"
    if parity.within_tolerance:
        return "outputs equal" if found == 0 else f"outputs equal to {power(found)}"
    where = f" at {parity.worst}" if parity.worst else ""
    return (
        f"outputs differ by {found:.2g} of the largest{where}, tolerance {power(parity.tolerance)}"
    )


def advise(
    points: Sequence[Measurement], curves: Sequence[Curve], bills: Mapping[tuple[str, int], Bill]
) -> tuple[list[Advice], list[Note]]:
    """Return the advice for one family of points: measured gains, then predictions, then bounds.

    ``curves`` are theirs over batch; ``bills`` is runtime and batch → the bill, where there is one.
    """
    measured = [m for m in points if m.status == "ok"]
    if not measured:
        return [], []
    smallest = min(m.workload.batch for m in measured)
    at_first = [m for m in measured if m.workload.batch == smallest]
    found = recommend(measured)
    advice: list[Advice | None] = [_use(one, measured) for one in found]
    fastest = [one.runtimes[0] for one in found if one.gain and smallest in one.batches]
    best = next((m for m in at_first if m.runtime in fastest), None)
    reference = next((m for m in at_first if m.runtime == REFERENCE), None)
    for focus in (reference, best):
        if focus is None:
            continue
        same = [m for m in measured if m.runtime == focus.runtime]
        curve = next((c for c in curves if c.runtime == focus.runtime), None)
        advice += [_batch(focus, same, curve), *_kernels_and_tax(focus)]
        advice += [_packing(focus, at_first, bills), _allocator(same, bills), _place(focus)]
    kept = [a for a in advice if a is not None and a.gain.low > 1 and a.gain.value >= WORTH]
    return list(ranked(kept)), unranked(at_first)


def ranked(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Return advice by its kind, the largest gain first."""

    def order(one: Advice) -> tuple[int, float]:
        return KINDS.index(one.kind), -(one.gain.high if one.kind == "bound" else one.gain.value)

    return tuple(sorted(advice, key=order))


def _name(m: Measurement) -> str:
    return point_name(m.point, batch=False)


def _use(found: Recommendation, points: Sequence[Measurement]) -> Advice | None:
    """Return the recommendation for some batch sizes as advice."""
    if found.gain is None:
        return None
    fastest = found.runtimes[0], found.batches[0]
    m = next(m for m in points if (m.runtime, m.workload.batch) == fastest)
    batches = ", ".join(map(str, found.batches))
    first, last = found.batches[0], found.batches[-1]
    between = {m.workload.batch for m in points if first <= m.workload.batch <= last}
    if len(found.batches) > 2 and len(found.batches) == len(between):
        batches = f"{first} to {last}"
    return Advice(
        action=f"use {either(found.runtimes)} at batch {batches}",
        evidence=f"{point_name(m.point, runtime=False, batch=False)}: the fastest with outputs "
        f"equal to eager's, paired with it in every round; {difference(m.parity)}",
        gain=found.gain,
        kind="measured",
    )


def _batch(first: Measurement, same: Sequence[Measurement], curve: Curve | None) -> Advice | None:
    if curve is None or curve.free_batch is None:
        return None
    smallest = first.workload.batch
    within = [m for m in same if smallest < m.workload.batch <= curve.free_batch.low]
    largest = max(within, key=lambda m: m.workload.batch, default=None)
    ratio = paired_ratio(first, largest) if largest is not None else None
    if largest is None or ratio is None:
        return None
    n = largest.workload.batch
    return Advice(
        action=f"batch up to {n} with {first.runtime}: a call takes at most {percent(FREE)} longer",
        evidence=f"{_name(first)}: the interval of its latency over that of batch 1 ends within "
        f"{percent(FREE)}; the gain is per sample",
        gain=scaled(ratio, n / smallest),
        kind="measured",
    )


def _place(m: Measurement) -> Advice | None:
    """Return where in the model most of the tax arises, and the most that could be had there."""
    first = next(iter(where(m.layers)), None)
    if first is None or not first.source or m.latency_ns is None:
        return None
    share = scaled(first.tax_ns, 1 / m.latency_ns.value)
    gain = without(share, "place")
    if gain is None:
        return None
    name = f"{first.name or first.class_}{' by itself' if first.alone else ''}"
    mostly = f"mostly {first.line.replace('_', ' ')} ({first.source})"
    bound = f": without it a call would be at most {times_at_most(gain.high)} faster"
    return Advice(
        action=f"{name} pays {percent(first.share)} of the tax of {m.runtime} at batch "
        f"{m.workload.batch}, {mostly}{bound * (gain.high <= EMPTY)}",
        evidence=f"{_name(m)}: {percent(share.value)} of the latency, from a run in which every "
        "module reads the clock",
        gain=gain,
        kind="bound",
    )


def _without_kernels(m: Measurement) -> Estimate | None:
    """Return the gain if kernels took no time, the most that faster ones can give; None if unknown.

    What is left is the tax. On a device, where kernels run beside the host, it is the host's time
    at least, until the call returns: a call that has a span waits for nothing in between.
    """
    found = []
    if m.tax_share is not None and m.tax_share.low > 0:
        found.append(replace(inverse(m.tax_share), method="latency / tax"))
    if m.span_ns is not None and m.enqueue_ns is not None and m.latency_ns is not None:
        found.append(quotient(m.latency_ns, m.enqueue_ns, ENQUEUED))
    return min(found, key=lambda one: one.high, default=None)


def _kernels_and_tax(m: Measurement) -> Iterator[Advice]:
    """Yield what faster kernels, and no tax at all, could give at most, where that is known."""
    share = m.tax_share
    if share is None or m.bill_method == TWIN:
        return  # a twin's tax is a lower figure, so it bounds nothing
    gain = _without_kernels(m)
    if gain is not None and gain.high <= min(VAGUE * gain.value, EMPTY):
        left = f"{percent(share.value)} of the latency is outside kernels ({m.bill_method})"
        if gain.method == ENQUEUED:
            left = f"the host takes {percent(1 / gain.value)} of the latency to launch its work"
        yield Advice(
            action=f"{_faster_kernels(m, gain)} with {m.runtime} at batch {m.workload.batch}",
            evidence=f"{_name(m)}: {left}",
            gain=gain,
            kind="bound",
        )
    most = without(share, "latency / kernel time")
    if most is not None and most.high <= min(VAGUE * most.value, EMPTY):
        yield Advice(
            action="the same kernels without any framework tax would give at most "
            f"{times_at_most(most.high)} over {m.runtime} at batch {m.workload.batch}",
            evidence=f"{_name(m)}: kernels take {percent(1 - share.value)} of the latency; "
            "a larger gain needs other kernels",
            gain=most,
            kind="bound",
        )


def _faster_kernels(m: Measurement, gain: Estimate) -> str:
    cause = "faster math kernels" if device_of(m.platform) == "cpu" else "a faster device"
    return f"{cause} would give at most {times_at_most(gain.high)}"


def _allocator(same: Sequence[Measurement], bills: Mapping[tuple[str, int], Bill]) -> Advice | None:
    every = ((m, bills.get((m.runtime, m.workload.batch))) for m in same)
    found = [(m, bill.memory) for m, bill in every if bill is not None and bill.memory is not None]
    if not found:
        return None
    m, share = max(found, key=lambda item: item[1].value)
    gain = without(share, "latency without allocator and operating system")
    if gain is None or share.value < ALLOCATOR:
        return None
    faults = m.page_faults
    action = f"keep memory between calls of {m.runtime}: start it with {KEEP}, or preload jemalloc"
    costs = "page faults, system calls"
    if faults is not None and faults < 1:  # no memory comes anew, so no setting keeps any
        action = f"preload jemalloc with {m.runtime}: its malloc takes less for small blocks"
        costs = "under 1 page fault a call: memory is kept"
    elif faults is not None:
        costs = f"{faults:,.0f} page faults a call, system calls"
    return Advice(
        action=action,
        evidence=f"{_name(m)}: {percent(share.value)} of the time at batch {m.workload.batch} is "
        f"malloc and the operating system ({costs})",
        gain=gain,
        kind="bound",  # what of it small blocks cost, no setting takes away
    )


def _packing(
    m: Measurement, beside: Sequence[Measurement], bills: Mapping[tuple[str, int], Bill]
) -> Advice | None:
    if any(other.runtime in PREPACKING for other in beside):
        return None  # what prepacking gives was measured, and nothing is predicted beside it
    bill = bills.get((m.runtime, m.workload.batch))
    share = bill.packing if bill is not None else None
    if share is None or share.value < PACKING:
        return None
    gain = without(share, f"latency without the packing ({share.method})")
    if gain is None:
        return None
    return Advice(
        action=f"freeze and prepack the weights of {m.workload.model} "
        f"({', '.join(PREPACKING)}; none of them was measured)",
        evidence=f"{_name(m)}: {percent(share.value)} of the time at batch {m.workload.batch} goes "
        "into packing the same weights again at every call",
        gain=gain,
        kind="predicted",
    )


# --- the answer in a sentence ---------------------------------------------------------------------


def headline(
    measurements: Sequence[Measurement],
    curves: Sequence[Curve],
    crowded: Container[FamilyKey] = (),
) -> str:
    """Return what was found for the first model, and how many more there are.

    Of families that are ``crowded``, with more threads than processors, nothing is concluded.
    """
    real = [m for m in measurements if m.runtime != FLOOR]
    measured = [m for m in real if m.latency_ns is not None]
    if not measured:
        if any(m.blocks_ns for m in real):
            return "one block of each point is too little for an answer"
        floor = any(m.latency_ns is not None for m in measurements)
        alone = "only the harness itself was measured" if floor else "nothing was measured"
        return "nothing could be measured" if real else alone
    # one family: the points that differ from the first one in runtime and batch alone
    first = measured[0]
    keys = [m.family() for m in measured]
    family = [m for m, key in zip(measured, keys, strict=True) if key == keys[0]]
    smallest = min(m.workload.batch for m in family)
    at_first = [m for m in family if m.workload.batch == smallest]
    focus = next((m for m in at_first if m.runtime == REFERENCE), at_first[0])
    parts = [_tax(focus), _free(focus, curves), _fastest(at_first, smallest), _bound(focus)]
    if keys[0] in crowded:
        parts[1:] = ["more threads than processors"]
    place, known = first.platform, []
    if place == "cpu":
        place, known = "this machine", [counted(first.threads, "thread")]
    known += ["one process"] * within_one_process(first.latency_ns)
    place += f" ({', '.join(known)})" * bool(known)
    text = f"{first.workload.model} on {place}: " + "; ".join(part for part in parts if part)
    others = len(set(keys)) - 1
    return text + (f" (and {others} more below)" if others else "")


def _tax(m: Measurement) -> str:
    where = f"at batch {m.workload.batch}"
    if m.tax_share is None:
        latency = m.latency_ns
        slow = duration(latency.value if latency is not None else math.nan)
        if latency is not None and latency.low < latency.high:
            slow += f" ({duration(latency.low)} to {duration(latency.high)})"
        return f"{m.runtime} takes {slow} {where}"
    if not determined(m.tax_share):
        low, high = 100 * m.tax_share.low, 100 * m.tax_share.high
        return f"the tax of {m.runtime} {where} is not determined ({low:.0f} to {high:.0f} %)"
    value, half = share_texts(m.tax_share)
    share = f"{value} ±{half} %" if half else f"{value} %"
    if m.bill_method == TWIN:
        return f"{m.runtime} has {share} warm overhead {where}"
    return f"{m.runtime} pays {share} framework tax {where}"


def determined(share: Estimate) -> bool:
    """Return whether a tax share is known well enough to be named as a number."""
    return (share.high - share.low) / 2 < UNDETERMINED


def _free(m: Measurement, curves: Sequence[Curve]) -> str:
    own = (c for c in curves if (c.model, c.runtime) == (m.workload.model, m.runtime))
    # a curve does not name length, width or threads
    curve = next((c for c in own if m.latency_ns in c.latency_ns), None)
    if curve is None or curve.free_batch is None:
        return ""
    low, high = whole_ends(curve.free_batch)
    if low < high and not curve.free_is_lower_bound:
        return f"the largest free batch is between {low} and {high}"
    if low > 1:
        return f"batch {low} is free"
    unknown = "the largest free batch is not determined"
    return unknown if curve.free_is_lower_bound else "no larger batch is free"


def _fastest(at_first: Sequence[Measurement], smallest: int) -> str:
    best = next(iter(recommend(at_first)), None)
    if best is None:
        return ""
    if best.gain is None:
        return f"no other runtime is proven faster at batch {smallest}"
    return f"{either(best.runtimes)} is {times_range(best.gain)} faster at batch {smallest}"


def _bound(m: Measurement) -> str:
    if m.tax_share is None or not determined(m.tax_share) or m.bill_method == TWIN:
        return ""  # the latter as in ``_kernels_and_tax``
    gain = _without_kernels(m)
    return "" if gain is None or gain.high > EMPTY else _faster_kernels(m, gain)
