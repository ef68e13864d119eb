"""Functions of Python that another process is in, read by py-spy at a low rate, if installed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from frameworktax.host.cache import temporary_folder
from frameworktax.host.machine import read_int

Functions = dict[tuple[str, str], tuple[int, int]]
"""(function, file and line) → samples in it, and in it or what it called."""

FUNCTIONS_HZ, STACKS_HZ = 10, 20
"""Readings a second, and stacks in all of them: of many threads it reads less often. What py-spy
takes beside 64 threads is in ``benchmarks/attach.py``."""
_PATIENCE_S = 120.0
_PR_SET_PDEATHSIG = 1
_PROCESS, _FRAME = re.compile(r'process (\d+):"'), re.compile(r"(.+) \((.+:\d+)\)")
_LIBC = ctypes.CDLL(None)


def _executable() -> str | None:
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def probe(root: Path = Path("/")) -> str | None:
    """Return why py-spy cannot read another process here, or None if it probably can.

    Args:
        root: where ``proc`` is; for tests.
    """
    if _executable() is None:
        return "py-spy is not installed; pip install 'frameworktax[py-spy]'"
    scope = read_int(root, "proc/sys/kernel/yama/ptrace_scope")
    # Without Yama the ordinary rules apply, which allow a process of the same user.
    if scope and (scope == 3 or os.geteuid() != 0):
        return (
            f"kernel.yama.ptrace_scope is {scope}; py-spy needs: "
            "sudo sysctl kernel.yama.ptrace_scope=0"
        )
    return None


def parse_functions(text: str, pid: int) -> dict[int, Functions]:
    """Return process → its functions.

    Args:
        text: py-spy's raw format (``frame;frame;leaf count``), with processes and the first lines
            of functions.
        pid: of the process that lines without one belong to.
    """
    found: defaultdict[int, Functions] = defaultdict(dict)
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        process = pid
        frames: list[tuple[str, str]] = []
        for part in stack.split(";"):
            if begins := _PROCESS.match(part):
                process = int(begins[1])
            elif function := _FRAME.fullmatch(part):
                frames.append((function[1], function[2]))
        for frame in set(frames):
            own, total = found[process].get(frame, (0, 0))
            own += int(count) if frame == frames[-1] else 0
            found[process][frame] = own, total + int(count)
    return dict(found)


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
        self._pid = pid
        threads = sum(1 for _ in (root / f"proc/{pid}/task").iterdir())
        rate = max(1, min(FUNCTIONS_HZ, STACKS_HZ // threads))  # py-spy has no lower one than 1
        with ExitStack() as ends:
            folder = ends.enter_context(temporary_folder("frameworktax-py-spy-"))
            self._output = folder / "functions.raw"
            self._process = subprocess.Popen(
                [
                    _executable() or "py-spy", "record", "--pid", str(pid), "--nonblocking",
                    "--threads", "--subprocesses", "--function", "--full-filenames",
                    "--rate", str(rate), "--format", "raw", "--output", str(self._output),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which ends it
                # it ends with its parent, however that ends
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )  # fmt: skip
            self._ends = ends.pop_all()

    def stop(self) -> tuple[dict[int, Functions], str | None]:
        """Return what ``parse_functions`` found, and why it is nothing."""
        self._process.send_signal(signal.SIGINT)
        try:
            said = self._process.communicate(timeout=_PATIENCE_S)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            said = self._process.communicate()[0]
        try:
            found = parse_functions(self._output.read_text(errors="replace"), self._pid)
        except FileNotFoundError:
            words = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
            return {}, f"py-spy: {words[0].strip() if words else 'no answer'}"
        return found, None if found else "py-spy saw no thread of Python running"

    def __enter__(self) -> FunctionRecording:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._ends.close()
