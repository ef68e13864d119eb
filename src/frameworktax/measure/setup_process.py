"""The set-up process: reads models, counts their operations, exports them; nothing is timed in it.

There is one at a time, for memory. It ends with the set-up, and with it everything that the model
or a compiler has begun there. The templates, which made it quick to start, may last longer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.host.cache import hold
from frameworktax.measure import orphans
from frameworktax.measure.process import AnyWorker

Start = Callable[[Path | None, Path], AnyWorker]
"""Interpreter (None for this one) and folder for temporary files → a process to ask."""


class SetupProcess:
    """At most one set-up process.

    Args:
        cache: where a folder for its temporary files is made.
        start: starts one.
    """

    def __init__(self, cache: Path, start: Start) -> None:
        self._cache = cache
        self._start = start
        self._process: AnyWorker | None = None
        self._python: Path | None = None
        self._temporary: Path | None = None
        self._held: int | None = None

    def get(self, python: Path | None = None, *, fresh: bool = False) -> AnyWorker:
        """Return the process of this interpreter, a new one where none is well.

        Raises:
            WorkerError: none can be started.
            StoreError: the cache takes nothing more.
        """
        here = self._process
        if here is not None and not fresh and here.alive and self._python == python:
            return here
        self.close()
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            prefix = f"{orphans.NAME}set-up-"
            self._temporary = self._cache / f"{prefix}{os.urandom(8).hex()}"
            self._held = hold(self._temporary)
        except OSError as error:
            raise StoreError(
                f"cannot write in the cache {self._cache}: {error.strerror}; free space"
            ) from error
        self._process, self._python = self._start(python, self._temporary), python
        return self._process

    def close(self) -> None:
        """End the process, what it has left running, and remove its temporary files."""
        if self._process is not None:
            self._process.kill()
        self._process = None
        if self._temporary is not None:
            orphans.end(self._temporary)
            if self._held is not None:
                os.close(self._held)
                self._held = None
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary = None
