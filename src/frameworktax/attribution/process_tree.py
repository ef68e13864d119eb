"""Samples a program from outside: every thread of a process and of all that it starts.

One event on each processor, made before the program begins and inherited by every thread and
process that it starts, so that none is missed and nothing of it is stopped. The same rings tell
which files each process maps, which processes fork and what threads are called, so that samples of
a process that has ended still have symbols.

Source: perf_event_open(2).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from array import array
from dataclasses import dataclass, field

from frameworktax.attribution.perf_event import _SYSCALL as SYSCALL
from frameworktax.attribution.perf_event import RefusedError, refusal

PERIOD_NS = 2_987_000
"""CPU time of a thread between two samples, off every multiple of the kernel's own tick. A tick
costs 20 to 40 µs on a virtual machine: about 1 %."""
PAGES = 32
"""Of each ring: 3,000 samples, which take nine seconds of a processor."""

_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIi")
_SOFTWARE, _CPU_CLOCK = 1, 0
_IP, _TID, _TIME = 1, 2, 4
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1, 1 << 1, 1 << 5, 1 << 6
_MMAP, _COMM, _ENABLE_ON_EXEC, _TASK = 1 << 8, 1 << 9, 1 << 12, 1 << 13
_ID_ALL, _MMAP2, _COMM_EXEC, _USE_CLOCKID = 1 << 18, 1 << 23, 1 << 24, 1 << 25
_CLOEXEC = 8
_HEAD = 1024
_LOST, _NAMED, _FORK, _SAMPLE, _MAPPED = 2, 3, 7, 9, 10
_MODE_MASK, _IN_KERNEL, _IS_EXEC = 7, 1, 1 << 13


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
        at = 0
        while at + 8 <= len(data):
            kind, misc, size = struct.unpack_from("<IHH", data, at)
            if size < 8:
                raise ValueError(f"damaged record at byte {at} of the sampling ring")
            self._record(kind, misc, data[at + 8 : at + size])
            at += size

    def _record(self, kind: int, misc: int, body: bytes) -> None:
        if kind == _SAMPLE:
            address, pid, tid, time_ns = struct.unpack_from("<QIIQ", body)
            self.pid.append(pid)
            self.tid.append(tid)
            self.address.append(0 if misc & _MODE_MASK == _IN_KERNEL else address)
            self.time_ns.append(time_ns)
        elif kind == _LOST:
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

    def __init__(self, pid: int, period_ns: int = PERIOD_NS) -> None:
        self.period_ns = period_ns
        self.samples = TreeSamples()
        self._rings: list[tuple[int, mmap.mmap, int]] = []
        try:
            self._open_all(pid, kernel=True)
            self.kernel = True
        except RefusedError as refused:
            if refused.errno not in (errno.EACCES, errno.EPERM):
                raise
            self.close()
            self._open_all(pid, kernel=False)
            self.kernel = False

    def _open_all(self, pid: int, *, kernel: bool) -> None:
        for processor in range(os.cpu_count() or 1):
            fd = self._open(pid, processor, kernel)
            if fd is None:
                continue
            pages = PAGES
            while True:
                try:
                    ring = mmap.mmap(fd, mmap.PAGESIZE * (1 + pages))
                    break
                except PermissionError:  # another profiler holds the user's share of locked memory
                    pages //= 2
                    if not pages:
                        os.close(fd)
                        text = (
                            "no memory may be locked for samples; raise it with: "
                            "sudo sysctl kernel.perf_event_mlock_kb=2048"
                        )
                        raise RefusedError(errno.ENOMEM, text) from None
            self._rings.append((fd, ring, mmap.PAGESIZE * pages))

    def _open(self, pid: int, processor: int, kernel: bool) -> int | None:
        """Return a descriptor; None for a processor that is switched off."""
        number = SYSCALL.get(platform.machine())
        if number is None or platform.system() != "Linux":
            here = f"{platform.system()} on {platform.machine()}"
            raise RefusedError(errno.ENOSYS, f"perf_event_open is not known for {here}")
        flags = _DISABLED | _INHERIT | _ENABLE_ON_EXEC | _EXCLUDE_HYPERVISOR | _USE_CLOCKID
        flags |= _MMAP | _MMAP2 | _COMM | _COMM_EXEC | _TASK | _ID_ALL
        flags |= 0 if kernel else _EXCLUDE_KERNEL
        attributes = ctypes.create_string_buffer(
            _ATTRIBUTES.pack(
                _SOFTWARE, _ATTRIBUTES.size, _CPU_CLOCK, self.period_ns, _IP | _TID | _TIME, 0,
                flags, 0, 0, 0, 0, 0, 0, 0, time.CLOCK_MONOTONIC,
            ), _ATTRIBUTES.size
        )  # fmt: skip
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(
            ctypes.c_long(number), attributes, ctypes.c_int(pid), ctypes.c_int(processor),
            ctypes.c_int(-1), ctypes.c_ulong(_CLOEXEC),
        )  # fmt: skip
        if fd >= 0:
            return int(fd)
        error = ctypes.get_errno()
        if error in (errno.ENODEV, errno.ENXIO):
            return None
        raise RefusedError(error, refusal(error))

    def drain(self) -> None:
        """Read what the rings hold, so that they have room again."""
        for _, ring, size in self._rings:
            head, tail = struct.unpack_from("<QQ", ring, _HEAD)
            at, length = tail % size, head - tail
            page = mmap.PAGESIZE
            data = ring[page + at : page + min(at + length, size)]
            data += ring[page : page + length - len(data)]
            struct.pack_into("<Q", ring, _HEAD + 8, head)
            self.samples.take(data)

    def close(self) -> None:
        """Take no more samples."""
        for fd, ring, _ in self._rings:
            ring.close()
            os.close(fd)
        self._rings.clear()
