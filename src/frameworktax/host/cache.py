"""The cache: exports and compiled code of this user on this host, in folders named by content.

What lies here is loaded and run, so it is never in a store, which may come from elsewhere. A
session holds the cache while it runs (a shared ``flock`` on the folder), pruning takes it alone;
an entry is prepared by one session at a time. These locks end with the process that holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import UsageError, WorkerError

VARIABLE = "FRAMEWORKTAX_CACHE"
"""Names another folder for the cache."""
LIMIT_BYTES = 5_000_000_000
"""What the cache may hold when a session ends; BERT-base as ONNX, exported twice, is 0.9 GB."""
POLL_S = 0.1
BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
SYSTEM = (0, 65534)
"""Root, and what root of the host is called inside a container that maps users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared model, or what a killed session left: its size, and when it was last used."""

    path: Path
    bytes: int
    used: float


def cache_folder() -> Path:
    """Return this user's cache, made private where it is new.

    ``$FRAMEWORKTAX_CACHE``, else ``frameworktax`` in ``$XDG_CACHE_HOME`` (where that is an absolute
    path, as its specification asks), else ``~/.cache/frameworktax``.

    Raises:
        UsageError: it cannot be made, or is not this user's alone to write in.
    """
    named, home = os.environ.get(VARIABLE), Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        above = home if home.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # no home is known of this user
        if not named:
            raise UsageError(f"this user has no home folder; name one in {VARIABLE}") from error
        above = Path()
    folder = Path(named).absolute() if named else above / "frameworktax"
    private_folder(folder, VARIABLE, parents=True)
    if folder.stat().st_mode & BY_OTHERS:
        raise UsageError(
            f"others may write in {folder}, whose files are run: one of them may have done so; "
            f"remove it, or name another folder in {VARIABLE}"
        )
    for parent in folder.resolve().parents:
        found = parent.stat()
        if not found.st_mode & stat.S_ISVTX and (
            found.st_mode & stat.S_IWOTH or found.st_uid not in (os.getuid(), *SYSTEM)
        ):
            raise UsageError(
                f"others may replace {folder}, as {parent} is not this user's alone; "
                f"name another folder in {VARIABLE}"
            )
    return folder


def is_own(path: Path) -> bool:
    """Return whether a file, or a folder with all in it, is this user's alone to write in.

    What lies in the cache is loaded and run. A link leads elsewhere, so it is never the user's own.
    """
    if not path.exists():
        return False
    try:
        return all(map(_is_own, (path, *path.rglob("*"))))
    except OSError:
        return False


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:  # a partial file that got its name meanwhile
        return True
    plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return plain and found.st_uid == os.getuid() and not found.st_mode & BY_OTHERS


def own_entry(entry: Path) -> Path:
    """Return the path of an entry; what lies there and is not this user's alone is removed.

    Raises:
        UsageError: it cannot be removed.
    """
    if entry.is_symlink() or (entry.exists() and not is_own(entry)):
        remove(entry)
    return entry


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a new path in the same folder; what is written there becomes ``path`` at the end.

    It may be a file, which replaces an older one, or a folder, which replaces an empty one at
    most. If the block raises, ``path`` stays as it was. A killed process leaves a hidden
    ``.NAME-….partial``, which nothing reads.
    """
    partial = path.with_name(f".{path.name}-{os.urandom(4).hex()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def private_file(path: Path) -> Iterator[Path]:
    """Do as ``atomic_path``; the file is for this user alone to read and write."""
    with atomic_path(path) as partial:
        yield partial
        partial.chmod(0o600)


def private_folder(folder: Path, variable: str, *, parents: bool) -> Path:
    """Return a folder, made private where it is new; ``variable`` names another for messages.

    Raises:
        UsageError: it cannot be made, is a link, or belongs to someone else.
    """
    try:
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UsageError(
            f"cannot make {folder}: {error.strerror}; name another folder in {variable}"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{folder} is not this user's folder; name another in {variable}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write in {folder}; name another folder in {variable}")
    return folder


def keep_from_pruning(cache: Path) -> AbstractContextManager[None]:
    """Hold a shared lock while a session runs: pruning is refused meanwhile."""
    return locked(cache, fcntl.LOCK_SH)


@contextlib.contextmanager
def alone(entry: Path, timeout_s: float, ended: threading.Event) -> Iterator[None]:
    """Be the only one who prepares an entry: another session may want the same at this moment.

    Raises:
        WorkerError: another is still at it when the time is over, or this session has ``ended``.
    """
    entry.mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + timeout_s
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(entry, fcntl.LOCK_EX | fcntl.LOCK_NB))
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    text = f"another session still prepares the same after {timeout_s:.0f} s"
                    raise WorkerError("timeout", text) from error
                if ended.wait(POLL_S):
                    raise WorkerError("failed", "the session is ending") from error
        yield


@contextlib.contextmanager
def locked(folder: Path, how: int) -> Iterator[None]:
    """Hold a lock on a folder.

    Raises:
        BlockingIOError: another one holds it, and waiting is not asked for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            raise
        except OSError as error:  # some network file systems have no locks; go on without one
            logging.getLogger("frameworktax").info("no lock on %s: %s", folder, error)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[Path]:
    """Make a folder, show inside that its maker lives, and remove it."""
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            # Another session may remove it meanwhile as a dead one's.
            with contextlib.suppress(FileNotFoundError):
                held.enter_context(locked(folder, fcntl.LOCK_EX))
                if folder.exists():
                    break
        yield folder


def remove_of_dead(folder: Path) -> None:
    """Remove a folder whose maker, see ``holding``, has ended; where that is not known it stays."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new private folder in ``$TMPDIR``, and remove it.

    Where this process is killed the next one that asks for the same ``prefix`` removes it.
    """
    above = Path(tempfile.gettempdir())
    for dead in above.glob(prefix + "[0-9a-f]" * 16):  # no folder that a person has named
        remove_of_dead(dead)
    with holding(above / f"{prefix}{os.urandom(8).hex()}") as folder:
        yield folder


def entries(cache: Path) -> list[Entry]:
    """Return what a cache holds, least recently used first; links are not followed."""
    found = []
    for path in cache.iterdir():
        below = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
        stats = []
        for one in (path, *below):
            with contextlib.suppress(FileNotFoundError):  # a partial file that got its name since
                stats.append(one.lstat())
        if stats:
            size = sum(one.st_size for one in stats if not stat.S_ISDIR(one.st_mode))
            # The newest time of its files is that of its use.
            used = max(one.st_mtime for one in stats)
            found.append(Entry(path=path, bytes=size, used=used))
    return sorted(found, key=lambda e: (e.used, e.path.name))


def prune_cache(
    cache: Path, limit_bytes: int | None = None, *, dry_run: bool = False
) -> list[Entry]:
    """Remove entries, least recently used first, until the rest is within ``limit_bytes``.

    Returns:
        What was removed, or would be with ``dry_run``.

    Raises:
        UsageError: a session is running, whose files these may be, or there is no removing them.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(cache, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise UsageError("a session is running; prune the cache once it has ended") from error
        found = entries(cache)
        total = sum(entry.bytes for entry in found)
        limit = LIMIT_BYTES if limit_bytes is None else limit_bytes
        gone = []
        for entry in found:
            if total <= limit:
                break
            gone.append(entry)
            total -= entry.bytes
            if not dry_run:
                remove(entry.path)
        return gone


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with what is in it; links are not followed.

    Raises:
        UsageError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {error.strerror}") from error
