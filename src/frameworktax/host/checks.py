"""Is this machine fit to measure? Each finding with what it does to numbers and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frameworktax.errors import flat
from frameworktax.host import machine
from frameworktax.host.inventory import EXTRAS, environment, gpu_makers, gpu_processes, numa_node
from frameworktax.host.machine import ROOT, Load
from frameworktax.records import Environment

MAX_FOREIGN_LOAD = 0.05
"""Share of the machine others may use before a measurement is warned of."""
MAX_STOLEN = 0.01
"""Share a hypervisor may take; above it wall time and CPU time part (METHOD: 1.05 is too much)."""
MIN_FREE_BYTES = 2 * 1024**3
"""What eager BERT-base and its library take together."""
MPS = "tmp/nvidia-mps/control"
"""The pipe of CUDA's multi-process service, where nothing else is set."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``remedy`` is empty where nothing needs doing.

    ``command`` is what a person would run in a shell for that, on the host of a container where it
    begins with ``docker``; empty where no single one does it.
    """

    code: str
    status: Literal["ok", "warning", "missing"]
    text: str
    remedy: str = ""
    command: str = ""


def _finding(code: str, is_ok: bool, text: str, remedy: str, command: str = "") -> Check:
    """Return a finding that is fine, or a warning with its remedy."""
    return Check(code, "ok", text) if is_ok else Check(code, "warning", text, remedy, command)


def _use(found: Environment, load: Load | None) -> Iterator[Check]:
    """Yield how many processors there are, and who else uses them."""
    text = f"{found.cpu}: {found.cores} processors, {len(found.affinity)} usable here"
    alone = len(found.affinity) < 2
    if alone:
        text += "; the tool and the measured process share one"
    remedy = "allow at least two processors (taskset, cpuset or --cpus of the container)"
    yield _finding("cores", not alone, text, remedy)
    if load is None:
        text = "the load by others cannot be read (/proc/stat)"
        yield _finding("load", False, text, "mount /proc into the container")
    else:
        text = f"others use {round(load.foreign, 2) + 0.0:.0%} of the machine"  # no "-0%"
        remedy = "end other work, or measure when it has ended"
        yield _finding("load", load.foreign <= MAX_FOREIGN_LOAD, text, remedy)


def _clock(found: Environment, root: Path) -> Iterator[Check]:
    """Yield what the processor's clock and threads depend on."""
    steady = found.governor in (None, "performance")
    text = found.governor or "not visible here (usual in virtual machines)"
    yield _finding(
        "governor", steady, text if steady else f"{text}: the clock follows the load",
        "sudo cpupower frequency-set -g performance",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    )  # fmt: skip
    mhz = found.frequency_mhz
    yield Check("frequency", "ok", "not visible here" if mhz is None else f"{mhz:.0f} MHz now")
    command = "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
    if (root / "sys/devices/system/cpu/intel_pstate/no_turbo").exists():
        command = "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    text = "on: the clock depends on heat and on other cores"
    if not found.turbo:
        text = "not visible here" if found.turbo is None else "off"
    yield _finding("turbo", not found.turbo, text, command, command)
    threads = found.threads_per_core
    command = "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    text = "one thread a core" if threads == 1 else f"{threads} threads share a core"
    remedy = f"{command}, or keep the sibling idle"
    yield _finding("smt", (threads or 1) < 2, text if threads else "not visible", remedy, command)


def _system(found: Environment, load: Load | None, root: Path) -> Iterator[Check]:
    """Yield what a hypervisor and a container do to a process."""
    where = found.virtualization
    stolen = load.stolen if load is not None else 0.0
    text = f"{where}, no time stolen now; absolute times may still drift" if where else "none seen"
    if stolen > MAX_STOLEN:
        text = f"{where or 'a hypervisor'} takes {stolen:.1%} of the processor time"
    remedy = "use a dedicated host or instance; compare ratios, not milliseconds"
    yield _finding("virtualization", stolen <= MAX_STOLEN, text, remedy)
    cpus = machine.cgroup_cpus(root)
    text = f"a quota of {cpus or 0:g} processors: the process is stopped when it is used up"
    remedy = "start the container with --cpuset-cpus instead of --cpus"
    yield _finding("cgroup-cpu", cpus is None, "no quota" if cpus is None else text, remedy)
    free = machine.memory_available_bytes(root)
    group = machine.cgroup_memory_bytes(root)
    text = f"{free / 1024**3:.1f} GiB available"
    if group is not None:
        text += f", a cgroup allows {group[0] / 1024**3:.1f} GiB in all"
    remedy = "free memory, or measure smaller models"
    yield _finding("memory", free >= MIN_FREE_BYTES, text, remedy)


def _sampler(found: Environment, refused: str | None, root: Path) -> Check:
    if refused is None:
        return Check("sampler", "ok", "perf-event")
    # What lets perf_event_open work: the kernel's word, or the container's.
    level = machine.read_int(root, "proc/sys/kernel/perf_event_paranoid")
    command = "sudo sysctl kernel.perf_event_paranoid=2"
    if level is not None and level <= 2 and "container" in (found.virtualization or ""):
        command = "docker run --cap-add PERFMON --security-opt seccomp=unconfined IMAGE"
    text = f"kernel time cannot be sampled ({refused})"
    return Check("sampler", "missing", text, command, command)


