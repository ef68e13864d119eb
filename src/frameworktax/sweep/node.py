"""A node's side of a sweep over a cluster: one job after the other, news of each as they are asked.

``NodeHost`` runs the local executor in a private folder; what its templates have imported serves
the next job, too. It knows nothing of Ray, which makes an actor of it (``ray``): what is timed runs
in processes that end with the actor, however that ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from importlib import metadata
from platform import python_version
from typing import NamedTuple

from frameworktax.errors import FrameworktaxError
from frameworktax.host.cache import temporary_folder
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.sweep.executor import Done, Job, LocalExecutor, lost
from frameworktax.version import __version__

WAIT_S = 1.0
"""How long a question waits for news: fewer questions disturb the measurement less."""
PREFIX = "frameworktax-node-"
SET_BY_RAY = ("PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")


class News(NamedTuple):
    """What is new of a job: ``session`` is empty before it began, ``done`` None before its end.

    ``data`` are whole lines of its shard, ``notes`` methods of ``Reporter``, each with its text.
    """

    session: str
    data: bytes
    notes: list[tuple[str, str]]
    done: Done | None


class _Notes(Reporter):
    """Keeps what a session reports until it is fetched."""

    def __init__(self) -> None:
        self.new: list[tuple[str, str]] = []

    def phase(self, text: str) -> None:
        self.new.append(("phase", text))

    def say(self, text: str) -> None:
        self.new.append(("say", text))


def versions() -> dict[str, str | None]:
    """Return what must be of one version on the driver and on every node that measures."""
    torch = None
    with suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch").partition("+")[0]
    return {"frameworktax": __version__, "python": python_version(), "torch": torch}


class NodeHost:
    """Measures on this node; every method returns at once, or within ``WAIT_S``.

    Args:
        command: recorded with each session.
        wanted: ``versions`` of the driver; with others no job begins.
    """

    def __init__(self, command: Sequence[str], wanted: Mapping[str, str | None]) -> None:
        self._command = tuple(command)
        self._wanted = wanted
        self._ends = ExitStack()
        self._folder = self._ends.enter_context(temporary_folder(PREFIX))
        os.chdir(self._folder)  # where measuring processes look for the user's own models
        for name in SET_BY_RAY:
            os.environ.pop(name, None)
        self._notes = _Notes()
        try:
            os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
        except PermissionError:
            self._notes.say(
                "measures at a lower priority, as Ray starts its workers nice; "
                "start the node with RAY_worker_niceness=0"
            )
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
        has_ended = bool(wait([self._done], WAIT_S).done)  # before the shard is read to its end
        session, data = "", b""
        for shard in self._store.glob("*.jsonl"):  # the only one
            with shard.open("rb") as file:
                file.seek(at)
                data = file.read()
            session, data = shard.stem, data[: data.rfind(b"\n") + 1]
        notes, self._notes.new = self._notes.new, []
        return News(session, data, notes, self._done.result() if has_ended else None)

    def stop(self) -> None:
        """Remove the folder; the actor is ended next, and with it what measures."""
        self._ends.close()

    def _measure(self, job: Job, code: Mapping[str, str]) -> Done:
        for name, own in versions().items():
            if own != self._wanted[name]:
                return lost(job, "crashed", f"has {name} {own}, not {self._wanted[name]}")
        for name, source in code.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        try:
            with host_lock(self._command, self._notes.say):
                return self._executor.run(job)
        except FrameworktaxError as error:  # not begun, or its records cannot be written
            return lost(job, "crashed", str(error))
