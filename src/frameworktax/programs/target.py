"""The process to attach to: what it is, why it may not be, and only one at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import UsageError, flat
from frameworktax.host.machine import need_linux, stat_fields

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_PARENT, _FLAGS, _START = 1, 6, 19  # see stat_fields
_TIMES = slice(11, 15)  # its own in user and in kernel mode, and those of children it waited for


@dataclass(frozen=True, slots=True)
class Target:
    """A process, as it was when it was looked up.

    Attributes:
        pid: as this process counts.
        inner_pid: as the process itself counts, inside its container.
        parent: that started it.
        start: when it began, ticks of the system since it started: no other has both.
        command: as it was executed, or its name.
    """

    pid: int
    inner_pid: int
    parent: int
    start: int
    command: tuple[str, ...]


class OthersError(UsageError):
    """A process of another user."""


def parse_pid(text: str) -> int:
    """Return a process id.

    Raises:
        UsageError: the text is none.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(f"'{flat(text)}' is no process id; find it with: pgrep -af NAME")
    return int(text)


def find(pid: int, root: Path = Path("/")) -> Target:
    """Return the process with an id.

    Args:
        pid: its id.
        root: where ``proc`` is; for tests.

    Raises:
        UsageError: it is not there, has ended, or is not to be attached to; says why.
        OthersError: it is another user's.
    """
    need_linux("attach")
    folder = root / "proc" / str(pid)
    try:
        fields = stat_fields(folder)
        status = dict(
            line.split(":", 1)
            for line in (folder / "status").read_text(errors="replace").splitlines()
            if ":" in line
        )
        command = (folder / "cmdline").read_bytes().rstrip(b"\0")
        memory = living(folder)
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(_none(pid)) from None
    except OSError as error:
        raise UsageError(unreadable(pid, error)) from error
    leader = int(status.get("Tgid", pid))
    if leader != pid:
        raise UsageError(f"{pid} is a thread of process {leader}; attach to {leader}")
    if pid == 1:
        raise UsageError(
            "process 1 starts all others and is not attached to; give the program's own id, in a "
            "container as the host counts it"
        )
    if int(fields[_FLAGS]) & _KERNEL_THREAD:
        raise UsageError(f"process {pid} is a thread of the kernel; give the id of a program")
    if _has_ended(memory):
        raise UsageError(f"process {pid} has ended and waits for its parent to take notice")
    owner = int(status["Uid"].split()[1])
    if os.geteuid() not in (0, owner):
        raise OthersError(
            f"process {pid} belongs to {_name_of(owner)}; attach as that user, or with sudo"
        )
    words = tuple(word.decode("utf-8", "replace") for word in command.split(b"\0"))
    return Target(
        pid,
        int(status.get("NSpid", str(pid)).split()[-1]),
        int(fields[_PARENT]),
        int(fields[_START]),
        words if command else (status["Name"].strip(),),
    )


def _none(pid: int) -> str:
    return f"there is no process {pid}; find it with: pgrep -af NAME"


def living(folder: Path) -> Path:
    """Return the folder in ``/proc`` that has the memory of a process: a thread's, if any lives.

    Its first thread may end before the others; the process's own folder is then empty.
    """
    if not _has_ended(folder):
        return folder
    threads = sorted((folder / "task").iterdir())
    return next(
        (one for name in threads if not _has_ended(one := folder.parent / name.name)), folder
    )


def _has_ended(folder: Path) -> bool:
    return stat_fields(folder)[:1] in ([], ["Z"], ["X"])


def unreadable(pid: int, error: OSError) -> str:
    """Return why a process cannot be read, and what helps."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return f"process {pid} cannot be read: {error.strerror}"
    return (
        f"process {pid} may not be read: it has more privileges than this user, or protects "
        "itself; attach with sudo, in a container started with --cap-add SYS_PTRACE"
    )


def children(pid: int, root: Path = Path("/")) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or the kernel has no such list
        for task in (root / "proc" / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return [one for child in found for one in (child, *children(child, root))]


def spent_ns(found: Target, root: Path = Path("/")) -> int:
    """Return the processor time of a process and of all that it has waited for; 0 if it is gone."""
    fields = stat_fields(root / "proc" / str(found.pid))
    if fields[_START : _START + 1] != [str(found.start)]:
        return 0
    return sum(map(int, fields[_TIMES])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _name_of(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"


@contextlib.contextmanager
def only_one(target: Target, root: Path = Path("/")) -> Iterator[None]:
    """Attach to a process once at a time, whichever user does.

    The lock is an ``flock`` of the process's folder: the kernel lets go of it however its holder
    ends, and no file is left.

    Raises:
        UsageError: another one is attached, or the process has ended.
    """
    try:
        descriptor = os.open(root / "proc" / str(target.pid), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(_none(target.pid)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another frameworktax is attached to process {target.pid}; wait until it ends"
            ) from None
        yield
    finally:
        os.close(descriptor)
