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
_PR_SET_PDEATHSIG = 1
_PYTHON_FRAME = re.compile(r":\d+$")


def _executable() -> str | None:
    return shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}") or (
        shutil.which("py-spy")
    )


def probe(root: Path = Path("/"), *, attaches: bool = False) -> str | None:
    """Return why py-spy cannot sample here, or None if it probably can.

    Args:
        root: where ``proc`` is; for tests.
        attaches: whether another process is to be sampled, which gave no permission for it.
    """
    if _executable() is None:
        return "py-spy is not installed; pip install 'frameworktax[py-spy]'"
    try:
        scope = int((root / "proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None  # no Yama: the ordinary rules, which allow a process of the same user
    allowed = 0 if attaches else 1
    if scope == 3 or (scope > allowed and os.geteuid() != 0):
        return (
            f"kernel.yama.ptrace_scope is {scope}; py-spy needs: "
            f"sudo sysctl kernel.yama.ptrace_scope={allowed}"
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
        _LIBC.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid & (2**64 - 1)), 0, 0, 0)

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
            left_s = max(0.0, deadline - time.monotonic())  # select takes no negative time
            ready, _, _ = select.select([pipe], [], [], left_s)
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


_PROCESS, _FRAME = re.compile(r'process (\d+):"'), re.compile(r"(.+) \((.+:\d+)\)")
FUNCTIONS_HZ, STACKS_HZ = 10, 20
"""Readings a second, and stacks in all of them: of many threads it reads less often. What py-spy
takes beside 64 threads is in ``benchmarks/attach.py``."""
_LIBC = ctypes.CDLL(None)


def parse_functions(text: str, pid: int) -> dict[int, dict[tuple[str, str], tuple[int, int]]]:
    """Return process → (function, file and line) → samples in it, and in it or what it called.

    Args:
        text: py-spy's raw format, with processes and the first lines of functions.
        pid: of the process that lines without one belong to.
    """
    found: dict[int, dict[tuple[str, str], tuple[int, int]]] = {}
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        process = pid
        frames: list[tuple[str, str]] = []
        for part in stack.split(";"):
            if begins := _PROCESS.match(part):
                process = int(begins[1])
            elif function := _FRAME.fullmatch(part):
                frames.append((function[1], function[2]))
        functions = found.setdefault(process, {})
        for frame in set(frames):
            own, total = functions.get(frame, (0, 0))
            own += int(count) if frame == frames[-1] else 0
            functions[frame] = own, total + int(count)
    return found


def _end_with_parent() -> None:
    """Let the kernel end this process with its parent, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class FunctionRecording:
    """Which functions of Python another process and its children are in, some times a second.

    ``py-spy record --nonblocking`` reads their memory while they run; what it could not read
    because it changed meanwhile is left out. Threads that wait are left out too.

    Args:
        pid: of the process.
        root: where ``proc`` is; for tests.

    Raises:
        OSError: py-spy is not installed, or the process has ended.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        command = _executable()
        if command is None:
            raise OSError(errno.ENOENT, "py-spy is not installed")
        self._pid = pid
        self._folder = tempfile.TemporaryDirectory(prefix="frameworktax-py-spy-")
        self._output = Path(self._folder.name) / "functions.raw"
        threads = sum(1 for _ in (root / f"proc/{pid}/task").iterdir())
        rate = max(1, min(FUNCTIONS_HZ, STACKS_HZ // threads))  # py-spy has no lower one than 1
        self._process = subprocess.Popen(
            [
                command, "record", "--pid", str(pid), "--nonblocking", "--threads",
                "--subprocesses", "--function", "--full-filenames", "--rate", str(rate),
                "--format", "raw", "--output", str(self._output),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which ends it
            preexec_fn=_end_with_parent,
        )  # fmt: skip

    def stop(self) -> tuple[dict[int, dict[tuple[str, str], tuple[int, int]]], str | None]:
        """Return what ``parse_functions`` found, and why it is nothing."""
        said = self._end()
        try:
            found = parse_functions(self._output.read_text(errors="replace"), self._pid)
        except FileNotFoundError:
            words = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
            return {}, f"py-spy: {words[0].strip() if words else 'no answer'}"
        return found, None if found else "py-spy saw no thread of Python running"

    def _end(self) -> bytes:
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.communicate(timeout=_PATIENCE_S)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]

    def __enter__(self) -> FunctionRecording:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._folder.cleanup()
