"""From the samples of watched calls to seconds of each line of the breakdown and a tax ratio."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Protocol

from frameworktax.attribution.buckets import is_judged, itemise
from frameworktax.attribution.perf_event import Drained
from frameworktax.attribution.sampler import SampleRun, Stretch, Ticks
from frameworktax.attribution.symbols import Leaf, Resolver
from frameworktax.integrations.exporters import Exporter, Labels

PORTION = 64
"""Calls, or new addresses, handled at a stretch; about 100 µs."""
REST_S = 0.002
"""Time that other threads have the interpreter to themselves after each portion."""
WINDOW_TICKS = 400
"""Samples that a tax ratio is of: its standard error is at most 2.5 points."""
Kind = tuple[str, int | None]


class RingSampler(Protocol):
    """What a watch needs of a sampler of the calling thread."""

    name: str
    period_ns: int
    counts_cpu_time: bool
    kernel: bool

    def resume(self) -> None:
        """Take samples from here."""

    def pause(self) -> None:
        """Take no samples from here."""

    def drain(self) -> Drained:
        """Return what was sampled since the last time; while paused."""

    def __exit__(self, *exception: object) -> None:
        """Give everything back."""


@dataclass(slots=True)
class Sampled:
    """A sampled call; ``kind`` is its method and batch size."""

    kind: Kind
    begin_ns: int
    wall_ns: int
    cpu_ns: int
    queued_ns: int | None


def stretches(
    sampled: Sequence[Sampled],
    labels_of: Sequence[Labels],
    drained: Drained,
    where: Mapping[int, Leaf],
    *,
    kernel: bool,
) -> Iterator[tuple[Labels, Stretch]]:
    """Yield what was seen in the calls of each label set, a sample in the call that it fell into.

    Args:
        sampled: calls of one thread, in order.
        labels_of: labels of each.
        drained: its samples.
        where: address → place.
        kernel: whether samples in kernel mode were recorded.
    """
    begins = [call.begin_ns for call in sampled]

    def labels_at(time_ns: int) -> Labels:
        # The sampler starts just before the call's first reading of the clock.
        return labels_of[max(0, bisect_right(begins, time_ns) - 1)]

    leaves: defaultdict[Labels, Counter[Leaf]] = defaultdict(Counter)
    system: Counter[Labels] = Counter()
    for address, time_ns in drained.user:
        leaves[labels_at(time_ns)][where[address]] += 1
    system.update(labels_at(time_ns) for time_ns in drained.kernel_ns)
    for labels in dict.fromkeys(labels_of):
        calls = [call for call, own in zip(sampled, labels_of, strict=True) if own == labels]
        queued = [call.queued_ns for call in calls]
        known = [ns for ns in queued if ns is not None]
        yield (
            labels,
            Stretch(
                Ticks(leaves[labels], system[labels] if kernel else None),
                len(calls),
                sum(call.wall_ns for call in calls),
                sum(call.cpu_ns for call in calls),
                sum(known) if len(known) == len(queued) else None,
            ),
        )


def parts_ns(stretch: Stretch, sampler: RingSampler) -> dict[str, int]:
    """Return line of the breakdown → ns of a stretch, signed; together they are its wall time.

    Time in which other processes had the processor is in no line, as in ``ft.tax``.
    """
    run = SampleRun(sampler.name, sampler.period_ns, (stretch,), 0, sampler.counts_cpu_time)
    parts = {line: count * sampler.period_ns for line, count in itemise(run)["samples"][0].items()}
    parts["wait"] = stretch.wall_ns - stretch.cpu_ns - (stretch.queued_ns or 0)
    return parts


class Tax:
    """Where sampled time went, by label set, as a counter and as a ratio over a window."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._owed: defaultdict[tuple[Labels, str], float] = defaultdict(float)
        self._windows: dict[Labels, tuple[int, int, int]] = {}

    def export(
        self, exporter: Exporter, labels: Labels, parts: Mapping[str, int], stretch: Stretch
    ) -> None:
        """Add a stretch.

        A counter never falls, but a stretch's part can be below zero (system time that is a
        difference of two counts): that is owed, and taken off what comes next.
        """
        for part, ns in parts.items():
            owed = self._owed[labels, part] + ns
            self._owed[labels, part] = min(owed, 0.0)
            if owed > 0:
                exporter.sampled(labels, part, owed / 1e9)
        ticks, all_ns, kernel_ns = self._windows.pop(labels, (0, 0, 0))
        ticks += sum(stretch.ticks.leaves.values()) + (stretch.ticks.system or 0)
        all_ns += sum(parts.values())
        kernel_ns += parts.get("kernel", 0)
        if ticks < WINDOW_TICKS:
            self._windows[labels] = ticks, all_ns, kernel_ns
        else:
            exporter.ratio(labels, 1 - kernel_ns / all_ns)


class Places:
    """Places of addresses; an address is looked up once, new ones in small portions."""

    KEPT = 50_000
    """Addresses after which all are forgotten: code comes and goes."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}
        self._resolver = Resolver(judged=is_judged)

    def __call__(self, addresses: Iterable[int]) -> Mapping[int, Leaf]:
        """Return address → place."""
        if len(self._known) > self.KEPT:
            self._known = {}
        new = list(set(addresses) - self._known.keys())
        for at in range(0, len(new), PORTION // 8):
            portion = new[at : at + PORTION // 8]
            self._known |= self._resolver.resolve(portion)
            sleep(REST_S)
        return self._known
