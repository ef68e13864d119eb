"""Where the time of a call goes: kernel time, the tax, and the lines of the bill.

On a CPU a sampler says which share of the time a call spends in which bucket; in each process the
shares are applied to its own *unprofiled* latency. On a GPU kernel time comes from the device and
the tax splits into host starvation and device gaps. Every bill adds up to the latency.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from statistics import fmean, median
from typing import TypeVar

from frameworktax.analysis.estimates import (
    RULE_OF_THREE,
    at_most,
    difference,
    duration,
    median_interval,
    one_minus,
    product,
    quotient,
    scaled,
    share_interval,
)
from frameworktax.records import BILL, Attribution, Estimate, Note
from frameworktax.stats import CONFIDENCE, ONE_PROCESS, stdev, t_quantile

K = TypeVar("K", bound=Hashable)
SAMPLING = "program-counter-sampling"
TWIN = "width-shrunk-twin"
DEVICE = "device-profile"
WAITS = "waits-inside"
"""Code of the note that the host waits for a device for a part of a call."""
WAITING = 0.05
"""Share of the latency from which on it is noted: transformers' question whether a mask is all ones
takes 0.1 % of an eager BERT-base, and a graph of it does not ask."""
JUDGED = ("copying", "unnamed", "unread")
"""Parts of ``Attribution.detail`` in libraries without symbols, whose machine code is judged."""
MISJUDGED = 0.02
"""Share of the samples that machine code may place otherwise than symbols, copies apart: more than
in any of the models of ``benchmarks/stripped.py``."""
MAX_INFLATION = 0.05
"""Difference of sampled and timed calls of a process above which its shares carry a warning."""
LEAST = 5
"""Samples without which nothing is said of where time goes: their interval would be too narrow."""
HOST_LINES = ("dispatch", "python", "allocator", "runtime", "threading", "system", "launch")
"""Host work that can keep a device waiting."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A latency taken apart; every field in ns or a share, None where it is not known.

    ``packing`` and ``memory`` are the shares of the latency that go into packing weights, and into
    the allocator and the operating system (CPU sampling only).
    """

    method: str
    lines: Mapping[str, float]
    kernel: Estimate
    tax: Estimate
    share: Estimate
    span: Estimate | None = None
    detail: Mapping[str, float] | None = None
    symbols: tuple[tuple[str, str, str, float], ...] = ()
    packing: Estimate | None = None
    memory: Estimate | None = None
    inflation: float | None = None
    launches: int | None = None
    kernel_names: Mapping[str, int] = field(default_factory=dict)
    sm_activity: Estimate | None = None
    warp_occupancy: Estimate | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class _Sampled:
    """One process's samples, and the latency that the same process was timed at.

    Attributes:
        attributions: with samples, all of one sampler.
        stretches: their samples by line, of each stretch that has any.
        totals: number of samples of each stretch.
        wait: the share of its time off the CPU, less what others had of it.
        level: latency of this process over the mean of all that were sampled; 1 where they were
            not all timed.
        is_timed: whether they were.
        pace: mean call while sampled over mean call while timed, medians over rounds; None where
            it was not timed.
    """

    attributions: Sequence[Attribution]
    stretches: Sequence[Mapping[str, int]]
    totals: Sequence[int]
    wait: float
    level: float
    is_timed: bool
    pace: float | None

    @cached_property
    def weight(self) -> float:
        """The part of the mean latency that one sample stands for."""
        return self.level * (1 - self.wait) / sum(self.totals)

    def of(self, *lines: str) -> Sequence[int]:
        """Return how many samples some lines have, by stretch."""
        counts = ([stretch.get(line, 0) for stretch in self.stretches] for line in lines)
        return reduce(lambda one, more: [*map(add, one, more)], counts)


class SampledBill(Bill):
    """The bill of a CPU point, each part of it computed when it is first asked for.

    Attributes:
        latency: that it takes apart, ns.
        processes: their samples; at least one.
        timed: how many processes were timed.
        mean_ns: mean call without a profiler, where another than the latency is meant.
    """

    latency: Estimate
    processes: Sequence[_Sampled]
    timed: int
    mean_ns: Callable[[], float | None]

    def __init__(
        self,
        latency: Estimate,
        processes: Sequence[_Sampled],
        timed: int,
        mean_ns: Callable[[], float | None],
    ) -> None:
        method = f"{SAMPLING} ({processes[0].attributions[0].method})"
        vars(self).update(latency=latency, processes=processes, timed=timed, mean_ns=mean_ns)
        vars(self).update(method=method, kernel_names={})

    @property
    def share(self) -> Estimate:
        """The tax; its interval reaches to all that machine code leaves open."""
        kernel, (less, more) = self._kernel, self._open
        return kernel.at(1 - kernel.value, 1 - (kernel.high + more), 1 - (kernel.low - less))

    @cached_property
    def lines(self) -> Mapping[str, float]:
        """Line → ns in a call; they add up to the latency."""
        used = [a for one in self.processes for a in one.attributions]
        counts = [_known(one.stretches) for one in self.processes]
        seen = {"kernel", "remainder"}.union(*counts)
        if any(a.off_cpu_ns is not None for a in used):
            seen.add("wait")
        each = list(zip(self.processes, counts, strict=True))
        lines = {
            line: fmean([one.weight * own.get(line, 0) for one, own in each]) * self.latency.value
            for line in BILL
            if line in seen
        }
        if "wait" in lines:
            off_cpu = fmean([one.wait * one.level for one in self.processes])
            lines["wait"] += off_cpu * self.latency.value
        return lines

    @property
    def kernel(self) -> Estimate:
        """Kernel time, ns."""
        return self._times[0]

    @property
    def tax(self) -> Estimate:
        """The latency less kernel time, ns."""
        return self._times[1]

    @cached_property
    def _times(self) -> tuple[Estimate, Estimate]:
        """Kernel time and tax, ns: share × latency.

        Over timed processes their intervals are of the products, as both vary with the process.
        """
        latency, shares = self.latency, (self._kernel, one_minus(self._kernel))
        if len(self.processes) < 2 or not self.processes[0].is_timed:
            kernel, tax = (product(latency, share, share.method) for share in shares)
        else:
            kernels = self._parts([one.of("kernel") for one in self.processes])
            taxes = [one.level - part for one, part in zip(self.processes, kernels, strict=True)]
            kernel, tax = (
                scaled(self._over_processes(share.value, parts, share.method), latency.value)
                for share, parts in zip(shares, (kernels, taxes), strict=True)
            )
        less, more = (part * latency.value for part in self._open)
        return (
            kernel.at(kernel.value, kernel.low - less, kernel.high + more),
            tax.at(tax.value, tax.low - more, tax.high + less),
        )

    @cached_property
    def packing(self) -> Estimate:
        """The share of the latency that goes into packing weights."""
        return self._interval(self._detail("packing"), "packing share of samples")

    @cached_property
    def memory(self) -> Estimate:
        """The share that goes into the allocator and the operating system."""
        counts = [one.of("allocator", "system") for one in self.processes]
        return self._interval(counts, "allocator and system share of samples")

    @cached_property
    def detail(self) -> Mapping[str, float] | None:
        """Kernel time by what the kernels do, ns."""
        kernels = self._spent(
            lambda a: ((part, count) for part, count in a.detail.items() if part != "unread")
        )
        return kernels or None

    @cached_property
    def symbols(self) -> tuple[tuple[str, str, str, float], ...]:
        """(Line, library, symbol, ns in a call) of the leaders, most time first."""
        spent = self._spent(
            lambda a: (
                ((line if line in BILL else "remainder", library, symbol), count)
                for line, library, symbol, count in a.top
            )
        )
        return tuple((*key, ns) for key, ns in sorted(spent.items(), key=lambda item: -item[1]))

    @cached_property
    def inflation(self) -> float:
        """How much longer a call takes while it is sampled, as a share."""
        used = [a for one in self.processes for a in one.attributions]
        timed_ns = self.mean_ns()
        sampled_ns = _own_ns(used) / sum(a.calls for a in used)
        return sampled_ns / (self.latency.value if timed_ns is None else timed_ns) - 1

    @property
    def notes(self) -> tuple[Note, ...]:
        """What shakes the trust in it."""
        notes, found = [], self.processes
        used = [a for one in found for a in one.attributions]
        if lost := sum(a.lost for a in used):
            kept = sum(sum(one.totals) for one in found)
            notes.append(Note("samples-lost", f"{lost} of {lost + kept} samples were lost"))
        if any(a.off_cpu_ns is None for a in used):
            text = "time off the CPU was not recorded; the breakdown covers time on the CPU only"
            notes.append(Note("no-off-cpu", text))
        paces = [one.pace - 1 for one in found if one.pace is not None] or [self.inflation]
        for way, sign in (("longer", 1), ("shorter", -1)):
            if apart := [sign * pace for pace in paces if sign * pace > MAX_INFLATION]:
                where = f"in {len(apart)} of {len(paces)} processes " if len(paces) > 1 else ""
                text = (
                    f"{where}a call took up to {at_most(100 * max(apart), 0)}% {way} "
                    "while it was sampled than while it was timed; shares may be off"
                )
                notes.append(Note("sampler-inflation", text))
        if len(found) == 1 < self.timed:
            text = "one process was sampled: how much the tax differs between processes is unknown"
            notes.append(Note("sampled-in-one-process", text))
        return tuple(notes)

    @cached_property
    def _kernel(self) -> Estimate:
        return self._interval([one.of("kernel") for one in self.processes], self.method)

    @property
    def _open(self) -> tuple[float, float]:
        """By how much less and more of the latency kernels may take than machine code shows."""
        seen = {part for one in self.processes for a in one.attributions for part in a.detail}
        if seen.isdisjoint(JUDGED):
            return 0.0, 0.0  # every sample has a symbol, as most points have
        copied, unnamed, unread = (fmean(self._parts(self._detail(part))) for part in JUDGED)
        misjudged = min(MISJUDGED, unnamed + copied)  # of no more than was judged
        return copied + misjudged, unread + misjudged

    def _detail(self, part: str) -> list[list[int]]:
        """Return how many samples a part of the kernels has, by process."""
        return [[sum([a.detail.get(part, 0) for a in one.attributions])] for one in self.processes]

    def _parts(self, counts: Sequence[Sequence[int]]) -> list[float]:
        """Return the part of the mean latency that some of the samples take, by process."""
        return [one.weight * sum(own) for one, own in zip(self.processes, counts, strict=True)]

    def _interval(self, counts: Sequence[Sequence[int]], method: str) -> Estimate:
        """Return the share of the latency that some of the samples take, over processes.

        The value is the mean of their time in a call of each process over the mean of the
        latencies; the interval Student's t over the processes' residuals (a ratio estimator,
        linearised), and 3 / samples to each side at least: of a line that has all samples or none,
        residuals are next to nothing. Samples of one process alone give an interval over its
        stretches, which leaves out the spread between processes, and one count that of a binomial;
        the method says which.

        Args:
            counts: of each process, by stretch or all of its stretches together.
            method: of the result.
        """
        if len(self.processes) > 1:
            parts = self._parts(counts)
            value = fmean(parts)
            each = zip(self.processes, parts, strict=True)
            residuals = [part - value * one.level for one, part in each]
            return self._over_processes(value, residuals, method)
        (one,) = self.processes
        totals = one.totals if len(counts[0]) > 1 else [sum(one.totals)]
        share = share_interval(counts[0], totals, f"{method}{ONE_PROCESS}")
        return scaled(share, 1 - one.wait) if one.wait else share

    def _over_processes(self, value: float, residuals: Sequence[float], method: str) -> Estimate:
        """Return a part of the mean latency with Student's t, 3 / samples to each side at least."""
        margin = RULE_OF_THREE / sum(sum(one.totals) for one in self.processes)
        n = len(residuals)
        half = max(margin, t_quantile(CONFIDENCE, n - 1) * stdev(residuals) / math.sqrt(n))
        return Estimate(value=value, low=value - half, high=value + half, method=method, n=n)

    def _spent(self, counts: Callable[[Attribution], Iterable[tuple[K, int]]]) -> dict[K, float]:
        """Return what each key of some counts of samples takes, ns in a call."""
        spent: dict[K, float] = defaultdict(float)
        for one in self.processes:
            for key, count in (pair for a in one.attributions for pair in counts(a)):
                spent[key] += one.weight * count * self.latency.value / len(self.processes)
        return dict(spent)


