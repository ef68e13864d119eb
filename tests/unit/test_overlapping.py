"""Steps that overlap on the device, because the host works ahead: what a change gives, by hand."""

import pytest
import trace_cases as cases

from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.explaining import explain

US = 1_000
HOST, KERNEL, GAP, LATENCY = 100, 200, 1, 10
"""Of a step on the host, of a kernel, between kernels, from a launch to its kernel: µs."""
AT = (10, 30, 50, 70)
"""When a step launches, µs."""


def ahead(*, kernel=KERNEL, steps=4, begin=0):
    """Return steps without a wait, four kernels each: the device takes eight times the host's."""
    found, free, number = [], 0, 0
    for n in range(steps):
        mark = n * HOST * US
        found.append(cases.event("user_annotation", f"ProfilerStep#{n}", mark, mark + HOST * US))
        for at in AT:
            number += 1
            launched = mark + at * US
            start = max(launched + LATENCY * US, free + GAP * US, begin * US)
            free = start + kernel * US
            found += [
                cases.launch(launched, launched + 5 * US, number),
                cases.kernel(start, free, number),
            ]
    return found


def predicted(tmp_path, events, step=None, **asked):
    path = tmp_path / "t.json"
    path.write_text(cases.trace(*events))
    (found,) = explain(path, what_if=WhatIf(**asked), step=step).run.predictions
    return found


@pytest.mark.parametrize(
    ("asked", "latency_us"),
    [
        ({"device_speed": 1}, (20 + 16 * 200 + 15) / 4),
        ({"device_speed": 2}, (20 + 16 * 100 + 15) / 4),
        # from here on the device waits for the host: the last step's first launch is at 310
        ({"device_speed": 10}, (310 + 10 + 4 * 20 + 3) / 4),
        ({"host_speed": 2}, (5 + 10 + 16 * 200 + 15) / 4),
        ({"graphs": True}, (10 + 10 + 16 * 200 + 15 * 0.1) / 4),
    ],
)
def test_a_host_that_works_ahead_is_replayed_over_all_steps(tmp_path, asked, latency_us):
    found = predicted(tmp_path, ahead(), **asked)
    assert found.latency_ns.value == pytest.approx(latency_us * US)
    assert found.factor.value == pytest.approx((20 + 16 * 200 + 15) / 4 / latency_us)


@pytest.mark.parametrize(("speed", "latency_us"), [(1, 804), (2, 404), (10, 100)])
def test_steps_that_find_the_device_busy_follow_what_it_did_before(tmp_path, speed, latency_us):
    """From when the work before a step has ended to when its own has: four kernels and pauses."""
    found = predicted(tmp_path, ahead(), step="#[23]", device_speed=speed)
    assert found.latency_ns.value == pytest.approx(latency_us * US)


@pytest.mark.parametrize(("speed", "latency_us"), [(1, 804), (2, 404), (10, (393 - 187) / 2)])
def test_recorded_work_that_was_launched_before_the_recording_comes_first(
    tmp_path, speed, latency_us
):
    """Of the first two steps there are kernels alone; ten times as fast they end at 187 us."""
    host = [event for event in ahead() if '"kernel"' not in event]
    events = [*host[10:], *(event for event in ahead() if '"kernel"' in event)]
    found = predicted(tmp_path, events, device_speed=speed)
    assert found.latency_ns.value == pytest.approx(latency_us * US)


def test_what_waited_for_work_from_before_the_recording_is_not_replayed(tmp_path):
    found = predicted(tmp_path, ahead(begin=2_000), device_speed=2)
    assert found.latency_ns is None and "not in the recording" in found.reason


def test_a_stream_that_waits_for_another_one_has_no_longer_launch_latency(tmp_path):
    events = ahead(steps=1)
    events += [cases.launch(90 * US, 95 * US, 9), cases.kernel(824 * US, 900 * US, 9, stream=8)]
    found = predicted(tmp_path, events, device_speed=2)
    # the other stream's kernel follows the fourth one by a pause
    assert found.latency_ns.value == pytest.approx((20 + 4 * 100 + 3 + 1 + 38) * US)


@pytest.mark.parametrize(
    ("name", "cat"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
    ],
)
def test_a_faster_device_does_not_make_links_faster(tmp_path, name, cat):
    events = [
        cases.event("user_annotation", "ProfilerStep#1", 0, 100 * US),
        *(cases.launch(at * US, (at + 5) * US, at) for at in (10, 20, 30)),
        cases.kernel(20 * US, 120 * US, 10),
        cases.kernel(121 * US, 221 * US, 20, name=name, cat=cat),
        cases.kernel(222 * US, 322 * US, 30, name="Memcpy DtoD", cat="gpu_memcpy"),
    ]
    found = predicted(tmp_path, events, device_speed=2)
    assert found.latency_ns.value == pytest.approx((20 + 50 + 1 + 100 + 1 + 50) * US)
    assert found.latency_ns.low == pytest.approx((10 + 10 / 2 + 3 * 50 + 2 / 2) * US)


def test_a_step_that_ends_before_earlier_work_has_no_latency_of_its_own(tmp_path):
    events = [
        cases.launch(0, 5 * US, 1),
        cases.kernel(10 * US, 1_000 * US, 1, stream=8),
        cases.event("user_annotation", "ProfilerStep#1", 100 * US, 200 * US),
        cases.launch(110 * US, 115 * US, 2),
        cases.kernel(120 * US, 130 * US, 2),
    ]
    found = predicted(tmp_path, events, device_speed=2)
    assert found.latency_ns is None and "end before work" in found.reason
