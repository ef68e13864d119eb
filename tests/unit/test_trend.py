"""A call on faster devices and hosts: shares and knees whose truth is known."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from machines import MOST, grid, outlook, uniform

US = 1_000.0


def call(kernel_us: float, host_us: float = 10.0, launches: int = 100, sync_us: float = 0.0):
    """Equal launches and kernels with no gap; the longer queue and ``sync_us`` are the latency."""
    total = max(host_us, kernel_us) * launches * US
    ends = min(host_us, kernel_us) * US  # the first launch, or the last kernel
    return uniform(
        launches=launches,
        host_ns=host_us * launches * US,
        kernel_ns=kernel_us * launches * US,
        span_ns=None,
        latency_ns=total + ends + sync_us * US,
    )


def test_a_host_bound_call_gains_nothing_from_a_device_but_tax():
    now, fast = outlook(call(2.0)), outlook(call(2.0), device_speed=4.0)
    assert now.latency_ns.value == pytest.approx(1002 * US)
    assert now.tax_share.value == pytest.approx(1 - 200 / 1002)
    assert fast.latency_ns.value == pytest.approx(1000.5 * US)
    assert fast.tax_share.value == pytest.approx(1 - 50 / 1000.5)


def test_kernels_may_grow_until_the_device_is_the_longer_queue():
    # 10 + 100 k = 1.1 × 1002 µs: each kernel may take 10.922 instead of 2 µs
    now = outlook(call(2.0))
    assert now.free_growth.value == pytest.approx(10.922 / 2, rel=2e-3)
    assert not now.is_lower_bound
    fast = outlook(call(2.0), device_speed=4.0)
    assert fast.free_growth.value == pytest.approx((1.1 * 1000.5 - 10) / 100 / 0.5, rel=2e-3)
    slow_host = outlook(call(2.0), host_speed=2.0)
    assert slow_host.latency_ns.value == pytest.approx(502 * US)
    assert slow_host.free_growth.value == pytest.approx((1.1 * 502 - 5) / 100 / 2, rel=2e-3)


def test_a_device_bound_call_has_a_knee_at_once():
    now = outlook(call(40.0))
    assert now.free_growth.value == pytest.approx((1.1 * 4010 - 10) / 4000, rel=2e-3)
    assert now.tax_share.value == pytest.approx(10 / 4010)


def test_what_never_grows_is_a_lower_bound():
    found = outlook(call(1e-4))
    assert (found.free_growth.value, found.is_lower_bound) == (MOST, True)


def test_intervals_reach_to_a_wait_that_shrinks_with_the_host():
    found = outlook(call(2.0, sync_us=100.0), host_speed=2.0)
    assert found.latency_ns.value == pytest.approx(602 * US)
    assert found.latency_ns.low == pytest.approx(552 * US)
    assert found.latency_ns.high == pytest.approx(602 * US)


def test_every_device_with_every_host():
    found = grid(call(2.0), devices=(2, 1), hosts=(1.5, 1))
    assert [(o.device_speed, o.host_speed) for o in found] == [
        (1, 1), (2, 1), (1, 1.5), (2, 1.5),
    ]  # fmt: skip
    shares = [o.tax_share.value for o in found]
    assert shares[0] < shares[1] and shares[2] < shares[0]


def test_recorded_calls_replay_to_themselves_and_speeds_are_over_the_recorded_device():
    import trend

    bert, alexnet = (trend.recorded(trace) for trace in trend.TRACES)
    now = outlook(bert.queues)
    assert now.latency_ns.value == pytest.approx(4_426_114, abs=1)
    assert now.tax_share.value == pytest.approx(0.93, abs=0.001)
    assert outlook(alexnet.queues).latency_ns.value == pytest.approx(36_356_000, rel=1e-3)
    speeds = {name: (low, high) for name, low, high in trend.generations("H100")}
    assert speeds["H100"] == (1.0, 1.0)
    assert speeds["A100"][0] == pytest.approx(19.5 / 66.9)
    assert speeds["A100"][1] == pytest.approx(1.935 / 3.35, rel=1e-3)
    kept = Path(__file__).parents[2] / "docs" / "results" / "trend.md"
    assert kept.read_text() == trend.page([bert, alexnet]), "make trend"
    page = trend.page([bert])
    assert "never held against a measurement" in page
    assert "not measured here" in page