def _sampled(
    attributions: Iterable[Attribution], timed_ns: Mapping[int, tuple[float, float]]
) -> list[_Sampled]:
    """Return the samples of each process beside its own latency; those of the first sampler."""
    of_process: dict[int, tuple[list[Attribution], list[Mapping[str, int]], list[int]]] = {}
    method = None
    for a in attributions:
        if stretches := [s for s in a.samples if any(s.values())]:
            method = a.method if method is None else method
            if a.method == method:  # one sampler a bill: they see different things
                own, samples, totals = of_process.setdefault(a.process, ([], [], []))
                own.append(a)
                samples += stretches
                totals += [sum(s.values()) for s in stretches]
    # Those in the operating system can be below zero: of few samples nothing is left then.
    of_process = {p: own for p, own in of_process.items() if sum(own[2]) > 0}
    levels = {p: timed_ns[p][0] for p in of_process if p in timed_ns}
    mean = fmean(levels.values()) if len(levels) == len(of_process) > 0 else None
    return [
        _Sampled(
            attributions=own,
            stretches=samples,
            totals=totals,
            wait=_wait(own),
            level=levels[p] / mean if mean else 1.0,
            is_timed=bool(mean),
            pace=_pace(own, timed_ns[p][1]) if p in timed_ns else None,
        )
        for p, (own, samples, totals) in sorted(of_process.items())
    ]


