"""A node's side of the Ray executor: an actor that measures as a sweep on that node would.

``NodeHost`` lives in a Ray actor that holds the whole node; it knows nothing of Ray. It runs the
local executor in a thread of its own, in a private temporary folder, one job after the other; what
its templates have imported serves the next job, too. The session writes an ordinary shard there, of
which the driver fetches what is new. What is timed runs in processes that end with the actor,
however that ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from platform import python_version
from typing import Literal

from frameworktax.errors import FrameworktaxError
from frameworktax.host.cache import hold, remove_of_dead
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.sweep.executor import Done, Job, LocalExecutor, lost
from frameworktax.version import __version__

PREFIX = "frameworktax-node-"
CHUNK_BYTES = 1 << 20
"""What one answer brings at most, up to the end of its last line."""
WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
SET_BY_RAY = ("PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is new of a job.

    Attributes:
        session: that it is measured in, empty before it began.
        data: whole lines of the shard, from the offset that was asked for.
        notes: methods of ``Reporter`` that the session called, each with its text.
        done: how it ended, once nothing more follows.
    """

    session: str
    data: bytes
    notes: Sequence[tuple[Literal["phase", "say"], str]]
    done: Done | None


def versions() -> dict[str, str | None]:
    """Return what must be of one version on the driver and on every node that measures."""
    try:
        torch = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        torch = None
    return {"frameworktax": __version__, "python": python_version(), "torch": torch}


class _Notes(Reporter):
    """Keeps what a session reports until it is fetched."""

    def __init__(self) -> None:
        self.new: list[tuple[Literal["phase", "say"], str]] = []

    def phase(self, text: str) -> None:
        self.new.append(("phase", text))

    def say(self, text: str) -> None:
        self.new.append(("say", text))


class NodeHost:
    """Measures on this node; every method returns at once, or within ``WAIT_S``."""

    def __init__(self, command: Sequence[str], wanted: Mapping[str, str | None]) -> None:
        """Make a folder of its own.

        Args:
            command: recorded with each session.
            wanted: ``versions`` of the driver; with others no job begins.
        """
        self._command = tuple(command)
        self._wanted = wanted
        for dead in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            remove_of_dead(dead)
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
        self._held = hold(self._folder)
        os.chdir(self._folder)  # where measuring processes look for the user's own models
        for name in SET_BY_RAY:
            os.environ.pop(name, None)
        self._notes = _Notes()
        self._store = self._folder / "store"
        self._executor = LocalExecutor(self._store, "cpu", self._notes, self._command)
        # One thread as long as this lives: what a thread started ends with it.
        self._thread = ThreadPoolExecutor(1)
        self._done: Future[Done] = Future()

    def begin(self, job: Job, code: Mapping[str, str]) -> None:
        """Begin a job, with file → source of the user's own models; the one before has ended."""
        shutil.rmtree(self._store, ignore_errors=True)  # the driver has it
        self._done = self._thread.submit(self._measure, job, code)

    def take(self, at: int) -> News:
        """Return what is new, waiting a little for it; ``at`` is an offset into the shard."""
        until = time.monotonic() + WAIT_S
        while not (has_ended := self._done.done()) and time.monotonic() < until:
            time.sleep(WAIT_S / 4)
        shard = next(self._store.glob("*.jsonl"), None)
        data = b""
        if shard is not None:
            with shard.open("rb") as file:
                file.seek(at)
                data = file.read(CHUNK_BYTES) + file.readline()
            data = data[: data.rfind(b"\n") + 1]
        notes, self._notes.new = self._notes.new, []
        return News(
            session=shard.stem if shard is not None else "",
            data=data,
            notes=notes,
            done=self._done.result() if has_ended and len(data) < CHUNK_BYTES else None,
        )

    def stop(self) -> None:
        """Remove the folder; the actor is ended next, and with it what measures."""
        os.close(self._held)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _measure(self, job: Job, code: Mapping[str, str]) -> Done:
        try:
            for name, own in versions().items():
                if own != self._wanted[name]:
                    return lost(job, "crashed", f"has {name} {own}, not {self._wanted[name]}")
            self._place(code)
            with host_lock(self._command, self._notes.say):
                self._raise_priority()
                self._executor.submit(job)
                (done,) = self._executor.completed()
                return done
        except FrameworktaxError as error:  # not begun, or its records cannot be written
            return lost(job, "crashed", str(error))

    def _place(self, code: Mapping[str, str]) -> None:
        """Put the user's own models where the measuring processes find them."""
        for name, source in code.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise FrameworktaxError(f"{name!r} lies outside the folder of the job")
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / path).write_text(source, encoding="utf-8")

    def _raise_priority(self) -> None:
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, 0)
            except PermissionError:
                self._notes.say(
                    "measures at a lower priority, as Ray starts its workers nice; "
                    "start the node with RAY_worker_niceness=0"
                )
