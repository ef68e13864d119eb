"""Program-counter sampling of a thread through ``perf_event_open``.

The software clock (``PERF_COUNT_SW_CPU_CLOCK``) interrupts the thread once per period of CPU time
and the kernel writes the program counter into a ring buffer that is read between stretches.

Kernel-mode samples are asked for first. Where they are refused (``perf_event_paranoid`` of 2
without privileges), only ticks in user mode are recorded, and the ticks that are missing against
the thread's CPU time are the time inside the operating system.

Source: perf_event_open(2); include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self, TypeVar
from weakref import WeakSet, finalize

from frameworktax.attribution.sampler import METHOD, RANDOM, Ticks, drawn_period_ns
from frameworktax.attribution.symbols import KERNEL, Leaf, Resolver
from frameworktax.host.machine import read_int

T = TypeVar("T")

PERIOD_NS = 743_000
"""Off every multiple of the kernel's own tick, so that samples do not walk in step with it. A tick
costs up to 40 µs on a virtual machine, in kernels and outside them alike (``benchmarks/cost.py``);
half as many samples would make the interval of a share 1.4 times as wide."""

VARIED_NS = 10_000_000
"""How long a period lasts where it is varied. One that lasts, and ticks that cost more in some code
than in other, lock ticks and a steady call into step (METHOD, section 7)."""

TOP_BYTES = 8 if platform.machine() == "x86_64" else 0
"""Of the stack with a sample of this process: on x86-64 it holds where ``memcpy`` returns to."""

_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_SOFTWARE, _CPU_CLOCK = 1, 0
IP, TID, TIME, REGISTERS, STACK = 1, 2, 4, 1 << 12, 1 << 13
"""What a sample holds (``sample_type``)."""
DISABLED, INHERIT, EXCLUDE_KERNEL = 1, 1 << 1, 1 << 5
_EXCLUDE_HYPERVISOR, EXCLUDE_IDLE = 1 << 6, 1 << 7
MMAP, COMM, ENABLE_ON_EXEC, TASK = 1 << 8, 1 << 9, 1 << 12, 1 << 13
ID_ALL, MMAP2, COMM_EXEC, _USE_CLOCKID, SWITCHES = 1 << 18, 1 << 23, 1 << 24, 1 << 25, 1 << 26
"""Flags of an event; with ``ID_ALL`` each record ends in its thread and time as a sample has them,
with ``SWITCHES`` each switch of a thread is a record."""
_FORMAT_LOST = 1 << 4  # Linux 6.0 and later; older ones refuse it
_CLOEXEC = 8
_ENABLE, _DISABLE, _SET_PERIOD = 0x2400, 0x2401, 0x40082404
_LOST, _THROTTLE, _UNTHROTTLE, SAMPLE, _SWITCH = 2, 5, 6, 9, 14
"""Kinds of records."""
_TICK_NS = 10_000_000
"""The longest that a clock of the kernel has, with the next of which a throttled event goes on."""
ON, OFF, PREEMPTED = 0, 1, 3
"""What a switch did: the thread got a processor, gave it back, or had it taken away."""
_SWITCH_BIT = 13
_SET_SIGNAL, _SET_OWNER, _OWNER_THREAD = 10, 15, 0  # F_SETSIG, F_SETOWN_EX, F_OWNER_TID
MODE_MASK, MODE_KERNEL = 7, 1
_HEAD = 1024  # data_head; data_tail follows
_RECORD_BYTES, _STACK_SIZES = 24, 16  # header, program counter, time; around a piece of the stack
_MIN_PAGES = 8
MAX_PAGES = 128  # perf_event_mlock_kb is 516 KiB unless the host was changed
_MAX_PAGES_OF_STACKS = 2_048  # on top of that, RLIMIT_MEMLOCK is 8 MiB
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIi")


class RefusedError(OSError):
    """The kernel does not allow sampling; the message says why and what helps."""


def refusal(number: int, root: Path = Path("/"), thread: int = 0) -> str:
    """Return what an errno of ``perf_event_open`` means here, and the remedy, in one line.

    Args:
        number: the errno.
        root: where ``proc`` is; for tests.
        thread: the id of the thread that was to be sampled, 0 for the calling one.
    """
    if number == errno.ESRCH:
        return f"there is no thread {thread} any more"
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many open files; allow more with: ulimit -n 65536"
    if number in (errno.EACCES, errno.EPERM):
        level = read_int(root, "proc/sys/kernel/perf_event_paranoid")
        if level is None:
            return "perf_event_open is not allowed here"
        if level > 2:
            return (
                f"kernel.perf_event_paranoid is {level}; "
                "allow it with: sudo sysctl kernel.perf_event_paranoid=2"
            )
        if number == errno.EACCES and thread:
            return (
                f"thread {thread} may not be inspected: its process belongs to another user, or "
                "changed its user or privileges since it began; sample it as root"
            )
        return (
            f"perf_event_open is blocked though perf_event_paranoid is {level}; in a container "
            "start it with --cap-add PERFMON or a seccomp profile that allows perf_event_open"
        )
    if number == errno.ENOSYS:
        return "this kernel has no perf_event_open (CONFIG_PERF_EVENTS)"
    return f"perf_event_open: {os.strerror(number)}"


def open_event(
    period_ns: int,
    *,
    flags: int = DISABLED,
    content: int = IP | TIME,
    thread: int = 0,
    processor: int = -1,
    wakeup: int = 0,
    registers: int = 0,
    stack_bytes: int = 0,
) -> int:
    """Return a file descriptor that samples a thread (0: the calling one, -1: every thread).

    On ``processor`` alone, or on any (-1). Samples carry the time of ``time.perf_counter_ns``,
    which is ``CLOCK_MONOTONIC`` on Linux, and with ``STACK`` the registers of the mask and as much
    of the thread's stack. After ``wakeup`` of them a signal is sent.

    Raises:
        RefusedError: the kernel does not allow it.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        here = f"{platform.system()} on {platform.machine()}"
        raise RefusedError(errno.ENOSYS, f"perf_event_open is not known for {here}")
    flags |= _EXCLUDE_HYPERVISOR | _USE_CLOCKID
    libc = ctypes.CDLL(None, use_errno=True)
    for read_format in (_FORMAT_LOST, 0):
        attributes = ctypes.create_string_buffer(
            _ATTRIBUTES.pack(
                _SOFTWARE, _ATTRIBUTES.size, _CPU_CLOCK, period_ns, content, read_format, flags,
                wakeup, 0, 0, 0, 0, registers, stack_bytes, time.CLOCK_MONOTONIC,
            ), _ATTRIBUTES.size
        )  # fmt: skip
        fd = libc.syscall(
            ctypes.c_long(number), attributes, ctypes.c_int(thread), ctypes.c_int(processor),
            ctypes.c_int(-1), ctypes.c_ulong(_CLOEXEC),
        )  # fmt: skip
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EINVAL:
            break
    number = ctypes.get_errno()
    raise RefusedError(number, refusal(number, thread=thread))


