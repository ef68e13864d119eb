"""Samples of a call that several threads compute: one sample of the process at a time.

Every thread has an event of its own, on one clock, that also records when the thread gets and
leaves a processor. At each moment one thread stands for the process: the calling one while it
runs, else the first of the others that runs. A sample is worth one period in which anything ran.
Where the calling thread waits in a library's barrier, or another stands for it, and any other
thread that runs is in a kernel, the sample is that kernel's: waiting for others who compute is no
tax.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from frameworktax.attribution import perf_event as perf
from frameworktax.attribution.perf_event import OFF, ON, PREEMPTED, PerfEventSampler
from frameworktax.attribution.sampler import Ticks
from frameworktax.attribution.symbols import KERNEL, Leaf
from frameworktax.host.machine import read
from frameworktax.records import EVERY_THREAD
from frameworktax.traces.intervals import union_ns

TASKS = Path("/proc/self/task")
Interval = tuple[int, int]


@dataclass(frozen=True)
class Timeline:
    """What one thread did in a stretch; times in ns on one clock, ascending.

    Attributes:
        on: when it ran.
        queued: when it would have run and others had its processor.
        samples: (time, where) of its ticks.
    """

    on: Sequence[Interval] = ()
    queued: Sequence[Interval] = ()
    samples: Sequence[tuple[int, Leaf]] = ()

    def runs_at(self, time_ns: int) -> bool:
        """Return whether the thread was running."""
        at = bisect_right(self.on, time_ns, key=itemgetter(0))
        return at > 0 and time_ns <= self.on[at - 1][1]

    def nearest(self, time_ns: int) -> Leaf | None:
        """Return where its nearest tick was; None without any."""
        at = bisect_right(self.samples, time_ns, key=itemgetter(0))
        around = self.samples[max(at - 1, 0) : at + 1]  # -1 would count from the end
        return min(around, key=lambda one: abs(one[0] - time_ns))[1] if around else None


def intervals(
    switches: Iterable[tuple[int, int]],
    begin_ns: int,
    end_ns: int,
    *,
    counted_ns: int,
    queued_ns: int | None = None,
) -> tuple[list[Interval], list[Interval]]:
    """Return when a thread ran and was sampled, and when it would have run, between two moments.

    When it was preempted is recorded; how long it then waited for a processor each time it was
    woken is known in sum alone, and taken to be equal at all of them.

    The event's timer is set before the record of a switch to the thread and cancelled after that of
    a switch away; both take microseconds on a virtual machine, and are counted. Samples fall into
    the former only: half of what was counted beyond the records is added, before each switch to it.

    Args:
        switches: (time, ``ON``, ``OFF`` or ``PREEMPTED``), ascending, all that were in between.
        begin_ns: the first moment.
        end_ns: the second.
        counted_ns: the event's own count in that time; not 0 if it ran.
        queued_ns: time in which it would have run, by the system; None where that is not known.
    """
    on: list[Interval] = []
    preempted: list[Interval] = []
    slept: list[Interval] = []
    before: int | None = None  # what it did since the last switch
    since = begin_ns
    for moment_ns, what in (*switches, (end_ns, OFF if counted_ns else ON)):
        time_ns = min(max(moment_ns, begin_ns), end_ns)  # of a switch before or after it
        if time_ns == since:
            pass
        elif before == ON or (before is None and what != ON):
            on.append((since, time_ns))
        elif before == PREEMPTED:
            preempted.append((since, time_ns))
        elif moment_ns < end_ns:
            slept.append((since, time_ns))
        before, since = what, time_ns
    early_ns = max(counted_ns - sum(end - begin for begin, end in on), 0) // (2 * len(on) or 1)
    on = [(max(begin - early_ns, begin_ns), end) for begin, end in on]
    if queued_ns is not None and slept:
        each_ns = (queued_ns - sum(end - begin for begin, end in preempted)) // len(slept)
        woken = [(max(begin, end - each_ns), end) for begin, end in slept if each_ns > 0]
        return on, sorted(preempted + woken)
    return on, preempted


def together(timelines: Sequence[Timeline], bucket: Callable[[Leaf], str]) -> Counter[Leaf]:
    """Return the samples of a process; see the head of this module.

    Args:
        timelines: of its threads, the calling one first.
        bucket: the line of the breakdown that a sample belongs to.
    """
    found: Counter[Leaf] = Counter()
    for i, timeline in enumerate(timelines):
        for time_ns, leaf in timeline.samples:
            if any(before.runs_at(time_ns) for before in timelines[:i]):
                continue
            where = bucket(leaf)
            if where == "threading" or (i and where != "kernel"):
                others = [t for j, t in enumerate(timelines) if j != i and t.runs_at(time_ns)]
                near = [other.nearest(time_ns) for other in others]
                leaf = next((n for n in near if n is not None and bucket(n) == "kernel"), leaf)
            found[leaf] += 1
    return found


def covered_ns(found: Sequence[Interval]) -> int:
    """Return the length of the union of intervals."""
    return union_ns([begin for begin, _ in found], [end for _, end in found])


_Seen = list[tuple[perf.Drained, list[Interval], list[Interval]]]
"""Of each thread in a stretch, the calling one first: its ring, when it ran, when it waited."""


def _queued_ns(thread: int) -> int | None:
    """Return the time that a thread was ready to run and did not, since it began."""
    words = (read(TASKS, f"{thread}/schedstat") or "").split()
    return int(words[1]) if len(words) > 1 else None


class EveryThreadSampler(AbstractContextManager["EveryThreadSampler"]):
    """Samples of every thread of this process, in stretches.

    A thread is found when a stretch begins; one that begins later is not seen in it.

    Args:
        stretch_ns: how long a stretch is.
        period_ns: CPU time of a thread between two of its samples, more where rings hold too few.

    Raises:
        RefusedError: sampling is not allowed.
    """

    name = EVERY_THREAD

    def __init__(self, stretch_ns: int, *, period_ns: int = perf.PERIOD_NS) -> None:
        self.period_ns = period_ns
        self._stretch_ns = stretch_ns
        self._caller = threading.get_native_id()
        self._events: dict[int, PerfEventSampler] = {}
        self._seen: list[_Seen] = []
        self._begin_ns = 0
        self._queued_ns: dict[int, int | None] = {}
        self._kernel: bool | None = None
        self._find()

    def start(self) -> None:
        """Begin a stretch."""
        self._find()
        self._queued_ns = {thread: _queued_ns(thread) for thread in self._events}
        self.resume()
        self._begin_ns = time.perf_counter_ns()

    def resume(self) -> None:
        """Take samples again; of the calling thread last, as they end first."""
        for event in reversed(self._events.values()):
            event.resume()

    def pause(self) -> None:
        """Take no samples from here."""
        for event in self._events.values():
            event.pause()

    def stop(self) -> None:
        """End a stretch and empty the rings."""
        end_ns = time.perf_counter_ns()
        self.pause()
        seen: _Seen = []
        for thread, event in self._events.items():  # the calling one was found first
            since, before, queued = self._queued_ns[thread], event.cpu_ns, _queued_ns(thread)
            drained = event.drain()
            on, waited = intervals(
                drained.switches,
                self._begin_ns,
                end_ns,
                counted_ns=event.cpu_ns - before,
                queued_ns=None if queued is None or since is None else queued - since,
            )
            seen.append((drained, on, waited))
        self._seen.append(seen)

    def ticks(self) -> list[Ticks]:
        """Return the samples of each stretch."""
        from frameworktax.attribution.buckets import classify

        where = iter(perf.placed([drained for seen in self._seen for drained, *_ in seen]))
        stretches = []
        for seen in self._seen:
            timelines = [Timeline(on, queued, one.timed(next(where))) for one, on, queued in seen]
            found = together(timelines, lambda leaf: classify(leaf)[0])
            system = found.pop(Leaf(KERNEL, ""), 0)
            ran_ns = covered_ns([one for t in timelines for one in t.on])
            either_ns = covered_ns([one for t in timelines for one in (*t.on, *t.queued)])
            lost = sum(drained.lost for drained, *_ in seen)
            seen_system = system if self._kernel else None
            stretches.append(Ticks(found, seen_system, lost, ran_ns, either_ns - ran_ns))
        return stretches

    def _find(self) -> None:
        """Find threads that began or ended."""
        there = {int(path.name) for path in TASKS.iterdir()}
        for thread in self._events.keys() - there:
            self._events.pop(thread).close()
        # What the system allows, shared.
        room = perf.MAX_PAGES * (os.cpu_count() or 1) // len(there)
        for thread in sorted(there - self._events.keys(), key=lambda one: one != self._caller):
            try:
                event = PerfEventSampler(
                    self._stretch_ns,
                    thread=thread,
                    period_ns=self.period_ns,
                    kernel=self._kernel,
                    switch_pages=max(room, 1),
                )
            except perf.RefusedError:
                if not (TASKS / str(thread)).exists():
                    continue  # it ended meanwhile
                self.__exit__()
                raise
            self._kernel, self.period_ns = event.kernel, event.period_ns
            self._events[thread] = event

    def __exit__(self, *exception: object) -> None:
        for event in self._events.values():
            event.close()
        self._events.clear()
