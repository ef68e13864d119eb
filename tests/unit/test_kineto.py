"""The Kineto reader: recorded traces with known answers, exact times, what a profile must hold."""

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import pytest
import trace_cases as cases
from hypothesis import example, given
from hypothesis import strategies as st

from frameworktax.errors import TraceError
from frameworktax.traces import intervals, kineto
from frameworktax.traces.events import (
    COPY_LAUNCHES,
    DEVICE,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSET_LAUNCHES,
    STEP,
)
from frameworktax.traces.timeline import build

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(
    os.environ.get("FRAMEWORKTAX_SHARED", Path(__file__).parents[3] / "shared")
)  # fmt: skip


def launches(trace, *names):
    return trace.events.where(trace.events.launching(*names))


def trace_of(*events):
    return cases.parse(json.dumps({"traceEvents": list(events)}))


def event(cat="kernel", ts=1, dur=1, **more):
    return {"ph": "X", "cat": cat, "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, **more}


def marks(trace, category):
    found = trace.events.of(category)
    return found.where(found.named(STEP))


def check_h100(trace):
    steps = marks(trace, "gpu_user_annotation")
    assert [steps.name_of(i) for i in range(len(steps))] == ["ProfilerStep#6"]
    assert steps.end_ns[0] - steps.start_ns[0] == 3_907_827
    device = trace.device(0)
    inside = (device.start_ns >= steps.start_ns[0]) & (device.end_ns <= steps.end_ns[0])
    assert inside.all()
    assert (len(device.of("kernel")), len(device.of("gpu_memcpy"))) == (60, 1)
    busy = intervals.union_within_ns(
        device.start_ns, device.end_ns, steps.start_ns, steps.end_ns
    )  # fmt: skip
    assert busy.tolist() == [309_437]
    assert (trace.resolution_ns, trace.invalid) == (1, 0)


def test_one_step_of_bert_small_on_an_h100():
    trace = kineto.read(DATA / "h100-bert-small-step.json")
    check_h100(trace)
    assert cases.busy_ns(trace) == {0: 309_437}
    found = launches(trace, *KERNEL_LAUNCHES)
    assert len(found) == 60
    assert sorted(found.correlation) == sorted(trace.device().of("kernel").correlation)
    assert (
        len(launches(trace, *COPY_LAUNCHES)),
        len(launches(trace, *MEMSET_LAUNCHES)),
    ) == (1, 22)
    assert len(launches(trace, *GRAPH_LAUNCHES)) == 0
    assert len(marks(trace, "user_annotation")) == 1
    assert (len(trace.events.of("cpu_op")), len(trace.events.of("python_function"))) == (6, 3)


def test_two_streams_overlap_in_alexnet_on_an_a100_of_whole_microseconds():
    trace = kineto.read(DATA / "a100-alexnet.json")
    assert trace.resolution_ns == 1000
    device = trace.device()
    assert set(device.stream.tolist()) == {7, 20}
    assert [len(device.of(c)) for c in DEVICE] == [79, 16, 3]
    # The sum of durations would be 62 µs too much: that long two streams ran at once.
    assert int((device.end_ns - device.start_ns).sum()) == 66_203_000
    assert cases.busy_ns(trace) == {0: 66_141_000}


@pytest.mark.shared
@pytest.mark.parametrize("name", ["h100-bert-small", "a100-alexnet"])
def test_whole_recorded_traces_say_the_same_as_the_reduced_ones(name):
    path = SHARED / "traces" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("no folder of recorded traces: set FRAMEWORKTAX_SHARED")
    trace = kineto.read(path, own=True)
    if name.startswith("h100"):
        check_h100(trace)
    else:
        assert cases.busy_ns(trace) == {0: 66_141_000}


@given(st.integers(-(10**15), 2 * 10**18))
@example(1751410836123456789)  # which no binary float can hold
def test_every_nanosecond_survives(ns):
    text = format(Decimal(ns) / 1000, "f")
    trace = cases.parse(f'[{{"ph":"X","cat":"kernel","name":"k","ts":{text},"dur":0.001}}]')
    assert trace.events.start_ns.tolist() == [ns]
    assert trace.events.end_ns.tolist() == [ns + 1]


def test_digits_past_the_nanosecond_are_rounded():
    trace = cases.parse('[{"ph":"X","cat":"kernel","ts":3.1359999999,"dur":0.0014}]')
    assert (trace.events.start_ns.tolist(), trace.events.end_ns.tolist()) == ([3136], [3137])


@pytest.mark.parametrize(
    ("times", "resolution"),
    [("1", 1000), ("1.0", 1000), ("1.500", 100), ("1.25", 10), ("1.001", 1), ("1.00001", 1000)],
)
def test_resolution_is_what_the_written_times_show(times, resolution):
    trace = cases.parse(f'[{{"ph":"X","cat":"kernel","ts":{times},"dur":2}}]')
    assert trace.resolution_ns == resolution


def test_events_whose_times_cannot_be_are_counted():
    bad = [
        event(dur=-1),
        event(ts=10**17),
        event(ts=10**30),
        event(ts=1e300),
        {"ph": "X", "cat": "kernel", "name": "no times"},
    ]
    trace = trace_of(*bad, event(ts=5, dur=2))
    assert (trace.invalid, len(trace.events)) == (len(bad), 1)
    assert cases.busy_ns(trace) == {0: 2000}  # old versions: the process is the device
    trace = trace_of(event(ts=-(2**63), dur=1), event(ts=5, dur=2))
    assert (trace.invalid, len(trace.events)) == (1, 1)


def test_what_is_no_device_time_is_left_out():
    trace = trace_of(
        event("overhead", args={"device": 0}),
        event("cuda_sync", args={"device": 0}),
        event("Trace"),
        {"ph": "M", "name": "process_name", "args": {"name": "x"}},
        {"ph": "s", "cat": "ac2g", "ts": 1, "id": 3},
        event("kernel", args={"device": 1, "stream": 7, "correlation": 4}),
        event("Kernel", ts=9, args={"device": 1}),  # versions before 2021 wrote it like this
    )
    assert len(trace.events) == 2
    assert cases.busy_ns(trace) == {1: 2000}
    assert len(trace.device(0)) == 0


def test_kinds_of_launches_are_told_apart():
    names = [
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "cudaLaunchHostFunc",
        "cudaGraphLaunch",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaDeviceSynchronize",
        "cudaStreamIsCapturing",
    ]
    trace = trace_of(*(event("cuda_runtime", name=n, ts=i) for i, n in enumerate(names)))

    def found(events):
        return [events.name_of(i) for i in range(len(events))]

    assert found(launches(trace, *KERNEL_LAUNCHES)) == names[:3]
    assert found(launches(trace, *GRAPH_LAUNCHES)) == ["cudaGraphLaunch"]
    assert found(launches(trace, *COPY_LAUNCHES)) == ["cudaMemcpyAsync"]
    assert found(launches(trace, *MEMSET_LAUNCHES)) == ["cudaMemsetAsync"]


@pytest.mark.parametrize(
    "odd",
    [
        event(args={"device": "first"}),
        event(args={"stream": -3}),
        event(args={"stream": 1.5}),
        event(args={"stream": "seven"}),
        event(args=[1]),
        event(name=7),
        event(ts="one"),
        event(dur=float("nan")),
    ],
)
def test_an_event_with_odd_fields_is_counted_and_no_other_is_lost(tmp_path, odd):
    good = [event(ts=ts) for ts in (5, 9, 11)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [*good[:2], odd, good[2]]}))
    trace = kineto.read(path)
    assert trace.events.start_ns.tolist() == [5_000, 9_000, 11_000]
    assert (trace.records, trace.malformed, trace.invalid) == (4, 1, 0)


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "inf", "-nan"])
def test_arguments_that_json_does_not_have_do_no_harm(word):
    trace = cases.parse(f'[{{"ph":"X","cat":"kernel","ts":3,"dur":1,"args":{{"a":[{word}]}}}}]')
    assert trace.events.start_ns.tolist() == [3_000]