def _software(found: Environment) -> Iterator[Check]:
    if lacking := machine.missing_compiler():
        text = f"{lacking[0]}: inductor and aot-inductor cannot run"
        yield Check("compiler", "missing", text, lacking[1])
    else:
        yield Check("compiler", "ok", machine.compiler() or "")
    for name, extra in EXTRAS.items():
        version = found.libraries.get(name)
        if name == "onnxruntime" and version is None:
            version = found.libraries.get("onnxruntime-gpu")
        if version is not None:
            yield Check(f"library-{name}", "ok", f"{name} {version}")
        elif name != "py-spy":  # for the functions in attach alone
            remedy = f"pip install 'frameworktax[{extra}]'"
            yield Check(f"library-{name}", "missing", f"{name} is not installed", remedy, remedy)


def _gpus(found: Environment, root: Path) -> Iterator[Check]:
    """Yield how each device is, and what makes one not this process's alone, or far from it."""
    if not found.gpus:
        if not gpu_makers(root):
            yield Check("gpu", "ok", "none")
            return
        text = "a device that nvidia-smi does not list: its clocks and its state are not read"
        remedy = "NVIDIA: install nvidia-smi; AMD: look at rocm-smi while measuring"
        yield _finding("gpu", False, text, remedy)
        return
    for gpu in found.gpus:
        number = gpu.get("index")
        if gpu.get("mig_mode") == "Enabled":
            text = f"{number}: MIG is on: measured is a part of the card, whose peaks are not known"
            yield _finding("gpu-mig", False, text, f"sudo nvidia-smi -i {number} -mig 0")
        if gpu.get("compute_mode") in ("Prohibited", "Exclusive_Process"):
            text = f"{number}: compute mode {gpu['compute_mode']}: processes cannot share the card"
            remedy = f"sudo nvidia-smi -i {number} -c DEFAULT"
            yield _finding("gpu-compute-mode", False, text, remedy, remedy)
        node = numa_node(gpu, root)
        if node is not None and node[1] and not set(node[1]) & set(found.affinity):
            text = f"{number}: on NUMA node {node[0]}, of which no processor is usable here"
            yield _finding("gpu-numa", False, text, f"numactl --cpunodebind={node[0]}")
    if (root / MPS).exists():
        text = "an MPS server runs: processes share the device at the same time"
        command = "echo quit | nvidia-cuda-mps-control"
        yield _finding("gpu-mps", False, text, command, command)
    if others := gpu_processes():
        text = f"processes that hold a device: {others}; their work is in every number"
        yield _finding("gpu-processes", False, text, "end them; nvidia-smi lists them")
    if "nvidia-ml-py" not in found.libraries:
        text = "nvidia-ml-py is not installed: clocks are not read while calls run"
        remedy = "pip install nvidia-ml-py"
        yield Check("gpu-state", "missing", text, remedy, remedy)
    for gpu in found.gpus:
        if not gpu.keys() & {"compute_mode", "persistence_mode"}:  # known by its driver alone
            text = f"{gpu.get('index')}: {gpu.get('name')}, driver {gpu.get('driver')}: nvidia-smi "
            text += "does not list it, and its state is not read"
            remedy = "let the container have nvidia-smi: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            yield _finding("gpu", False, text, remedy)
            continue
        clock, top = gpu.get("sm_clock_mhz"), gpu.get("max_sm_clock_mhz")
        text = (
            f"{gpu.get('index')}: {gpu.get('name')}, {gpu.get('memory_mib')} MiB, "
            f"driver {gpu.get('driver')}, {clock} of {top} MHz"
        )
        unloads = gpu.get("persistence_mode") == "Disabled"
        if unloads:
            text += "; the driver unloads between processes"
        command = "sudo nvidia-smi -pm 1"
        yield _finding("gpu", not unloads, text, command, command)


def doctor(refused: str | None, root: Path = ROOT) -> list[Check]:
    """Return what speaks for and against measuring on this machine.

    Args:
        refused: why kernel time cannot be sampled, by ``attribution.probe``; None if it can.
        root: where ``/proc`` and ``/sys`` are looked for.

    Raises:
        UsageError: this is no Linux.
    """
    machine.need_linux("doctor")
    found, load = environment(root), machine.foreign_load(root=root)
    return [
        *_use(found, load),
        *_clock(found, root),
        *_system(found, load, root),
        _sampler(found, refused, root),
        *_software(found),
        *_gpus(found, root),
    ]


def hints(checks: Sequence[Check]) -> list[str]:
    """Return lines for a shell: each command that would help, its findings as comments above it.

    Nothing is run. A finding that no single command fixes is a comment alone, with its remedy.
    """
    findings: dict[str, list[str]] = {}
    for check in checks:
        if check.status != "ok":
            key = check.command or f"# {check.remedy}"
            findings.setdefault(key, []).append(flat(f"# {check.code}: {check.text}"))
    return [line for command, said in findings.items() for line in (*said, command)]
