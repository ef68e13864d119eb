"""Who is left after the heats, who wins the final, and why each of the others lost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frameworktax import runtimes
from frameworktax.analysis.advice import difference, proven
from frameworktax.analysis.estimates import inverse, paired_ratio
from frameworktax.records import Estimate, Measurement, Run, Workload
from frameworktax.report.words import duration, factor, size_text
from frameworktax.runtimes.base import LOWER, SERIAL, Target
from frameworktax.stats import simultaneous

AIMS = ("latency", "throughput", "memory", "startup")
"""What a race may be for; whatever it is, what is not proven faster than eager is not delivered."""
FINALISTS = 3
"""Most runtimes of a shape that are measured finely."""
TIE = 0.02
"""Share by which a winner may be slower than the best: what is proven nearer may be a tie."""
BEHIND = 0.8
"""A runtime with less than this share of the best gain leaves after the heats, unless its interval
reaches the best one's: one process can be off by several percent, not by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One runtime at one shape.

    Attributes:
        workload: model, length and batch.
        runtime: with its option.
        measured: in all stages that it was in, called as a deployment calls it unless the race
            is one of ``LIGHT``; None where it was in none.
        gain: over eager; above 1 is faster.
        start_ns: from nothing loaded to the end of the first call, the median of its processes.
        reason: why it lost; empty while it has not.
        won: whether it is delivered.
        is_reserve: whether it lost by its speed alone: it comes back where everything that was
            faster fails its proof.
    """

    workload: Workload
    runtime: str
    measured: Measurement | None = None
    gain: Estimate | None = None
    start_ns: float | None = None
    reason: str = ""
    won: bool = False
    is_reserve: bool = False

    @property
    def pair(self) -> tuple[Workload, str]:
        """Which it is: shape and runtime."""
        return self.workload, self.runtime

    @property
    def is_in(self) -> bool:
        """Whether it may still win."""
        return not self.reason

    def out(self, reason: str) -> Candidate:
        """Return it with why it lost."""
        return replace(self, reason=reason, won=False, is_reserve=False)

    def slower(self, reason: str) -> Candidate:
        """Return it with why it lost, by its speed alone."""
        is_faster_than_eager = self.gain is not None and self.gain.low > 1
        return replace(self.out(reason), is_reserve=is_faster_than_eager)


def candidates(
    pairs: Iterable[tuple[Workload, str]], run: Run, starts: Mapping[str, float]
) -> list[Candidate]:
    """Return runtimes at shapes as they were measured, each with its gain or why it is out.

    ``starts`` has the ns until the end of a first call, by the point's key.
    """
    found = {(m.workload, runtimes.without_deployed(m.runtime)): m for m in run.measurements}
    return [candidate(*pair, found.get(pair), starts) for pair in pairs]


def candidate(
    workload: Workload, runtime: str, m: Measurement | None, starts: Mapping[str, float]
) -> Candidate:
    """Return a runtime at a shape as it was measured, with its gain or why it is out."""
    start_ns = starts.get(m.point.key()) if m is not None else None
    one = Candidate(workload=workload, runtime=runtime, measured=m, start_ns=start_ns)
    if m is None:
        return one.out("not reached in the time for measuring; give a longer --time-budget")
    if m.status != "ok":
        return one.out(f"{m.status}: {m.reason or 'no reason was recorded'}")
    if not proven(m.parity):
        return one.out(difference(m.parity))
    for note in m.notes:
        if note.code in ("precision-differs", "values-fixed"):
            return one.out(note.text)
    if m.ratio_to_eager is None:
        return one.out("too few blocks to compare it with eager; give a longer --time-budget")
    return replace(one, gain=inverse(m.ratio_to_eager))


def after_heats(found: Iterable[Candidate], aim: str = "latency") -> list[Candidate]:
    """Return the candidates of the heats; those that are too slow for the final are out."""
    judged = []
    ahead_at: dict[Workload, list[Candidate]] = defaultdict(list)  # theirs are places in the final
    for one in sorted(found, key=lambda one: _cost(one, aim)):
        ahead = ahead_at[one.workload]
        gain, best = one.gain, ahead[0].gain if ahead else one.gain
        if gain is None or best is None:
            judged.append(one)
        elif gain.high <= 1:
            judged.append(one.out(f"slower than eager in the heats: {factor(gain)}"))
        elif len(ahead) == FINALISTS or (
            aim == "latency" and gain.value < BEHIND * best.value and gain.high < best.low
        ):
            lead = f"{ahead[0].runtime} {_shown(ahead[0], aim)}"
            judged.append(one.slower(f"left after the heats: {_shown(one, aim)}, {lead}"))
        else:
            judged.append(one)
            ahead.append(one)
    return judged


def after_final(found: Iterable[Candidate], aim: str = "latency") -> list[Candidate]:
    """Return the candidates of the final; those proven slower than the best are out.

    So are those no faster than eager. One that is faster and not proven so stays: what is delivered
    is proven again, beside eager alone, which takes less time.
    """
    judged = []
    for group in by_shape(found).values():
        order = _in_order(group, aim)
        over = _over(order) if aim == "latency" else {}
        for one in group:
            ratio = over.get(one.runtime)
            if one.gain is not None and one.is_in and one.gain.value <= 1:
                one = one.out(f"not faster than eager: {factor(one.gain)}")
            elif one.is_in and ratio is not None and ratio.low > 1:
                one = one.slower(f"takes {factor(ratio)} as long as {order[0].runtime}")
            judged.append(one)
    return judged


def undecided(found: Iterable[Candidate]) -> list[tuple[Workload, str]]:
    """Return what is left at shapes where one may be faster than the best by more than ``TIE``."""
    pairs = []
    for group in by_shape(found).values():
        order = _in_order(group)
        if any(ratio.low < 1 - TIE for ratio in _over(order).values()):
            pairs += [one.pair for one in order]
    return pairs


def as_delivered(found: Iterable[Candidate], delivered: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates, with their gain as delivered where that is proven to be less.

    Reserves that gained more than that in the race are back in.
    """
    here = {one.pair: one for one in delivered}
    less, left = {}, []
    for one in found:
        now = here.get(one.pair)
        if now and now.gain and one.gain and now.gain.high < one.gain.low:
            one = replace(one, gain=now.gain, measured=now.measured)
            less[one.workload] = now.gain.high
        left.append(one)
    return [
        replace(one, reason="", is_reserve=False)
        if one.is_reserve and one.gain and one.gain.low > less.get(one.workload, math.inf)
        else one
        for one in left
    ]


