"""The set-up process: reads models, counts their operations, exports them; nothing is timed in it.

There is one at a time, for memory. It can be kept for the next session, stopped while anything is
timed. Measuring processes are never kept: how many there
are of each configuration is what an interval is made of.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

from frameworktax import host
from frameworktax.errors import StoreError, WorkerError
from frameworktax.measure import orphans
from frameworktax.measure.process import AnyWorker
from frameworktax.measure.protocol import ReadMemory

KEEP_SHARE = 0.05
"""Share of the free memory that a process which only waits for the next session may hold."""

Start = Callable[[Path | None, Path], AnyWorker]
"""Interpreter (None for this one) and folder for temporary files → a process to ask."""


class ExportWorker:
    """At most one set-up process.

    Args:
        cache: where a folder for its temporary files is made.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._start: Start | None = None
        self._kind: Hashable = None
        self._lasting = False
        self._process: AnyWorker | None = None
        self._made: Hashable = None
        self._temporary: Path | None = None

    def serve(self, start: Start, kind: Hashable, *, lasting: bool) -> None:
        """Serve a session from here on; a process of another kind is not taken over.

        Args:
            start: starts a process as this session wants it.
            kind: equal where two sessions want the same.
            lasting: whether the process may serve the next session too.
        """
        self._start, self._kind, self._lasting = start, kind, lasting

    def process(self, python: Path | None = None, *, fresh: bool = False) -> AnyWorker:
        """Return the process of this interpreter, a new one where none is well.

        Raises:
            WorkerError: none can be started.
            StoreError: the cache takes nothing more.
        """
        if self._start is None:
            raise WorkerError("failed", "the export worker serves no session")
        wanted = (self._kind, python)
        here = self._process
        if here is not None and not fresh and here.alive and self._made == wanted and here.go_on():
            if self._temporary is not None:  # a prune of the cache may have taken it
                self._temporary.mkdir(mode=0o700, exist_ok=True)
            return here
        self.close()
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            prefix = f"{orphans.NAME}set-up-"
            self._temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=self._cache))
        except OSError as error:
            raise StoreError(
                f"cannot write in the cache {self._cache}: {error.strerror}; free space"
            ) from error
        self._process, self._made = self._start(python, self._temporary), wanted
        return self._process

    def rest(self) -> None:
        """End the process, or stop it until the next session where it may last and is small."""
        if self._process is not None and self._lasting:
            with contextlib.suppress(WorkerError):  # it ended by itself
                resident_bytes = self._process.request(ReadMemory(), 30.0).resident_bytes
                if resident_bytes <= KEEP_SHARE * host.memory_available_bytes():
                    self._process.stop()
                    return
        self.close()

    def close(self) -> None:
        """End the process and remove its temporary files."""
        if self._process is not None:
            self._process.kill()
        self._process = None
        if self._temporary is not None:
            orphans.end(self._temporary)
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary = None
