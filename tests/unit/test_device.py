"""Device attribution on a fake device: every number is known in advance."""

from dataclasses import replace

import pytest
from fake_device import LAUNCH_CALLS, FakeDevice

from frameworktax.attribution.device import attribute_gpu, calibrate, measure_span
from frameworktax.attribution.device_profile import (
    HEAD_CALLS,
    HEAD_CYCLES,
    HEAD_MARKERS,
    Warm,
    profile_device,
)
from frameworktax.errors import TraceError
from frameworktax.records import Attribution
from frameworktax.testing import FakeClock
from frameworktax.traces.events import COPY, DEVICE, MEMSET

EPOCH = 1_751_410_836_000_000_000
STEADY = {"sm_mhz": 1980, "memory_mhz": 2619, "power_mw": 500_000, "celsius": 60, "reasons": 0}


def make(**options):
    clock = FakeClock(start_ns=EPOCH)
    return clock, FakeDevice(clock, **options)


def five_and_a_copy(device, host_ns=500, kernel_ns=2_001):
    def call():
        for _ in range(5):
            device.launch(host_ns=host_ns, kernel_ns=kernel_ns)
        device.launch(host_ns=300, kernel_ns=700, category=COPY)

    return call


def codes(notes):
    return [note.code if hasattr(note, "code") else note[0] for note in notes]


def profile(clock, device, call, calls=4):
    return profile_device(Warm(call, device.synchronize, device, clock), calls)


# --- profile ----------------------------------------------------------------------------------


def test_each_call_has_its_kernels_its_union_and_its_launches():
    clock, device = make(gap_ns=10)
    run = profile(clock, device, five_and_a_copy(device))
    assert run.kernel_ns == (5 * 2_001 + 700,) * 4
    assert (run.kernels, run.copies) == ((5,) * 4, (1,) * 4)
    assert (run.launches, run.enqueued) == ((5,) * 4, (6,) * 4)
    # The first kernel starts when its launch is done, the rest follow with their gaps.
    assert run.wall_ns == (500 + 5 * (2_001 + 10) + 700,) * 4
    assert (run.lost, run.notes) == (0, [])


def test_a_host_that_is_too_slow_changes_the_wall_and_not_the_kernel_time():
    clock, device = make()
    run = profile(clock, device, five_and_a_copy(device, host_ns=50_000))
    assert run.kernel_ns == (5 * 2_001 + 700,) * 4
    assert run.wall_ns == (5 * 50_000 + 2_001 + 0 + (300 - 300) + 700,) * 4


def test_overlapping_streams_count_once():
    clock, device = make()

    def call():
        device.launch(kernel_ns=1_000, stream=7)
        device.launch(kernel_ns=600, stream=13)
        device.launch(kernel_ns=900, stream=13)  # from 600 to 1,500

    assert profile(clock, device, call).kernel_ns == (1_500,) * 4


def test_a_graph_is_one_launch_and_many_kernels():
    clock, device = make(gap_ns=5)
    run = profile(clock, device, lambda: device.replay([100, 200, 300], host_ns=50))
    assert (run.kernels, run.launches, run.enqueued) == ((3,) * 4, (1,) * 4, (1,) * 4)
    assert (run.kernel_ns, run.lost) == ((600,) * 4, 0)


def test_a_call_that_does_nothing_has_no_kernel_time():
    clock, device = make()
    run = profile(clock, device, lambda: clock.work(1_000))
    assert (run.kernel_ns, run.kernels, run.launches) == ((0,) * 4,) * 3
    assert run.wall_ns == (1_000,) * 4
    assert run.notes == []


def test_kernels_still_running_when_the_call_returns_belong_to_it():
    clock, device = make()
    # What is called the synchronise does not wait; the profile's own one does.
    warm = Warm(lambda: device.launch(kernel_ns=10_000), lambda: None, device, clock)
    run = profile_device(warm, 3)
    assert run.kernel_ns == (10_000,) * 3
    assert run.wall_ns == (0,) * 3


