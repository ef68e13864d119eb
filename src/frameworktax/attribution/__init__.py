"""Attribution: which part of a latency is kernel time, and what the rest was spent on."""

from frameworktax.attribution.sampler import (
    METHODS,
    attribute_cpu,
    available_samplers,
    best_sampler,
    separates_kernels,
)

__all__ = ["METHODS", "attribute_cpu", "available_samplers", "best_sampler", "separates_kernels"]
