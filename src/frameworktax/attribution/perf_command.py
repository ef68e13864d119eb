"""Program-counter sampling through the ``perf`` command.

For hosts that keep ``perf_event_open`` from ordinary processes but gave the command the
capability. ``perf record`` is started stopped, and is switched on and off through its control
pipe, so that its start is not in the samples. Addresses are resolved by our own symbol reader.

Source: perf-record(1), ``--control`` (Linux 5.9 and later); perf-script(1).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from threading import get_native_id

from frameworktax.attribution import perf_event
from frameworktax.attribution.sampler import Ticks
from frameworktax.attribution.symbols import Resolver

_KERNEL_HALF = 1 << 63
_PATIENCE_S = 60.0


def probe() -> str | None:
    """Return why the command cannot sample here, or None if it can."""
    command = shutil.which("perf")
    if command is None:
        return "perf is not installed; install your distribution's linux-perf package"
    if perf_event.probe() is None:
        return None  # what this process may do, its child may
    arguments = [command, "stat", "-e", "cpu-clock:u", "true"]
    result = subprocess.run(arguments, capture_output=True, check=False, timeout=_PATIENCE_S)
    return None if result.returncode == 0 else "perf is installed but not allowed to sample"


def parse_script(text: str) -> tuple[list[int], int, int]:
    """Return (user addresses, kernel ticks, lost) of ``perf script -F ip --show-lost-events``."""
    user, in_kernel, lost = [], 0, 0
    for line in text.splitlines():
        words = line.split()
        if "PERF_RECORD_LOST" in line:
            lost += int(words[-1])
        elif len(words) == 1:
            address = int(words[0], 16)
            if address >= _KERNEL_HALF:
                in_kernel += 1
            else:
                user.append(address)
    return user, in_kernel, lost


class PerfCommandSampler:
    """``perf record`` of the calling thread, one recording a stretch."""

    name = "perf"
    period_ns = perf_event.PERIOD_NS
    counts_cpu_time = True

    def __init__(self) -> None:
        command = shutil.which("perf")
        if command is None:
            raise OSError(errno.ENOENT, "perf is not installed")
        self._command = command
        self._thread = get_native_id()
        self._folder = tempfile.TemporaryDirectory(prefix="frameworktax-perf-")
        self._root = Path(self._folder.name)
        os.mkfifo(self._root / "control")
        os.mkfifo(self._root / "acknowledge")
        # Both ends of both, so that neither open nor a perf that died blocks this process.
        self._control = os.open(self._root / "control", os.O_RDWR)
        self._acknowledge = os.open(self._root / "acknowledge", os.O_RDWR | os.O_NONBLOCK)
        self._process: subprocess.Popen[bytes] | None = None
        self._recordings = 0

    def _say(self, word: bytes) -> None:
        import select

        os.write(self._control, word + b"\n")
        answer = b""
        while b"ack" not in answer:
            ready, _, _ = select.select([self._acknowledge], [], [], 0.5)
            if ready:
                answer += os.read(self._acknowledge, 64)
            elif self._process is None or self._process.poll() is not None:
                raise OSError(errno.EPERM, "perf record ended by itself; is it allowed to sample?")

    def start(self) -> None:
        """Begin a recording."""
        output = self._root / f"{self._recordings}.data"
        self._recordings += 1
        self._process = subprocess.Popen(
            [
                self._command, "record", "-q", "-N", "-B", "-e", "cpu-clock",
                "-c", str(self.period_ns), "-t", str(self._thread), "-D", "-1",
                "-o", str(output), "--control",
                f"fifo:{self._root / 'control'},{self._root / 'acknowledge'}",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._say(b"enable")

    def stop(self) -> None:
        """End the recording."""
        self._say(b"disable")
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def ticks(self) -> list[Ticks]:
        """Return the ticks of each recording."""
        resolver = Resolver()
        found = []
        for i in range(self._recordings):
            data = str(self._root / f"{i}.data")
            user, in_kernel, lost = parse_script(
                self._run("script", "-i", data, "-F", "ip", "--show-lost-events")
            )
            user_only = ":u" in self._run("evlist", "-i", data)
            where = resolver.resolve(user)
            found.append(
                Ticks(Counter(where[a] for a in user), None if user_only else in_kernel, lost)
            )
        return found

    def _run(self, *arguments: str) -> str:
        result = subprocess.run(
            [self._command, *arguments], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise OSError(errno.EIO, f"perf {arguments[0]} failed: {result.stderr.strip()[-200:]}")
        return result.stdout

    def __enter__(self) -> PerfCommandSampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        os.close(self._control)
        os.close(self._acknowledge)
        with contextlib.suppress(OSError):  # a folder that cannot be emptied is not a fault
            self._folder.cleanup()