def test_unequal_calls_are_flagged():
    clock, device = make()
    made = 0

    def call():
        nonlocal made
        made += 1
        for _ in range(1 + (made == HEAD_CALLS + 2)):
            device.launch(kernel_ns=100)

    run = profile(clock, device, call)
    assert run.kernels == (1, 2, 1, 1)
    assert codes(run.notes) == ["kernel-counts-differ"]


HEAD = 1 + HEAD_MARKERS + HEAD_CALLS * 6  # the spin, markers, calls
CALL = 1 + 6  # a marker, five kernels, a copy


DIFFER, LOST = "kernel-counts-differ", "records-lost"


@pytest.mark.parametrize(
    ("is_lost", "kernels", "lost", "noted"),
    [
        (lambda number: number == HEAD + CALL + 3, (5, 4, 5, 5), 1, {DIFFER, LOST}),
        # the same in every call: the counts are equal
        (lambda number: number >= HEAD and (number - HEAD) % CALL == 3, (4,) * 4, 4, {LOST}),
        (lambda number: number == HEAD + 2 * CALL, None, 1, {DIFFER, LOST}),  # a marker
        (lambda number: number == HEAD + CALL + 6, (5,) * 4, 0, {DIFFER}),  # a copy
        (lambda number: number < 500, (5,) * 4, 0, set()),  # of the head of a session
    ],
)
def test_a_lost_record_is_seen(is_lost, kernels, lost, noted):
    clock, device = make(lose=is_lost)
    run = profile(clock, device, five_and_a_copy(device))
    assert kernels in (None, run.kernels)
    assert (run.lost, set(codes(run.notes))) == (lost, noted)


def test_a_profile_without_device_activity_is_an_error():
    clock, device = make(lose=lambda number: True)
    with pytest.raises(TraceError, match="no device activity"):
        profile(clock, device, five_and_a_copy(device))


def test_too_few_and_too_many_markers_are_errors():
    clock, device = make(lose=lambda number: number < HEAD + CALL)
    with pytest.raises(TraceError, match=r"\d+ marker .*lost"):
        profile(clock, device, five_and_a_copy(device))
    clock, device = make()
    with pytest.raises(TraceError, match="model itself"):
        profile(clock, device, device.marker)


def test_other_devices_are_told_and_not_counted():
    clock = FakeClock(EPOCH)

    class Two(FakeDevice):
        def profile(self, work):
            trace = super().profile(work)
            second = trace.events.stream == 13
            trace.events.device[second] = 1
            return trace

    two = Two(clock)

    def call():
        two.launch(kernel_ns=100)
        two.launch(kernel_ns=700, stream=13)

    run = profile(clock, two, call)
    assert (run.kernel_ns, run.kernels) == ((100,) * 4, (1,) * 4)
    assert codes(run.notes) == ["other-devices"]


def test_launches_are_unknown_where_the_profile_has_no_host_calls():
    clock = FakeClock(EPOCH)

    class Deaf(FakeDevice):
        def profile(self, work):
            trace = super().profile(work)
            return replace(trace, events=trace.events.of(*DEVICE))

    deaf = Deaf(clock)
    run = profile(clock, deaf, five_and_a_copy(deaf))
    assert (run.launches, run.enqueued, run.lost) == ((), (), 0)
    assert run.kernel_ns == (5 * 2_001 + 700,) * 4
    assert codes(run.notes) == ["launches-unrecorded"]


def test_a_kernel_across_the_border_is_told():
    clock = FakeClock(EPOCH)

    class Leaky(FakeDevice):
        def synchronize(self):
            """Forget to wait for stream 13."""
            self.clock.wait_until(self.free_ns(7))

    leaky = Leaky(clock)

    def call():
        leaky.launch(kernel_ns=100)
        leaky.launch(kernel_ns=500, stream=13)

    run = profile(clock, leaky, call)
    assert codes(run.notes) == ["kernels-cross-calls"]
    assert run.kernels == (2,) * 4


# --- what CUDA 12 and 13 write --------------------------------------------------------------------

EVERY = pytest.mark.parametrize("calls", list(LAUNCH_CALLS))