def _own_ns(attributions: Iterable[Attribution]) -> int:
    """Return the time sampled, less that in which others had the processor: no cost of a call."""
    return sum(a.wall_ns - (a.queued_ns or 0) for a in attributions)


def _wait(attributions: Sequence[Attribution]) -> float:
    own_ns = _own_ns(attributions)
    if own_ns <= 0 or any(a.off_cpu_ns is None for a in attributions):
        return 0.0
    return sum((a.off_cpu_ns or 0) - (a.queued_ns or 0) for a in attributions) / own_ns


def _pace(attributions: Sequence[Attribution], timed_ns: float) -> float | None:
    slowed = [_own_ns([a]) / a.calls for a in attributions]
    return None if math.isnan(timed_ns) else median(slowed) / timed_ns


def from_samples(
    latency: Estimate,
    attributions: Iterable[Attribution],
    timed_ns: Mapping[int, tuple[float, float]] | None = None,
    mean_ns: Callable[[], float | None] = lambda: None,
) -> Bill | None:
    """Return the bill of a CPU point from program-counter samples, None of fewer than ``LEAST``.

    Line = (1 − blocked share) × share of samples × unprofiled latency, in each process by itself,
    because two of them can be in different states; then the mean over processes. The line ``wait``
    is time off the CPU less the time in which others had it, which belongs to no line; a bucket the
    bill does not know goes to ``remainder``. In libraries without symbols loops that only move data
    count as kernels, of which they may be no part, and code that nothing is known of counts as tax:
    intervals reach to where either is the other, and by ``MISJUDGED`` further.

    Args:
        latency: unprofiled, ns.
        attributions: of this point; those without samples are passed over.
        timed_ns: process that the latency is from → medians of its block medians, and of a
            pipelined call in its blocks, nan where there was none.
        mean_ns: mean call without a profiler, for the cost of sampling: of short calls the median
            has no tick.
    """
    timed_ns = timed_ns or {}
    found = _sampled(attributions, timed_ns)
    if sum(sum(one.totals) for one in found) < LEAST:
        return None
    return SampledBill(latency, found, len(timed_ns), mean_ns)


