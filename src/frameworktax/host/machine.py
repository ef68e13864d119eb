"""Processors, memory and limits as the kernel reports them; where to measure, and how to stay.

Everything is read from ``/proc`` and ``/sys`` under a root that tests replace by a folder.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sysconfig
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from frameworktax.errors import UsageError

ROOT = Path("/")
PICK_S = 0.1
"""Over which the quietest processors are found."""
MIN_ADDRESS_BYTES = 2 * 1024**3
"""Of address space: torch's libraries take 0.7 GiB of it, scipy's and each thread some more."""


def read(root: Path, path: str) -> str | None:
    """Return the text of a file under ``root``, None if it cannot be read.

    Joined as text: ``attach`` reads two files of each thread a second, and a ``Path`` of its own
    for each takes longer than the kernel's answer.
    """
    try:
        with open(f"{root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="replace").strip()
    except OSError:  # absent on this kernel, in this container or on this architecture
        return None


def read_int(root: Path, path: str) -> int | None:
    """Return the integer in a file under ``root``, None if there is none."""
    text = read(root, path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def stat_fields(process: Path) -> list[str]:
    """Return the fields of ``stat`` in a folder of ``/proc``, from the state on; none if it ended.

    Before them stands the name in brackets, which may have any byte.
    """
    return (read(process, "stat") or "").rpartition(")")[2].split()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the processors of a kernel list such as ``0-3,8``."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


# --- processors -------------------------------------------------------------------------------


def need_linux(what: str) -> None:
    """Raise UsageError where this is no Linux: what ``what`` asks of the kernel is not there."""
    if platform.system() != "Linux":
        raise UsageError(
            f"{what} needs Linux, and this is {platform.system()}; report, compare and explain "
            "read here what was measured there"
        )


def need_surroundings() -> None:
    """Raise UsageError where no process can be started.

    The current folder was removed; or ``ulimit -v`` is so small that an import of OpenBLAS loops.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed; change to one that exists") from error
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_BYTES:
        raise UsageError(
            f"ulimit -v allows {limit / 1024**3:.1f} GiB of address space, in which numeric "
            "libraries hang as they are imported; run ulimit -v unlimited first"
        )


def usable_cpus() -> tuple[int, ...]:
    """Return the processors this process may run on; all where the system binds none (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_times(root: Path = ROOT) -> dict[int, tuple[int, int, int]]:
    """Return processor → (busy, stolen, all) in clock ticks since the machine started.

    Busy includes what the hypervisor took (stolen); waiting for disks is idle time.
    Source: proc(5), ``/proc/stat``; guest time is already inside user time.
    """
    times = {}
    for line in (read(root, "proc/stat") or "").splitlines():
        match = re.match(r"cpu(\d+) +(.*)", line)
        if match:
            ticks = [int(word) for word in match[2].split()[:8]]
            ticks += [0] * (8 - len(ticks))
            total, idle = sum(ticks), ticks[3] + ticks[4]
            times[int(match[1])] = (total - idle, ticks[7], total)
    return times


@dataclass(frozen=True, slots=True)
class Load:
    """What others did during an interval, as shares of the whole machine.

    Attributes:
        foreign: busy processor time that was not this process's, signed.
        stolen: processor time the hypervisor gave to other machines (part of ``foreign``).
    """

    foreign: float
    stolen: float


def foreign_load(interval_s: float = 0.2, root: Path = ROOT) -> Load | None:
    """Return the load by others while this process waits; None where ``/proc/stat`` is absent."""
    before, own = cpu_times(root), time.process_time()
    time.sleep(interval_s)
    after, own = cpu_times(root), time.process_time() - own
    cpus = before.keys() & after.keys()
    busy, stolen, total = (sum(after[c][i] - before[c][i] for c in cpus) for i in range(3))
    if not total:
        return None
    own_ticks = own * os.sysconf("SC_CLK_TCK")
    return Load((busy - own_ticks) / total, stolen / total)


def siblings(cpu: int, root: Path = ROOT) -> tuple[int, ...]:
    """Return the processors that share a core with ``cpu``, itself included."""
    text = read(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return parse_cpu_list(text) if text else (cpu,)


def pick_cpus(threads: int, root: Path = ROOT, *, near: Collection[int] = ()) -> tuple[int, ...]:
    """Return processors for ``threads`` threads: the quietest, one on each core while cores last.

    Those ``near`` come first, where there are any. Processor 0 comes last among equals, because
    most interrupts go there. Fewer than ``threads`` are returned where the process may not use
    more.
    """
    before = cpu_times(root)
    time.sleep(PICK_S)
    after = cpu_times(root)

    def busy(cpu: int) -> int:
        return after.get(cpu, (0, 0, 0))[0] - before.get(cpu, (0, 0, 0))[0]

    ranked = sorted(
        usable_cpus(),
        key=lambda c: (
            *(bool(near) and c not in near, sum(busy(s) for s in siblings(c, root))),
            *(busy(c), c == 0, c),
        ),
    )
    first: list[int] = []
    second: list[int] = []
    taken: set[int] = set()
    for cpu in ranked:
        (second if cpu in taken else first).append(cpu)
        taken.update(siblings(cpu, root))
    return tuple(sorted((first + second)[:threads]))


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a measuring process, over the parent's own."""
    count = str(threads)
    return {
        # Libraries read these when they are loaded; setting threads later does not reach all.
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        # libgomp spins between parallel regions otherwise: 57-87 % of samples on a shared host.
        "OMP_WAIT_POLICY": "passive",
        # MKL and OpenMP must not choose fewer threads by themselves from call to call.
        "MKL_DYNAMIC": "FALSE",
        "OMP_DYNAMIC": "FALSE",
        # A pool of tokenizer threads is foreign load of our own making.
        "TOKENIZERS_PARALLELISM": "false",
        # The order of sets, and with it the order of generated code, is the same every time.
        "PYTHONHASHSEED": "0",
        # Its telemetry writes a database to the home folder and keeps a thread for sending.
        "ORT_DISABLE_TELEMETRY": "1",
        # A stack for crashes, which become records.
        "PYTHONFAULTHANDLER": "1",
        # As if not set: checks that slow every call, and warnings that end an export as errors.
        "PYTHONDEVMODE": "",
        "PYTHONWARNINGS": "",
    }


