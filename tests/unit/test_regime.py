import pytest

from frameworktax.analysis import regime
from frameworktax.records import Estimate


def share(low, value, high):
    return Estimate(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "of_twin", "expected"),
    [
        (0.51, 0.60, False, "framework-bound"),
        (0.50, 0.60, False, "mixed"),  # the low end has to be over one half
        (0.45, 0.70, False, "mixed"),
        (0.10, 0.149, False, "compute-bound"),
        (0.10, 0.15, False, "mixed"),
        (-0.02, 0.05, False, "compute-bound"),
        (0.10, 0.60, False, "mixed"),
        (0.81, 0.9, True, "framework-bound"),
        (0.76, 0.78, True, "mixed"),  # the twin has kernels of its own
        (0.10, 0.12, True, "mixed"),  # the tax among real kernels may be five times the twin's
        (0.02, 0.029, True, "compute-bound"),
        (0.02, 0.031, True, "mixed"),
        (0.02, 0.038, True, "mixed"),
    ],
)
def test_cpu_regime_uses_the_ends_of_the_interval(low, high, of_twin, expected):
    found = share(low, (low + high) / 2, high)
    assert regime.cpu_regime(found, of_twin=of_twin) == expected


@pytest.mark.parametrize(
    ("low", "value", "high", "slope", "expected"),
    [
        (0.85, 0.90, 0.95, 0.9, "compute-bound"),
        (0.85, 0.90, 0.95, None, "compute-bound"),
        (0.85, 0.90, 0.95, 0.05, "kernel-flat"),
        (0.85, 0.90, 0.95, 0.1, "compute-bound"),
        (0.84, 0.90, 0.95, 0.05, "mixed"),
        (0.50, 0.64, 0.84, 0.0, "framework-bound"),
        (0.50, 0.65, 0.84, 0.0, "mixed"),
        (0.50, 0.64, 0.85, 0.0, "mixed"),
    ],
)
def test_gpu_regime(low, value, high, slope, expected):
    assert regime.gpu_regime(share(low, value, high), slope) == expected


def test_elasticity_of_power_laws():
    batches = [1, 2, 4, 8]
    assert regime.elasticities(batches, [5.0] * 4) == [0, 0, 0, 0]
    assert regime.elasticities(batches, [3.0 * n for n in batches]) == pytest.approx([1] * 4)
    bent = regime.elasticities(batches, [1, 1, 2, 4])
    assert bent == pytest.approx([0, 0.5, 1, 1])
    assert regime.elasticities([8], [1.0]) == [None]
