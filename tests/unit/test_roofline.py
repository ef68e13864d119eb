import pytest

from frameworktax.analysis import regime
from frameworktax.records import Estimate, Point, Subject, Workload


def point(*, parameters=110_000_000, flops=1_000_000_000, precision="float16"):
    workload = Workload(model="m", precision=precision)
    at = Point(workload=workload, runtime="eager", platform="cuda:0")
    return Subject(session="s", point=at, paradigm="eager", parameters=parameters, flops=flops)


def refine(found, kernel_ns, device, **counts):
    kernel = Estimate(value=kernel_ns, low=kernel_ns, high=kernel_ns)
    return regime.refine(found, point(**counts), kernel, device)


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
        # what only sounds alike is not known
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("", None),
        (None, None),
    ],
)
def test_devices_by_the_name_that_the_driver_gives(name, bandwidth):
    peaks = regime.gpu_peaks({"name": name})
    assert (peaks and peaks.bandwidth) == bandwidth


def test_peaks_are_of_the_whole_card():
    card = {"name": "NVIDIA H200", "mig_mode": "Disabled"}
    assert regime.gpu_peaks(card).cache_bytes == 60 << 20  # as its driver reports
    assert regime.gpu_peaks({**card, "mig_mode": "Enabled"}) is None


@pytest.mark.parametrize("found", ["compute-bound", "kernel-flat"])
def test_a_device_that_moves_weights_is_memory_bound(found):
    assert refine(found, MOVING_NS / 0.61, H100) == "memory-bound"
    assert refine(found, MOVING_NS / 0.59, H100) == found


@pytest.mark.parametrize("found", ["framework-bound", "mixed"])
def test_only_a_busy_device_is_refined(found):
    assert refine(found, MOVING_NS, H100) == found


def test_what_is_not_known_changes_nothing():
    assert refine("compute-bound", MOVING_NS, None) == "compute-bound"
    for unknown in ({"flops": None}, {"parameters": None}, {"precision": "fp8"}):
        assert refine("compute-bound", MOVING_NS, H100, **unknown) == "compute-bound"


def test_operations_that_take_longer_than_the_weights_are_compute():
    ridge = MOVING_NS * 1e-9 * 989e12
    assert refine("compute-bound", MOVING_NS, H100, flops=round(ridge * 1.01)) == ("compute-bound")
    assert refine("compute-bound", MOVING_NS, H100, flops=round(ridge * 0.99)) == ("memory-bound")


def test_weights_that_fit_into_the_cache_prove_nothing():
    assert refine("kernel-flat", 1.0, H100, parameters=(50 << 20) // 2) == "kernel-flat"
