"""Is this machine fit to measure? Each finding with what it does to numbers and what helps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frameworktax.host import machine
from frameworktax.host.inventory import EXTRAS, environment
from frameworktax.host.machine import ROOT, Load
from frameworktax.records import Environment

MAX_FOREIGN_LOAD = 0.05
"""Share of the machine others may use before a measurement is warned of."""
MAX_STOLEN = 0.01
"""Share a hypervisor may take; above it wall time and CPU time part (METHOD: 1.05 is too much)."""
MIN_FREE_BYTES = 2 * 1024**3
"""What eager BERT-base and its library take together."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; ``remedy`` is empty where nothing needs doing."""

    code: str
    status: Literal["ok", "warning", "missing"]
    text: str
    remedy: str = ""


def _cores(found: Environment) -> Check:
    text = f"{found.cpu}: {found.cores} processors, {len(found.affinity)} usable here"
    if len(found.affinity) < 2:
        return Check(
            "cores", "warning", f"{text}; the tool and the measured process share one",
            "allow at least two processors (taskset, cpuset or --cpus of the container)",
        )  # fmt: skip
    return Check("cores", "ok", text)


def _load(load: Load | None) -> Check:
    if load is None:
        return Check("load", "warning", "the load by others cannot be read (/proc/stat)",
                     "mount /proc into the container")  # fmt: skip
    text = f"others use {round(load.foreign, 2) + 0.0:.0%} of the machine"  # no "-0%"
    if load.foreign > MAX_FOREIGN_LOAD:
        return Check("load", "warning", text, "end other work, or measure when it has ended")
    return Check("load", "ok", text)


def _steal(found: Environment, load: Load | None) -> Check:
    where = found.virtualization
    stolen = load.stolen if load is not None else 0.0
    if stolen > MAX_STOLEN:
        return Check("virtualization", "warning",
                     f"{where or 'a hypervisor'} takes {stolen:.1%} of the processor time",
                     "use a dedicated host or instance; compare ratios, not milliseconds"
                     )  # fmt: skip
    if where:
        return Check("virtualization", "ok",
                     f"{where}, no time stolen now; absolute times may still drift")  # fmt: skip
    return Check("virtualization", "ok", "none seen")


def _governor(found: Environment) -> Check:
    if found.governor is None:
        return Check("governor", "ok", "not visible here (usual in virtual machines)")
    if found.governor != "performance":
        return Check("governor", "warning", f"{found.governor}: the clock follows the load",
                     "sudo cpupower frequency-set -g performance")  # fmt: skip
    return Check("governor", "ok", found.governor)


def _frequency(found: Environment) -> Check:
    if found.frequency_mhz is None:
        return Check("frequency", "ok", "not visible here")
    return Check("frequency", "ok", f"{found.frequency_mhz:.0f} MHz now")


def _turbo(found: Environment, root: Path) -> Check:
    if found.turbo is None:
        return Check("turbo", "ok", "not visible here")
    if not found.turbo:
        return Check("turbo", "ok", "off")
    intel = (root / "sys/devices/system/cpu/intel_pstate/no_turbo").exists()
    command = (
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
        if intel
        else "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
    )
    return Check("turbo", "warning", "on: the clock depends on heat and on other cores", command)


def _smt(found: Environment) -> Check:
    if found.threads_per_core is None or found.threads_per_core < 2:
        return Check("smt", "ok", "one thread a core" if found.threads_per_core else "not visible")
    return Check(
        "smt", "warning", f"{found.threads_per_core} threads share a core",
        "echo off | sudo tee /sys/devices/system/cpu/smt/control, or keep the sibling idle",
    )  # fmt: skip


def _quota(root: Path) -> Check:
    cpus = machine.cgroup_cpus(root)
    if cpus is None:
        return Check("cgroup-cpu", "ok", "no quota")
    return Check(
        "cgroup-cpu", "warning",
        f"a quota of {cpus:g} processors: the process is stopped when it is used up",
        "start the container with --cpuset-cpus instead of --cpus",
    )  # fmt: skip


