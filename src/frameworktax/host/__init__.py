"""The machine: what it is, whether it is fit to measure, and where to measure on it."""

from frameworktax.host.cache import cache_folder as cache_folder
from frameworktax.host.checks import doctor as doctor
from frameworktax.host.checks import hints as hints
from frameworktax.host.inventory import VISIBLE as VISIBLE
from frameworktax.host.inventory import cards as cards
from frameworktax.host.inventory import cpu_features as cpu_features
from frameworktax.host.inventory import cpu_model as cpu_model
from frameworktax.host.inventory import environment as environment
from frameworktax.host.inventory import gpu_makers as gpu_makers
from frameworktax.host.inventory import gpus as gpus
from frameworktax.host.inventory import libraries as libraries
from frameworktax.host.inventory import near_cpus as near_cpus
from frameworktax.host.machine import foreign_load as foreign_load
from frameworktax.host.machine import memory_available_bytes as memory_available_bytes
from frameworktax.host.machine import need_linux as need_linux
from frameworktax.host.machine import need_surroundings as need_surroundings
from frameworktax.host.machine import pick_cpus as pick_cpus
from frameworktax.host.machine import usable_cpus as usable_cpus
from frameworktax.host.machine import worker_environment as worker_environment
