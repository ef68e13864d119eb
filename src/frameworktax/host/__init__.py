"""The machine: what it is, whether it is fit to measure, and where to measure on it."""

from frameworktax.host.cache import cache_folder
from frameworktax.host.checks import Check, doctor, hints
from frameworktax.host.inventory import (
    cpu_features,
    cpu_model,
    environment,
    gpu_present,
    gpus,
    libraries,
)
from frameworktax.host.machine import (
    Load,
    cgroup_cpus,
    cgroup_memory_bytes,
    foreign_load,
    memory_available_bytes,
    pick_cpus,
    pin,
    usable_cpus,
    worker_environment,
)

__all__ = [
    "Check",
    "Load",
    "cache_folder",
    "cgroup_cpus",
    "cgroup_memory_bytes",
    "cpu_features",
    "cpu_model",
    "doctor",
    "environment",
    "foreign_load",
    "gpu_present",
    "gpus",
    "hints",
    "libraries",
    "memory_available_bytes",
    "pick_cpus",
    "pin",
    "usable_cpus",
    "worker_environment",
]
