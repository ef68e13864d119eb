"""A running process observed from outside: every thread sampled, nothing injected, nothing stopped.

One thread empties the rings of all threads of all processes ten times a second, or so seldom that
this takes ``OWN_SHARE`` of a processor, and looks for processes that were started. The caller's
thread places samples, and shows what is known, so seldom that both take ``SHOWN_SHARE``; over a
large library's symbols it may take seconds, once.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import resource
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from frameworktax.analysis.estimates import counted_share
from frameworktax.attribution.buckets import UNREAD, classify, is_judged
from frameworktax.attribution.perf_event import RefusedError
from frameworktax.attribution.py_spy import FunctionRecording, probe
from frameworktax.attribution.symbols import JIT, KERNEL, Leaf, PerfMap, Resolver
from frameworktax.attribution.threads import (
    INTERVAL_S,
    PROGRAM_PERIOD_NS,
    SLACK,
    Events,
    ThreadSampler,
)
from frameworktax.errors import NothingMeasuredError, UsageError
from frameworktax.host.machine import read, stat_fields
from frameworktax.measure.recorder import this_environment
from frameworktax.programs import target
from frameworktax.programs.document import Function, Process, Program, Section
from frameworktax.programs.target import Target
from frameworktax.records import BILL, Estimate, Note
from frameworktax.report.words import percent, time_text
from frameworktax.stats import t_quantile

OWN_SHARE = 0.005
"""Of a processor, that emptying rings and finding threads may take."""
SHOWN_SHARE = 0.01
"""Of a processor, that placing samples and showing what is known may take."""
WINDOW_S, LONGEST_WINDOW_S = 1.0, 3.0
"""Time between two times that samples are placed; the interval of a share is over such windows."""
MOST_WINDOWS = 64
"""Beyond, two neighbours become one."""
MOST_ENDED = 64
"""Threads that have ended and are listed; others are in the numbers of the process alone."""
SYMBOLS = 400
"""Of a process that are listed, most processor time first."""
FUNCTIONS = 100
UNSEEN, LOST = 0.05, 0.02
"""Shares of processor time and of samples above which a note says so."""
METHOD = "program-counter-sampling (perf-event), every {}"
_IMAGE = slice(23, 26)  # see stat_fields: where its code and its stack are, else at each exec
_DEVICES = re.compile(r"/dev/(nvidia\d|kfd|dri/renderD)")
_PYTHON = re.compile(r"(lib)?python\d?(\.\d+)?t?(\.so[.\d]*)?")


@dataclass
class Seen:
    """What was seen of a thread, a process or all processes.

    Attributes:
        wall_ns, cpu_ns, lost, ended: as of ``ThreadSamples``.
        leaves: samples by place; those in the operating system are at ``KERNEL``.
        windows: samples in kernels and in all, by window.
    """

    name: str = ""
    wall_ns: int = 0
    cpu_ns: int = 0
    lost: int = 0
    ended: bool = False
    leaves: Counter[Leaf] = field(default_factory=Counter)
    windows: list[tuple[int, int]] = field(default_factory=list)

    def add(self, leaves: Counter[Leaf], cpu_ns: int = 0, lost: int = 0) -> None:
        """Take the samples of a window."""
        self.cpu_ns += cpu_ns
        self.lost += lost
        self.leaves.update(leaves)  # not +=, which drops counts below one
        kernel = sum(n for leaf, n in leaves.items() if classify(leaf)[0] == "kernel")
        self.windows.append((kernel, sum(leaves.values())))
        if len(self.windows) > MOST_WINDOWS:
            pairs = zip(self.windows[::2], [*self.windows[1::2], (0, 0)], strict=False)
            self.windows = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]

    def tax_share(self, per: str = "thread") -> Estimate | None:
        """Return the share of samples outside kernels, None without samples.

        In libraries without symbols loops that only move data count as kernels, and code that
        nothing is known of does not; the interval reaches to where either is the other. ``per``
        is what had an event, ``thread`` or ``processor``.
        """
        found = tax_share(self.windows, per)
        if found is None:
            return None
        parts, total = Counter[str](), self.leaves.total()
        for leaf, count in self.leaves.items():
            parts[classify(leaf)[1]] += count
        low, high = found.low - parts[UNREAD] / total, found.high + parts["copying"] / total
        return replace(found, low=low, high=high)

    def bill_ns(self) -> dict[str, float]:
        """Return processor time by line of the breakdown."""
        total, counts = self.leaves.total(), Counter[str]()
        for leaf, count in self.leaves.items() if total > 0 else ():
            counts[classify(leaf)[0]] += count
        return {name: counts[name] / total * self.cpu_ns for name in BILL if counts[name]}

    def symbols_ns(self) -> tuple[tuple[str, str, str, float], ...]:
        """Return (line, library, symbol, processor time), most first."""
        total, counts = self.leaves.total(), Counter[tuple[str, str, str]]()
        for leaf, count in self.leaves.items() if total > 0 else ():
            counts[classify(leaf)[0], leaf.library, leaf.symbol] += count
        return tuple((*key, n / total * self.cpu_ns) for key, n in counts.most_common(SYMBOLS))


def next_window_s(spent_s: float) -> float:
    """Return how long to wait until samples are placed again; ``spent_s`` of a processor it took.

    That is the last time: what symbols of a library take is no reason to wait for longer.
    """
    return min(LONGEST_WINDOW_S, max(WINDOW_S, spent_s / SHOWN_SHARE))


def tax_share(windows: Sequence[tuple[int, int]], per: str = "thread") -> Estimate | None:
    """Return the share of samples outside kernels with its interval, None without samples.

    Windows hold as many samples as the threads ran, so the interval is that of a ratio of sums:
    Student's t over what each window's kernels differ from the common share of its samples. As in
    ``share_interval`` it is not narrower than so few samples allow.

    Args:
        windows: (samples in kernels, samples) each.
        per: what had an event, ``thread`` or ``processor``.
    """
    method = METHOD.format(per)
    total = sum(n for _, n in windows)
    if total <= 0:
        return None
    share = 1 - sum(k for k, _ in windows) / total
    used = [(k, n) for k, n in windows if n]
    if len(used) < 2:
        return counted_share(share, total, None, f"{method}, binomial", len(used))
    squares = sum((n - k - share * n) ** 2 for k, n in used)
    deviation = math.sqrt(len(used) / (len(used) - 1) * squares) / total
    half = t_quantile(0.95, len(used) - 1) * deviation
    return counted_share(share, total, half, method, len(used))


class _Observed:
    """A process while it is observed."""

    def __init__(
        self, found: Target, period_ns: int, root: Path, processors: Events | None
    ) -> None:
        self._folder = target.living(root / "proc" / str(found.pid))
        self.target, self.period_ns = found, period_ns
        self.sampler = ThreadSampler(found.pid, processors or Events(period_ns), root)
        self.per = "thread" if processors is None else "processor"
        self._begin_image(stat_fields(self._folder)[_IMAGE])
        self.has_device = self._maps_device()
        self.functions: tuple[Function, ...] = ()
        self.threads: dict[int, Seen] = {}
        self.ended: deque[tuple[int, Seen]] = deque(maxlen=MOST_ENDED)
        self.seen = Seen()

    @property
    def is_python(self) -> bool:
        # Where samples were too: it may have executed another program since.
        names = {PurePosixPath(path).name for path in self.resolver.libraries}
        return any(map(_PYTHON.fullmatch, names | {leaf.library for leaf in self.seen.leaves}))

    def _begin_image(self, image: list[str]) -> None:
        """Forget where code was: the process has executed a program."""
        self._image = image
        perf_map = PerfMap(self._folder / f"root/tmp/perf-{self.target.inner_pid}.map")
        self.resolver = Resolver(process=self._folder, perf_map=perf_map, judged=is_judged)
        self.places: dict[int, Leaf] = {}

    def take(self) -> Counter[Leaf]:
        """Place what was sampled since the last time, and return it."""
        taken = self.sampler.take()
        image = stat_fields(self._folder)[_IMAGE]  # none of a process that has ended
        if image and image != self._image:
            self._begin_image(image)
        unknown = {a for one in taken for a in one.user} - self.places.keys()
        self.places.update(self.resolver.resolve(unknown))
        if unknown and not self.has_device:  # it may have begun to use one
            self.has_device = self._maps_device()
        window: Counter[Leaf] = Counter()
        for one in taken:
            leaves = Counter(map(self.places.__getitem__, one.user))
            system = one.system
            if not self.sampler.sees_kernel:
                system = round(one.cpu_ns / self.period_ns) - len(one.user) - one.lost
            if system:
                leaves[Leaf(KERNEL, "")] = system
            thread = self.threads.setdefault(one.thread, Seen())
            thread.name, thread.ended = one.name, one.ended
            thread.wall_ns += one.wall_ns
            thread.add(leaves, one.cpu_ns, one.lost)
            window.update(leaves)
            if one.ended:  # another may get its number
                self.ended.append((one.thread, self.threads.pop(one.thread)))
        lost = sum(one.lost for one in taken)
        self.seen.add(window, sum(one.cpu_ns for one in taken), lost)
        return window

    def _maps_device(self) -> bool:
        return _DEVICES.search(read(self._folder, "maps") or "") is not None

    def sections(self) -> list[Section]:
        """Return what is known of the threads."""
        return [
            Section(
                pid=self.target.pid,
                tid=thread,
                name=one.name,
                wall_ns=one.wall_ns,
                cpu_ns=one.cpu_ns,
                tax_share=self._tax_of(one),
                bill_ns=one.bill_ns(),
                samples=one.leaves.total(),
                lost=one.lost if self.per == "thread" else None,
                ended=one.ended,
            )
            for thread, one in (*self.ended, *self.threads.items())
        ]

    def process(self, missing: str | None) -> Process:
        """Return what is known of the process; ``missing`` says why it has no functions."""
        return Process(
            pid=self.target.pid,
            parent=self.target.parent,
            command=self.target.command,
            is_python=self.is_python,
            wall_ns=self.sampler.wall_ns,
            cpu_ns=self.seen.cpu_ns,
            unseen_cpu_ns=self.sampler.unseen_cpu_ns,
            tax_share=self._tax_of(self.seen),
            bill_ns=self.seen.bill_ns(),
            symbols_ns=self.seen.symbols_ns(),
            functions=self.functions,
            ended=self.sampler.is_ended,
            notes=tuple(self._notes(missing)),
        )

    def _tax_of(self, seen: Seen) -> Estimate | None:
        """Return a share of tax; none beside a GPU, where the kernels are in no sample."""
        return None if self.has_device else seen.tax_share(self.per)

    def _notes(self, missing: str | None) -> Iterator[Note]:
        seen, samples = self.seen, self.seen.leaves.total()
        due = samples + seen.lost
        unseen = self.sampler.unseen_cpu_ns or 0
        if self.has_device:
            text = (
                "the process uses a GPU: what is shown is its host side alone; kernels on the "
                "device are in no number, and the tax is not known. frameworktax explain shows "
                "them from a profiler's trace"
            )
            yield Note("host-side-only", text)
        if not self.is_python:
            text = "this is not a Python program: native code by library and symbol only"
            yield Note("not-python", text)
        elif missing and not self.functions:
            yield Note("no-python-functions", f"no functions of Python: {missing}")
        if not self.sampler.sees_kernel:
            text = (
                "kernel-mode samples are not allowed here; time in the operating system is CPU "
                "time minus the ticks seen in user mode"
            )
            yield Note("system-from-missing-ticks", text)
        for reason, count in Counter(self.sampler.refused.values()).items():
            yield Note("threads-not-sampled", f"{count} threads were not sampled: {reason}")
        if unseen > UNSEEN * (seen.cpu_ns + unseen):
            text = (
                f"{unseen / (seen.cpu_ns + unseen):.0%} of the processor time was in no sampled "
                f"thread: threads that live for less than {INTERVAL_S:g} to "
                f"{SLACK * INTERVAL_S:g} s"
            )
            yield Note("unseen-threads", text)
        if seen.lost > LOST * due:
            yield Note("samples-lost", f"{seen.lost} of {due} samples were lost")
        made = sum(n for leaf, n in seen.leaves.items() if leaf.library == JIT)
        if not self.is_python and made > UNSEEN * samples:
            text = (
                f"{made / samples:.0%} of samples are in code made while running, taken as kernels"
            )
            yield Note("code-made-while-running", text)


class Observation:
    """A process and those that it starts, observed until ``finish``; use as a context manager.

    Args:
        pid: of the process.
        period_ns: processor time between two samples of a thread.
        root: where ``proc`` is; for tests.
        processors: whether events are of processors, where that is allowed, instead of threads.

    Raises:
        UsageError: from ``__enter__``: this process is not to be attached to.
        NothingMeasuredError: it may not be sampled; says what helps.
    """

    def __init__(
        self,
        pid: int,
        *,
        period_ns: int = PROGRAM_PERIOD_NS,
        root: Path = Path("/"),
        processors: bool = True,
    ) -> None:
        self.target = target.find(pid, root)
        self._asks_processors = processors
        self._processors: Events | None = None
        self._root, self.period_ns = root, period_ns
        self._processes: dict[tuple[int, int], _Observed] = {}
        self._stopping = threading.Event()
        self._reader = threading.Thread(target=self._read, name="frameworktax-reader", daemon=True)
        self._recording: FunctionRecording | None = None
        self._refused: dict[int, str] = {}
        """Process that was started and could not be sampled → reason."""
        self._missing: str | None = None
        """Why there are no functions of Python."""
        self._seen = Seen()
        self._fault: Exception | None = None
        self._exit = contextlib.ExitStack()
        self._begin_ns = self._cpu_ns = self._spent_ns = self._unseen_ns = self._took_ns = 0

    def __enter__(self) -> Observation:
        with contextlib.ExitStack() as until:
            until.enter_context(target.only_one(self.target, self._root))
            self._begin_ns, self._cpu_ns = time.perf_counter_ns(), _own_cpu_ns()
            if self._asks_processors:
                # What follows needs no privileges, and says why where it is refused as well.
                with contextlib.suppress(RefusedError):
                    self._processors = Events(self.period_ns, processors=True)
                    until.callback(self._processors.close_all)
            try:
                self._add(self.target)
            except RefusedError as refused:
                raise NothingMeasuredError(str(refused.strerror)) from refused
            except OSError as error:
                raise NothingMeasuredError(target.unreadable(self.target.pid, error)) from error
            until.callback(self._stop)
            self._find_children()
            self._spent_ns = self._spent()
            if self._first.is_python:
                self._record_functions(until)
            self._reader.start()
            self._exit = until.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    @property
    def _first(self) -> _Observed:
        return next(iter(self._processes.values()))

    @property
    def is_ended(self) -> bool:
        """Whether the process has ended, and all that it started."""
        return all(one.sampler.is_ended for one in list(self._processes.values()))

    def _record_functions(self, until: contextlib.ExitStack) -> None:
        self._missing = probe()
        if self._missing is None:
            try:
                self._recording = until.enter_context(
                    FunctionRecording(self.target.pid, self._root)
                )
            except OSError as error:
                self._missing = str(error.strerror or error)

    def _add(self, found: Target) -> None:
        made = _Observed(found, self.period_ns, self._root, self._processors)
        made.sampler.start()
        self._processes[found.pid, found.start] = made  # others look at a list of them

    def _read(self) -> None:
        wait_s, sought = INTERVAL_S, time.monotonic()
        try:
            while not self._stopping.wait(wait_s):
                began = time.thread_time()
                for one in list(self._processes.values()):
                    if not one.sampler.is_ended:
                        one.sampler.look()
                    if one.sampler.is_ended:
                        one.sampler.stop()  # many may come and go: their rings are given back
                if time.monotonic() - sought >= WINDOW_S:
                    self._find_children()
                    sought = time.monotonic()
                wait_s = max(INTERVAL_S, (time.thread_time() - began) / OWN_SHARE)
                wait_s = min(wait_s, SLACK * INTERVAL_S)  # rings hold no more
        except Exception as error:  # noqa: BLE001 - update raises it: numbers would be wrong
            self._fault = error

    def _find_children(self) -> None:
        living = {pid: one for (pid, _), one in self._processes.items() if not one.sampler.is_ended}
        # What they start is found where the process that started them has ended, too.
        first = [pid for pid, one in living.items() if one.target.parent not in living]
        for pid in [child for one in first for child in target.children(one, self._root)]:
            if pid not in living:
                try:
                    found = target.find(pid, self._root)
                    if (pid, found.start) not in self._processes:
                        self._add(found)
                except target.OthersError as error:
                    self._refused[pid] = str(error)
                except UsageError:
                    continue  # it has ended meanwhile
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESRCH):  # else it has ended
                        self._refused[pid] = str(error.strerror)
                else:
                    self._refused.pop(pid, None)

    def _stop(self) -> None:
        self._stopping.set()
        if self._reader.is_alive():
            self._reader.join()
        for one in self._processes.values():
            one.sampler.stop()

    def _spent(self) -> int:
        """Return processor time by the system: of what lives, and what that has waited for."""
        return sum(target.spent_ns(one.target, self._root) for one in [*self._processes.values()])

    def place(self) -> list[_Observed]:
        """Place what was sampled since the last time; return the processes by now."""
        if self._fault is not None:
            raise self._fault
        window: Counter[Leaf] = Counter()
        # First: they run on while their samples are placed.
        spent_ns, self._took_ns = self._spent(), time.perf_counter_ns() - self._begin_ns
        every = list(self._processes.values())
        for one in every:
            window.update(one.take())
        self._seen.add(window)
        if not self._first.sampler.is_ended:  # what it has waited for ends with it
            known_ns = sum(one.seen.cpu_ns + (one.sampler.unseen_cpu_ns or 0) for one in every)
            self._unseen_ns = spent_ns - self._spent_ns - known_ns
        return every

    def update(self) -> Program:
        """Place what was sampled since the last time, and return what is known by now."""
        return self._known(self.place())

    def _known(self, every: Sequence[_Observed]) -> Program:
        cpu_ns, took_ns = sum(one.seen.cpu_ns for one in every), self._took_ns
        sections = [section for one in every for section in one.sections()]
        has_device = any(one.has_device for one in every)
        share = None if has_device else self._seen.tax_share(self._first.per)
        events, said = self._processors, []
        if events is not None and events.lost > LOST * events.due:
            text = (
                f"{events.lost:,} of {events.due:,} samples of these processors were lost; how "
                "many of them were of what is observed here is not known"
            )
            said.append(Note("samples-lost", text))
        if self._unseen_ns > UNSEEN * (cpu_ns + self._unseen_ns):
            text = (
                f"{self._unseen_ns / (cpu_ns + self._unseen_ns):.0%} of the processor time was in "
                "processes that had ended, or had begun, between two looks: once a second"
            )
            said.append(Note("unseen-processes", text))
        if self._refused:
            reason = next(iter(self._refused.values()))
            text = f"not sampled: {len(self._refused)} of the processes that it started; {reason}"
            said.append(Note("threads-not-sampled", text))
        return Program(
            verb="attach",
            command=self.target.command,
            headline=_headline(self.target, share, cpu_ns, took_ns, has_device=has_device),
            wall_ns=took_ns,
            cpu_ns=cpu_ns,
            period_ns=self.period_ns,
            observer_cpu_ns=_own_cpu_ns() - self._cpu_ns,
            tax_share=share,
            processes=tuple(one.process(self._missing) for one in every),
            sections=tuple(sorted(sections, key=lambda section: -section.cpu_ns)),
            notes=tuple(said),
        )

    def finish(self) -> Program:
        """Observe no longer; return all that is known."""
        self._stop()
        every = self.place()  # at once: it runs on while py-spy ends
        if self._recording is not None:
            read, self._missing = self._recording.stop()
            for one in every:
                functions = [
                    Function(name=name, file=file, own=own, total=total)
                    for (name, file), (own, total) in read.get(one.target.pid, {}).items()
                ]
                functions.sort(key=lambda function: (-function.own, -function.total))
                one.functions = tuple(functions[:FUNCTIONS])
        return replace(self._known(every), environment=this_environment())


def _headline(
    found: Target, share: Estimate | None, cpu_ns: int, wall_ns: int, *, has_device: bool = False
) -> str:
    name = PurePosixPath(found.command[0]).name
    script = ""
    for before, word in pairwise(found.command):
        if before == "-c":  # what follows is code
            break
        if not word.startswith("-") and before not in ("-X", "-W"):  # which take a word
            script = word
            break
    who = f"process {found.pid} ({' '.join(filter(None, (name, PurePosixPath(script).name)))})"
    if has_device:
        return (
            f"{who}: its host ran for {time_text(cpu_ns)} in {time_text(wall_ns)}; its kernels run "
            "on a GPU, so its tax is not known"
        )
    if share is None:
        return f"{who}: no thread ran in {time_text(wall_ns)}, so there is no tax"
    return (
        f"{who}: {percent(share.value)} framework tax ({100 * share.low:.0f} to "
        f"{percent(share.high)}) of {time_text(cpu_ns)} of processor time in "
        f"{time_text(wall_ns)}"
    )


def _own_cpu_ns() -> int:
    """Return the processor time of this process and of those it has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + round((waited.ru_utime + waited.ru_stime) * 1e9)
