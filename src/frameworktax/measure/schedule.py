"""What is measured next, and when a point is done; nothing here measures.

Coverage comes before precision. Pass A gives every point a first value from one process, pass B the
second and third process, pass C rounds to the widest intervals. ``rounds`` carries them out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from frameworktax.measure import timing
from frameworktax.measure.plan import Plan
from frameworktax.measure.series import PointRun, Series
from frameworktax.records import BY, By, Workload
from frameworktax.stats import MIN_BLOCKS, NORMAL_95, process_interval, relative_half_width, spread

FIRST_ROUNDS = 2
"""Rounds of a point before any is made for precision: one block has no interval."""
DISAGREE = 0.15
"""By how much one of two blocks is the longer one where it was disturbed: two blocks of a process
that is left alone differ by a few per cent."""
MAX_BLOCKS, BLOCKS_EACH = 30, 10
"""Most blocks of a point, where processes are few, and of each of its processes."""
TAX_UNTIL = 0.1
"""Half-width of the tax share up to which a point needs no more rounds for it: 10 points. From 20
on the headline calls a tax not determined."""
OUTPUT_CALLS = 2
"""Calls whose outputs are compared with eager's."""
SAMPLE_NS = 50_000_000
"""A sample beside a block, one call at least: about 1,350 samples a second."""
PLACE_NS = (150_000_000, 1_000_000_000)
"""Shortest and longest sampling by place of one point in one process, 2,000 samples a second."""
PLACE_CALLS = 4
"""Calls that it takes at least: one to look whether modules are called, three are sampled."""
UNASKED_NS, UNASKED_SHARE = 1_000_000_000, 0.05
"""What breaking down by module may take, and of the time budget, where it was not asked for."""
DEVICE_S = 1.0
"""What asking a device about one point takes: calls under load, a profile, spans."""
DEVICE_FIRST_S = 5.0
"""What the first profile of a process takes more: CUPTI starts. 4.8 s and then 0.2 s on an H100."""
OF_MEDIAN = math.pi / 2
"""Variance of the median of n blocks, at large, over their variance / n."""
WORTH = 0.1
"""As many rounds again are made where they narrow intervals by this share."""

Points = list[tuple[Series, int]]
"""Series and batch sizes."""
Runs = list[PointRun]
Group = tuple[Workload, bool]
"""Points that are compared with one another: a workload in every runtime, twins included."""


def group_of(series: Series, batch: int) -> Group:
    """Return what a point is compared within; the floor is alone."""
    return replace(series.points[batch].workload, twin=False), series.is_floor


def call_ns(series: Series, batch: int) -> int:
    """Return what a call takes, as in a smaller batch size for each sample; 0 if none is known."""
    known = max((one for one in series.call_ns if one <= batch), default=0)
    return int(series.call_ns[known] * batch / known) if known else 0


def warm_up_s(series: Series, batch: int, process: int = 0) -> float:
    """Return what warming up a point takes."""
    one_ns = call_ns(series, batch)
    is_warm = (batch, process) in series.bound
    return 0.0 if is_warm else (1 + timing.warm_up_calls(one_ns)) * one_ns / 1e9


def cost_s(series: Series, batch: int, process: int = 0) -> float:
    """Return what a point takes, from smaller ones: warm-up, outputs, rounds, asking a device."""
    one_ns = call_ns(series, batch)
    if not one_ns:
        return 0.0
    is_compared = series.timed and series.is_compared and not process
    outputs_s = OUTPUT_CALLS * one_ns / 1e9 if is_compared else 0.0
    asking_s = 0.0
    if series.target.is_cuda and not process and not series.is_twin:
        is_first = batch == min(series.points)
        asking_s = DEVICE_S + (DEVICE_FIRST_S if is_first else 0.0)
    rounds_s = FIRST_ROUNDS * round_s(one_ns)
    return warm_up_s(series, batch, process) + outputs_s + rounds_s + asking_s


def round_s(call_ns: int) -> float:
    """Return what a block and the sample beside it take."""
    return (timing.block_ns(call_ns) + max(SAMPLE_NS, call_ns)) / 1e9


def rounds_s(runs: Runs) -> float:
    """Return what a round of points in processes takes."""
    return sum(round_s(run.call_ns) for run in runs)


# --- pass A ---------------------------------------------------------------------------------------


def waiting(everything: Iterable[Series]) -> Points:
    """Return the points that are ready to be measured and have no value yet."""
    return [
        (series, batch)
        for series in everything
        if series.is_usable and series.timed
        for batch in sorted(series.open - series.failed)
    ]


