"""A node's side of the Ray executor: an actor, and the process that measures for it.

``NodeHost`` lives in a Ray actor that holds the whole node; it knows nothing of Ray. The process
it looks after (``python -m frameworktax.sweep.ray_node COMMAND``) reads an ``Order`` a line from
standard input and measures it as a sweep on that node would. Every record goes to standard output
as it is in a store, between them stands what the process reports (``Message``): one file of lines,
which the driver fetches in chunks. So what measures is a plain process, without Ray's threads, and
is ended like one: SIGTERM ends it as Ctrl-C ends a sweep; so do the end of its parent, and a job
that is late. What it has imported serves the next job, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import IO

import msgspec

from frameworktax import store
from frameworktax.errors import Fault, FrameworktaxError, WorkerError
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Record, to_json
from frameworktax.sweep.executor import Job, limit_s
from frameworktax.sweep.local import LocalExecutor

CHUNK_BYTES = 1 << 20
"""Most that one answer brings."""
WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
GRACE_S = 15.0
"""How long a job may take to end its processes after SIGTERM."""
PATIENCE_S = 12
"""After this long the kernel ends a process that got SIGTERM and has not ended itself."""
STDERR_BYTES = 2000
PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct, frozen=True):
    """A job, and file → source of the user's own models among its points."""

    job: Job
    code: dict[str, str]


class End(msgspec.Struct, frozen=True):
    """How a job ended: ``executor.Done`` as plain data; ``fault`` where it was a WorkerError."""

    session: str = ""
    wall_ns: int = 0
    spent_ns: dict[str, int] = {}
    error: str | None = None
    fault: Fault | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line that is no record: one for people, a phase of the session, or the end of the job."""

    say: str | None = None
    phase: str | None = None
    end: End | None = None


class NodeHost:
    """Keeps one process that measures on this node; every method returns plain data."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process; ``command`` is recorded with each session."""
        self._folder = Path(tempfile.mkdtemp(prefix="frameworktax-node-"))  # 0700
        self._said = (self._folder / "lines").open("ab+")  # kept open as long as the host lives
        self._errors = (self._folder / "errors").open("ab+")
        own = ("RAY_", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")  # set by Ray
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *command],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._errors,
            cwd=self._folder,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith(own)},
        )

    def begin(self, order: bytes) -> None:
        """Have the process measure an ``Order``, as JSON; it has done with the one before."""
        self._said.truncate(0)  # it appends
        stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment] # it is a pipe
        stdin.write(order + b"\n")
        stdin.flush()

    def take(self, at: int) -> tuple[bytes, str | None]:
        """Return what was written from an offset on, waiting a little for it.

        Returns:
            The bytes, cut anywhere; and once the process has ended and nothing more follows, the
            last of what it wrote to standard error. Asked twice it gives the same.
        """
        until = time.monotonic() + WAIT_S
        while (code := self._process.poll()) is None and time.monotonic() < until:
            time.sleep(WAIT_S / 4)
        chunk = os.pread(self._said.fileno(), CHUNK_BYTES, at)
        if code is None or chunk:
            return chunk, None
        self._errors.seek(0)
        text = self._errors.read()[-STDERR_BYTES:].decode("utf-8", "replace")
        last = text.strip().rpartition("\n")[2]
        return b"", f"its process ended with code {code}; {last}"

    def stop(self) -> None:
        """End the process: by SIGTERM, so that it ends its own, and then by SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


# --- the process that measures ----------------------------------------------------------------


class Lines(Reporter):
    """Writes records, and what a session reports, to the driver."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, line: bytes) -> None:
        """Write one line."""
        self._file.write(line + b"\n")
        self._file.flush()

    def phase(self, text: str) -> None:
        """Pass on a phase."""
        self.write(msgspec.json.encode(Message(phase=text)))

    def say(self, text: str) -> None:
        """Pass on a line for people."""
        self.write(msgspec.json.encode(Message(say=text)))

    def end(self, end: End) -> None:
        """Pass on how a job ended."""
        self.write(msgspec.json.encode(Message(end=end)))


class LateError(KeyboardInterrupt):
    """A job took longer than it may."""


def serve(orders: IO[bytes], lines: Lines, command: Sequence[str], folder: Path) -> None:
    """Measure one order after the other, until there are no more or one is late."""

    class Shard(store.Writer):
        def write(self, record: Record) -> None:
            super().write(record)
            lines.write(json.dumps(to_json(record), separators=(",", ":")).encode())

    executor = LocalExecutor(folder / "store", "cpu", lines, command, writer=Shard)
    with contextlib.closing(executor):
        for line in orders:
            order = msgspec.json.decode(line, type=Order)
            try:
                _raise_priority(lines)
                _place(order.code, folder)
                with host_lock(command, lines.say), _limited(order.job):
                    end = _measure(executor, order.job)
            except FrameworktaxError as error:  # not begun, or its records cannot be written
                end = End(error=str(error), fault="crashed")
            except LateError:
                end = End(error=f"ended after {limit_s(order.job):.0f} s", fault="timeout")
            lines.end(end)
            if end.fault == "timeout":  # what it was in the middle of serves no other job
                return
            shutil.rmtree(folder / "store", ignore_errors=True)  # the driver has it


@contextlib.contextmanager
def _limited(job: Job) -> Iterator[None]:
    """End a job that is late as Ctrl-C would."""
    signal.signal(signal.SIGALRM, _end_late)
    signal.setitimer(signal.ITIMER_REAL, limit_s(job))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end_late(number: int, frame: FrameType | None) -> None:
    _end_soon()
    raise LateError


def _place(code: dict[str, str], folder: Path) -> None:
    """Put the user's own models where the measuring processes find them."""
    for name, source in code.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise FrameworktaxError(f"{name!r} lies outside the folder of the job")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")


def _measure(executor: LocalExecutor, job: Job) -> End:
    executor.submit(job)
    (done,) = executor.completed()
    error = done.error
    return End(
        session=done.session,
        wall_ns=done.wall_ns,
        spent_ns=dict(done.spent_ns),
        error=None if error is None else str(error),
        fault=error.status if isinstance(error, WorkerError) else None,
    )


def _raise_priority(lines: Lines) -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            lines.say(
                "measures at a lower priority, as Ray starts its workers nice; "
                "start the node with RAY_worker_niceness=0"
            )


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_soon()
    raise KeyboardInterrupt


def _end_soon() -> None:
    """Have the kernel end this process if it does not end what it does by itself."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE_S)


def main() -> int:
    """Measure what standard input orders; return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    lines = Lines(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # nothing that prints may break a line
    folder = Path.cwd()
    try:
        serve(sys.stdin.buffer, lines, sys.argv[1:], folder)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
