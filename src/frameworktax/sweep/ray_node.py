"""A node's side of the Ray engine: one job at a time, in a process of its own.

``NodeHost`` lives in a Ray actor that holds the whole node; it knows nothing of Ray. The process
it starts (``frameworktax.sweep.node``) measures as a sweep on that node would: into a private
folder, whose shard the driver takes home in chunks. So the process that looks after the measurement
is a plain one, without Ray's threads, and is ended like one.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

MODULE = "frameworktax.sweep.node"
PREFIX = "frameworktax-node-"
CHUNK_BYTES = 1 << 20
"""Most of a shard that one answer brings home."""
WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
GRACE_S = 15.0
"""How long a job may take to end its processes once told to."""
SAID_BYTES = 2000


class NodeHost:
    """Runs jobs on one node; every method returns plain data."""

    def __init__(self) -> None:
        _clear(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
        self._held = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, order: str, code: Mapping[str, str]) -> dict[str, Any]:
        """Start a job and return the first of what it has to tell, as ``take`` does.

        Args:
            order: what ``campaign.node`` reads, as JSON.
            code: file → source of the user's own models, to stand beside the job.

        Raises:
            ValueError: a file would stand outside the job's folder.
        """
        self.stop()
        for name in ("store", "code"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            (self._folder / name).mkdir(mode=0o700)
        for name, source in code.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name!r} stands outside the job's folder")
            path = self._folder / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        with (
            (self._folder / "messages").open("wb") as messages,
            (self._folder / "errors").open("wb") as errors,
        ):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(self._folder / "store")],
                stdin=subprocess.PIPE,
                stdout=messages,
                stderr=errors,
                cwd=self._folder / "code",
                start_new_session=True,
                env=_without_ray(os.environ),
            )
        if self._process.stdin is None:
            raise RuntimeError("the job has no input pipe")
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(order.encode() + b"\n")
        return self.take(0, 0)

    def take(self, records_at: int, messages_at: int) -> dict[str, Any]:
        """Return what is new since two offsets, waiting a little for it.

        Asked twice with the same offsets it gives the same, so that an answer may get lost.

        Returns:
            ``records`` and ``messages``, bytes cut anywhere; ``ended``, the exit code once there is
            nothing more to take, else None; ``said``, the end of what the job wrote to stderr.
        """
        until = time.monotonic() + WAIT_S
        while (code := self._code()) is None and time.monotonic() < until:
            time.sleep(WAIT_S / 4)
        shards = sorted((self._folder / "store").glob("*.jsonl"))
        records, more = _read(shards[0], records_at) if shards else (b"", False)
        messages, more_said = _read(self._folder / "messages", messages_at)
        ended = None if more or more_said else code
        said = ""
        if ended is not None:
            errors = (self._folder / "errors").read_bytes()[-SAID_BYTES:]
            said = errors.decode("utf-8", "replace")
        return {"records": records, "messages": messages, "ended": ended, "said": said}

    def stop(self) -> None:
        """End the job: kindly, so that it ends its processes, and then not."""
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
        os.close(self._held)

    def _code(self) -> int | None:
        return 0 if self._process is None else self._process.poll()


def _read(path: Path, at: int) -> tuple[bytes, bool]:
    """Return a chunk of a file and whether there is more after it."""
    with path.open("rb") as file:
        file.seek(at)
        chunk = file.read(CHUNK_BYTES)
        return chunk, os.fstat(file.fileno()).st_size > at + len(chunk)


def _without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the node without what Ray sets for its own processes."""
    own = ("RAY_", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")
    return {name: value for name, value in environment.items() if not name.startswith(own)}


def _clear(folder: Path) -> None:
    """Remove what earlier hosts left that were killed: their locks ended with them."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:  # another user's, or gone
            continue
        try:
            if os.fstat(held).st_uid == os.getuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(held)
