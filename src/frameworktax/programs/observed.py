"""Notes and samples of a program that has run, put together as its document."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import numpy as np

from frameworktax.analysis.bill import LEAST, from_samples
from frameworktax.analysis.estimates import duration, exactly, percent
from frameworktax.analysis.places import layers
from frameworktax.attribution.buckets import classify, is_judged, itemise
from frameworktax.attribution.layers import OUTSIDE, by_place, places, replayed, short_path
from frameworktax.attribution.sampler import SampleRun, Stretch, Ticks
from frameworktax.attribution.symbols import KERNEL, UNKNOWN, Leaf, Resolver
from frameworktax.measure import protocol
from frameworktax.programs.calls import (
    COUNTED,
    COUNTED_WORDS,
    DETAILED,
    NOT_COUNTED,
    STRETCH,
    Recorder,
    module_call,
)
from frameworktax.programs.document import Kind, Part, Section
from frameworktax.programs.launch import Ended
from frameworktax.records import Estimate, Note, Places
from frameworktax.stats import CONFIDENCE, mean_interval, t_quantile
from frameworktax.traces.intervals import merge, owners, union_ns, union_within_ns
from frameworktax.traces.timeline import groups

STRETCHES = 20
"""Consecutive calls make so many values at most: neighbours are not independent."""
LONGEST = 2.0
"""Over the time that calls without rows were expected to take: if the next one with a row comes
later, the program did something else in between."""
HELPED = 0.05
"""Samples of other threads' kernels, over a call's own, from which its tax is not known."""
MANY = 32
"""Threads of a process with calls from which those that call the same are one section."""
TRIALS, INNER = 200, 10
"""Calls of an empty module, and modules that it calls, which give the cost of noting."""
FEW = 10
"""Slow calls with a row, as many that are alike, below which other calls may have no slow one."""
LIBRARIES = 6
"""That are named of what lies between calls."""
CONSTRUCTION = ("make", "imports", "missing", "forward", "parameters", "script")
"""What is known of how a module was made."""
METHOD = "medians of consecutive calls, one process"
COSTLY = 0.03
"""Share of a call from which it is said what noting it takes."""
OPEN = ("step", "data")
"""Kinds of calls in which calls of modules are calls of their own."""


@dataclass(frozen=True)
class Samples:
    """Samples of a thread in the order of time; ``leaf`` has the index in ``leaves`` of each."""

    time_ns: np.ndarray
    leaf: np.ndarray
    leaves: Sequence[Leaf]
    period_ns: int
    sees_kernel: bool

    def only(self, which: np.ndarray) -> Samples:
        """Return some of them, by a mask or indices."""
        return replace(self, time_ns=self.time_ns[which], leaf=self.leaf[which])

    def moved(self, begin_ns: int, end_ns: int, by_ns: int) -> Samples:
        """Return them with those of a stretch moved in time, the others before all."""
        during = (self.time_ns >= begin_ns) & (self.time_ns <= end_ns)
        return replace(self, time_ns=np.where(during, self.time_ns + by_ns, -1))

    def by_leaf(self) -> Counter[Leaf]:
        """Return how many there are of each place."""
        found: Counter[Leaf] = Counter()
        for index, count in enumerate(np.bincount(self.leaf, minlength=len(self.leaves))):
            if count:
                found[self.leaves[index]] += int(count)
        return found

    def kernels(self) -> Samples:
        """Return those in math kernels."""
        computes = np.array([classify(leaf)[0] == "kernel" for leaf in self.leaves], bool)
        return self.only(computes[self.leaf])


def measure_cost(folder: Path) -> tuple[float, float]:
    """Return ns of CPU time that noting takes here: of a call, and of each module inside.

    From empty modules; ``folder`` takes what they note.
    """

    def time_ns(call: Callable[[], None]) -> float:
        return min(repeat(call, timer=time.thread_time_ns, number=TRIALS)) / TRIALS

    class Module:
        _compiled_call_impl: Any = None

        def __init__(self, *inner: Module) -> None:
            self.inner = inner

        def __call__(self) -> None:  # as torch's own: what it does is known
            if self._compiled_call_impl is not None:
                self._compiled_call_impl()
            else:
                self._call_impl()

        def _call_impl(self) -> None:
            for one in self.inner:
                one()

    outer = Module()
    nest = Module(*[outer] * INNER)
    plain = time_ns(outer), time_ns(nest)
    recorder = Recorder(str(folder), "none", "")
    observed: Any = module_call(recorder, Module.__call__)
    Module.__call__ = observed  # type: ignore[method-assign] # as in the program
    outer_ns = time_ns(outer) - plain[0]
    return outer_ns, (time_ns(nest) - plain[1] - outer_ns) / INNER


def samples_of(ended: Ended) -> dict[tuple[int, int], Samples]:
    """Return the samples of each (process, thread), resolved; empty without any."""
    seen = ended.samples
    if seen is None or not seen.pid:
        return {}
    maps = seen.maps()
    pids, tids = np.array(seen.pid, np.int64), np.array(seen.tid, np.int64)
    addresses, times = np.array(seen.address, np.uint64), np.array(seen.time_ns, np.int64)
    found: dict[tuple[int, int], Samples] = {}
    for pid, of_process in groups(pids):
        of_process = of_process[np.argsort(times[of_process], kind="stable")]
        distinct, index = np.unique(addresses[of_process], return_inverse=True)
        resolver = Resolver(maps.get(pid, ""), judged=is_judged)
        where = resolver.resolve(int(address) for address in distinct if address)
        leaves = [where[int(a)] if a else Leaf(KERNEL, "") for a in distinct]
        every = Samples(times[of_process], index, leaves, ended.period_ns, ended.sees_kernel)
        for tid, own in groups(tids[of_process]):
            found[pid, tid] = every.only(own)
    return found


def sections(
    processes: Sequence[ProcessNotes],
    ended: Ended,
    samples: Mapping[tuple[int, int], Samples],
    *,
    skip_first: int = 0,
    only: Any = None,
    cost: tuple[float, float] = (0.0, 0.0),
) -> list[Section]:
    """Return the sections of a program, those whose calls took most time first.

    Args:
        processes: what each noted.
        ended: the program.
        samples: as from ``samples_of``.
        skip_first: as of ``run_program``.
        only: a compiled pattern that names of kinds are searched for; None for all.
        cost: as from ``measure_cost``, which is said where it is much of a call.
    """
    found = []
    known = {notes.pid: notes for notes in processes}
    for pid in sorted({*known, *(pid for pid, _ in samples)}):
        process = known.get(pid) or ProcessNotes(pid)
        own = {tid: one for (number, tid), one in samples.items() if number == pid}
        for tids in _groups(process, own):
            tid, is_one = tids[0], len(tids) == 1
            notes, seen = (process, own) if is_one else _joined(process, tids, own, ended.begin_ns)
            # Not those of the program's threads: they compute for themselves.
            others = [one for t, one in seen.items() if t != tid and t not in process.threads]
            thread = _Thread(notes, tid, ended, seen.get(tid), cost)
            section = thread.section(others, skip_first, only)
            found.append(section if is_one else replace(section, tid=None, threads=len(tids)))
    return sorted(found, key=lambda s: (-s.calls_ns, not s.kinds, -s.cpu_ns))


def _groups(process: ProcessNotes, own: Iterable[int]) -> list[list[int]]:
    """Return threads that are one section: each alone, or many that call the same together."""
    calling = {tid for tid, notes in process.threads.items() if len(notes.rows)}
    found: dict[Any, list[int]] = {}
    for tid in sorted({*process.threads, *own}):
        key: Any = tid
        if len(calling) > MANY and tid in calling and tid != process.pid:
            about = [process.roots[root] for root in {*process.threads[tid].rows[:, 2].tolist()}]
            key = frozenset((one["kind"], one["class"]) for one in about)
        found.setdefault(key, []).append(tid)
    return list(found.values())


def _joined(
    process: ProcessNotes, tids: Sequence[int], own: Mapping[int, Samples], begin_ns: int
) -> tuple[ProcessNotes, dict[int, Samples]]:
    """Return the notes of many threads as the first one's, its samples, and those of helpers.

    Times are moved so that the first call of each begins where the last one of the thread before
    it ended; what helpers computed meanwhile is moved alike.
    """
    notes, seen = ThreadNotes(), defaultdict[int, list[Samples]](list)
    helpers = own.keys() - process.threads.keys()
    rows, counted = [], []
    for tid in tids:
        thread = process.threads[tid]
        begin, end = thread.span()
        by = begin_ns - begin
        notes.begins.append(begin_ns)
        rows.append(thread.rows + np.array([by, by, 0]))
        counted.append(thread.counted + np.array([by, by, 0, 0]))
        notes.details += [detail.moved(by) for detail in thread.details]
        for root, numbers in thread.modules.items():
            notes.modules[root] |= numbers
        if tid in own:
            seen[tids[0]].append(own[tid].moved(begin, end, by))
        for helper in helpers:
            moved = own[helper].moved(begin, end, by)
            seen[helper].append(moved.only(moved.time_ns >= 0))
        begin_ns += end - begin
    notes.rows, notes.counted = np.concatenate(rows), np.concatenate(counted)
    together = {
        number: replace(
            parts[0],
            time_ns=np.concatenate([one.time_ns for one in parts]),
            leaf=np.concatenate([one.leaf for one in parts]),
        )
        for number, parts in seen.items()
    }
    names = {re.sub(r"\d+", "N", process.names.get(tid, "")) for tid in tids}
    name = ", ".join([f"{len(tids)} threads", *filter(None, names if len(names) == 1 else ())])
    return replace(process, threads={tids[0]: notes}, names={tids[0]: name}), together


class _Thread:
    """What is known of one thread.

    Attributes:
        rows: of its calls, in the order of their begins.
        durations: of those, without calls of their own inside.
        sampled: which of the rows each sample is in, −1 for none.
        skipped_ns: time of the first calls of kinds, which are left out.
    """

    def __init__(
        self,
        process: ProcessNotes,
        tid: int,
        ended: Ended,
        samples: Samples | None,
        cost: tuple[float, float],
    ) -> None:
        self.cost, self.skipped_ns = cost, 0
        self.process, self.tid, self.ended = process, tid, ended
        self.notes = process.threads.get(tid, ThreadNotes())
        none = np.empty(0, np.int64)
        self.samples = samples or Samples(none, none, [], ended.period_ns, ended.sees_kernel)
        self.rows = self.notes.rows[np.argsort(self.notes.rows[:, 0], kind="stable")]
        begins, ends, roots = self.rows.T
        is_open = np.array([process.roots[int(r)]["kind"] in OPEN for r in roots], bool)
        # Calls inside an open one are calls of their own: their time is taken from it.
        self.durations = ends - begins
        self.durations[is_open] -= union_within_ns(
            begins[~is_open], ends[~is_open], begins[is_open], ends[is_open]
        )
        self.sampled = np.full(len(self.samples.time_ns), -1)
        for chosen in map(np.flatnonzero, (is_open, ~is_open)):  # and so are samples in them
            owner = owners(begins[chosen], ends[chosen], self.samples.time_ns)
            self.sampled[owner >= 0] = chosen[owner[owner >= 0]]

    def section(self, others: Sequence[Samples], skip_first: int, only: Any) -> Section:
        wall_ns, begin_ns = self._span()
        names = self._names()
        every = [self._kind(root, name, others, skip_first) for root, name in names.items()]
        kinds = [kind for kind in every if only is None or only.search(kind.name)]
        # Of what lies where calls were counted only it is not known whether it was in one of them.
        counted = self.notes.counted[:, :2]
        at_ns = self.samples.time_ns
        beside = (self.sampled < 0) & (at_ns >= begin_ns) & (at_ns <= begin_ns + wall_ns)
        known_ns = None
        if len(counted):
            beside &= owners(*merge(*counted.T), at_ns) < 0
            known_ns = wall_ns - union_ns(*np.concatenate((self.rows[:, :2], counted)).T)
        skipped_ns = self.skipped_ns
        left_ns = wall_ns - skipped_ns - sum(kind.wall_ns for kind in every)
        skipped = (
            Part(name="calls left out", time_ns=skipped_ns, share=skipped_ns / (wall_ns or 1)),
        )
        seen = self.ended.samples
        name = self.process.names.get(self.tid) or (seen.names.get(self.tid, "") if seen else "")
        process = "" if self.process.name == "MainProcess" else self.process.name
        return Section(
            pid=self.process.pid,
            tid=self.tid,
            parent=seen.parents.get(self.process.pid) if seen else None,
            name=", ".join(part for part in (process, name) if part),
            wall_ns=wall_ns,
            cpu_ns=len(at_ns) * self.samples.period_ns,
            kinds=tuple(sorted(kinds, key=lambda kind: -kind.wall_ns)),
            hidden=len(every) - len(kinds),
            between=(
                *(skipped if skipped_ns else ()),
                *_between(self.samples.only(beside), wall_ns, left_ns, known_ns),
            ),
        )

    # --- a kind of calls ---

    def _kind(self, root: int, name: str, others: Sequence[Samples], skip_first: int) -> Kind:
        about = self.process.roots[root]
        which = np.flatnonzero(self.rows[:, 2] == root)
        rows, took = self.rows[which], self.durations[which]
        numbers, total = _numbers(rows, self.notes.counted[self.notes.counted[:, 2] == root])
        skipped = min(skip_first, total)  # where there are fewer calls, all of them
        is_kept = numbers >= skipped
        is_next = np.diff(np.searchsorted(self.notes.begins, rows[:, 0], "right")) > 0
        cuts = np.union1d(numbers[1:][is_next], skipped)
        standing = _standing(rows, took, numbers, total, cuts)
        weights, numbers = standing.weights, numbers - skipped
        wall_ns = float(weights[is_kept] @ took[is_kept])
        least_ns = max(wall_ns - standing.below_ns, float(took[is_kept].sum()))
        between_ns = least_ns, wall_ns + standing.above_ns
        self.skipped_ns += round(float(weights[~is_kept] @ took[~is_kept]))
        known = Kind(
            kind=about["kind"],
            name=name,
            source=_short(f"{about['file']}:{about['line']}") if about.get("file") else "",
            called_from=_short(about.get("called", "")),
            import_name=about.get("import", ""),
            construction={key: about[key] for key in CONSTRUCTION if key in about},
            modules=len(self.notes.modules[root]),
            calls=total,
            timed=len(rows),
            skipped=skipped,
            wall_ns=round(wall_ns),
            inputs=tuple(
                (self.process.values.get((of, text)) or json.loads(text), count)
                for (of, text), count in self.process.inputs.most_common()
                if of == root
            ),
        )
        if not is_kept.any():
            return replace(known, reason="all of its calls were skipped")
        first_ns = int(rows[is_kept, 0].min())
        details = [d for d in self.notes.details if d.root == root and d.begin_ns >= first_ns]
        # Detail makes a call longer.
        is_plain = is_kept & ~np.isin(rows[:, 0], [d.begin_ns for d in details])
        used = is_plain if is_plain.sum() >= STRETCHES else is_kept
        kept, weights = took[used], weights[used]
        stretch = numbers[used] * min(STRETCHES, len(kept)) // (total - skipped)
        _, stretch = np.unique(stretch, return_inverse=True)  # one without a row is none
        counts = np.bincount(stretch)
        sums = np.bincount(stretch, kept)
        medians = [float(np.median(kept[stretch == n])) for n in range(len(counts))]
        # A pause of the host is in few of them.
        latency = mean_interval(medians, METHOD) or exactly(medians[0], "one call")
        p50, p90, p99 = (_percentile(kept, weights, share) for share in (0.5, 0.9, 0.99))
        place = np.cumsum(used) - 1  # the used call that each is, or that was before it
        mine = np.flatnonzero(np.isin(self.sampled, which))
        call_of = np.searchsorted(which, self.sampled[mine])
        in_kept = is_kept[call_of]
        # -1 before the first used call: with those of its stretch.
        in_detail = (
            self.samples.only(mine[in_kept]),
            stretch[np.maximum(place[call_of[in_kept]], 0)],
        )
        in_used = np.flatnonzero(used[call_of])
        in_used = in_used[_resampled(weights[place[call_of[in_used]]])]
        samples, stretch_of = self.samples.only(mine[in_used]), stretch[place[call_of[in_used]]]
        known = replace(
            known,
            latency_ns=latency,
            p50_ns=p50,
            p90_ns=p90,
            p99_ns=p99,
            samples=len(samples.time_ns),
            detailed=len(details),
        )
        if self.ended.samples is None:
            return replace(known, reason=self.ended.refused)
        bill = None
        if len(samples.time_ns) >= LEAST:
            run = _sample_run(samples, stretch_of, counts, sums, details, int(np.median(kept)))
            found = protocol.attribution(itemise(run))
            own_ns = found.wall_ns - (found.queued_ns or 0)
            bill = from_samples(latency, [found], {}, lambda: own_ns / found.calls)
        if bill is None:
            return replace(known, reason="too short to be sampled; run it longer")
        inside = _places(*in_detail, details, about.get("modules", ()), run)
        reason = _unknown(self._device(about), rows[used], samples, others, bill.share)
        is_known = reason is None
        return replace(
            known,
            kernel_ns=bill.kernel if is_known else None,
            tax_ns=bill.tax if is_known else None,
            tax_share=bill.share if is_known else None,
            bill_ns=bill.lines,
            bill_method=bill.method,
            reason=reason,
            layers=layers(latency, bill.lines, [inside] if inside else []),
            placed=sum(n for ticks in inside.ticks for *_, n in ticks) if inside else 0,
            notes=tuple(self._notes(bill.notes, known, details, p50, between_ns)),
        )

    def _notes(
        self,
        noted: Sequence[Note],
        known: Kind,
        details: Sequence[Detail],
        p50_ns: int,
        between_ns: tuple[float, float],
    ) -> Iterator[Note]:
        yield from (note for note in noted if note.code != "sampler-inflation")
        if known.timed < known.calls:
            text = (
                f"{known.timed:,} of {known.calls:,} calls were timed, in stretches, so that "
                "this takes little; their number is exact, all else an estimate from those: their "
                f"time is between {' and '.join(map(duration, between_ns))}"
            )
            yield Note("calls-timed-in-part", text)
        outer_ns, inner_ns = self.cost
        entered = sum(len(detail.notes) // 4 for detail in details) / (len(details) or 1)
        noting_ns = outer_ns + entered * inner_ns
        if noting_ns > COSTLY * p50_ns:
            part = percent(noting_ns / p50_ns)
            text = (
                f"noting a call takes about {duration(noting_ns)}, {part} of its median; "
                "part of that is in its latency, as Python"
            )
            yield Note("observer-cost", text)

    def _device(self, about: Mapping[str, Any]) -> str:
        """Return where a kind's kernels run; of what has no parameters where any module's do."""
        own: str | None = about.get("device")
        if own is not None or about["kind"] in ("data", "tokenise"):
            return own or "cpu"
        devices = {one.get("device") or "cpu" for one in self.process.roots.values()}
        others = devices - {"cpu", "meta"}  # on the latter nothing is computed
        return min(others, default="cpu")

    def _names(self) -> dict[int, str]:
        """Return a name for each kind; modules of one class are numbered."""
        found: dict[int, str] = {}
        seen: Counter[str] = Counter()
        for root in dict.fromkeys(int(r) for r in self.rows[:, 2]):
            about = self.process.roots[root]
            name = about["class"]
            if about["kind"] == "step":
                name += ".step"
            seen[name] += 1
            found[root] = name if seen[name] == 1 else f"{name} #{seen[name]}"
        return found

    # --- the thread ---

    def _span(self) -> tuple[int, int]:
        """Return (length, begin) of the section's time."""
        if len(self.rows):
            begin, end = self.notes.span()
            return end - begin, begin
        times = self.samples.time_ns
        if not len(times):
            return 0, self.ended.begin_ns
        if self.process.pid == self.ended.pid == self.tid:
            return self.ended.end_ns - self.ended.begin_ns, self.ended.begin_ns
        return int(times[-1] - times[0]) + self.samples.period_ns, int(times[0])


