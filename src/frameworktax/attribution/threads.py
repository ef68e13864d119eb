"""Samples other programs while they run; nothing of them is stopped.

``ThreadSampler`` samples every thread of a process that is running. ``look`` finds threads that
began or ended, and empties the rings; the clocks of threads are read by ``take`` alone, since
reading those of 64 takes milliseconds. One that begins and ends between two looks is not seen; what
the process took beyond its sampled threads is ``unseen_cpu_ns``.

``TreeSampler`` samples a program from its begin and all that it starts: one event on each processor
is inherited by every thread and process, so that none is missed. The same rings hold which files
each process maps, which processes fork and what threads are called, so that samples of a process
that has ended still have symbols.

Source: perf_event_open(2).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from frameworktax.attribution import perf_event as perf
from frameworktax.attribution.perf_event import RefusedError
from frameworktax.host.machine import parse_cpu_list, read, stat_fields

INTERVAL_S = 0.1
"""Between two looks: at 64 threads that sleep a look takes 0.3 ms."""
SLACK = 4
"""A ring holds the samples of so many intervals, for a look that comes late."""
_START = 19
"""Of the fields of ``/proc/PID/stat`` from the state on: when the process began."""


@dataclass(slots=True)
class ThreadSamples:
    """Samples of one thread since they were last taken.

    Attributes:
        thread: its id, as the kernel counts.
        name: of ``/proc/PID/task/TID/comm``.
        begin_ns: when sampling began, by ``time.perf_counter_ns``.
        user: program counters in user mode.
        system: samples inside the operating system, 0 where they are not seen.
        wall_ns: time since then, until it ended.
        cpu_ns: CPU time by the scheduler, samples or not. Of a thread that ended its event's own
            count, which is too high where a hypervisor took the processor away, or with events of
            processors its samples.
        lost: samples that were due and have no record; with events of processors they may be of
            any program, and ``Events`` has their number.
        ended: whether the thread ended.
    """

    thread: int
    name: str
    begin_ns: int
    user: array[int] = field(default_factory=lambda: array("Q"))
    system: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0
    lost: int = 0
    ended: bool = False


class Events:
    """Samples of threads, handed to those that are asked for; they come in one of two ways.

    - ``processors``: an event on each processor, of which the samples of other programs are left
      out. It costs nothing when a processor goes from one thread to another, takes privileges
      (``CAP_PERFMON``, or ``perf_event_paranoid`` of 0 or less), and interrupts other programs as
      well: about 1 % of the time at ``attach``'s period.
    - An event and a ring for each thread: the kernel lets events of several threads share a ring
      only on one processor. A thread that sleeps costs nothing but its ring (8 KiB or more of
      locked memory and two descriptors), but at every switch the kernel stops one event and starts
      another.

    Attributes:
        sees_kernel: whether time inside the operating system gives samples; None before the first.
        threads: thread → where its samples go.
        due, lost: of processors: samples of every program that were due, and have no record.
        lock: to be held by who calls or changes anything of this.

    Args:
        period_ns: time that a processor is busy, or a thread runs, between two samples.

    Raises:
        RefusedError: sampling processors is not allowed, or no ring buffer may be locked.
    """

    def __init__(self, period_ns: int, *, processors: bool = False) -> None:
        self.period_ns = period_ns
        self.sees_kernel: bool | None = processors or None
        self.threads: dict[int, ThreadSamples] = {}
        self.due = self.lost = 0
        self.lock = threading.RLock()
        self._is_of_threads = not processors
        self._rings: dict[int, perf.Ring] = {}
        """By processor or thread."""
        if processors:
            self._rings = dict(enumerate(_rings(-1, period_ns, perf.EXCLUDE_IDLE)))

    def open(self, samples: ThreadSamples) -> None:
        """Sample a thread from here on.

        Raises:
            RefusedError: it may not be sampled, or has ended.
        """
        if self._is_of_threads:
            thread = samples.thread
            fd, self.sees_kernel = perf.kernel_first(
                lambda flags: perf.open_event(
                    self.period_ns, flags=flags, content=_CONTENT, thread=thread
                ),
                self.sees_kernel,
            )
            samples_due = SLACK * INTERVAL_S * 1e9 / self.period_ns
            pages = 1 << int(samples_due * _SAMPLE_BYTES / mmap.PAGESIZE).bit_length()
            self._rings[thread] = perf.Ring(fd, self.period_ns, pages, thread)
        else:
            self.read()  # what came before it was asked for
        self.threads[samples.thread] = samples

    def read(self) -> None:
        """Hand out what the rings hold, so that they have room again."""
        for number, ring in self._rings.items():
            found, data = TreeSamples(), ring.take()
            found.take(data)
            for thread, address in zip(found.tid, found.address, strict=True):
                own = self.threads.get(number if self._is_of_threads else thread)
                if own is not None and address:
                    own.user.append(address)
                elif own is not None:
                    own.system += 1
            lost = ring.newly_lost(data)
            if self._is_of_threads:
                self.threads[number].lost += lost
            else:
                self.due += len(found.tid) + lost
                self.lost += lost

    def cpu_ns(self, thread: int) -> int | None:
        """Return a thread's CPU time until the last reading, by its event; None without one."""
        return self._rings[thread].cpu_ns if self._is_of_threads else None

    def close(self, thread: int) -> None:
        """Sample a thread no longer."""
        self.threads.pop(thread, None)
        if self._is_of_threads:
            self._rings.pop(thread).close()

    def close_all(self) -> None:
        """Take no more samples."""
        for ring in self._rings.values():
            ring.close()