def after_eager(found: Points, everything: Iterable[Series]) -> Points:
    """Return those of the points whose eager is not still being set up.

    Measuring the others first would stop that set-up, and they would be measured without eager.
    """
    expected = {
        series.config
        for series in everything
        if series.is_eager and series.timed and not series.ready and series.dead is None
    }
    return [point for point in found if point[0].reference not in expected]


def next_visit(ready: Points, left_s: float, joined_s: float = 0.0) -> Points:
    """Return what is measured side by side next: the cheapest point, and what is compared with it.

    No runtime comes before eager at the same batch size, where eager is ready; twins come after
    everything that was asked for.

    Args:
        ready: see ``waiting``.
        left_s: of the time budget; what takes longer is not begun.
        joined_s: further groups are measured in the same rounds as long as they take no longer.
    """
    ready = [point for point in ready if cost_s(*point) <= left_s]
    ready = [point for point in ready if not point[0].is_twin] or ready
    cheapest: dict[Group, float] = defaultdict(lambda: math.inf)
    together: dict[Group, Points] = defaultdict(list)
    for point in ready:
        group = group_of(*point)
        together[group].append(point)
        cheapest[group] = min(cheapest[group], cost_s(*point))
    chosen: Points = []
    for group in sorted(together, key=lambda group: (cheapest[group], group[0].batch)):
        found = sorted(
            together[group], key=lambda point: (not point[0].is_eager, cost_s(*point), point[1])
        )
        if chosen and sum(cost_s(*point) for point in [*chosen, *found]) > min(joined_s, left_s):
            break
        chosen += found
    return chosen


def next_try(ready: Points, left_s: float) -> Points:
    """Return the cheapest point, if any, that can be warmed up, to see what it takes.

    It was not begun because of what it would take, by a smaller batch size; it may take less.
    """
    able = [one for one in ready if not one[0].is_twin and 0 < warm_up_s(*one) <= left_s]
    return sorted(able, key=lambda one: (not one[0].is_eager, warm_up_s(*one)))[:1]


def first_rounds(ready: Points, processes: int, left_s: float) -> int:
    """Return how many rounds pass A makes: one where pass B is certain to follow it.

    It is where all of both, for what is ready, takes no more than half of what is left.
    """
    whole_s = sum(cost_s(series, batch) * series.processes(processes) for series, batch in ready)
    return 1 if processes > 1 and whole_s < left_s / 2 else FIRST_ROUNDS


def affordable(
    wide: Mapping[Series, Sequence[int]], processes: Sequence[int], left_s: float
) -> dict[Series, list[int]]:
    """Return what there is time for of what is to be measured in further processes.

    What is compared stays together. The cheapest comes first, in all of them, for a large batch
    size takes hundreds of times as long as the smallest; the last may have time in one alone.

    Args:
        wide: batch sizes by series; see ``Rounds.wide``.
        processes: that are to be begun.
        left_s: of the time for precision.
    """
    together: dict[Group, Points] = defaultdict(list)
    for series, batches in wide.items():
        for batch in batches:
            together[group_of(series, batch)].append((series, batch))
    groups = together.values()
    each = [(sum(cost_s(*one, processes[0]) for one in group), group) for group in groups]
    found: dict[Series, list[int]] = defaultdict(list)
    for group_s, group in sorted(each, key=lambda one: one[0]):
        if group_s > left_s:
            break
        left_s -= group_s * len(processes)
        for series, batch in group:
            found[series].append(batch)
    return found


# --- the run by place --------------------------------------------------------------------------