# --- calls without a row --------------------------------------------------------------------------


def _numbers(rows: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which of all calls those with a row are, and how many there are in all."""
    before = np.searchsorted(rows[:, 0], counted[:, 0], "right")
    added = np.cumsum(np.bincount(before, counted[:, 3], minlength=len(rows) + 1)).astype(int)
    return np.arange(len(rows)) + added[: len(rows)], len(rows) + int(added[-1])


class Standing(NamedTuple):
    """How many calls each one with a row stands for, and how far off their time may be.

    The time of all calls is ``below_ns`` less than the estimate to ``above_ns`` more.
    """

    weights: np.ndarray
    below_ns: float
    above_ns: float


def _standing(
    rows: np.ndarray,
    took: np.ndarray,
    numbers: np.ndarray,
    total: int,
    cuts: Iterable[int] = (),
) -> Standing:
    """Return what calls with a row stand for.

    Args:
        rows: begin and end of each.
        took: what of that is its own time.
        numbers: which of all calls they are.
        total: how many calls there are.
        cuts: from each of these on calls are like none of those before: of another thread, or
            the first that is not left out.
    """
    threads = _of_threads(numbers, total, cuts)
    found = [_of_thread(rows[part], took[part], own, count) for part, own, count in threads]
    return Standing(
        np.concatenate([np.empty(0), *(one.weights for one in found)]),
        sum(one.below_ns for one in found),
        sum(one.above_ns for one in found),
    )


def _of_thread(rows: np.ndarray, took: np.ndarray, numbers: np.ndarray, total: int) -> Standing:
    """Return what calls of one thread stand for.

    Calls without a row are like those of the stretch after them: how many they are was drawn before
    it, while after a stretch with a slow call there are few or none. How long they lasted, with the
    pauses between them, is known: stretches count more or less by how long they are themselves,
    until they stand for that time (calibration: Särndal, Swensson and Wretman, 1992, section 6.4).
    So it is the calls' where calls vary more than pauses. What lasted longer than the longest
    stretch may be a slow call, or something else that the program did: only ``above_ns`` has it,
    with all that is more than pauses where no call is slow. Where few calls with a row are slow
    there may be no other: then ``below_ns`` reaches to where there is none.
    """
    begins, ends = rows[:, 0], rows[:, 1]
    gaps = np.diff(numbers, prepend=-1, append=total) - 1
    weights = np.ones(len(rows))
    # Those after the last row are like those before it, but for the very first, which may compile.
    last = slice(max(len(took) - STRETCH, int(len(took) > 1)), None)
    weights[last] += gaps[-1] / len(took[last])
    first = np.flatnonzero(gaps[:-1])
    until = np.minimum(np.append(first[1:], len(rows)), first + STRETCH)
    gap, size = gaps[first].astype(float), until - first
    up_to = np.zeros((2, len(rows) + 1))
    up_to[:, 1:] = np.cumsum((took, ends - begins), axis=1)
    own, whole = up_to[:, until] - up_to[:, first]
    pause = (ends[until - 1] - begins[first] - whole) / np.maximum(size - 1, 1)
    call, lasted = own / size, whole / size + pause
    # There is one pause more than calls. Of what was before the first row nothing is known.
    room = np.maximum(begins[first] - ends[first - 1] - pause, 0.0)
    room[first == 0] = (gap * lasted)[first == 0]
    variance, known, least_ns, most_ns = 0.0, 1.0, math.inf, 0.0
    if len(first):
        off, rest = (one - np.average(one, weights=gap) for one in (lasted, call))
        variance += gaps[-1] * (gaps[-1] + STRETCH) * np.average(rest**2, weights=gap)
        # So many gaps have no slow call where FEW calls with a row are slow; half of them pause
        # less than their median. Without any, all of the time may be calls.
        plain = math.exp(-FEW * gap.mean() / len(rows)) / 2
        pause_ns = np.quantile(room / gap, plain) - np.quantile(call, 0.5)
        most_ns = float(room.sum())
        if plain * len(first) > 1:
            most_ns -= max(float(pause_ns), 0.0) * float(gap.sum())
        slow = np.maximum(took - np.median(took), 0.0)
        if slow.sum() ** 2 < FEW * (slow**2).sum():
            least_ns = float(gap @ np.minimum(call, np.median(call)))
        if np.ptp(lasted) > 1:
            spread = (gap * off**2).sum()
            rest -= (gap * off * call).sum() / spread * off
            more = np.minimum(room, gap * lasted.max()) - gap * lasted
            gap *= 1 + np.clip(more.sum() / spread, -1 / off.max(), -1 / off.min()) * off
        # Calls with a row take longer, and so do pauses: of the former more than is known here.
        known = min(1.0, round(room.sum() / max(gap @ lasted, 1.0), 9))
        gap *= known
        variance += (gap * (gap + size) * rest**2).sum()
    stand = np.zeros(len(rows) + 1)
    np.add.at(stand, first, gap / size)
    np.add.at(stand, until, -gap / size)
    weights += np.cumsum(stand)[:-1]
    theirs_ns = float((weights - 1) @ took)
    free_ns = float(room.sum() - gap @ (call if known < 1 else lasted))
    degrees = len(first) - 2
    if degrees < 1:  # all of the time between rows is theirs at most
        most_ns = float(room.sum() - gap @ call)
        after = mean_interval(took[last].tolist(), METHOD)
        most_ns += float(gaps[-1] * (after.high - after.value)) if after else 0.0
        return Standing(weights, theirs_ns, most_ns)
    half_ns = t_quantile(CONFIDENCE, degrees) * math.sqrt(variance * len(first) / degrees)
    free_ns = max(free_ns, most_ns - float(gap @ call))
    below_ns = min(max(half_ns, theirs_ns - least_ns), theirs_ns)
    return Standing(weights, below_ns, half_ns + free_ns)


def _of_threads(
    numbers: np.ndarray, total: int, cuts: Iterable[int]
) -> Iterator[tuple[slice, np.ndarray, int]]:
    """Yield where each thread's known calls are, their numbers in it, and how many it made."""
    since, at = 0, 0
    for cut in (*(cut for cut in cuts if cut <= numbers[-1]), total) if len(numbers) else ():
        until = int(np.searchsorted(numbers, cut))
        if until > at:  # else those of the next thread stand for them too
            yield slice(at, until), numbers[at:until] - since, cut - since
            since, at = cut, until


def _resampled(weights: np.ndarray) -> np.ndarray:
    """Return indices, as many as there are weights, each as often as its weight asks for.

    Systematic resampling: each is there its weight over the mean times, rounded up or down, by
    which sums over the result are without bias. All of them once, where weights are equal.
    """
    if not len(weights):
        return np.arange(0)
    ends = np.floor(np.cumsum(weights / weights.mean()) + 0.5).astype(int)
    return np.repeat(np.arange(len(weights)), np.diff(ends, prepend=0))


def _percentile(values: np.ndarray, weights: np.ndarray, share: float) -> int:
    """Return the value that a share of calls is below, of two the higher one."""
    order = np.argsort(values, kind="stable")
    up_to = np.cumsum(weights[order])
    return int(values[order[np.searchsorted(up_to, share * (up_to[-1] - 1) + 1)]])


def _sample_run(
    samples: Samples,
    stretch_of: np.ndarray,
    counts: np.ndarray,
    sums: np.ndarray,
    details: Sequence[Detail],
    median_ns: int,
) -> SampleRun:
    """Return the calls of a kind as a sampled run.

    CPU time and time in the run queue are known of calls noted in detail; the others are taken to
    have the same shares of their time.
    """
    detailed_ns = sum(d.end_ns - d.begin_ns for d in details)
    cpu_ns, queued = sum(d.cpu_ns for d in details), [d.queued_ns for d in details]
    stretches = []
    for number, (calls, wall_ns) in enumerate(zip(counts, sums, strict=True)):
        seen = samples.only(stretch_of == number).by_leaf()
        system = seen.pop(Leaf(KERNEL, ""), 0)
        ran_ns, queued_ns = (seen.total() + system) * samples.period_ns, None
        if detailed_ns:
            ran_ns = round(wall_ns * cpu_ns / detailed_ns)
            is_known = NOT_COUNTED not in queued
            queued_ns = round(wall_ns * sum(queued) / detailed_ns) if is_known else None
        ticks = Ticks(seen, system if samples.sees_kernel else None)
        stretches.append(Stretch(ticks, int(calls), int(wall_ns), ran_ns, queued_ns))
    return SampleRun("perf-event", samples.period_ns, tuple(stretches), median_ns)


def _places(
    samples: Samples,
    stretch_of: np.ndarray,
    details: Sequence[Detail],
    modules: Sequence[Mapping[str, Any]],
    run: SampleRun,
) -> Places | None:
    """Return which module each sample belongs to, of calls noted in detail."""
    if not (details and modules):
        return None
    ordered = sorted(details, key=lambda d: d.begin_ns)
    notes = np.concatenate([(d.begin_ns, 0, *d.notes, d.end_ns, OUTSIDE) for d in ordered])
    entered = notes[1::2]
    calls = np.bincount(entered[entered >= 0], minlength=len(modules))
    inside = np.array(replayed(entered.tolist())[0])
    module = inside[np.searchsorted(notes[::2], samples.time_ns, "right")]
    ticks: list[Counter[tuple[int, str, str]]] = [Counter() for _ in run.stretches]
    for index in np.flatnonzero(module != OUTSIDE):
        bucket = classify(samples.leaves[samples.leaf[index]])[0]
        ticks[stretch_of[index]][int(module[index]), "", bucket] += 1
    if not any(ticks):
        return None
    known = [
        {
            "path": one["path"],
            "type": one["class"],
            "file": short_path(one["file"]) if one["file"] else None,
            "line": one["line"],
            "calls": int(count),
        }
        for one, count in zip(modules, calls, strict=True)
    ]
    found = places("module", run, calls=len(details), **by_place(known, ticks))
    return protocol.places(found)


def _unknown(
    device: str, calls: np.ndarray, samples: Samples, others: Sequence[Samples], share: Estimate
) -> str | None:
    """Return why the tax of calls is not known, None where it is."""
    if device == "meta":
        return "its parameters are on meta: it computes nothing, or loads them during the call"
    if device != "cpu":
        return (
            f"its kernels run on {device}, and the latency is the time until the call returns; "
            "frameworktax explain shows both from a profiler's trace"
        )
    begins, ends, _ = calls.T
    helped = sum(int((owners(begins, ends, one.kernels().time_ns) >= 0).sum()) for one in others)
    if helped > HELPED * len(samples.time_ns):
        return (
            "other threads compute for it, and waiting for them is no tax: at most "
            f"{share.value:.0%}; set OMP_NUM_THREADS=1 to know"
        )
    return None


def _between(beside: Samples, wall_ns: int, left_ns: int, known_ns: int | None) -> tuple[Part, ...]:
    """Return what a thread did besides its calls; parts add up to ``left_ns``.

    ``known_ns`` is how much of that the samples are from; None for all of it.
    """
    if not wall_ns:
        return ()
    scale = 1.0
    if known_ns is not None:
        scale = left_ns / known_ns if known_ns > 0 and left_ns > 0 else 0.0
    libraries: Counter[str] = Counter()
    for leaf, count in beside.by_leaf().items():
        libraries[_library(leaf)] += count
    period_ns = scale * beside.period_ns
    parts = [(name, count * period_ns) for name, count in libraries.most_common() if scale]
    shown, others = parts[:LIBRARIES], parts[LIBRARIES:]
    if len(others) > 1:
        others = [(f"{len(others)} other libraries", sum(ns for _, ns in others))]
    shown += others
    waiting = left_ns - sum(ns for _, ns in shown)
    shown.append(("off the processor" if beside.leaves and scale else "not sampled", waiting))
    return tuple(Part(name=name, time_ns=ns, share=ns / wall_ns) for name, ns in shown)


def _library(leaf: Leaf) -> str:
    bucket = classify(leaf)[0]
    if bucket in ("python", "system"):
        return bucket
    return "unknown" if leaf.library == UNKNOWN else leaf.library


def _short(place: str) -> str:
    file, colon, line = place.rpartition(":")
    return f"{short_path(file)}:{line}" if colon else place


# --- reading what was noted -----------------------------------------------------------------------


class Detail(NamedTuple):
    """A call that was noted in detail; times in ns.

    Attributes:
        queued_ns: ready while others had the processor, signed, NOT_COUNTED where not known.
        notes: alternating time and index of the module entered, −1 for one left.
    """

    root: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    queued_ns: int
    notes: np.ndarray

    def moved(self, by_ns: int) -> Detail:
        """Return it as if it had been later."""
        notes = self.notes.copy()
        notes[::2] += by_ns
        return self._replace(
            begin_ns=self.begin_ns + by_ns, end_ns=self.end_ns + by_ns, notes=notes
        )


@dataclass
class ThreadNotes:
    """The calls of a thread.

    Attributes:
        rows: shape (calls, 3) with begin, end and root, in the order of ends.
        counted: shape (spans, 4) with begin, end, root and number of calls that have no row.
        modules: root → numbers of the modules of it that were called.
        begins: of many threads in one, when each begins.
    """

    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    counted: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int64))
    details: list[Detail] = field(default_factory=list)
    modules: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    begins: list[int] = field(default_factory=list)

    def span(self) -> tuple[int, int]:
        """Return when its first call begins and its last one ends."""
        ends = np.concatenate((self.rows[:, 1], self.counted[:, 1]))
        return int(self.rows[:, 0].min()), int(ends.max())