def seven(device):
    """Two kinds of launch, calls that launch nothing, a graph, a copy."""

    def call():
        device.host_call("INVALID" if "unnamed" in device.calls else "cudaStreamIsCapturing")
        device.launch(host_ns=500, kernel_ns=2_000)
        device.launch(host_ns=500, kernel_ns=2_000, cluster=True)
        device.replay([100, 100, 100], host_ns=50)
        device.host_call("cudaLaunchHostFunc")
        device.launch(host_ns=500, kernel_ns=2_000)
        device.launch(host_ns=300, kernel_ns=700, category=COPY)

    return call


@EVERY
def test_launches_are_found_by_correlation_whatever_their_names(calls):
    clock, device = make(calls=calls)
    run = profile(clock, device, seven(device))
    assert (run.kernels, run.launches, run.enqueued) == ((6,) * 4, (4,) * 4, (5,) * 4)
    assert (run.copies, run.lost) == ((1,) * 4, 0)
    assert run.notes == []


@EVERY
def test_a_record_lost_in_one_call_is_seen_whatever_its_launch_is_named(calls):
    in_call = 1 + HEAD_MARKERS + HEAD_CALLS * 7 + 8
    clock, device = make(calls=calls, lose=lambda number: number == in_call + 1)
    run = profile(clock, device, seven(device))
    assert (run.kernels, run.launches, run.lost) == ((6, 5, 6, 6), (4,) * 4, 1)
    assert {"kernel-counts-differ", "records-lost"} <= set(codes(run.notes))


def test_a_loss_without_a_name_in_calls_that_differ_shows_as_different_counts():
    clock, device = make(calls="cuda-13-unnamed", lose=lambda number: number == HEAD + CALL + 1)
    made = 0

    def call():
        nonlocal made
        made += 1
        for _ in range(5 + (made == 5)):
            device.launch(kernel_ns=100)
        device.launch(kernel_ns=700, category=COPY)

    run = profile(clock, device, call)
    assert run.kernels == (5, 4, 6, 5)
    assert "kernel-counts-differ" in codes(run.notes)


@pytest.mark.parametrize("stray", [1, -1, -3, 10_000])
def test_a_graph_whose_kernels_point_elsewhere_has_lost_none(stray):
    """As of the second session of a process, before CUPTI 13.1 update 1."""
    clock, device = make(gap_ns=5, stray=stray)

    def call():
        device.launch(host_ns=50, kernel_ns=400)
        device.replay([100, 200, 300], host_ns=50)

    first, later = (profile(clock, device, call) for _ in range(2))
    assert (later.kernels, later.launches, later.lost) == ((4,) * 4, (2,) * 4, 0)
    assert later.kernel_ns == first.kernel_ns
    assert first.notes == later.notes == []


def test_a_graph_of_one_kernel_that_points_to_no_launch_has_lost_none():
    clock, device = make(gap_ns=5, stray=10_000)
    first, later = (profile(clock, device, lambda: device.replay([200])) for _ in range(2))
    assert (later.kernels, later.launches, later.lost) == ((1,) * 4, (1,) * 4, 0)
    assert first.notes == later.notes == []


def test_beside_a_graph_with_its_records_another_without_is_lost():
    before = HEAD_MARKERS + 1 + 2 * 5 + 1 + 5 + 1  # the first graph of the second call
    clock, device = make(lose=lambda number: before <= number < before + 3)

    def call():
        device.replay([100, 200, 300], host_ns=50)
        device.replay([100, 200], host_ns=50)

    run = profile(clock, device, call)
    assert (run.kernels, run.launches, run.lost) == ((5, 2, 5, 5), (2,) * 4, 1)


def test_a_graph_that_left_no_record_in_a_call_is_lost():
    lost = range(HEAD_MARKERS + 1 + 2 * 3 + 5, HEAD_MARKERS + 1 + 2 * 3 + 8)
    clock, device = make(lose=lambda number: number in lost)
    run = profile(clock, device, lambda: device.replay([100, 200, 300], host_ns=50))
    assert (run.kernels, run.lost) == ((3, 0, 3, 3), 1)
    assert {"kernel-counts-differ", "records-lost"} <= set(codes(run.notes))