def by_place(plan: Plan, everything: Iterable[Series]) -> list[tuple[Series, int, By, int]]:
    """Return what is broken down by place: series, batch, by what, ns of sampling in all processes.

    What was asked for, at every point. By module also where that was not asked for: at the
    smallest batch sizes, for ``UNASKED_NS`` in all or the share ``UNASKED_SHARE`` of the budget.
    """
    able = [
        (series, batch)
        for series in everything
        if series.timed and series.is_compared
        for batch in sorted(series.points)
    ]
    if plan.by != "auto":
        kinds = [by for by in BY if by in ("module", plan.by) and plan.by != "none"]
        return [
            (series, batch, by, plan.processes * PLACE_NS[1])
            for series, batch in able
            for by in kinds
            if by in series.runtime.places_on(series.target)
        ]
    able = [one for one in able if "module" in one[0].runtime.places_on(one[0].target)]
    able.sort(key=lambda one: one[1])
    allowed_ns = min(UNASKED_NS, round(UNASKED_SHARE * plan.budget_s * 1e9))
    able = able[: allowed_ns // (plan.processes * PLACE_NS[0])]
    return [(series, batch, "module", allowed_ns // len(able)) for series, batch in able]


def placed_in(runs: Runs, ns: int, processes: int) -> tuple[Runs, int]:
    """Return in which processes places are sampled, and for how long in each, ns.

    In as many as the time allows, for intervals are of what processes differ by; on a device in
    one.

    Args:
        runs: of one point, in the processes that live.
        ns: of sampling in all processes.
        processes: of the plan; some of them may have ended, or be still to come.
    """
    is_cuda = any(run.series.target.is_cuda for run in runs)
    chosen = runs[: 1 if is_cuda else max(processes, ns // PLACE_NS[0])]
    return chosen, ns // max(processes, len(chosen))


# --- passes B and C -------------------------------------------------------------------------------


def behind(number: int, group: Runs) -> Runs:
    """Return the runs of a group that the first rounds of every process are still for.

    Those of a process in which any of them has no more than ``number`` blocks: what is compared
    stays side by side. What only one process measures takes part in each round, where others do.
    """
    late = {run.process for run in group if len(run.medians) <= number}
    more = {run.series for run in group if run.process}
    return [run for run in group if late and (run.process in late or run.series not in more)]


def unsettled(group: Runs) -> Runs:
    """Return the runs of a group in those processes in which two blocks of a point disagree."""
    disturbed = {
        run.process
        for run in group
        if len(run.medians) == FIRST_ROUNDS and run.series.is_compared
        if max(run.medians) > (1 + DISAGREE) * min(run.medians)
    }
    return [run for run in group if run.process in disturbed]


def has_converged(medians: Sequence[Sequence[float]], until: float) -> bool:
    """Return whether a point is known as well as was asked for, or has all its blocks."""
    return _has_all(medians) or is_narrow(medians, until)


def _has_all(medians: Sequence[Sequence[float]]) -> bool:
    return sum(map(len, medians)) >= max(MAX_BLOCKS, BLOCKS_EACH * len(medians))


def is_narrow(medians: Sequence[Sequence[float]], until: float) -> bool:
    """Return whether a point is known as well as was asked for.

    Three processes agree by chance now and then, and an interval of rounds that end as soon as they
    do is too narrow. So what the blocks' own spread leaves of a latency has to be as small, too.

    Args:
        medians: for each process its block medians.
        until: half-width that was asked for, as a share.
    """
    count = sum(map(len, medians))
    if count < MIN_BLOCKS:
        return False
    _, within = spread(medians)
    noise = NORMAL_95 * (within or 0.0) * math.sqrt(OF_MEDIAN / count)
    return max(relative_half_width(process_interval(medians)), noise) <= until


def has_tax(medians: Sequence[Sequence[float]], shares: Sequence[Sequence[float]]) -> bool:
    """Return whether a point's tax is known to ``TAX_UNTIL``, not sampled, or has all its blocks.

    Args:
        medians: for each process its block medians.
        shares: for each process the kernel share of each of its samples.
    """
    if not any(shares) or _has_all(medians):
        return True
    found = process_interval(shares)
    return found is not None and (found.high - found.low) / 2 <= TAX_UNTIL


def processes_differ(points: Sequence[Sequence[Sequence[float]]]) -> bool:
    """Return whether the spread between processes leaves more rounds little to improve.

    A process median over n blocks carries the blocks' variance times about pi / (2 n), a share x
    of the variance between process medians: twice as many rounds narrow an interval to
    √(1 − x / 2) of its width. Three processes say little about a variance, so the middle one of
    all points that are compared with one another decides, each x times the median of chi² over
    its degrees of freedom.

    Source of that median: Wilson and Hilferty, The distribution of chi-square, 1931.

    Args:
        points: for each point and process the block medians.
    """
    shares = []
    for medians in points:
        between, within = spread(medians)
        if not between or within is None or sum(map(len, medians)) < MIN_BLOCKS:
            return False
        blocks = min(len(one) for one in medians if one)
        middle = (1 - 2 / (9 * (len(medians) - 1))) ** 3
        shares.append(within**2 * OF_MEDIAN / blocks / between**2 * middle)
    return bool(shares) and median(shares) < 2 * (1 - (1 - WORTH) ** 2)


def narrowing(medians: Sequence[Sequence[float]]) -> float:
    """Return by how much one more block of each process narrows an interval, as a share.

    The half-width goes with 1 / √blocks; below ``MIN_BLOCKS`` it counts as the value itself.
    """
    count = sum(map(len, medians))
    few = count < MIN_BLOCKS
    # A wider interval says no more than no value at all.
    width = 1.0 if few else min(1.0, relative_half_width(process_interval(medians)))
    blocks = count / len(medians) if medians else 0
    return width * (1 - math.sqrt(blocks / (blocks + 1)))
