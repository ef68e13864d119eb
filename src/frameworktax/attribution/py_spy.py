"""Leaf sampling through py-spy, a wheel: the way that is left where perf is not allowed.

py-spy reads this process's memory and unwinds native stacks, for which it pauses the process at
every sample (``--native`` and ``--nonblocking`` exclude each other), so it runs at 100 Hz instead
of 1 kHz. It gives Python frames where the interpreter itself is the leaf, and does not see time
inside the operating system. A pause leaves cold caches behind, from which the host's code suffers
most: beside ``perf-event`` it gave a kernel share of 0.72 instead of 0.83 for a call of 0.1 ms,
and the same share for one of 2.5 ms. So its records carry a note.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from threading import get_native_id

from frameworktax.attribution.sampler import Ticks
from frameworktax.attribution.symbols import JIT, Leaf

RATE_HZ = 100
_PATIENCE_S = 120.0
_PR_SET_PTRACER, _ANY_PROCESS = 0x59616D61, -1
_PYTHON_FRAME = re.compile(r":\d+$")


def _executable() -> str | None:
    return shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}") or (
        shutil.which("py-spy")
    )


def probe(root: Path = Path("/")) -> str | None:
    """Return why py-spy cannot sample here, or None if it probably can."""
    if _executable() is None:
        return "py-spy is not installed; pip install 'frameworktax[py-spy]'"
    try:
        scope = int((root / "proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None  # no Yama: the ordinary rules, which allow a process of the same user
    if scope == 3 or (scope == 2 and os.geteuid() != 0):
        return (
            f"kernel.yama.ptrace_scope is {scope}; py-spy needs: sysctl kernel.yama.ptrace_scope=1"
        )
    return None


def parse_raw(text: str, thread: int) -> Counter[Leaf]:
    """Return the leaves of one thread in py-spy's raw format (``frame;frame;leaf count``)."""
    leaves: Counter[Leaf] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if f"({thread})" not in frames[0]:
            continue
        name, _, place = frames[-1].rpartition(" (")
        place = place.removesuffix(")")
        if _PYTHON_FRAME.search(place) or not name:
            leaf = Leaf("python", name)
        elif place == "?":
            leaf = Leaf(JIT, "")
        else:
            leaf = Leaf(place.rsplit("/", 1)[-1], "" if name.startswith("0x") else name)
        leaves[leaf] += int(count)
    return leaves


class PySpySampler:
    """``py-spy record`` of this process, one recording a stretch, the calling thread kept."""

    name = "py-spy"
    period_ns = 1_000_000_000 // RATE_HZ
    counts_cpu_time = False

    def __init__(self) -> None:
        command = _executable()
        if command is None:
            raise OSError(errno.ENOENT, "py-spy is not installed")
        self._command = command
        self._thread = get_native_id()
        self._folder = tempfile.TemporaryDirectory(prefix="frameworktax-py-spy-")
        self._process: subprocess.Popen[bytes] | None = None
        self._recordings = 0
        # Yama lets a process be traced by its parents only; py-spy is a child.
        self._allow(_ANY_PROCESS)

    @staticmethod
    def _allow(pid: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid & (2**64 - 1)), 0, 0, 0)

    def _output(self, recording: int) -> Path:
        return Path(self._folder.name) / f"{recording}.raw"

    def start(self) -> None:
        """Begin a recording; returns once py-spy has read this process's symbols and samples."""
        self._process = subprocess.Popen(
            [
                self._command, "record", "--pid", str(os.getpid()), "--native", "--threads",
                "--rate", str(RATE_HZ), "--format", "raw", "--output",
                str(self._output(self._recordings)),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._recordings += 1
        pipe, said = self._process.stdout.fileno() if self._process.stdout else -1, b""
        deadline = time.monotonic() + _PATIENCE_S
        while b"Sampling process" not in said:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(pipe, 4096) if ready else b""
            if not more:
                words = said.decode("utf-8", "replace").split("\n")[0]
                raise OSError(errno.EPERM, f"py-spy did not start: {words or 'no answer'}")
            said += more

    def stop(self) -> None:
        """End the recording."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None

    def ticks(self) -> list[Ticks]:
        """Return the ticks of each recording."""
        texts = [self._output(i).read_text() for i in range(self._recordings)]
        return [Ticks(parse_raw(text, self._thread), None) for text in texts]

    def __enter__(self) -> PySpySampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._allow(0)
        self._folder.cleanup()