def kernel_first(opened: Callable[[int], T], kernel: bool | None) -> tuple[T, bool]:
    """Return what ``opened`` returns for further flags, and whether it samples kernel mode.

    None for ``kernel`` samples it where that is allowed.
    """
    if kernel is False:
        return opened(EXCLUDE_KERNEL), False
    try:
        return opened(0), True
    except RefusedError as refused:
        if kernel or refused.errno not in (errno.EACCES, errno.EPERM):
            raise
        return opened(EXCLUDE_KERNEL), False


def probe() -> str | None:
    """Return why this process cannot be sampled, or None if it can; takes microseconds."""
    try:
        os.close(open_event(PERIOD_NS, flags=DISABLED | EXCLUDE_KERNEL))
    except RefusedError as refused:
        return str(refused.strerror)
    return None


class Drained(NamedTuple):
    """What a ring held.

    Attributes:
        user: (program counter, time, word at the top of the stack or 0) of ticks in user mode.
        kernel_ns: times of ticks in kernel mode.
        lost: ticks.
        switches: (time, ``ON``, ``OFF`` or ``PREEMPTED``), where they were asked for.
    """

    user: list[tuple[int, int, int]]
    kernel_ns: list[int]
    lost: int
    switches: Sequence[tuple[int, int]] = ()

    def timed(self, leaves: Sequence[Leaf]) -> list[tuple[int, Leaf]]:
        """Return (time, where) of every tick in the order of time; ``leaves`` of user mode."""
        found = [(time_ns, leaf) for (_, time_ns, _), leaf in zip(self.user, leaves, strict=True)]
        found += [(time_ns, Leaf(KERNEL, "")) for time_ns in self.kernel_ns]
        return sorted(found, key=itemgetter(0))


def placed(
    drained: Sequence[Drained], hidden: Callable[[str], bool] = lambda library: False
) -> list[list[Leaf]]:
    """Return where the ticks in user mode of this process were, some of them with their caller.

    ``memcpy`` and ``__tls_get_addr`` change no stack: what lies at its top is where they return to.
    Symbols of ``hidden`` libraries are ignored, to test what is done without.
    """
    from frameworktax.attribution.buckets import goes_by_caller, is_judged, with_caller

    resolver = Resolver(judged=is_judged, hidden=hidden)
    where = resolver.resolve(address for one in drained for address, *_ in one.user)
    called = {
        (address, top)
        for one in drained
        for address, _, top in one.user
        if goes_by_caller(where[address]) and resolver.follows_call(top)
    }
    callers = resolver.resolve(top - 1 for _, top in called)
    made = {(at, top): with_caller(where[at], callers[top - 1]) for at, top in called}
    return [
        [made.get((address, top), where[address]) for address, _, top in one.user]
        for one in drained
    ]


