"""Places where things go wrong: a small disk, a read-only folder, little memory.

A file system is mounted in a mount namespace of one child process, which ends with it: nothing has
to be unmounted, and in a user namespace no privilege is needed. Containers may forbid both; then a
limit on the size of files, or permission bits without the capabilities that overrule them, refuse
writes in their own words. ``Place.how`` says which it was.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = {
    "in a user namespace": ["unshare", "--user", "--map-root-user", "--mount"],
    "in a mount namespace": ["unshare", "--mount"],
}
SMALL_FILE_BYTES = 2048
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
CGROUPS = Path("/sys/fs/cgroup")


class CannotBeMade(Exception):
    """A fault cannot be made here; the message says why."""


@functools.cache
def namespace() -> str | None:
    """Return which kind of namespace lets this process mount; None if none does."""
    with tempfile.TemporaryDirectory() as folder:
        for how, command in NAMESPACES.items():
            mount = ["mount", "-t", "tmpfs", "tmpfs", folder]
            if shutil.which("unshare") and shutil.which("mount"):
                done = subprocess.run([*command, *mount], capture_output=True, check=False)
                if done.returncode == 0:
                    return how
    return None


@dataclass(frozen=True)
class Place:
    """Where a sweep runs, and what it needs for it.

    Attributes:
        how: what makes the fault, in words.
        refuses: what the operating system says to a write.
        prefix: words before the command.
        before: called in the child before the command begins.
    """

    how: str
    refuses: str
    prefix: tuple[str, ...] = ()
    before: Callable[[], None] | None = None


def small_disk(folder: Path, size_kb: int, options: str = "mode=700") -> Place:
    """Return a folder as a disk of so many KB, empty; what lies there is copied in and out again.

    The namespace ends with its command, and its disk with it: the shell in it copies the files out.
    """
    how = namespace()
    if how is None:
        limit = (SMALL_FILE_BYTES, SMALL_FILE_BYTES)
        return Place(
            f"files limited to {SMALL_FILE_BYTES} bytes (no namespace to mount in)",
            "File too large",
            before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )
    script = (
        'mkdir -p "$1.kept" && mount -t tmpfs -o "size=$2k,$3" tmpfs "$1" || exit 99; '
        "at=$1; shift 3; "
        '"$@"; code=$?; cp -r "$at/." "$at.kept/"; exit $code'
    )
    return Place(
        f"a tmpfs of {size_kb} KB {how}",
        "No space left on device",
        prefix=(*NAMESPACES[how], "sh", "-c", script, "sh", str(folder), str(size_kb), options),
    )


def take_out(folder: Path) -> None:
    """Put the files of a small disk where it was mounted: there is room again."""
    kept = folder.with_name(f"{folder.name}.kept")
    if kept.exists():
        shutil.copytree(kept, folder, dirs_exist_ok=True)


def read_only(folder: Path) -> Place:
    """Return a folder that refuses writes, to root as well."""
    how = namespace()
    if how is not None:
        script = (
            'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99; shift; exec "$@"'
        )
        return Place(
            f"a read-only bind mount {how}",
            "Read-only file system",
            prefix=(*NAMESPACES[how], "sh", "-c", script, "sh", str(folder)),
        )
    root = os.getuid() == 0
    if root and not shutil.which("setpriv"):
        raise CannotBeMade("root, no namespace to mount in, and no setpriv to be less than root")
    folder.chmod(0o555)
    return Place(
        "permission bits" + (", without the capabilities of root" if root else ""),
        "Permission denied",
        prefix=tuple(NO_CAPABILITIES) if root else (),
    )


@contextmanager
def little_memory(limit_bytes: int) -> Iterator[Place]:
    """Give a place where the kernel kills what takes more memory; else a limit refuses it.

    A control group needs root and a writable hierarchy; without one there is no kill by the kernel
    that would not endanger the host, and a limit on anonymous memory stands for it.
    """
    group, limit = _new_group()
    if group is None:
        cap = (limit_bytes, limit_bytes)
        yield Place(
            f"{limit_bytes >> 20} MB of anonymous memory at most (no control group to make)",
            "MemoryError",
            before=lambda: resource.setrlimit(resource.RLIMIT_DATA, cap),
        )
        return
    try:
        (group / limit).write_text(str(limit_bytes))
        script = 'echo $$ > "$1/cgroup.procs" || exit 99; shift; exec "$@"'
        yield Place(
            f"a control group of {limit_bytes >> 20} MB",
            "killed by the kernel",
            prefix=("sh", "-c", script, "sh", str(group)),
        )
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):  # the last of its processes is still leaving
                group.rmdir()
                break
            time.sleep(0.02)


def _new_group() -> tuple[Path | None, str]:
    for parent, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        group = parent / f"frameworktax-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists() and os.access(group / limit, os.W_OK):
            return group, limit
        group.rmdir()
    return None, ""
