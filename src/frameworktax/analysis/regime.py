"""What bounds a point: the rules of METHOD, section 5, on the ends of the intervals.

On a CPU host and kernels share a thread, so latency is their sum and the tax share decides. On a
GPU they overlap, and ρ, kernel time over latency, decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frameworktax.records import Environment, Estimate, Regime, Subject

CPU_FRAMEWORK = 0.5
CPU_COMPUTE = 0.15
GPU_COMPUTE = 0.85
GPU_FRAMEWORK = 0.65
LINEAR = 0.9
"""Elasticity d log L / d log n above which latency grows as the batch does (METHOD, section 5)."""
FLAT = 0.1
"""Elasticity under which a latency curve is flat."""
TWIN_FRAMEWORK = 0.8
"""A twin's share of the latency above which the tax is over half of it in all points where both are
known; up to 0.77 it was as little as 0.31 (squeezebert at an eighth of its width, batch 64), since
the twin has kernels of its own."""
IN_SITU_OVER_WARM = 5.0
"""The tax among real kernels is taken for at most so many of the twin's warm overheads: 4.7 is the
most that was seen (METHOD, section 2)."""

MOVING = 0.6
"""Share of kernel time that reading the weights once at peak bandwidth must account for. Some
parameters (rows of an embedding that no token asks for) are counted and never read."""
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def cpu_regime(share: Estimate, *, of_twin: bool = False) -> Regime:
    """Return the regime of a CPU point from its tax share T / L.

    Of a twin's warm overhead over the latency the limits are further out: the tax can be less than
    that, and ``IN_SITU_OVER_WARM`` times as much.
    """
    if share.low > (TWIN_FRAMEWORK if of_twin else CPU_FRAMEWORK):
        return "framework-bound"
    if share.high * (IN_SITU_OVER_WARM if of_twin else 1) < CPU_COMPUTE:
        return "compute-bound"
    return "mixed"


def gpu_regime(rho: Estimate, elasticity: float | None = None) -> Regime:
    """Return the regime of a GPU point from ρ, kernel time over latency.

    High ρ where the elasticity of latency over batch is flat is ``kernel-flat``: bandwidth or
    occupancy, not the framework.
    """
    if rho.low >= GPU_COMPUTE:
        flat = elasticity is not None and elasticity < FLAT
        return "kernel-flat" if flat else "compute-bound"
    if rho.high < GPU_COMPUTE and rho.value < GPU_FRAMEWORK:
        return "framework-bound"
    return "mixed"


def elasticities(values: Sequence[float], latency_ns: Sequence[float]) -> list[float | None]:
    """Return d log L / d log n at every point: between its neighbours, one-sided at ends.

    Values of the axis ascend; values and latencies are positive. None for a point alone.
    """
    if len(values) < 2:
        return [None] * len(values)
    logs = [(math.log(n), math.log(ns)) for n, ns in zip(values, latency_ns, strict=True)]
    before, after = [logs[0], *logs[:-1]], [*logs[1:], logs[-1]]
    return [(l1 - l0) / (n1 - n0) for (n0, l0), (n1, l1) in zip(before, after, strict=True)]


def linear_from(values: Sequence[float], elasticity: Sequence[float | None]) -> float | None:
    """Return the smallest measured value from which on every elasticity is over ``LINEAR``."""
    found = None
    for n, slope in zip(reversed(values), reversed(elasticity), strict=True):
        if slope is None or slope <= LINEAR:
            break
        found = n
    return found


# --- memory-bound, by the roofline -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Device:
    """Peak numbers: bytes and operations a second, bytes of the last cache."""

    bandwidth: float
    single: float
    half: float
    cache_bytes: int


DEVICES: Mapping[str, Device] = {
    "H200": Device(4.8e12, 66.9e12, 989e12, 60 << 20),
    "H100 PCIe": Device(2.0e12, 51.2e12, 756e12, 50 << 20),
    "H100": Device(3.35e12, 66.9e12, 989e12, 50 << 20),
    "A100-PCIE-40GB": Device(1.555e12, 19.5e12, 312e12, 40 << 20),
    "A100-SXM4-40GB": Device(1.555e12, 19.5e12, 312e12, 40 << 20),
    "A100 80GB PCIe": Device(1.935e12, 19.5e12, 312e12, 40 << 20),
    "A100-SXM4-80GB": Device(2.039e12, 19.5e12, 312e12, 40 << 20),
    "L40S": Device(0.864e12, 91.6e12, 362e12, 96 << 20),
    "NVIDIA L4": Device(0.300e12, 30.3e12, 121e12, 48 << 20),
    "NVIDIA A10": Device(0.600e12, 31.2e12, 125e12, 6 << 20),
    "Tesla T4": Device(0.320e12, 8.1e12, 65e12, 4 << 20),
    "V100-SXM2": Device(0.900e12, 15.7e12, 125e12, 6 << 20),
    "Quadro RTX 8000": Device(0.672e12, 16.3e12, 130.5e12, 6 << 20),
    "RTX 4090": Device(1.008e12, 82.6e12, 165e12, 72 << 20),
    "RTX 3090": Device(0.936e12, 35.6e12, 71e12, 6 << 20),
}
"""Part of the name that ``nvidia-smi`` gives → peak numbers; the first that fits is taken.

From the makers' data sheets: dense, without sparsity, at the tensor cores' rate for half precision
and without TF32 for single. The H200's cache is what the driver reports; its data sheet gives none.
"""


def gpu_of(environment: Environment) -> Mapping[str, Any]:
    """Return a host's GPU, the first of several of one kind; nothing of others.

    Which of several kinds a point ran on is not known: CUDA numbers the fastest first and leaves
    out what ``CUDA_VISIBLE_DEVICES`` hides, and ``nvidia-smi`` lists all by their place on the bus.
    """
    found = environment.gpus
    kinds = {(gpu.get("name"), gpu.get("mig_mode")) for gpu in found}
    return found[0] if len(kinds) == 1 else {}


def gpu_peaks(gpu: Mapping[str, Any]) -> Device | None:
    """Return the peak numbers of a GPU of ``Environment.gpus``, None where they are not known.

    With MIG on, what is measured is a part of the card.
    """
    name = "" if gpu.get("mig_mode") == "Enabled" else str(gpu.get("name") or "")
    for part, device in DEVICES.items():
        # A GH200 is no H200, an A100 no A10; NVL, Ti, D and a laptop's are other cards.
        if re.search(rf"\b{part}\b(?!.*\b(NVL|Ti|D|SUPER|Laptop|MIG)\b)", name):
            return device
    return None


def refine(found: Regime, subject: Subject, kernel_ns: Estimate, device: Device | None) -> Regime:
    """Return ``memory-bound`` for a busy device that spends its time moving weights.

    Reading every weight once at peak bandwidth must take longer than the operations at peak rate
    (the point lies under the slope of the roofline), and account for ``MOVING`` of the kernel
    time of a call. Weights that fit into the cache may never leave it, and prove nothing. Only
    ``compute-bound`` and ``kernel-flat`` are refined, on a device whose peak numbers are known.
    """
    if device is None or found not in ("compute-bound", "kernel-flat"):
        return found
    size = BYTES.get(subject.point.workload.precision)
    if size is None or not subject.parameters or not subject.flops:
        return found
    weights = size * subject.parameters
    moving_s = weights / device.bandwidth
    computing_s = subject.flops / (device.single if size == 4 else device.half)
    explained = moving_s * 1e9 / kernel_ns.value if kernel_ns.value > 0 else 0.0
    if weights > device.cache_bytes and moving_s > computing_s and explained >= MOVING:
        return "memory-bound"
    return found