def test_a_trace_without_events_is_empty():
    trace = trace_of()
    assert (len(trace.events), cases.busy_ns(trace), trace.invalid) == (0, {}, 0)
    assert (len(marks(trace, "user_annotation")), len(launches(trace, *KERNEL_LAUNCHES))) == (
        0,
        0,
    )


def test_how_kernels_were_launched_is_read_of_ones_own_profile(tmp_path):
    launched = {"grid": [2, 3, 1], "block": [64, 2, 1], "registers per thread": 40}
    whole = {**launched, "shared memory": 0, "device": 0, "stream": 7}
    events = [event(args=whole), event(ts=5, args={**launched, "device": 0, "stream": 7})]
    device = {"id": 0, "name": "L4", "regsPerBlock": 65536}
    text = json.dumps({"deviceProperties": [device], "traceEvents": events})
    assert cases.parse(text).shapes == {(1000, 0, 7): (6, 128, 40, 0)}
    assert cases.parse(text).properties == {0: device}
    (tmp_path / "t.json").write_text(text)
    assert kineto.read(tmp_path / "t.json").shapes == {}


def test_a_grid_in_words_is_an_operators_and_harms_no_profile():
    """Inductor of torch 2.6 writes it beside the launch of a Triton kernel."""
    words = {"kernel_backend": "triton", "grid": "grid(16,)", "stream": 0}
    trace = cases.parse(json.dumps([event("cpu_op", args=words), event(ts=5)]))
    assert (len(trace.events), trace.shapes) == (2, {})


