"""Occupancy from launch data, against what the profiler wrote into two recorded traces."""

import json
from pathlib import Path

import pytest

from frameworktax.attribution.device_profile import (
    Launch,
    Limits,
    blocks_at_once,
    limits_of,
    sm_activity,
    warp_occupancy,
)

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "kernel-launches.json").read_text(encoding="utf-8")
)
"""Per kernel: µs, grid, block, registers of a thread, shared bytes, and as Kineto computed them:
blocks per SM, warps per SM, estimated achieved occupancy in percent."""
H100 = Limits(132, 2048, 65536, 233472, (9, 0))


def volume(sides):
    return sides[0] * sides[1] * sides[2]


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["trace"] for one in RECORDED])
def test_every_recorded_kernel_has_the_recorded_occupancy(recorded):
    device = recorded["device"]
    limits = limits_of(device)
    zeros = 0
    for _, grid, block, registers, shared, blocks, warps, percent in recorded["kernels"]:
        launch = Launch(volume(grid), volume(block), registers, shared)
        assert launch.blocks / limits.multiprocessors == pytest.approx(blocks, rel=1e-5, abs=1e-6)
        assert launch.blocks / limits.multiprocessors * launch.threads / 32 == pytest.approx(
            warps, rel=1e-5, abs=1e-6
        )
        found = warp_occupancy(launch, limits)
        if shared > device["sharedMemPerBlock"]:
            zeros += 1  # Kineto does not know that the kernel asked for more than the default
            assert percent == 0
            assert 0 < found <= 1
        else:
            assert int(100 * found + 0.5) == percent
        assert sm_activity(launch, limits) == pytest.approx(min(1.0, blocks), rel=1e-5, abs=1e-6)
    assert (len(recorded["kernels"]), zeros) in {(79, 6), (60, 9)}


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["trace"] for one in RECORDED])
def test_time_weighted_occupancy_is_the_recorded_one_within_its_rounding(recorded):
    limits = limits_of(recorded["device"])
    ours = theirs = took = 0.0
    for us, grid, block, registers, shared, _, _, percent in recorded["kernels"]:
        if shared <= recorded["device"]["sharedMemPerBlock"]:
            launch = Launch(volume(grid), volume(block), registers, shared)
            ours += us * warp_occupancy(launch, limits)
            theirs += us * percent / 100
            took += us
    assert ours / took == pytest.approx(theirs / took, abs=0.005)


@pytest.mark.parametrize(
    ("launch", "blocks"),
    [
        (Launch(1, 1024, 0, 0), 2),  # threads
        (Launch(1, 32, 16, 0), 32),  # blocks
        (Launch(1, 256, 47, 0), 5),  # registers: 48 a thread, 10 warps a quarter
        (Launch(1, 64, 47, 0), 20),  # 42 warps would fit all registers, and 10 a quarter
        (Launch(1, 128, 32, 98304), 2),  # shared memory, 1 KiB more for each block
        (Launch(1, 33, 0, 0), 32),  # two warps, one of them almost empty
        (Launch(1, 128, 32, 233000), 0),  # does not fit at all
    ],
)
def test_the_tightest_limit_decides(launch, blocks):
    assert blocks_at_once(launch, H100) == blocks


def test_older_and_smaller_devices_have_limits_of_their_own():
    turing = Limits(40, 1024, 65536, 65536, (7, 5))
    assert blocks_at_once(Launch(1, 32, 16, 0), turing) == 16
    assert blocks_at_once(Launch(1, 32, 16, 8192), turing) == 8  # nothing reserved
    assert blocks_at_once(Launch(1, 32, 16, 0), Limits(128, 1536, 65536, 102400, (8, 9))) == 24


def test_a_device_that_is_not_described_has_no_limits():
    device = RECORDED[0]["device"]
    assert limits_of(device) is not None
    assert limits_of({**device, "warpSize": 64}) is None  # AMD's
    for name in ("numSms", "regsPerMultiprocessor", "computeMajor"):
        assert limits_of({k: v for k, v in device.items() if k != name}) is None