def _known(stretches: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    """Return the samples of stretches together, those of foreign buckets as ``remainder``."""
    known: dict[str, int] = defaultdict(int)
    for name, count in (item for stretch in stretches for item in stretch.items()):
        known[name if name in BILL else "remainder"] += count
    return known


def from_twin(latency: Estimate, twin: Estimate, share: Estimate) -> Bill:
    """Return the bill of a point that was not sampled, from the latency of its twin, ns."""
    text = (
        "kernels were not sampled: in the place of the tax stands the latency of a width-shrunk "
        "twin, the warm overhead, which was 0.21 to 1.75 of the tax where both are known"
    )
    return Bill(
        method=TWIN,
        lines={"kernel": latency.value - twin.value, "runtime": twin.value, "remainder": 0.0},
        kernel=difference(latency, twin, TWIN),
        tax=replace(twin, method=TWIN),
        share=share,
        notes=(Note("twin-tax", text),),
    )


def from_device(latency: Estimate, attributions: Sequence[Attribution]) -> Bill | None:
    """Return the bill of a GPU point, or None without a device profile of at least six calls.

    Host starvation is L − D, or L − K where no span D was measured (it then includes the device
    gaps); device gaps are D − K. Host samples split the starvation by their shares; what they do
    not place, and all of it with fewer than ``LEAST``, is ``remainder``. A sample inside a math
    library or a vectorised loop of the host is ``dispatch`` here: what computes is the device.
    Waiting for it between two launches, which a sample cannot tell from launching, is left out of
    ``launch`` by the profile's own times.

    The latency is unprofiled, with one synchronise per call, ns.
    """
    device = [a for a in attributions if a.kernel_ns]
    kernel = median_interval([k for a in device for k in a.kernel_ns], DEVICE)
    if kernel is None:
        return None
    spans = [s for a in attributions for s in a.span_ns]
    span = median_interval(spans, "backlog")
    busy = span or kernel
    starvation = latency.value - busy.value
    lines = {"kernel": kernel.value}
    if span is not None:
        lines["device_gap"] = span.value - kernel.value
    sampled = [a for a in attributions if not a.kernel_ns and a.samples]
    host = _known(s for a in sampled for s in a.samples)
    every = sum(host.values())
    counts: dict[str, float] = {name: host.get(name, 0) for name in HOST_LINES}
    counts["dispatch"] += host.get("kernel", 0)
    waits = [ns for a in device for ns in a.wait_ns]
    calls, wall_ns = sum(a.calls for a in sampled), sum(a.wall_ns for a in sampled)
    waited = 0.0  # samples of the host while it waited for the device
    if waits and wall_ns:
        waited = median(waits) * calls / wall_ns * every
    counts["launch"] -= waited
    total = every - host.get("wait", 0) - waited
    notes = []
    if waits and median(waits) > WAITING * latency.value:
        text = (
            f"between launches the host waits for the device, {duration(median(waits))} of a call: "
            "no graph can hold that, and nothing is predicted"
        )
        notes.append(Note(WAITS, text))
    empty = [a.empty_span_ns for a in device if a.empty_span_ns is not None]
    if span is not None and empty and span.value - kernel.value < median(empty):
        text = (
            f"device gaps are below {median(empty) / 1e3:.1f} µs, the span of a call without work"
        )
        notes.append(Note("gaps-below-floor", text))
    if total >= LEAST:
        lines |= {n: starvation * count / total for n, count in counts.items() if count}
    else:
        text = f"fewer than {LEAST} samples of the host at work: host starvation is one line"
        notes.append(Note("starvation-not-split", text))
    lines["remainder"] = latency.value - sum(lines.values())
    launches = [count for a in device for count in a.launches]
    return Bill(
        method=DEVICE,
        lines={name: lines[name] for name in BILL if name in lines},
        kernel=kernel,
        tax=difference(latency, kernel, DEVICE),
        share=one_minus(quotient(kernel, latency, DEVICE)),
        span=span,
        launches=round(median(launches)) if launches else None,
        kernel_names=device[-1].kernel_names,
        sm_activity=_filled([ns for a in device for ns in a.sm_active_ns], latency),
        warp_occupancy=_filled([ns for a in device for ns in a.warp_ns], latency),
        notes=tuple(notes),
    )


def _filled(filled_ns: Sequence[int], latency: Estimate) -> Estimate | None:
    """Return how full the device was over a call: kernel time × fullness over latency."""
    found = median_interval(filled_ns, "launch-data")
    return None if found is None else quotient(found, latency, "launch-data")