class ThreadSampler:
    """Samples every thread of a process between ``start`` and ``stop``.

    Attributes:
        is_ended: whether the process has ended.
        wall_ns: from the start to the last time that samples were taken.
        unseen_cpu_ns: CPU time of the process beyond that of its sampled threads, signed; None
            where the process has ended unseen.
        refused: thread that could not be sampled → reason.

    Args:
        pid: of the process.
        events: of processors, or of the threads of this process alone.
        root: where ``proc`` is; for tests.

    Raises:
        RefusedError: from ``start``: not one thread may be sampled, or the process has ended.
    """

    def __init__(self, pid: int, events: Events, root: Path = Path("/")) -> None:
        self.pid = pid
        self.is_ended = False
        self.wall_ns = 0
        self.unseen_cpu_ns: int | None = 0
        self.refused: dict[int, str] = {}
        self._events = events
        self._folder = root / "proc" / str(pid)
        self._began: list[str] = []
        """When the process began, by which it is known from a later one with its number."""
        self._is_another = False
        self._samples: dict[int, ThreadSamples] = {}
        self._ended: list[ThreadSamples] = []
        self._clocks: dict[int, tuple[int | None, int | None]] = {}
        """Of threads that are sampled: CPU time by the scheduler, and by their event."""
        self._process_cpu_ns: int | None = 0
        self._since_ns = 0
        self._stopped: tuple[int, int | None] | None = None
        """When it was, and the CPU time of the process then."""

    @property
    def sees_kernel(self) -> bool | None:
        """Whether time inside the operating system gives samples.

        Where it does not, it is the CPU time over the period less the samples and those lost,
        signed.
        """
        return self._events.sees_kernel

    def start(self) -> None:
        """Sample from here on."""
        self._since_ns = time.perf_counter_ns()
        self._began = self._stat()[_START:][:1]
        self.look()
        self._process_cpu_ns = self._process_clock()
        if not self._samples:
            self.stop()
            reasons = Counter(self.refused.values())
            said = reasons.most_common(1)[0][0] if reasons else "it has ended"
            number = errno.EPERM if reasons else errno.ESRCH
            raise RefusedError(number, f"process {self.pid} cannot be sampled: {said}")

    def stop(self) -> None:
        """Take no more samples; those not taken yet still can be. Does nothing the second time."""
        with self._events.lock:
            if self._stopped is None:
                self._stopped = self._read_all()
            for thread in list(self._clocks):
                self._close(thread)

    def take(self) -> list[ThreadSamples]:
        """Return what was sampled since the last time, of the threads that were there."""
        with self._events.lock:
            now, cpu_ns = self._stopped or self._read_all()
            taken = [*self._ended, *self._samples.values()]
            self._ended.clear()
            before, self._process_cpu_ns = self._process_cpu_ns, cpu_ns
            if cpu_ns is None or before is None or self.unseen_cpu_ns is None:
                self.unseen_cpu_ns = None
            else:
                self.unseen_cpu_ns += cpu_ns - before - sum(one.cpu_ns for one in taken)
            self.wall_ns = now - self._since_ns
            self._samples = {
                thread: ThreadSamples(thread, self._samples[thread].name, now)
                for thread in self._clocks
            }
            self._events.threads |= self._samples
            return taken

    def look(self) -> None:
        """Empty all rings, and find threads that began or ended."""
        with self._events.lock:
            self._events.read()
            try:
                tasks = () if self._is_another else (self._folder / "task").iterdir()
                found = {int(path.name) for path in tasks}
            except (FileNotFoundError, ProcessLookupError):
                found = set()
            if found <= {self.pid} or not found <= self._clocks.keys() | self.refused.keys():
                stat = self._stat()
                if stat and stat[_START:][:1] != self._began:
                    self._is_another, found = True, set()
                if found <= {self.pid}:
                    self.is_ended = not found or stat[:1] in ([], ["Z"], ["X"])
            ended = self._clocks.keys() - found
            if ended:
                self._events.read()  # what came after the first time
            for thread in sorted(ended):
                self._read_clock(thread)
                self._samples[thread].ended = True
                self._ended.append(self._samples.pop(thread))  # another may get its number
                self._close(thread)
            for thread in self.refused.keys() - found:
                del self.refused[thread]
            for thread in sorted(found - self._clocks.keys() - self.refused.keys()):
                self._open(thread)

    def _read_all(self) -> tuple[int, int | None]:
        """Read rings and clocks of all threads; return the time, and that of the process."""
        self._events.read()
        for thread in self._clocks:
            self._read_clock(thread)
        return time.perf_counter_ns(), self._process_clock()

    def _open(self, thread: int) -> None:
        samples = ThreadSamples(thread, self._name(thread), time.perf_counter_ns())
        try:
            self._events.open(samples)
        except RefusedError as refused:
            if refused.errno != errno.ESRCH:  # else it ended meanwhile
                self.refused[thread] = str(refused.strerror)
            return
        self._samples[thread] = samples
        self._clocks[thread] = self._scheduled(thread), self._events.cpu_ns(thread)

    def _close(self, thread: int) -> None:
        self._events.close(thread)
        del self._clocks[thread]

    def _read_clock(self, thread: int) -> None:
        """Take a thread's CPU time from the scheduler, which leaves out what a hypervisor took."""
        samples, before = self._samples[thread], self._clocks[thread]
        samples.name = self._name(thread) or samples.name
        samples.wall_ns = time.perf_counter_ns() - samples.begin_ns
        now = self._clocks[thread] = self._scheduled(thread), self._events.cpu_ns(thread)
        known = [b - a for a, b in zip(before, now, strict=True) if a is not None and b is not None]
        sampled_ns = (len(samples.user) + samples.system) * self._events.period_ns
        samples.cpu_ns = known[0] if known else sampled_ns

    def _scheduled(self, thread: int) -> int | None:
        """Return a thread's time on a processor; None where it has ended."""
        words = self._read(f"task/{thread}/schedstat").split()
        return int(words[0]) if words else None

    def _name(self, thread: int) -> str:
        return self._read(f"task/{thread}/comm")

    def _read(self, name: str) -> str:
        """Return a file of the process, empty where it has none, or another has its number."""
        return "" if self._is_another else read(self._folder, name) or ""

    def _stat(self) -> list[str]:
        """Return the fields of its stat, none where another has its number."""
        return [] if self._is_another else stat_fields(self._folder)

    def _process_clock(self) -> int | None:
        """Return the CPU time of all threads of the process, ended ones too."""
        if self._is_another:
            return None
        try:
            return time.clock_gettime_ns(~self.pid << 3 | 2)  # as clock_getcpuclockid(3) does
        except OSError:
            return None


