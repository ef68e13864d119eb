"""The XPlane reader: known bytes, and bytes that are none."""

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import trace_cases as cases

from frameworktax.analysis.trace import bill as trace_bill
from frameworktax.errors import TraceError
from frameworktax.traces import timeline, xplane
from frameworktax.traces.events import CATEGORIES


def read(tmp_path, content):
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(content)
    return xplane.read(path)


def test_a_step_of_jax_on_a_gpu(tmp_path):
    found = read(tmp_path, cases.xspace())
    assert (found.source, found.records, found.cut) == ("xplane", 7, None)
    line = timeline.build(found)
    assert line.windows.names == ("step 5: train",)
    assert (line.windows.begin_ns.tolist(), line.windows.end_ns.tolist()) == ([1_000], [10_000])
    # modules repeat what the streams hold, and picoseconds become the nearest nanosecond
    assert line.work.start_ns.tolist() == [3_000, 4_000]
    assert line.work.end_ns.tolist() == [5_000, 5_000]
    assert line.is_kernel.tolist() == [True, False]
    assert line.work.stream.tolist() == [7, 9]
    assert line.launch_start_ns.tolist() == [2_000, 2_600]
    bill = trace_bill.bill(line)
    found = dict(zip(trace_bill.LINES, bill.table[0].tolist(), strict=True))
    assert found["kernel"] == 2_000
    assert found["copies"] == 0
    assert found["python"] == 500  # 1,500 to 2,000; before it nothing but the step
    assert found["launch"] == 500
    assert found["device_gap"] == 500
    assert sum(found.values()) == 9_000


def test_a_space_cut_off_keeps_the_planes_before(tmp_path):
    whole = cases.xspace()
    found = read(tmp_path, whole[:-40])
    assert "where" in found.cut
    assert len(found.events.of("kernel")) == 0
    assert len(found.events.of("python_function")) == 1


def test_without_streams_the_operators_of_a_device_are_its_work(tmp_path):
    tpu = cases.xplane(
        "/device:TPU:1",
        [
            cases.xline(1, "XLA Ops", 0, cases.xevent(1, 1_000, 5_000)),
            cases.xline(2, "Steps", 0, cases.xevent(1, 0, 9_000)),
        ],
        {1: "fusion"},
        {},
    )
    assert cases.busy_ns(read(tmp_path, tpu)) == {1: 5}


def test_times_that_cannot_be_are_counted(tmp_path):
    plane = cases.xplane(
        "/device:GPU:0",
        [cases.xline(1, "Stream #1", 5, cases.xevent(1, 0, 1_000), cases.xevent(1, 0, -7_000_000))],
        {1: "k"},
        {},
    )
    found = read(tmp_path, plane)
    assert (len(found.events), found.invalid) == (1, 1)


@pytest.mark.parametrize("content", [b"", b"\0", b"hello", bytes(range(256)), b"\n\xff" * 99])
def test_what_is_no_space_is_one_line(tmp_path, content):
    with pytest.raises(TraceError) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_random_edits_end_in_a_result_or_one_line(tmp_path):
    draw, whole = random.Random(3), cases.xspace()
    read_ones = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        try:
            events = read(tmp_path, bytes(content)).events
        except TraceError as error:
            assert "\n" not in str(error)
        else:
            read_ones += 1
            assert (events.end_ns >= events.start_ns).all()
    assert 0 < read_ones < 300


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive_the_wire(value):
    data = memoryview(cases.varint(value))
    found, end = xplane.varint(data, 0, len(data))
    assert (xplane.signed(found), end) == (value, len(data))


def test_categories_of_the_host():
    names = {
        "cuLaunchKernel": "cuda_runtime",
        "hipMemcpyAsync": "cuda_runtime",
        "custom": "cpu_op",
        "$a.py:3 f": "python_function",
    }
    for name, category in names.items():
        assert xplane._category(name, False, False) == category
        assert category in CATEGORIES