def test_a_memset_of_no_bytes_leaves_no_record_and_is_none():
    """cuBLAS asks for one before many products; each returns within 0.3 µs (an H100's trace)."""
    clock, device = make()

    def call():
        device.host_call("cudaMemsetAsync", host_ns=200)
        device.launch(host_ns=500, kernel_ns=2_000)
        device.launch(host_ns=300, kernel_ns=700, category=MEMSET)

    run = profile(clock, device, call)
    assert (run.copies, run.enqueued, run.notes) == ((1,) * 4, (2,) * 4, [])


def test_a_session_begins_with_a_spin_for_the_clock_of_an_idle_device():
    clock, device = make(rise_ns=HEAD_CYCLES, idle_clock=0.2)
    rates = []

    def call():
        rates.append(device._worked_ns)
        device.launch(kernel_ns=100)

    profile(clock, device, call)
    assert min(rates) >= HEAD_CYCLES


def test_waiting_between_two_launches_is_known_and_the_last_wait_is_not_in_it():
    clock, device = make()

    def call():
        device.launch(host_ns=500, kernel_ns=20_000)
        device.synchronize()
        device.launch(host_ns=500, kernel_ns=2_000)

    run = profile(clock, device, call)
    assert run.wait_ns == (20_000,) * 4
    assert run.wall_ns == (23_000,) * 4


def test_a_copy_to_pageable_memory_is_a_wait_too():
    """``tensor.cpu()`` waits in the copy; the synchronise behind it finds nothing to wait for."""
    clock, device = make()

    def call():
        device.launch(host_ns=500, kernel_ns=20_000)
        device.copy_out(host_ns=300, copy_ns=700)
        device.synchronize()
        device.launch(host_ns=500, kernel_ns=2_000)
        device.copy_out(host_ns=300, copy_ns=700)  # the last, which nothing is launched behind

    run = profile(clock, device, call)
    assert run.wait_ns == (20_700,) * 4
    assert (run.copies, run.enqueued, run.lost) == ((2,) * 4, (4,) * 4, 0)


def test_kernels_are_named_and_long_names_stay_apart():
    clock, device = make()
    long = "void at::native::" + "x" * 200

    def call():
        device.launch(kernel_ns=1, name=long + "a")
        device.launch(kernel_ns=1, name=long + "b")
        device.launch(kernel_ns=1, name="gemm")
        device.launch(kernel_ns=1, name="gemm")

    names = profile(clock, device, call).kernel_names
    assert sorted(names.values()) == [1, 1, 2]
    assert max(map(len, names)) < 140


H200 = {
    "numSms": 132,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerMultiprocessor": 233472,
    "computeMajor": 9,
    "computeMinor": 0,
}


def test_the_share_of_the_device_that_kernels_fill_is_weighted_by_their_time():
    clock, device = make(properties=H200)

    def call():
        device.launch(kernel_ns=1_000, shape=(66, 256, 32, 0))  # half the SMs, an eighth of these
        device.launch(kernel_ns=3_000, shape=(1320, 256, 32, 0))  # 8 of 10 blocks fit a SM
        device.launch(kernel_ns=700, category=COPY)

    run = profile(clock, device, call)
    assert run.sm_active_ns == (500 + 3_000,) * 4
    assert run.warp_ns == (round(1_000 / 16 + 3_000),) * 4


def test_one_launch_that_is_not_described_leaves_both_unknown():
    clock, device = make(properties=H200)

    def call():
        device.launch(kernel_ns=1_000, shape=(66, 256, 32, 0))
        device.launch(kernel_ns=1_000)

    run = profile(clock, device, call)
    assert (run.sm_active_ns, run.warp_ns, run.kernels) == ((), (), (2,) * 4)


# --- span -------------------------------------------------------------------------------------


def span(clock, device, call, **options):
    options.setdefault("host_ns", 3_000)
    warm = Warm(call, device.synchronize, device, clock)
    return measure_span(warm, repeats=3, **options)