def test_gzipped_or_not_by_content_not_by_name(tmp_path):
    text = (DATA / "h100-bert-small-step.json").read_bytes()
    (tmp_path / "a.json").write_bytes(gzip.compress(text))
    check_h100(kineto.read(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"traceEvents": [{"ph": "X", ', "ends within the list"),
        (b"\xff\xfe\x00", "no list of traceEvents"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:30], "cut off"),
        (gzip.compress(b"{}", mtime=0)[:-4] + b"\0\0\0\0", "damaged"),
        (b"9" * 5000, "no list of traceEvents"),
        (b"[1]", "1 of its events cannot be read"),
    ],
)
def test_odd_files_of_ones_own_are_errors_of_one_line(tmp_path, content, says):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as caught:
        kineto.read(path, own=True)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        kineto.read(tmp_path / "none.json", own=True)
    with pytest.raises(TraceError, match="directory"):
        kineto.read(tmp_path, own=True)


def test_a_call_of_hip_names_its_stream_by_address_and_is_a_launch(tmp_path):
    """Kineto of ROCm 6.2 writes so; without its calls no kernel has a launch."""
    path = tmp_path / "t.json"
    called = {"stream": "0x0", "correlation": 3, "kernel": ""}
    records = [
        event("cuda_runtime", name="hipLaunchKernel", args=called),
        event("cuda_runtime", name="hipLaunchKernel", ts=2, args={"stream": "0x55d0c0ffee00"}),
        event(ts=5, args={"device": 2, "stream": 0, "correlation": 3}),
    ]
    path.write_text(json.dumps(records))
    trace = kineto.read(path)
    assert (trace.malformed, len(trace.events)) == (0, 3)
    assert trace.events.stream.tolist() == [0, 0x55D0C0FFEE00, 0]
    assert build(trace).launch_start_ns.tolist() == [1_000]


def test_numbers_as_text_or_as_floats_are_numbers(tmp_path):
    start = 2**42 + 0.125  # exact as text alone
    path = tmp_path / "t.json"
    records = [
        event(ts=5, dur=2, args={"device": 0, "stream": 7, "correlation": 3}),
        event(ts="5", dur="2", args={"device": "0", "stream": "7", "correlation": "3"}),
        event(ts="5.0", dur=2.0, args={"device": 0.0, "stream": 7.0, "correlation": 3.0}),
        event(ts=str(start), dur="2"),
    ]
    path.write_text(json.dumps(records))
    trace = kineto.read(path)
    found = trace.events
    assert (trace.malformed, trace.invalid, len(found)) == (0, 0, 4)
    assert found.start_ns.tolist() == [5_000] * 3 + [2**42 * 1000 + 125]
    for column, number in (("device", 0), ("stream", 7), ("correlation", 3)):
        assert getattr(found, column)[:3].tolist() == [number] * 3