# --- memory and limits --------------------------------------------------------------------------


def meminfo(root: Path, name: str) -> int | None:
    """Return a line of ``/proc/meminfo`` in bytes."""
    match = re.search(rf"^{name}: +(\d+) kB", read(root, "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _cgroup_folders(root: Path, controller: str) -> list[str]:
    """Return this process's cgroup folder and those above it, v2 first, then the v1 controller."""
    folders = []
    for line in (read(root, "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = f"sys/fs/cgroup/{controller}"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [f"{base}/{'/'.join(parts[:n])}".rstrip("/") for n in range(len(parts), -1, -1)]
    return folders


def cgroup_memory_bytes(root: Path = ROOT) -> tuple[int, int] | None:
    """Return (limit, bytes left under it) of the tightest memory cgroup; None without a limit.

    Pages of files that are not in use count as left: the kernel gives them up first.
    """
    found = []
    for folder in _cgroup_folders(root, "memory"):
        stat = read(root, f"{folder}/memory.stat") or ""
        unused = max(map(int, re.findall(r"inactive_file (\d+)", stat)), default=0)
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = read_int(root, f"{folder}/{limit_name}")
            used = read_int(root, f"{folder}/{used_name}")
            if limit is not None and used is not None and limit < 1 << 60:  # v1: none is 2^63
                found.append((limit, limit - used + unused))
    return min(found, key=lambda pair: pair[1]) if found else None


def cgroup_cpus(root: Path = ROOT) -> float | None:
    """Return how many processors' worth of time the tightest CPU cgroup allows, None if all."""
    found = []
    for folder in _cgroup_folders(root, "cpu"):
        words = (read(root, f"{folder}/cpu.max") or "max").split()
        if len(words) == 2 and words[0] != "max":
            found.append(int(words[0]) / int(words[1]))
        quota = read_int(root, f"{folder}/cpu.cfs_quota_us")
        period = read_int(root, f"{folder}/cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            found.append(quota / period)
    return min(found) if found else None


def memory_available_bytes(root: Path = ROOT) -> int:
    """Return the memory a process can still take: of the machine and under its cgroup limits."""
    free = meminfo(root, "MemAvailable") or 0
    group = cgroup_memory_bytes(root)
    return free if group is None else min(free, group[1])


def compiler() -> str | None:
    """Return the C++ compiler that Inductor is given: ``$CXX``, g++ or clang++, the first found."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((name for name in names if name and shutil.which(name)), None)


def missing_compiler() -> tuple[str, str] | None:
    """Return what is missing to compile C++ for Python, and what to do; None if nothing is."""
    if compiler() is None:
        return "no C++ compiler", "install g++ (apt install g++) or set CXX"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "no Python headers", "install them (apt install python3-dev)"
    return None
