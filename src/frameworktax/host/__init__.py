"""The machine: what it is, whether it is fit to measure, and where to measure on it."""

from frameworktax.host.cache import cache_folder
from frameworktax.host.checks import doctor, hints
from frameworktax.host.inventory import (
    cpu_features,
    cpu_model,
    environment,
    gpu_present,
    libraries,
)
from frameworktax.host.machine import (
    foreign_load,
    memory_available_bytes,
    pick_cpus,
    usable_cpus,
    worker_environment,
)

__all__ = [
    "cache_folder",
    "cpu_features",
    "cpu_model",
    "doctor",
    "environment",
    "foreign_load",
    "gpu_present",
    "hints",
    "libraries",
    "memory_available_bytes",
    "pick_cpus",
    "usable_cpus",
    "worker_environment",
]
