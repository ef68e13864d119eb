"""What a session was measured on: the machine, its GPUs, the library versions.

No engine is imported: versions come from the packages' metadata, GPUs from ``nvidia-smi``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from frameworktax.host import machine
from frameworktax.host.machine import ROOT, read, read_int
from frameworktax.records import Environment

EXTRAS: dict[str, str] = {
    "torch": "torch",
    "transformers": "models",
    "onnxruntime": "onnxruntime",
    "onnx": "onnxruntime",
    "onnxscript": "onnxruntime",
    "openvino": "openvino",
    "vl-convert-python": "report",
    "pandas": "pandas",
    "py-spy": "py-spy",
}
"""Packages that ``doctor`` looks for → the extra that installs each."""
_ALSO = ("capstone", "frameworktax", "numpy", "nvidia-ml-py", "scipy")

_GPU_FIELDS = {
    "index": "index",
    "name": "name",
    "memory.total": "memory_mib",
    "driver_version": "driver",
    "compute_cap": "compute_capability",
    "clocks.sm": "sm_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "mig.mode.current": "mig_mode",
    "pci.bus_id": "pci_bus_id",
}
_GPU_NUMBERS = ("index", "memory_mib", "sm_clock_mhz", "max_sm_clock_mhz", "memory_clock_mhz")
GPU_FILES = {
    "NVIDIA": (
        *("dev/nvidia[0-9]*", "proc/driver/nvidia/gpus/*"),
        *("usr/lib/wsl/lib/libcuda.so*", "usr/lib/wsl/drivers/*/libcuda.so*"),
    ),
    "AMD": ("dev/kfd", "dev/dxg"),
}
"""What the drivers put there for a device; a container may have card 3. WSL has ``dxg`` for a chip
of any maker, and a library of NVIDIA's only beside one of theirs."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Which devices CUDA and ROCm show to a process."""
_VECTOR = re.compile(r"s?sse|avx|fma|f16c|bmi|amx|asimd|sve|sme|i8mm|bf16")
_CPU = "sys/devices/system/cpu"