def after_proof(
    found: Iterable[Candidate], failures: Mapping[tuple[Workload, str], str]
) -> list[Candidate]:
    """Return the candidates after some failed as delivered, each for the reason given.

    At their shapes those that the race has not proven faster than eager are out with them, and
    where no other is left the reserves are back in.
    """
    failed = {workload for workload, _ in failures}
    left = []
    for one in found:
        why, gain = failures.get(one.pair), one.gain
        if why is None and one.workload in failed and one.is_in and gain and gain.low <= 1:
            why = f"not proven faster than eager: {factor(gain)}"
        left.append(one.out(why) if why else one)
    return [
        replace(one, reason="") if one.is_reserve and not any(o.is_in for o in group) else one
        for group in by_shape(left).values()
        for one in group
    ]


def decide(found: Iterable[Candidate], aim: str = "latency") -> list[Candidate]:
    """Return the candidates with one winner at each shape that has any left.

    The best one at the aim wins. Of those proven to be within ``TIE`` of it that no interval
    separates from it the simplest does: the one that needs fewest packages beyond those that other
    shapes need anyway, then the smallest artifact, then the fastest start.
    """
    order = sorted(found, key=lambda one: (one.workload.length or 0, one.workload.batch))
    groups = by_shape(order)
    tied = {workload: _tied(group, aim) for workload, group in groups.items()}
    winners = {workload: ones[0] for workload, ones in tied.items() if len(ones) == 1}
    needed = {name for one in winners.values() for name in _packages(one.runtime)}
    for workload, ones in tied.items():
        if len(ones) > 1:
            winners[workload] = min(ones, key=lambda one: _complexity(one, needed))
            needed |= _packages(winners[workload].runtime)
    return [
        _judged(one, winners.get(workload), tied[workload], aim)
        for workload, group in groups.items()
        for one in sorted(group, key=lambda one: _cost(one, aim))
    ]


