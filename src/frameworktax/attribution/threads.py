"""Samples other programs while they run; nothing of them is stopped.

``ThreadSampler`` samples every thread of a process that is running. ``look`` finds threads that
began or ended, and empties the rings; the clocks of threads are read by ``take`` alone, since
reading those of 64 takes milliseconds. One that begins and ends between two looks is not seen; what
the process took beyond its sampled threads is ``unseen_cpu_ns``. Samples come from one of two ways:

- ``ProcessorEvents``: one event on each processor, of which the samples of other programs are left
  out. It costs nothing when a processor goes from one thread to another, and takes privileges
  (``CAP_PERFMON``, or ``perf_event_paranoid`` of 0 or less);
- an event and a ring for each thread: the kernel lets events of several threads share a ring only
  on one processor. A thread that sleeps costs nothing but its ring (8 KiB or more of locked memory
  and two descriptors), but at every switch the kernel stops one event and starts another.

``TreeSampler`` samples a program from its begin and all that it starts: one event on each processor
is inherited by every thread and process, so that none is missed. The same rings hold which files
each process maps, which processes fork and what threads are called, so that samples of a process
that has ended still have symbols.

Source: perf_event_open(2).
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frameworktax.attribution import perf_event as perf
from frameworktax.attribution.perf_event import Drained, Event, RefusedError

INTERVAL_S = 0.1
"""Between two looks: at 64 threads that sleep a look takes 0.3 ms."""
SLACK = 4
"""A ring holds the samples of so many intervals, for a look that comes late."""


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
        cpu_ns: CPU time, samples or not. Of a thread that ended the event's own count, which is
            too high where a hypervisor took the processor away; with ``ProcessorEvents`` the
            scheduler's until its last look, and then its samples.
        lost: samples that were due and have no record.
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


class ThreadSampler:
    """Samples every thread of a process between ``start`` and ``stop``.

    Attributes:
        is_ended: whether the process has ended.
        sees_kernel: whether time inside the operating system gives samples. Where it does not, it
            is the CPU time over the period less the samples and those lost, signed.
        wall_ns: from the start to the last time that samples were taken.
        idle_ns: in that, the time in which no thread ran, at least and at most: between two looks
            no less than if all had run one after another, and no more than if all processors, or
            all threads where they are fewer, had run at once. Threads that no look has found make
            the latter too small.
        unseen_cpu_ns: CPU time of the process beyond that of its sampled threads, signed; None
            where the process has ended unseen.
        refused: thread that could not be sampled → reason.

    Args:
        pid: of the process.
        period_ns: CPU time of a thread between two of its samples.
        root: where ``proc`` is; for tests.
        processors: samples with these; with an event for each thread if None.

    Raises:
        RefusedError: from ``start``: not one thread may be sampled, or the process has ended.
    """

    def __init__(
        self,
        pid: int,
        *,
        period_ns: int,
        root: Path = Path("/"),
        processors: ProcessorEvents | None = None,
    ) -> None:
        self.pid = pid
        self._processors = processors
        self.is_ended = False
        self.sees_kernel: bool | None = None
        self.wall_ns = 0
        self.idle_ns = (0, 0)
        self.unseen_cpu_ns: int | None = 0
        self.refused: dict[int, str] = {}
        self._period_ns = period_ns
        self._tasks = root / "proc" / str(pid) / "task"
        self._events: dict[int, Event | _ThreadOfMany] = {}
        self._samples: dict[int, ThreadSamples] = {}
        self._ran_ns: dict[int, int | None] = {}
        self._files: dict[int, dict[str, Path]] = {}
        self._lock = threading.Lock()
        self._process_cpu_ns: int | None = 0
        self._looked_cpu_ns: int | None = 0
        self._since_ns = self._looked_ns = 0
        self._stopped: tuple[int, int | None] | None = None
        """When it was, and the CPU time of the process then."""

    def start(self) -> None:
        """Sample from here on."""
        self._since_ns = self._looked_ns = time.perf_counter_ns()
        self._looked_cpu_ns = self._process_clock()
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
        with self._lock:
            if self._stopped is None:
                self._stopped = self._read_all()
            for thread in list(self._events):
                self._close(thread)

    def __enter__(self) -> ThreadSampler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def take(self) -> list[ThreadSamples]:
        """Return what was sampled since the last time, of the threads that were there."""
        with self._lock:
            now, cpu_ns = self._stopped or self._read_all()
            taken = list(self._samples.values())
            before, self._process_cpu_ns = self._process_cpu_ns, cpu_ns
            if cpu_ns is None or before is None or self.unseen_cpu_ns is None:
                self.unseen_cpu_ns = None
            else:
                self.unseen_cpu_ns += cpu_ns - before - sum(one.cpu_ns for one in taken)
            self.wall_ns = now - self._since_ns
            self._samples = {
                thread: ThreadSamples(thread, self._samples[thread].name, now)
                for thread in self._events
            }
            return taken

    def look(self) -> None:
        """Empty all rings, and find threads that began or ended."""
        with self._lock:
            if self._processors is not None:
                self._processors.read()
            else:
                self._drain_all()
            before = set(self._events)
            self._find()
            self._count_idle(len(before | self._events.keys()))

    def _drain_all(self) -> None:
        if self._processors is not None:
            self._processors.read()
        for thread in self._events:
            self._drain(thread)

    def _count_idle(self, threads: int) -> None:
        """Add what has passed since the last look, in which so many threads can have run."""
        now, cpu_ns = time.perf_counter_ns(), self._process_clock()
        took_ns, self._looked_ns = now - self._looked_ns, now
        before, self._looked_cpu_ns = self._looked_cpu_ns, cpu_ns
        least, most = self.idle_ns
        ran_ns = 0 if before is None or cpu_ns is None else cpu_ns - before
        if cpu_ns is not None:
            # Where threads ran at once that is less than 0; it takes nothing from other stretches.
            least += max(0, took_ns - ran_ns)
        at_once = max(1, min(threads, os.cpu_count() or 1))  # no thread is no divisor
        most += took_ns - ran_ns // at_once  # signed: the clocks are not read at the same moment
        self.idle_ns = least, most

    def _read_all(self) -> tuple[int, int | None]:
        """Read rings and clocks of all threads; return the time, and that of the process."""
        self._drain_all()
        self._count_idle(len(self._events))
        for thread in self._events:
            self._read_clock(thread)
        return time.perf_counter_ns(), self._process_clock()

    def _find(self) -> None:
        try:
            found = {int(path.name) for path in self._tasks.iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            found = set()
        if found <= {self.pid}:
            self.is_ended = not found or self._is_zombie()
        for thread in self._events.keys() - found:
            self._drain(thread)  # what came after all were drained
            samples = self._samples[thread]
            samples.ended, samples.wall_ns = True, time.perf_counter_ns() - samples.begin_ns
            self._close(thread)
        for thread in self.refused.keys() - found:
            del self.refused[thread]
        for thread in sorted(found - self._events.keys() - self.refused.keys()):
            self._open(thread)

    def _open(self, thread: int) -> None:
        event: Event | _ThreadOfMany
        if self._processors is not None:
            event = _ThreadOfMany(self._processors, thread, lambda: self._scheduled(thread))
        else:
            stretch_ns = round(SLACK * INTERVAL_S * 1e9)
            try:
                event = Event(
                    stretch_ns, thread=thread, period_ns=self._period_ns, kernel=self.sees_kernel
                )
            except RefusedError as refused:
                if refused.errno != errno.ESRCH:  # else it ended meanwhile
                    self.refused[thread] = str(refused.strerror)
                return
        self.sees_kernel = event.kernel
        self._events[thread] = event
        self._samples[thread] = ThreadSamples(thread, self._name(thread), time.perf_counter_ns())
        self._ran_ns[thread] = self._scheduled(thread)
        event.resume()

    def _read_clock(self, thread: int) -> None:
        """Take a thread's CPU time from the scheduler, which leaves out what a hypervisor took."""
        samples = self._samples[thread]
        samples.name = self._name(thread)
        samples.wall_ns = time.perf_counter_ns() - samples.begin_ns
        if self._processors is not None:
            return  # the event has just read it
        before = self._ran_ns[thread]
        now = self._ran_ns[thread] = self._scheduled(thread)
        if before is not None and now is not None:
            samples.cpu_ns = now - before

    def _scheduled(self, thread: int) -> int | None:
        """Return a thread's time on a processor."""
        try:
            return int(self._file(thread, "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def _drain(self, thread: int) -> None:
        """Set a thread's new samples aside."""
        event, samples = self._events[thread], self._samples[thread]
        before = event.cpu_ns
        drained = event.drain()
        samples.user.extend(address for address, _ in drained.user)
        samples.system += len(drained.kernel_ns)
        samples.lost += drained.lost
        samples.cpu_ns += event.cpu_ns - before

    def _close(self, thread: int) -> None:
        self._events.pop(thread).close()
        del self._ran_ns[thread]
        self._files.pop(thread, None)

    def _name(self, thread: int) -> str:
        try:
            return self._file(thread, "comm").read_text().rstrip("\n")
        except (OSError, ValueError):
            return self._samples[thread].name if thread in self._samples else ""

    def _file(self, thread: int, name: str) -> Path:
        """Return a file of a thread; making its path takes longer than reading it."""
        files = self._files.setdefault(thread, {})
        if name not in files:
            files[name] = self._tasks / str(thread) / name
        return files[name]

    def _is_zombie(self) -> bool:
        try:
            stat = (self._tasks.parent / "stat").read_text()
        except (OSError, ValueError):
            return True
        return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])

    def _process_clock(self) -> int | None:
        """Return the CPU time of all threads of the process, ended ones too."""
        try:
            return time.clock_gettime_ns(~self.pid << 3 | 2)  # as clock_getcpuclockid(3) does
        except OSError:
            return None