def libraries(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return package → version of what is installed and moves numbers.

    ``packages`` are what runtimes and models are made of (``runtimes.distributions``): the host
    knows no runtime.
    """
    found = {}
    for name in sorted({*EXTRAS, *_ALSO, *packages}):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def gpu_makers(root: Path = ROOT) -> frozenset[str]:
    """Return whose drivers show a device here, ``NVIDIA``, ``AMD``; imports nothing."""
    found = {
        maker
        for maker, patterns in GPU_FILES.items()
        if any(match for pattern in patterns for match in root.glob(pattern))
    }
    if root == ROOT and shutil.which("nvidia-smi") is not None:  # a sandbox may hide the files
        found.add("NVIDIA")
    return frozenset(found)


def parse_gpus(text: str) -> tuple[dict[str, Any], ...]:
    """Return one mapping a line of ``nvidia-smi --query-gpu --format=csv,noheader,nounits``."""

    def plain(name: str, value: str) -> str | int | None:
        if not value or value.startswith("["):  # [N/A], [Not Supported]
            return None
        if name in _GPU_NUMBERS:
            return int(value) if value.isdigit() else None
        return value

    rows = ([value.strip() for value in line.split(",")] for line in text.splitlines() if line)
    names = _GPU_FIELDS.values()
    return tuple({n: plain(n, v) for n, v in zip(names, row, strict=False)} for row in rows)


def gpus(root: Path = ROOT) -> tuple[dict[str, Any], ...]:
    """Return the GPUs that ``nvidia-smi`` lists, by their place on the bus.

    Where it is absent or fails, as in a container without it, they are what NVIDIA's driver says
    in ``/proc``: name, driver and place.
    """
    listed = parse_gpus(_smi(f"--query-gpu={','.join(_GPU_FIELDS)}") or "")
    return listed or tuple(_gpus_of_driver(root))


def _gpus_of_driver(root: Path) -> Iterator[dict[str, Any]]:
    driver = read(root, "sys/module/nvidia/version")
    for index, file in enumerate(sorted(root.glob("proc/driver/nvidia/gpus/*/information"))):
        text = read(file.parent, file.name) or ""
        name = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        yield {
            "index": index,
            "name": name[1].strip() if name else None,
            "driver": driver,
            "pci_bus_id": file.parent.name,
        }


def cards(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return name and driver of ``gpus()``: engines and compiled kernels are for these alone."""
    return [f"{gpu.get('name')}, driver {gpu.get('driver')}" for gpu in found]


def gpu_processes() -> int | None:
    """Return how many processes hold a compute context on any device; None where not known."""
    listed = _smi("--query-compute-apps=pid")
    return None if listed is None else len(listed.splitlines())  # "[Insufficient Permissions]"


def numa_node(gpu: Mapping[str, Any], root: Path = ROOT) -> tuple[int, tuple[int, ...]] | None:
    """Return the NUMA node that a GPU of ``gpus()`` hangs on, and its processors."""
    # nvidia-smi writes eight digits of the domain, sysfs four.
    address = str(gpu.get("pci_bus_id") or "").lower()[-12:]
    node = read_int(root, f"sys/bus/pci/devices/{address}/numa_node") if address else None
    if node is None or node < 0:
        return None
    listed = read(root, f"sys/devices/system/node/node{node}/cpulist") or ""
    return node, tuple(machine.parse_cpu_list(listed))


def near_cpus(device: str, root: Path = ROOT) -> tuple[int, ...]:
    """Return the processors of the NUMA node that ``cuda:N`` hangs on; none where it is not known.

    The driver's number of a device is known among cards of one kind, where all are shown or those
    that are have their numbers. Of others only a node that all of them share is.
    """
    found = gpus(root)
    shown, number = os.environ.get(VISIBLE), int(device.partition(":")[2] or 0)
    words = [f"{n}" for n in range(len(found))] if shown is None else shown.split(",")
    numbers = [int(word) for word in words[number : number + 1] if word.strip().isdecimal()]
    if len({gpu.get("name") for gpu in found}) == 1 and numbers and numbers[0] < len(found):
        found = (found[numbers[0]],)
    nodes = {numa_node(gpu, root) for gpu in found}
    node = nodes.pop() if len(nodes) == 1 else None
    return node[1] if node is not None else ()


def _smi(question: str) -> str | None:
    """Return what ``nvidia-smi`` answers; None where it is absent or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    arguments = [command, question, "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # a driver that hangs is as good as none
        return None
    return result.stdout if result.returncode == 0 else None


def cpu_model(root: Path = ROOT) -> str:
    """Return the processor's name, or the architecture where the kernel has none."""
    text = read(root, "proc/cpuinfo") or ""
    match = re.search(r"^(?:model name|Model|cpu model)\s*: *(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def cpu_features(root: Path = ROOT) -> tuple[str, ...]:
    """Return the vector and matrix instructions of the processor, in the kernel's names."""
    text = read(root, "proc/cpuinfo") or ""
    match = re.search(r"^(?:flags|Features)\s*: *(.+)$", text, re.MULTILINE)
    return tuple(sorted(filter(_VECTOR.match, match[1].split()))) if match else ()


def cpu_count(root: Path = ROOT) -> tuple[int, int | None]:
    """Return (processors that are on, of those how many share a core)."""
    online = machine.parse_cpu_list(read(root, f"{_CPU}/online") or "")
    if not online:
        return len(machine.cpu_times(root)), None
    first = online[0]
    listed = read(root, f"{_CPU}/cpu{first}/topology/thread_siblings_list")
    return len(online), len(machine.parse_cpu_list(listed)) if listed else None


def turbo(root: Path = ROOT) -> bool | None:
    """Return whether the clock may rise above its nominal rate; None where it cannot be read."""
    no_turbo = read_int(root, f"{_CPU}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = read_int(root, f"{_CPU}/cpufreq/boost")
    return None if boost is None else boost == 1


def frequency_mhz(root: Path = ROOT) -> float | None:
    """Return the present clock of the first processor."""
    khz = read_int(root, f"{_CPU}/cpu0/cpufreq/scaling_cur_freq")
    if khz is not None:
        return khz / 1000
    match = re.search(r"^cpu MHz\s*: *([\d.]+)", read(root, "proc/cpuinfo") or "", re.MULTILINE)
    return float(match[1]) if match else None


def virtualization(root: Path = ROOT) -> str | None:
    """Return which machine or container this is inside of, None on bare metal."""
    files = (root / ".dockerenv", root / "run/.containerenv")
    container = "container" if any(file.exists() for file in files) else ""
    product = " ".join(
        read(root, f"sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")
    ).strip()
    kind = read(root, "sys/hypervisor/type") or ""
    hidden = re.search(
        r"^flags\s*:.*\bhypervisor\b", read(root, "proc/cpuinfo") or "", re.MULTILINE
    )
    virtual = re.search(
        r"QEMU|KVM|VMware|VirtualBox|Xen|Bochs|Parallels|Amazon EC2|Google Compute Engine|"
        r"Virtual Machine|OpenStack|Hetzner vServer", product,
    )  # fmt: skip
    # Bare-metal instances of a cloud carry its name, and no hypervisor flag on x86.
    guest = (virtual[0] if virtual else kind or "virtual machine") if hidden or kind else ""
    if virtual and not guest and "model name" not in (read(root, "proc/cpuinfo") or ""):
        guest = virtual[0]  # Arm has no such flag
    return ", ".join(filter(None, (guest, container))) or None


def environment(
    root: Path = ROOT, sampler: str | None = None, packages: Iterable[str] = ()
) -> Environment:
    """Return everything about this machine that moves a number.

    ``sampler`` is what this host allows, from ``attribution.usable_sampler``; ``packages``: see
    ``libraries``.
    """
    cores, threads_per_core = cpu_count(root)
    load = (read(root, "proc/loadavg") or "").split()
    return Environment(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        cpu=cpu_model(root),
        cores=cores,
        threads_per_core=threads_per_core,
        memory_bytes=machine.meminfo(root, "MemTotal"),
        load_1min=float(load[0]) if load else None,
        governor=read(root, f"{_CPU}/cpu0/cpufreq/scaling_governor"),
        frequency_mhz=frequency_mhz(root),
        turbo=turbo(root),
        virtualization=virtualization(root),
        affinity=machine.usable_cpus(),
        sampler=sampler,
        gpus=gpus(),
        libraries=libraries(packages),
    )