# --- a program and all that it starts -------------------------------------------------------------

PROGRAM_PERIOD_NS = 9_787_000
"""CPU time between two samples of a program, off every multiple of the kernel's own tick. On a
virtual machine a sample takes about 0.1 ms with what it displaces from the caches
(``benchmarks/cost.py``): about 1 %."""
PAGES = 32
"""Of each ring: 3,000 samples, which take half a minute of a processor."""
FLAGS = (
    *(perf.DISABLED, perf.INHERIT, perf.ENABLE_ON_EXEC, perf.ID_ALL),
    *(perf.MMAP, perf.MMAP2, perf.COMM, perf.COMM_EXEC, perf.TASK),
)
_CONTENT, _SAMPLE_BYTES = perf.IP | perf.TID | perf.TIME, 32
_NAMED, _FORK, _MAPPED, _IS_EXEC = 3, 7, 10, 1 << 13


@dataclass(slots=True)
class TreeSamples:
    """What was seen of all processes; every time is that of ``time.perf_counter_ns``.

    Attributes:
        pid, tid, address, time_ns: of each sample; the address is 0 in kernel mode.
        events: (time, pid, what) by which a process's maps change: its parent's pid at a fork,
            None at an exec, or (start, length, offset, path) of an executable mapping.
        names: thread → the last name the kernel had for it.
        parents: process → the one that forked it.
        lost: samples without a record.
    """

    pid: array[int] = field(default_factory=lambda: array("i"))
    tid: array[int] = field(default_factory=lambda: array("i"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    events: list[tuple[int, int, int | tuple[int, int, int, str] | None]] = field(
        default_factory=list
    )
    names: dict[int, str] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    lost: int = 0

    def take(self, data: bytes) -> None:
        """Add the records of a ring."""
        for kind, misc, at, size in perf.records(data):
            body = data[at + 8 : at + size]
            (time_ns,) = struct.unpack_from("<Q", body, len(body) - 8)  # each record ends in it
            if kind == perf.SAMPLE:
                # Signed: a thread that is just ending has -1 in place of its number.
                address, pid, tid = struct.unpack_from("<Qii", body)
                self.pid.append(pid)
                self.tid.append(tid)
                self.address.append(0 if misc & perf.MODE_MASK == perf.MODE_KERNEL else address)
                self.time_ns.append(time_ns)
            elif kind == _MAPPED:
                pid, _, start, length, offset = struct.unpack_from("<IIQQQ", body)
                path = body[64:-16].rstrip(b"\0").decode("utf-8", "replace")
                self.events.append((time_ns, pid, (start, length, offset, path)))
            elif kind == _FORK:
                pid, parent = struct.unpack_from("<II", body)
                if pid != parent:  # else a thread
                    self.parents[pid] = parent
                    self.events.append((time_ns, pid, parent))
            elif kind == _NAMED:
                pid, tid = struct.unpack_from("<II", body)
                self.names[tid] = body[8:-16].rstrip(b"\0").decode("utf-8", "replace")
                if misc & _IS_EXEC:
                    self.events.append((time_ns, pid, None))

    def maps(self) -> dict[int, str]:
        """Return process → its executable mappings as the text of ``/proc/PID/maps``.

        Where one replaced another, the later one is there.
        """
        known: dict[int, dict[int, tuple[int, int, str]]] = {}
        for _, pid, what in sorted(self.events, key=lambda event: event[0]):
            if what is None:
                known[pid] = {}
            elif isinstance(what, int):
                known[pid] = dict(known.get(what, {}))
            else:
                start, length, offset, path = what
                own = known.setdefault(pid, {})
                end = start + length
                for old in [old for old, (to, _, _) in own.items() if start < to and old < end]:
                    del own[old]
                own[start] = end, offset, path
        return {
            pid: "".join(
                f"{start:x}-{end:x} r-xp {offset:x} 00:00 0 {path}\n"
                for start, (end, offset, path) in own.items()
            )
            for pid, own in known.items()
        }


class TreeSampler:
    """Samples a process that has not begun its program yet, and all that it starts.

    Attributes:
        kernel: whether samples in kernel mode are recorded too.
        samples: what ``drain`` has read so far.

    Args:
        pid: of a child that waits before its ``exec``, with which sampling begins.

    Raises:
        RefusedError: sampling is not allowed, or no ring buffer may be locked.
    """

    period_ns = PROGRAM_PERIOD_NS

    def __init__(self, pid: int) -> None:
        self.samples = TreeSamples()
        self._rings, self.kernel = perf.kernel_first(
            lambda flags: _rings(pid, PROGRAM_PERIOD_NS, sum(FLAGS) | flags), None
        )

    def drain(self) -> None:
        """Read what the rings hold, so that they have room again."""
        for ring in self._rings:
            data = ring.take()
            self.samples.take(data)
            self.samples.lost += ring.newly_lost(data)

    def close(self) -> None:
        """Take no more samples."""
        for ring in self._rings:
            ring.close()


def _rings(thread: int, period_ns: int, flags: int) -> list[perf.Ring]:
    """Return a ring for each processor that is switched on; for every thread if it is −1."""
    online = read(Path("/"), "sys/devices/system/cpu/online") or f"0-{(os.cpu_count() or 1) - 1}"
    found: list[perf.Ring] = []
    try:
        for processor in parse_cpu_list(online):
            try:
                fd = perf.open_event(
                    period_ns, flags=flags, content=_CONTENT, thread=thread, processor=processor
                )
            except RefusedError as refused:
                if refused.errno in (errno.ENODEV, errno.ENXIO):
                    continue
                raise
            found.append(perf.Ring(fd, period_ns, PAGES, thread))
    except RefusedError:
        for ring in found:
            ring.close()
        raise
    return found