# --- one event on each processor ------------------------------------------------------------------


class ProcessorEvents:
    """Samples of every processor, handed to the threads that are asked for.

    Programs that are not asked for are interrupted as well. That is their cost, about 1 % of the
    time at ``attach``'s period.

    Args:
        period_ns: time that a processor is busy between two samples.

    Raises:
        RefusedError: it takes privileges, or no ring buffer may be locked.
    """

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.threads: dict[int, _ThreadOfMany] = {}
        self.lost = 0
        self.lock = threading.Lock()
        self._rings = _rings(-1, period_ns, perf.EXCLUDE_IDLE)

    def close(self) -> None:
        """Take no more samples."""
        for ring in self._rings:
            ring.close()

    def read(self) -> None:
        """Read what the rings hold, so that they have room again."""
        with self.lock:
            found = TreeSamples()
            for ring in self._rings:
                found.take(ring.take())
            self.lost += found.lost
            for thread, address, time_ns in zip(
                found.tid, found.address, found.time_ns, strict=True
            ):
                own = self.threads.get(thread)
                if own is not None and address:
                    own.seen.user.append((address, time_ns))
                elif own is not None:
                    own.seen.kernel_ns.append(time_ns)


class _ThreadOfMany:
    """A thread that the events of the processors sample; used as its own event would be.

    A sample that was lost may have been another program's: the thread that is drained next has it.

    Attributes:
        cpu_ns: CPU time since ``resume``, by the scheduler.
        seen: what was read since it was drained.
    """

    kernel = True

    def __init__(
        self, events: ProcessorEvents, thread: int, scheduled: Callable[[], int | None]
    ) -> None:
        self._events, self._thread, self._scheduled = events, thread, scheduled
        self._ran_ns = scheduled()
        self.cpu_ns = 0
        self.seen = Drained([], [], 0)

    def resume(self) -> None:
        self._events.read()  # what came before it was asked for
        with self._events.lock:
            self._events.threads[self._thread] = self

    def drain(self) -> Drained:
        with self._events.lock:
            found, self.seen = self.seen._replace(lost=self._events.lost), Drained([], [], 0)
            self._events.lost = 0
        before, self._ran_ns = self._ran_ns, self._scheduled()
        if before is None or self._ran_ns is None:  # it has ended
            self.cpu_ns += (len(found.user) + len(found.kernel_ns)) * self._events.period_ns
        else:
            self.cpu_ns += self._ran_ns - before
        return found

    def close(self) -> None:
        with self._events.lock:
            self._events.threads.pop(self._thread, None)


