"""Processes that a model started and that outlive, or left, the group of their measuring process.

A daemon has a session of its own and no parent here: it is not ended with the group, and would run
beside whatever is measured next. So would the children of a measuring process whose sweep was
killed before it could end them. Both are known by their environment: the measuring processes of one
session are given a ``TMPDIR`` that nothing else has.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import StoreError
from frameworktax.host.cache import VARIABLE, holding, keep_from_pruning, remove_of_dead
from frameworktax.host.machine import stat_fields

MEASURES = b"frameworktax.measure.worker"
NAME = "scratch-"
"""How the ``TMPDIR`` of a session is called, with the session behind it."""
SHOWN = 60


@dataclass(frozen=True, slots=True)
class Process:
    """A process with the ``TMPDIR`` of a session.

    Attributes:
        kept: it is a measuring process, or in the group of one that lives, and is ended with it.
    """

    number: int
    folder: Path
    command: str
    kept: bool


@contextlib.contextmanager
def scratch(cache: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield a folder for temporary files, and end what still runs in it, then remove it.

    Where this process is killed the next session does both.

    Args:
        cache: the folder is in it, and it is not pruned meanwhile.
        folder: its path, by default a new one.

    Raises:
        StoreError: it cannot be made.
    """
    if folder is None:
        folder = cache.resolve() / f"{NAME}{os.urandom(4).hex()}"
    with keep_from_pruning(cache), contextlib.ExitStack() as ends:
        try:
            ends.enter_context(holding(folder))
        except OSError as error:
            raise StoreError(
                f"cannot write in the cache {cache}: {error.strerror}; "
                f"free space, or name another folder in {VARIABLE}"
            ) from error
        try:
            yield folder
        finally:
            end(folder)


def find(folder: Path) -> list[Process]:
    """Return what runs with this ``TMPDIR`` outside the groups of the measuring processes."""
    own = folder.resolve()
    return [one for one in _all(own.parent) if one.folder == own and not one.kept]


def end(folder: Path) -> None:
    """End what runs with this ``TMPDIR`` outside the groups of the measuring processes."""
    _end(find(folder))


def end_of_dead(cache: Path) -> None:
    """End and remove what killed sessions with this cache left: processes, and temporary files."""
    found = list(_all(cache.resolve()))
    alive = {one.folder for one in found if one.kept}
    _end([one for one in found if one.folder not in alive])
    for folder in cache.resolve().glob(f"{NAME}*"):
        if folder not in alive:
            remove_of_dead(folder)


def _end(processes: list[Process]) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.number, signal.SIGKILL)


def _all(cache: Path) -> Iterator[Process]:
    """Yield the processes whose ``TMPDIR`` is that of a session with this cache."""
    mark = b"TMPDIR=" + os.fsencode(cache / NAME)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it ended meanwhile, or is another user's
            variables = (entry / "environ").read_bytes().split(b"\0")
            found = next((v for v in variables if v.startswith(mark)), None)
            fields = stat_fields(entry)
            if found is None or fields[0] == "Z":
                continue
            shown = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            folder = Path(os.fsdecode(found.partition(b"=")[2]))
            yield Process(int(entry.name), folder, shown.strip()[:SHOWN], _measures(fields[3]))


def _measures(session: str) -> bool:
    """Return whether the leader of a session is a measuring process: its group is ended whole."""
    with contextlib.suppress(OSError):
        return MEASURES in Path(f"/proc/{session}/cmdline").read_bytes()
    return False
