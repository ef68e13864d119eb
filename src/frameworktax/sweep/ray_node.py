"""A node's side of the Ray executor: one job at a time, in a process of its own.

``NodeHost`` lives in a Ray actor that holds the whole node; it knows nothing of Ray. The process
it starts (``python -m frameworktax.sweep.ray_node STORE < ORDER``) measures as a sweep on that node
would: into a private folder, whose shard the driver fetches in chunks, with what the process
reports (``Message``). So the process that looks after the measurement is a plain one, without
Ray's threads, and is ended like one: SIGTERM ends it as Ctrl-C ends a sweep; so does the end of
its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

import msgspec

from frameworktax import models
from frameworktax.errors import Fault, FrameworktaxError, WorkerError
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.sweep.executor import Done, Job
from frameworktax.sweep.local import LocalExecutor

PREFIX = "frameworktax-node-"
CHUNK_BYTES = 1 << 20
"""Most of a file that one answer brings."""
WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
GRACE_S = 15.0
"""How long a job may take to end its processes after SIGTERM."""
PATIENCE_S = 12
"""After this long the kernel ends a job that got SIGTERM and has not ended itself."""
STDERR_BYTES = 2000
PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct, frozen=True):
    """What a job's process reads from standard input."""

    job: Job
    command: tuple[str, ...]
    allow_code: bool


class End(msgspec.Struct, frozen=True):
    """How a job ended: ``executor.Done`` as plain data; ``fault`` where it was a WorkerError."""

    session: str
    wall_ns: int
    spent_ns: dict[str, int]
    error: str | None = None
    fault: Fault | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that a job's process writes to standard output.

    Attributes:
        say: a line for people.
        phase: of the session.
        began: whether the host's lock is taken, and measuring begins.
        done: how it ended.
        failed: why it could not be begun, or its records not be written.
    """

    say: str | None = None
    phase: str | None = None
    began: bool = False
    done: End | None = None
    failed: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """What is new of a job.

    Attributes:
        records: bytes of its shard, cut anywhere.
        messages: bytes of its messages, cut anywhere.
        ended: its exit code once there is nothing more to fetch, else None.
        stderr: the end of what it wrote to standard error, once it has ended.
    """

    records: bytes
    messages: bytes
    ended: int | None = None
    stderr: str = ""


class NodeHost:
    """Runs jobs on one node; every method returns plain data."""

    def __init__(self) -> None:
        _clear(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, order: bytes, code: Mapping[str, str]) -> dict[str, Any]:
        """Start a job and return its first news, as ``take`` does.

        Args:
            order: an ``Order``, as JSON.
            code: file → source of the user's own models, to lie beside the job.

        Raises:
            ValueError: a file would lie outside the job's folder.
        """
        self.stop()
        for name in ("store", "code"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            (self._folder / name).mkdir(mode=0o700)
        for name, source in code.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name!r} lies outside the job's folder")
            path = self._folder / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        (self._folder / "order").write_bytes(order + b"\n")
        own = ("RAY_", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")  # set by Ray
        with (
            (self._folder / "order").open("rb") as stdin,
            (self._folder / "messages").open("wb") as stdout,
            (self._folder / "errors").open("wb") as stderr,
        ):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(self._folder / "store")],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self._folder / "code",
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith(own)},
            )
        return self.take(0, 0)

    def take(self, records_at: int, messages_at: int) -> dict[str, Any]:
        """Return a ``Chunk``, as data, since two offsets, waiting a little for it.

        Asked twice with the same offsets it gives the same, so that an answer may get lost.
        """
        until = time.monotonic() + WAIT_S
        while (code := self._exit_code()) is None and time.monotonic() < until:
            time.sleep(WAIT_S / 4)
        shards = sorted((self._folder / "store").glob("*.jsonl"))
        records, more = _read(shards[0], records_at) if shards else (b"", False)
        messages, more_messages = _read(self._folder / "messages", messages_at)
        if code is None or more or more_messages:
            return {"records": records, "messages": messages}
        errors = (self._folder / "errors").read_bytes()[-STDERR_BYTES:]
        stderr = errors.decode("utf-8", "replace")
        return {"records": records, "messages": messages, "ended": code, "stderr": stderr}

    def stop(self) -> None:
        """End the job: by SIGTERM, so that it ends its processes, and then by SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """End the job and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _exit_code(self) -> int | None:
        return 0 if self._process is None else self._process.poll()


def _read(path: Path, at: int) -> tuple[bytes, bool]:
    """Return a chunk of a file and whether there is more after it."""
    with path.open("rb") as file:
        file.seek(at)
        chunk = file.read(CHUNK_BYTES)
        return chunk, os.fstat(file.fileno()).st_size > at + len(chunk)


def _clear(folder: Path) -> None:
    """Remove what earlier hosts left that were killed: their locks ended with them."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:  # another user's, or gone
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)


# --- the job's process ------------------------------------------------------------------------


class Messages(Reporter):
    """A reporter that writes messages."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, message: Message) -> None:
        """Write one message."""
        os.write(self._descriptor, msgspec.json.encode(message) + b"\n")

    def phase(self, text: str) -> None:
        """Pass on a phase."""
        self.write(Message(phase=text))

    def say(self, text: str) -> None:
        """Pass on a line for people."""
        self.write(Message(say=text))


def run(order: Order, folder: Path, messages: Messages) -> None:
    """Carry out one job into a store.

    Raises:
        FrameworktaxError: it could not be begun, or its records not be written.
    """
    job, command = order.job, order.command
    code = [p.workload.model for p in job.points if models.is_user_model(p.workload.model)]
    if code and not order.allow_code:
        raise FrameworktaxError(f"the job names code of a user, {code[0]}, and may run none")
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            messages.say(
                "measures at a lower priority, as Ray starts its workers nice; "
                "start the node with RAY_worker_niceness=0"
            )
    executor = LocalExecutor(folder, "cpu", messages, command)
    with host_lock(command, messages.say), contextlib.closing(executor):
        messages.write(Message(began=True))
        executor.submit(job)
        messages.write(Message(done=_end(next(executor.completed()))))


def _end(done: Done) -> End:
    error = done.error
    return End(
        session=done.session,
        wall_ns=done.wall_ns,
        spent_ns=dict(done.spent_ns),
        error=None if error is None else str(error),
        fault=error.status if isinstance(error, WorkerError) else None,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(PATIENCE_S)
    raise KeyboardInterrupt


def main() -> int:
    """Read the order, measure, return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    messages = Messages(os.dup(1))
    os.dup2(2, 1)  # nothing that prints may break a message
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    try:
        run(order, Path(sys.argv[1]), messages)
    except FrameworktaxError as error:
        messages.write(Message(failed=str(error)))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