# --- a program and all that it starts -------------------------------------------------------------

TREE_PERIOD_NS = 4_987_000
"""CPU time of a thread between two samples, off every multiple of the kernel's own tick. A tick
costs 10 to 40 µs on a virtual machine: under 1 %."""
PAGES = 32
"""Of each ring: 3,000 samples, which take 15 seconds of a processor."""
FLAGS = (
    *(perf.DISABLED, perf.INHERIT, perf.ENABLE_ON_EXEC, perf.ID_ALL),
    *(perf.MMAP, perf.MMAP2, perf.COMM, perf.COMM_EXEC, perf.TASK),
)
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
            self._record(kind, misc, data[at + 8 : at + size])

    def _record(self, kind: int, misc: int, body: bytes) -> None:
        if kind == perf.SAMPLE:
            # Signed: a thread that is just ending has no number any more, and -1 is in its place.
            address, pid, tid, time_ns = struct.unpack_from("<QiiQ", body)
            self.pid.append(pid)
            self.tid.append(tid)
            self.address.append(0 if misc & perf.MODE_MASK == perf.MODE_KERNEL else address)
            self.time_ns.append(time_ns)
        elif kind == perf.LOST:
            self.lost += struct.unpack_from("<QQ", body)[1]
        elif kind == _MAPPED:
            pid, _, start, length, offset = struct.unpack_from("<IIQQQ", body)
            path = body[64:-16].rstrip(b"\0").decode("utf-8", "replace")
            self.events.append((_time_of(body), pid, (start, length, offset, path)))
        elif kind == _FORK:
            pid, parent, _, _, time_ns = struct.unpack_from("<IIIIQ", body)
            if pid != parent:  # else a thread
                self.parents[pid] = parent
                self.events.append((time_ns, pid, parent))
        elif kind == _NAMED:
            pid, tid = struct.unpack_from("<II", body)
            self.names[tid] = body[8:-16].rstrip(b"\0").decode("utf-8", "replace")
            if misc & _IS_EXEC:
                self.events.append((_time_of(body), pid, None))

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