def _in_order(group: Iterable[Candidate], aim: str = "latency") -> list[Candidate]:
    """Return those that are left, the best first."""
    return sorted((one for one in group if one.is_in), key=lambda one: _cost(one, aim))


def _over(order: Sequence[Candidate]) -> dict[str, Estimate]:
    """Return runtime → its latency over that of the first; the intervals hold together."""
    best = order[0].measured if order else None
    ratios = {
        one.runtime: ratio
        for one in order[1:]
        if best and one.measured and (ratio := paired_ratio(one.measured, best))
    }
    return dict(zip(ratios, simultaneous(list(ratios.values())), strict=True))


def _tied(group: Iterable[Candidate], aim: str) -> list[Candidate]:
    """Return the best that is left, and those that are as good."""
    order = _in_order(group, aim)
    if aim != "latency":
        return [one for one in order if _cost(one, aim) * (1 - TIE) <= _cost(order[0], aim)]
    over = _over(order)
    near = {name for name, ratio in over.items() if ratio.low <= 1 and ratio.high <= 1 + TIE}
    return [one for one in order if one is order[0] or one.runtime in near]


def _judged(
    one: Candidate, winner: Candidate | None, tied: Collection[Candidate], aim: str
) -> Candidate:
    if not one.is_in or winner is None:
        return one
    if one is winner:
        return replace(one, won=True)
    if one in tied:
        return one.out(f"as good as {winner.runtime}, which is simpler (not separable)")
    ratio = _over([winner, one]).get(one.runtime) if aim == "latency" else None
    if ratio is None or ratio.low <= 1:  # what decided is the gain
        return one.out(f"{_shown(one, aim)}, {winner.runtime} {_shown(winner, aim)}")
    return one.out(f"takes {factor(ratio)} as long as {winner.runtime}")


def by_shape(found: Iterable[Candidate]) -> dict[Workload, list[Candidate]]:
    """Return the candidates of each shape, in their order."""
    groups: dict[Workload, list[Candidate]] = {}
    for one in found:
        groups.setdefault(one.workload, []).append(one)
    return groups


def with_tunings(
    pairs: Iterable[tuple[Workload, str]], target: Target, allowed: Collection[str] = ()
) -> list[tuple[Workload, str]]:
    """Return what is measured finely: runtimes at shapes, and the tunings of each.

    One thread need not be tried where all have one; of lower precisions the allowed ones are.
    """
    found = []
    for workload, runtime in pairs:
        found.append((workload, runtime))
        known = runtimes.get(runtime)
        options = [option for option in known.tunings if target.threads > 1 or option != SERIAL]
        options += [option for option in LOWER if option in allowed and option in known.options]
        names = [f"{runtime}@{option}" for option in options if not known.option]
        found += [(workload, n) for n in names if runtimes.get(n).cannot(workload) is None]
    return found


def _cost(one: Candidate, aim: str) -> float:
    """Return what is to be small; infinite where it was not measured."""
    m = one.measured
    found: float | None = None
    if aim == "startup":
        found = one.start_ns
    elif m is not None and aim == "memory":
        found = m.peak_memory_bytes
    elif m is not None and aim == "throughput":
        found = m.pipelined_ns.value if m.pipelined_ns is not None else None
    elif one.gain is not None:
        found = 1 / one.gain.value
    return math.inf if found is None else found


def _shown(one: Candidate, aim: str) -> str:
    """Return what the race is for, in words."""
    cost = _cost(one, aim)
    if one.gain is None or math.isinf(cost):
        return f"{aim} not measured"
    if aim == "memory":
        return f"needs {size_text(int(cost))}"
    if aim == "startup":
        return f"starts in {duration(cost)}"
    if aim == "throughput":
        return f"{1e9 * one.workload.batch / cost:.4g} samples/s"
    return f"gained {factor(one.gain)}"


def _packages(runtime: str) -> set[str]:
    return set(runtimes.get(runtime).serves_with)


def _complexity(one: Candidate, needed: Collection[str]) -> tuple[int, float, float, str]:
    size = one.measured.artifact_bytes if one.measured is not None else None
    further = _packages(one.runtime) - set(needed)
    unknown = math.inf
    start_ns = unknown if one.start_ns is None else one.start_ns
    return len(further), unknown if size is None else size, start_ns, one.runtime