def _memory(root: Path) -> Check:
    free = machine.memory_available_bytes(root)
    group = machine.cgroup_memory_bytes(root)
    text = f"{free / 1024**3:.1f} GiB available"
    if group is not None:
        text += f", a cgroup allows {group[0] / 1024**3:.1f} GiB in all"
    if free < MIN_FREE_BYTES:
        return Check("memory", "warning", text, "free memory, or measure smaller models")
    return Check("memory", "ok", text)


def _sampler(samplers: Sequence[tuple[str, bool, str]]) -> Check:
    usable = [name for name, ok, _ in samplers if ok]
    why = "; ".join(f"{name}: {reason}" for name, ok, reason in samplers if not ok)
    if not usable:
        return Check("sampler", "missing", f"kernel time cannot be sampled ({why or 'not asked'})",
                     "sudo sysctl kernel.perf_event_paranoid=2")  # fmt: skip
    if usable[0] == "py-spy":
        return Check("sampler", "warning", f"py-spy, whose shares are rough ({why})",
                     "sudo sysctl kernel.perf_event_paranoid=2")  # fmt: skip
    return Check("sampler", "ok", usable[0])


def _compilers(which: Callable[[str], str | None]) -> Check:
    found = [name for name in ("g++", "clang++", "c++") if which(name)]
    if found:
        return Check("compiler", "ok", found[0])
    return Check("compiler", "missing", "no C++ compiler: inductor and aot-inductor cannot run",
                 "install g++ (Debian, Ubuntu: sudo apt install g++)")  # fmt: skip


def _libraries(found: Environment) -> list[Check]:
    checks = []
    for name, extra in EXTRAS.items():
        version = found.libraries.get(name)
        if name == "onnxruntime" and version is None:
            version = found.libraries.get("onnxruntime-gpu")
        if version is not None:
            checks.append(Check(f"library-{name}", "ok", f"{name} {version}"))
        elif name != "py-spy":  # the last resort of sampling: not missed where perf works
            remedy = f"pip install 'frameworktax[{extra}]'"
            checks.append(Check(f"library-{name}", "missing", f"{name} is not installed", remedy))
    return checks


def _gpus(found: Environment) -> list[Check]:
    if not found.gpus:
        return [Check("gpu", "ok", "none")]
    checks = []
    for gpu in found.gpus:
        clock, top = gpu.get("sm_clock_mhz"), gpu.get("max_sm_clock_mhz")
        text = (
            f"{gpu.get('index')}: {gpu.get('name')}, {gpu.get('memory_mib')} MiB, "
            f"driver {gpu.get('driver')}, {clock} of {top} MHz"
        )
        if gpu.get("persistence_mode") == "Disabled":
            checks.append(Check("gpu", "warning", f"{text}; the driver unloads between processes",
                                "sudo nvidia-smi -pm 1"))  # fmt: skip
        else:
            checks.append(Check("gpu", "ok", text))
    return checks


def doctor(
    samplers: Sequence[tuple[str, bool, str]],
    root: Path = ROOT,
    *,
    found: Environment | None = None,
    load: Load | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> list[Check]:
    """Return what speaks for and against measuring on this machine.

    Args:
        samplers: what ``attribution.available_samplers()`` says; the host knows no samplers.
        root: where ``/proc`` and ``/sys`` are looked for.
        found: the machine, if it was looked at already.
        load: the load by others, if it was measured already; otherwise it is now, in 0.2 s.
        which: finds a command.
    """
    found = environment(root) if found is None else found
    load = machine.foreign_load(root=root) if load is None else load
    return [
        _cores(found),
        _load(load),
        _governor(found),
        _frequency(found),
        _turbo(found, root),
        _smt(found),
        _steal(found, load),
        _quota(root),
        _memory(root),
        _sampler(samplers),
        _compilers(which),
        *_libraries(found),
        *_gpus(found),
    ]