def test_span_is_kernels_and_gaps_and_not_the_host():
    clock, device = make(gap_ns=10, cycles_per_ns=1.98)
    found = span(clock, device, five_and_a_copy(device, host_ns=5_000))
    assert found.span_ns == (5 * 2_001 + 700 + 6 * 10,) * 3
    assert found.reason is None
    assert found.median_ns == 5 * 2_001 + 700 + 60


def test_calibration_finds_the_rate_whatever_the_launch_costs():
    _, device = make(cycles_per_ns=1.75, launch_latency_ns=1_234)
    assert calibrate(device) == pytest.approx(1.75, rel=1e-5)


def test_calibration_waits_until_the_clock_of_an_idle_device_has_risen():
    _, device = make(cycles_per_ns=1.98, rise_ns=60_000_000, idle_clock=0.2)
    assert calibrate(device) == pytest.approx(1.98, rel=1e-5)


def test_what_two_events_take_is_measured_with_an_empty_call():
    clock, device = make(event_ns=800, gap_ns=0)
    found = span(clock, device, five_and_a_copy(device))
    assert found.empty_ns == 800
    assert found.span_ns == (5 * 2_001 + 700 + 800,) * 3


def test_a_spin_that_does_not_count_time_gives_no_span():
    clock, device = make(cycles_per_ns=float("inf"))
    found = span(clock, device, five_and_a_copy(device))
    assert found.span_ns == ()
    assert "cannot be timed" in found.reason


def test_a_spin_that_ends_too_early_grows():
    clock, device = make()
    call = five_and_a_copy(device, host_ns=1_000_000)
    found = span(clock, device, call, host_ns=1)  # as if the host had been faster before
    assert found.span_ns == (5 * 2_001 + 700,) * 3


def test_a_synchronise_inside_the_model_gives_no_span():
    clock, device = make()

    def call():
        device.launch(host_ns=500, kernel_ns=2_000)
        device.synchronize()  # .item()
        device.launch(host_ns=500, kernel_ns=2_000)

    found = span(clock, device, call)
    assert found.span_ns == ()
    assert "waits for the device" in found.reason


def test_a_slow_host_beyond_the_longest_spin_gives_no_span(monkeypatch):
    monkeypatch.setattr("frameworktax.attribution.device.MAX_SPIN_NS", 20_000_000)
    clock, device = make()
    call = five_and_a_copy(device, host_ns=10_000_000)
    found = span(clock, device, call)
    assert "20 ms spin" in found.reason


def test_a_full_launch_queue_gives_no_span():
    clock, device = make()
    found = span(clock, device, five_and_a_copy(device), enqueued=901)
    assert (found.span_ns, "901 of about 1,000" in found.reason) == ((), True)


def test_a_queue_that_fills_unforeseen_is_not_taken_for_a_span():
    clock, device = make(queue_depth=4)
    assert span(clock, device, five_and_a_copy(device)).span_ns == ()


def test_a_graph_replay_has_the_span_of_its_kernels():
    clock, device = make(gap_ns=10)
    kernels = [2_000] * 2_000  # more kernels than the queue is deep, one launch
    found = span(clock, device, lambda: device.replay(kernels, host_ns=9_000), enqueued=1)
    assert found.span_ns == (2_000 * 2_010,) * 3


# --- the whole --------------------------------------------------------------------------------


def attribute(clock, device, call, **options):
    options.setdefault("read", lambda: STEADY)
    return attribute_gpu(call, device.synchronize, "cuda:0", 4, clock=clock, on=device, **options)


def test_all_fields_of_an_attribution_come_out_exact():
    clock, device = make(gap_ns=10)
    found = attribute(clock, device, five_and_a_copy(device))
    wall = 500 + 5 * (2_001 + 10) + 700
    assert found == {
        "method": "device-profile",
        "calls": 4,
        "wall_ns": 4 * wall,
        "latency_ns": wall,
        "lost": 0,
        "kernel_ns": (10_705,) * 4,
        "kernels": (5,) * 4,
        "copies": (1,) * 4,
        "launches": (5,) * 4,
        "wait_ns": (0,) * 4,
        "sm_active_ns": (),
        "warp_ns": (),
        "kernel_names": {"kernel": 5},
        "span_ns": (10_765,) * 4,
        "empty_span_ns": 0,
        "device_state": {
            "sm_mhz": 1980,
            "memory_mhz": 2619,
            "power_mw": 500_000,
            "celsius": 60,
            "reasons": 0,
        },
        "notes": [],
    }
    Attribution(session="s", point="p", process=0, **found)