class Ring:
    """The records of an event; a fork gives it back, as the kernel does not map it there.

    Attributes:
        cpu_ns: CPU time in which samples were due, until ``newly_lost`` was last asked.

    Args:
        fd: of the event, closed with this, and where this fails.
        period_ns: CPU time between two samples.
        pages: as many as may be locked of these; a power of 2.
        thread: that is sampled.

    Raises:
        RefusedError: no memory may be locked, or the thread has ended.
    """

    def __init__(self, fd: int, period_ns: int, pages: int, thread: int = 0) -> None:
        self._fd, self._page, self.period_ns = fd, mmap.PAGESIZE, period_ns
        self._counted_lost = self._throttled_ns = self.cpu_ns = 0
        while True:
            try:
                self._ring = mmap.mmap(fd, self._page * (1 + pages))
                break
            except PermissionError:  # another profiler holds the user's share of locked memory
                pages //= 2
                if not pages:
                    os.close(fd)
                    raise RefusedError(
                        errno.ENOBUFS,
                        "no memory may be locked for samples; raise it with: "
                        "sudo sysctl kernel.perf_event_mlock_kb=2048",
                    ) from None
            except OSError as error:  # mmap keeps a second descriptor
                os.close(fd)
                raise RefusedError(
                    error.errno or 0, refusal(error.errno or 0, thread=thread)
                ) from error
        self._size = pages * self._page
        self._close_file = finalize(self, os.close, fd)
        _rings.add(self)

    def take(self) -> bytes:
        """Return the records in the ring and empty it."""
        head, tail = struct.unpack_from("<QQ", self._ring, _HEAD)
        at, size = tail % self._size, head - tail
        data = self._ring[self._page + at : self._page + min(at + size, self._size)]
        data += self._ring[self._page : self._page + size - len(data)]
        struct.pack_into("<Q", self._ring, _HEAD + 8, head)
        return data

    def newly_lost(self, data: bytes) -> int:
        """Return the ticks lost since the last time, by the kernel's count or else by ``data``.

        The count is exact also for what was lost after the last record. It has none of those that
        fall into a time in which the kernel throttled the event; they are what is due in it.
        """
        counter = os.read(self._fd, 16)
        self.cpu_ns = struct.unpack_from("<Q", counter)[0]
        lost = missing_ns = 0
        for kind, _, at, _ in records(data):
            if kind in (_LOST, _THROTTLE, _UNTHROTTLE):
                time_ns, number = struct.unpack_from("<QQ", data, at + 8)
                if kind == _LOST:
                    lost += number
                elif kind == _THROTTLE:
                    self._throttled_ns = time_ns
                else:
                    missing_ns += min(time_ns - self._throttled_ns, _TICK_NS)
        if len(counter) == 16:
            before, self._counted_lost = self._counted_lost, struct.unpack("<QQ", counter)[1]
            lost = self._counted_lost - before
        return lost + round(missing_ns / self.period_ns)

    def is_half_full(self) -> bool:
        """Return whether half of the ring is waiting to be read."""
        head, tail = struct.unpack_from("<QQ", self._ring, _HEAD)
        return 2 * int(head - tail) > self._size

    def close(self) -> None:
        """Take no samples any more and give the ring back."""
        if not self._ring.closed:
            self._ring.close()
            self._close_file()


_rings: WeakSet[Ring] = WeakSet()


def _close_in_child() -> None:
    """A fork would keep its parent's events alive."""
    for ring in list(_rings):
        ring.close()


os.register_at_fork(after_in_child=_close_in_child)