def _time_of(body: bytes) -> int:
    """Return the time in what ends every record but a sample: process, thread, time."""
    found: int = struct.unpack_from("<Q", body, len(body) - 8)[0]
    return found


class TreeSampler:
    """Samples a process that has not begun its program yet, and all that it starts.

    Attributes:
        kernel: whether samples in kernel mode are recorded too.
        samples: what ``drain`` has read so far.

    Args:
        pid: of a child that waits before its ``exec``, with which sampling begins.
        period_ns: CPU time of a thread between two samples.

    Raises:
        RefusedError: sampling is not allowed, or no ring buffer may be locked.
    """

    def __init__(self, pid: int, period_ns: int = TREE_PERIOD_NS) -> None:
        self.period_ns = period_ns
        self.samples = TreeSamples()
        self._rings, self.kernel = perf.kernel_first(
            lambda flags: _rings(pid, period_ns, sum(FLAGS) | flags), None
        )

    def drain(self) -> None:
        """Read what the rings hold, so that they have room again."""
        for ring in self._rings:
            self.samples.take(ring.take())

    def close(self) -> None:
        """Take no more samples."""
        for ring in self._rings:
            ring.close()


def _rings(thread: int, period_ns: int, flags: int) -> list[perf.Ring]:
    """Return a ring for each processor that is switched on; for every thread if it is −1."""
    found: list[perf.Ring] = []
    try:
        for processor in range(os.cpu_count() or 1):
            try:
                fd = perf.open_event(
                    period_ns,
                    flags=flags,
                    content=perf.IP | perf.TID | perf.TIME,
                    thread=thread,
                    processor=processor,
                )
            except RefusedError as refused:
                if refused.errno in (errno.ENODEV, errno.ENXIO):
                    continue
                raise
            found.append(perf.Ring(fd, PAGES, thread))
    except RefusedError:
        for ring in found:
            ring.close()
        raise
    return found