def test_a_lost_record_is_worth_another_profile():
    clock = FakeClock(EPOCH)
    sessions = 0

    class Forgetful(FakeDevice):
        def profile(self, work):
            nonlocal sessions
            sessions += 1
            lost = HEAD + 3 if sessions < 3 else -1
            self.lose = lambda number: number == lost
            return super().profile(work)

    forgetful = Forgetful(clock)
    found = attribute(clock, forgetful, five_and_a_copy(forgetful))
    assert (sessions, found["lost"], found["kernels"]) == (3, 0, (5,) * 4)
    assert found["notes"] == []


@pytest.mark.parametrize("losses", [(1, 2, 3), (2, 1, 3), (3, 2, 1)])
def test_where_every_profile_loses_records_the_one_that_lost_fewest_counts(losses):
    clock = FakeClock(EPOCH)
    left = list(losses)

    class Forgetful(FakeDevice):
        def profile(self, work):
            upto = HEAD + 1 + left.pop(0)
            self.lose = lambda number: HEAD < number < upto
            return super().profile(work)

    forgetful = Forgetful(clock)
    found = attribute(clock, forgetful, five_and_a_copy(forgetful))
    assert (left, found["lost"], min(found["kernels"])) == ([], 1, 4)


def test_a_profiler_that_fails_leaves_the_span_and_a_reason():
    clock = FakeClock(EPOCH)

    class Refusing(FakeDevice):
        def profile(self, work):
            raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED\nmore")

    refusing = Refusing(clock)
    found = attribute(clock, refusing, five_and_a_copy(refusing))
    assert (found["calls"], found["kernel_ns"], found["latency_ns"]) == (0, (), 0)
    assert found["span_ns"] == (5 * 2_001 + 700,) * 4
    ((code, text),) = found["notes"]
    assert code == "device-profile-failed"
    assert text.endswith(": CUPTI_ERROR_NOT_INITIALIZED more")


def test_a_call_on_another_stream_has_no_span():
    clock, device = make()
    found = attribute(clock, device, lambda: device.launch(kernel_ns=5_000, stream=13))
    assert (found["kernel_ns"], found["span_ns"]) == ((5_000,) * 4, ())
    assert codes(found["notes"]) == ["span-unavailable"]
    assert "another stream" in found["notes"][0][1]


def test_the_state_of_the_device_is_read_while_calls_run():
    clock, device = make()
    moments = []

    def read():
        moments.append((clock.now_ns, device.free_ns(7)))
        slow = len(moments) > 3
        return {"sm_mhz": 1200 if slow else 1980, "reasons": 0x40 if slow else 0x1}

    found = attribute(clock, device, five_and_a_copy(device), read=read)
    assert codes(found["notes"]) == ["clocks-dropped", "clocks-held-down"]
    assert found["device_state"] == {"sm_mhz": 1200, "reasons": 0x40}
    assert len(moments) == 6
    assert all(now < busy_until for now, busy_until in moments)


def test_a_device_whose_state_cannot_be_read_is_still_measured(monkeypatch):
    from frameworktax.attribution import device as whole

    def refuse(device):
        raise OSError("it is AMD's, and NVML reads NVIDIA's alone")

    monkeypatch.setattr(whole, "gpu_uuid", refuse)
    clock, device = make()
    found = attribute(clock, device, five_and_a_copy(device), read=None)
    assert codes(found["notes"]) == ["clocks-unread"]
    assert "AMD" in found["notes"][0][1]
    assert (found["kernels"], found["device_state"]) == ((5,) * 4, {})