@dataclass
class ProcessNotes:
    """What a process noted.

    Attributes:
        threads: by the operating system's number.
        names: of threads; ``name`` of the process where multiprocessing started it.
        roots: what is called, by number.
        inputs: (root, text of what it was given) → how often.
        values: the same → the first such call, with its values.
        full: why calls are missing, None if none are.
    """

    pid: int
    threads: dict[int, ThreadNotes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    name: str = ""
    roots: dict[int, dict[str, Any]] = field(default_factory=dict)
    inputs: Counter[tuple[int, str]] = field(default_factory=Counter)
    values: dict[tuple[int, str], Any] = field(default_factory=dict)
    full: str | None = None


def read_notes(folder: Path) -> list[ProcessNotes]:
    """Return what all processes noted; the last word of one that was killed may be cut off."""
    pids = sorted({int(path.stem) for path in folder.iterdir() if path.stem.isdigit()})
    return [_read(folder, pid) for pid in pids]


def _read(folder: Path, pid: int) -> ProcessNotes:
    found = ProcessNotes(pid)
    names, path = folder / f"{pid}.names", folder / f"{pid}.calls"
    for line in names.read_text(encoding="utf-8").splitlines() if names.exists() else ():
        with suppress(ValueError):  # cut off
            _name(found, json.loads(line))
    unwritten = folder / f"{pid}.unwritten"
    if found.full is None and unwritten.exists() and any(unwritten.read_bytes()):
        found.full = (
            "calls of it, or of a process that it forked, are missing: nothing could be written "
            "any more, as after a change of user"
        )
    if not path.exists():
        return found
    rows: dict[int, list[np.ndarray]] = defaultdict(list)
    for (kind, tid), words in _parts(np.fromfile(path, np.int64), 2):
        thread = found.threads.setdefault(tid, ThreadNotes())
        if kind == DETAILED:
            thread.details += [Detail._make((*head, notes)) for head, notes in _parts(words, 5)]
        elif kind == COUNTED:
            thread.counted = np.concatenate((thread.counted, _counted(words)))
        else:
            triples = words[: len(words) // 3 * 3].reshape(-1, 3)
            is_known = np.isin(triples[:, 2], list(found.roots))
            is_call = triples[:, 1] > 0
            rows[tid].append(triples[is_known & is_call])
            for number, _, root in triples[is_known & ~is_call].tolist():
                thread.modules[root].add(number)
            if triples[~is_known, 2].any():
                found.full = found.full or "what was called could not be written down"
    for tid, parts in rows.items():
        found.threads[tid].rows = np.concatenate(parts)
    return found


def _parts(words: np.ndarray, size: int) -> Iterator[tuple[list[Any], np.ndarray]]:
    """Yield head, of a size, and content of parts that begin with their length; 0 ends them."""
    at = 0
    while at < len(words) and words[at] > 0:
        end = at + int(words[at])
        yield words[at + 1 : at + 1 + size].tolist(), words[at + 1 + size : end]
        at = end


def _counted(words: np.ndarray) -> np.ndarray:
    """Return begin, end, root and number of calls without a row.

    Where none with a row follows, the end is as it was expected.
    """
    records = words[: len(words) // COUNTED_WORDS * COUNTED_WORDS].reshape(-1, COUNTED_WORDS)
    begin, expected, planned, left, end, root = records[records[:, 5] > 0].T
    count = planned - left
    longest = begin + (LONGEST * (expected - begin)).astype(int)
    last = begin + (expected - begin) * count // planned
    until = np.where(end, np.minimum(end, longest), last)
    return np.column_stack((begin, until, root, count)).compress(count > 0, axis=0)


def _name(found: ProcessNotes, known: dict[str, Any]) -> None:
    if "root" in known:
        found.roots[known["root"]] = known
    elif "thread" in known:
        found.names[known["thread"]] = known["name"]
        found.name = known.get("process", found.name)
    elif "inputs" in known:
        key = known["inputs"], json.dumps(known["seen"])
        found.inputs[key] += 1
        if "values" in known:
            found.values[key] = known["values"]
    elif "full" in known:
        found.full = known["full"]
