"""What comes home from a node: chunks of a shard and of messages, as records in the driver's store.

What a node sends is data: records are decoded as a store's lines are, and nothing else is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, get_args

from frameworktax import errors
from frameworktax.errors import Fault, FrameworktaxError, WorkerError
from frameworktax.store import Writer
from frameworktax.store.shards import FIRST, decode_line
from frameworktax.sweep.executor import Done, Job

LINE_BYTES = 64 << 20
"""A longer line is none that a session writes."""


class Listener(Protocol):
    """Told how a study goes."""

    def phase(self, text: str) -> None:
        """Say that a new phase begins."""

    def say(self, text: str) -> None:
        """Pass on a line for people."""


class Lines:
    """Puts lines together that were cut anywhere."""

    def __init__(self) -> None:
        self.taken = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take a chunk and yield the lines that are whole now.

        Raises:
            WorkerError: a line without end.
        """
        self.taken += len(chunk)
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise WorkerError("crashed", "the node sends a line without end")
        yield from whole


class Homecoming:
    """A job that runs on a node, as far as it has come home.

    Attributes:
        began: when the host was its own (``time.monotonic``), None before that.
        done: how the job ended, as the node tells it; None until then.
    """

    def __init__(self, folder: Path, job: Job, place: str, listener: Listener) -> None:
        self.job = job
        self.place = place
        self.began: float | None = None
        self.done: Done | None = None
        self._folder = folder
        self._listener = listener
        self._records = Lines()
        self._messages = Lines()
        self._writer: Writer | None = None
        self._session = ""
        self._failed: str | None = None

    @property
    def offsets(self) -> tuple[int, int]:
        """How many bytes of records and of messages are here."""
        return self._records.taken, self._messages.taken

    def feed(self, answer: Mapping[str, Any]) -> None:
        """Write what ``NodeHost.take`` gave; once the job has ended, ``done`` says how.

        Raises:
            StoreError: it cannot be written here.
            WorkerError: what came is no session's.
        """
        for line in self._records.feed(answer["records"]):
            self._record(line)
        for line in self._messages.feed(answer["messages"]):
            self._message(json.loads(line))
        if answer["ended"] is None:
            return
        self.close()
        if self.done is None:
            said = (answer["said"].strip().splitlines() or [""])[-1]
            why = self._failed or f"its process ended with code {answer['ended']}; {said}"
            self.done = self.ended(WorkerError("crashed", f"{self.place}: {why}"))

    def ended(self, error: FrameworktaxError | None, wall_ns: int | None = None) -> Done:
        """Return how the job ended, where the node itself does not say."""
        passed = 0.0 if self.began is None else time.monotonic() - self.began
        return Done(
            job=self.job,
            session=self._session,
            wall_ns=round(passed * 1e9) if wall_ns is None else wall_ns,
            error=error,
        )

    def close(self) -> None:
        """Close the shard."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _record(self, line: bytes) -> None:
        if line.strip() in (b"", FIRST):  # our own shard has a header already
            return
        record = decode_line(line)
        if record is None:
            raise WorkerError("crashed", f"{self.place} sent what is no record")
        if self._writer is None:
            self._session = record.session
            self._writer = Writer(self._folder, record.session)
        if record.session != self._session:
            raise WorkerError("crashed", f"{self.place} sent a record of another session")
        self._writer.write(record)

    def _message(self, message: Mapping[str, Any]) -> None:
        if "began" in message:
            self.began = time.monotonic()
        if "phase" in message:
            self._listener.phase(f"{self.place}: {message['phase']}")
        if "say" in message:
            self._listener.say(f"{self.place}: {message['say']}")
        if "failed" in message:
            self._failed = str(message["failed"])
        if "done" in message:
            told = message["done"]
            self.done = Done(
                job=self.job,
                session=str(told["session"]),
                wall_ns=int(told["wall_ns"]),
                spent_ns={str(name): int(ns) for name, ns in told["spent_ns"].items()},
                error=_error(told["error"]),
            )


def _error(told: Mapping[str, Any] | None) -> FrameworktaxError | None:
    """Return the error that a node told as plain data."""
    if told is None:
        return None
    kind, text = getattr(errors, str(told["kind"]), None), str(told["message"])
    if kind is WorkerError and told["status"] in get_args(Fault):
        return WorkerError(told["status"], text)
    with suppress(TypeError):
        if kind is not None and issubclass(kind, FrameworktaxError):
            return kind(text)  # type: ignore[no-any-return]
    return FrameworktaxError(text)
