from dataclasses import replace

import pytest

from frameworktax.analysis import regime
from frameworktax.records import Estimate, Measurement, Workload


def point(kernel_ns, *, parameters=110_000_000, flops=1_000_000_000, precision="float16"):
    return Measurement(
        workload=Workload(model="m", precision=precision),
        runtime="eager",
        paradigm="eager",
        platform="cuda:0",
        threads=1,
        status="ok",
        kernel_ns=Estimate(value=kernel_ns, low=kernel_ns, high=kernel_ns),
        parameters=parameters,
        flops=flops,
    )


H100 = regime.gpu_peaks({"name": "NVIDIA H100 80GB HBM3"})
MOVING_NS = 220e6 / 3.35e12 * 1e9
"""Two bytes for each of 110 million weights, at 3.35 TB/s: 66 µs."""


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA A10", 0.6e12),
        ("Tesla V100-SXM2-16GB", 0.9e12),
        ("NVIDIA L40S", 0.864e12),
        ("NVIDIA L4", 0.3e12),
    ],
)
def test_devices_by_the_name_that_the_driver_gives(name, bandwidth):
    assert regime.gpu_peaks({"name": name}).bandwidth == bandwidth


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 NVL",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "",
        None,
    ],
)
def test_what_only_sounds_alike_is_not_known(name):
    assert regime.gpu_peaks({"name": name}) is None


@pytest.mark.parametrize("found", ["compute-bound", "kernel-flat"])
def test_a_device_that_moves_weights_is_memory_bound(found):
    assert regime.refine(found, point(MOVING_NS / 0.61), H100) == "memory-bound"
    assert regime.refine(found, point(MOVING_NS / 0.59), H100) == found


@pytest.mark.parametrize("found", ["framework-bound", "mixed"])
def test_only_a_busy_device_is_refined(found):
    assert regime.refine(found, point(MOVING_NS), H100) == found


def test_what_is_not_known_changes_nothing():
    whole = point(MOVING_NS)
    for m, device in (
        (whole, None),
        (replace(whole, flops=None), H100),
        (replace(whole, parameters=None), H100),
        (replace(whole, kernel_ns=None), H100),
        (point(MOVING_NS, precision="fp8"), H100),
    ):
        assert regime.refine("compute-bound", m, device) == "compute-bound"


def test_operations_that_take_longer_than_the_weights_are_compute():
    ridge = MOVING_NS * 1e-9 * 989e12
    assert regime.refine("compute-bound", point(MOVING_NS, flops=round(ridge * 1.01)), H100) == (
        "compute-bound"
    )
    assert regime.refine("compute-bound", point(MOVING_NS, flops=round(ridge * 0.99)), H100) == (
        "memory-bound"
    )


def test_weights_that_fit_into_the_cache_prove_nothing():
    small = point(1.0, parameters=(50 << 20) // 2)
    assert regime.refine("kernel-flat", small, H100) == "kernel-flat"
