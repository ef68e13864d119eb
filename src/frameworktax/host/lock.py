"""One measuring session at a time on a host: an advisory lock that the kernel lets go of.

The lock is an ``flock`` on an open file, so that it ends with the process that holds it, however
that ends: there is no stale lock to remove. What the file says (who holds it) is for messages
only. Measuring processes do not inherit the descriptor (it is closed on exec).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from frameworktax.errors import UsageError
from frameworktax.host.cache import private_folder

VARIABLE = "FRAMEWORKTAX_RUNTIME_DIR"
"""Names another folder for the lock: for tests, and for containers that share one host."""
NAME = "measuring.lock"
MAX_SHOWN = 120


def runtime_folder() -> Path:
    """Return this user's folder for the lock, made private where it is new.

    ``/run/user/UID`` if it is there, else ``/tmp/frameworktax-UID``: fixed places and not
    ``$XDG_RUNTIME_DIR`` or ``$TMPDIR``, so that a cron job and a login session meet.

    Raises:
        UsageError: the folder belongs to someone else, or cannot be made.
    """
    uid = os.getuid()
    named = os.environ.get(VARIABLE)
    session = Path(f"/run/user/{uid}")
    if named:
        folder = Path(named)
    elif os.access(session, os.W_OK | os.X_OK):
        folder = session / "frameworktax"
    else:
        folder = Path(f"/tmp/frameworktax-{uid}")
    # In /tmp anyone may have been there first: a link or a folder of another user is not ours.
    return private_folder(folder, VARIABLE, parents=bool(named))


@contextlib.contextmanager
def host_lock(
    command: Sequence[str] = (), waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Keep the host to one session while it measures; wait for the session that has it now.

    Args:
        command: what holds it, for the messages of those who wait.
        waiting: called with one line that names the other session, before the wait; default: a log.

    Raises:
        UsageError: there is no private folder to put the lock in.
    """
    path = runtime_folder() / NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot open {path}: {error.strerror}; name another folder in {VARIABLE}"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say = waiting or logging.getLogger("frameworktax").warning
            say(f"waiting for {_holder(descriptor)}: two at once would disturb each other")
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # Ctrl-C ends the wait
        said = {"pid": os.getpid(), "command": shlex.join(command), "since": time.time()}
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # on a full disk the holder stays unnamed
            os.pwrite(descriptor, json.dumps(said).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return who has the lock, as far as the file says."""
    try:
        said = json.loads(os.pread(descriptor, 65536, 0))
        pid, since = int(said["pid"]), float(said["since"])
        command = "".join(c if c.isprintable() else " " for c in f"frameworktax {said['command']}")
        clock = time.strftime("%H:%M:%S", time.localtime(since))
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return "another measurement on this host"
    return f"process {pid} ({command[:MAX_SHOWN].rstrip()}, since {clock})"
