"""Attribution: which part of a latency is kernel time, and what the rest was spent on."""

from frameworktax.attribution.perf_event import probe
from frameworktax.attribution.sampler import attribute_cpu, usable_sampler

__all__ = ["attribute_cpu", "probe", "usable_sampler"]