class PerfEventSampler(Ring):
    """Samples of a thread in stretches, by one event that is stopped at first.

    Attributes:
        kernel: whether kernel-mode ticks are recorded too.
        period_ns: CPU time between two ticks, in the middle of those that ``vary`` takes.

    Args:
        stretch_ns: the longest CPU time between two drains that the ring should hold; samples are
            taken less often where it would not.
        thread: its id; 0 for the calling one.
        kernel: None tries kernel-mode samples first, False does not ask for them.
        signal: sent to the calling thread at every sample, None for none.
        registers: mask of those that come with a sample; 0 for none.
        stack_bytes: of the top of the stack that come with a sample; a multiple of 8.
        switch_pages: for records of when the thread gets and leaves a processor, of which a page
            has room for 256; 0 for none. Once they are full nothing more is known of a stretch.

    Raises:
        RefusedError: sampling is not allowed, or no ring buffer may be locked.
    """

    name = METHOD

    def __init__(
        self,
        stretch_ns: int,
        *,
        thread: int = 0,
        period_ns: int = PERIOD_NS,
        kernel: bool | None = None,
        signal: int | None = None,
        registers: int = 0,
        stack_bytes: int = TOP_BYTES,
        switch_pages: int = 0,
    ) -> None:
        # Twice what a stretch should need: a slow call runs past its end.
        record = _RECORD_BYTES + (stack_bytes and stack_bytes + _STACK_SIZES)
        if not registers:  # else the ring is emptied between calls
            period_ns = max(period_ns, 2 * stretch_ns * record // (MAX_PAGES * mmap.PAGESIZE))
        self._varied_ns = 0
        self._drained: list[Drained] = []
        flags = DISABLED | (ID_ALL | SWITCHES if switch_pages else 0)
        fd, self.kernel = kernel_first(
            lambda excluded: open_event(
                period_ns,
                flags=flags | excluded,
                content=IP | TIME | bool(registers) * REGISTERS | bool(stack_bytes) * STACK,
                thread=thread,
                wakeup=int(signal is not None),
                registers=registers,
                stack_bytes=stack_bytes,
            ),
            kernel,
        )
        if signal is not None:
            owner = struct.pack("ii", _OWNER_THREAD, threading.get_native_id())
            fcntl.fcntl(fd, _SET_OWNER, owner)
            fcntl.fcntl(fd, _SET_SIGNAL, signal)
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)
        self._has_tops = bool(stack_bytes) and not registers
        need = 2 * (stretch_ns // period_ns + 1) * record // mmap.PAGESIZE + 1
        need = max(need, _MIN_PAGES, 1 << switch_pages.bit_length() >> 1)
        most = _MAX_PAGES_OF_STACKS if registers else MAX_PAGES
        # The kernel takes powers of 2, and locks no more than ``most`` of them.
        pages = min(most, 1 << (need - 1).bit_length())
        super().__init__(fd, period_ns, pages, thread)

    def pause(self) -> None:
        """Take no samples from here."""
        fcntl.ioctl(self._fd, _DISABLE, 0)

    def resume(self) -> None:
        """Take samples again."""
        fcntl.ioctl(self._fd, _ENABLE, 0)

    start = resume

    def vary(self) -> None:
        """Take another period where it is time, and wait for a random moment of it.

        To be called before each call; from the begin of one its shares would be 5 % off.
        """
        if (now := time.perf_counter_ns()) < self._varied_ns + VARIED_NS:
            return
        period_ns = drawn_period_ns(self.period_ns)
        fcntl.ioctl(self._fd, _SET_PERIOD, struct.pack("Q", period_ns))
        self._varied_ns = now + RANDOM.randrange(period_ns)
        while time.perf_counter_ns() < self._varied_ns:
            pass

    def stop(self) -> None:
        """End a stretch and empty the ring."""
        self.pause()
        self._drained.append(self.drain())

    def ticks(self) -> list[Ticks]:
        """Return the ticks of each stretch."""
        return [
            Ticks(
                Counter(leaves),
                len(one.kernel_ns) if self.kernel else None,
                one.lost,
                timed=one.timed(leaves),
            )
            for one, leaves in zip(self._drained, placed(self._drained), strict=True)
        ]

    def drain(self) -> Drained:
        """Return what is in the ring and empty it.

        Where the event has not been stopped, what comes meanwhile is left for the next time.
        """
        data = self.take()
        return self.parse(data, self.newly_lost(data))

    def parse(self, data: bytes, lost: int) -> Drained:
        """Return what is in the bytes of ``take``; the event may be closed by now."""
        user, in_kernel, switches = [], [], []
        for kind, misc, at, size in records(data):
            if kind == _SWITCH:
                (time_ns,) = struct.unpack_from("<Q", data, at + size - 8)
                switches.append((time_ns, misc >> _SWITCH_BIT))
            elif kind == SAMPLE:
                address, time_ns = struct.unpack_from("<QQ", data, at + 8)
                if misc & MODE_MASK == MODE_KERNEL:
                    in_kernel.append(time_ns)
                    continue
                at += _RECORD_BYTES
                held, top = struct.unpack_from("<QQ", data, at) if self._has_tops else (0, 0)
                user.append((address, time_ns, top if held else 0))
        return Drained(user, in_kernel, lost, switches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._ring.closed:  # as it is in a fork
            self.pause()
        self.close()


def records(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (kind, mode and flags, position, size) of a ring's records.

    Raises:
        ValueError: a record is damaged.
    """
    at = 0
    while at + 8 <= len(data):
        kind, misc, size = struct.unpack_from("<IHH", data, at)
        if size < 8:
            raise ValueError(f"damaged record at byte {at} of the sampling ring")
        yield kind, misc, at, size
        at += size
