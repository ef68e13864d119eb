"""What-ifs from Python: the same answers as on the command line, typed."""

import json
from pathlib import Path

import pytest
import sample_records as data
import trace_cases as cases

import frameworktax as ft
from frameworktax.analysis.document import build
from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.errors import UsageError
from frameworktax.explaining import explain
from frameworktax.records import Estimate, Prediction, Run

TRACE = Path(__file__).parents[1] / "data" / "h100-bert-small-step.json"


@pytest.fixture
def folder(tmp_path):
    return data.write(tmp_path / "store", data.sample_records())


def test_the_same_answers_from_results_a_document_and_a_path(folder):
    asked = WhatIf(host_speed=2, runtime="onnxruntime")
    told = explain(folder, what_if=asked).run.predictions
    assert told
    run = build(data.sample_records())
    for source in (ft.Results(run, folder), run, folder, str(folder)):
        found = ft.whatif(source, host_speed=2, runtime="onnxruntime")
        assert tuple(found) == told
    assert {p.change for p in found} == {"--host-speed 2", "--runtime onnxruntime"}


def test_an_answer_has_a_formula_an_interval_and_the_error_it_has_shown(folder):
    found = ft.whatif(folder, host_speed=2, cpu_speed=2)
    assert all(isinstance(p, Prediction) and p.formula for p in found)
    (answer, *_) = [p for p in found if p.subject.startswith("bert-mini, eager")]
    assert isinstance(answer.latency_ns, Estimate)
    assert answer.latency_ns.low < answer.latency_ns.value < answer.latency_ns.high
    assert answer.factor.value > 1
    assert answer.shown_error is None  # never checked, and says so


def test_a_trace_is_asked_step_by_step_and_through_its_results():
    found = ft.whatif(TRACE, device_speed=2)
    assert tuple(found) == explain(TRACE, what_if=WhatIf(device_speed=2)).run.predictions
    assert tuple(ft.whatif(ft.explain(TRACE), device_speed=2)) == tuple(found)


def test_results_of_a_trace_are_asked_of_the_steps_they_are_of(tmp_path):
    trace, path = json.loads(TRACE.read_text()), tmp_path / "trace.json"
    whole = next(one for one in trace["traceEvents"] if one.get("cat") == "user_annotation")
    begin, part = whole["ts"] + whole["dur"] / 4, whole["dur"] / 3
    trace["traceEvents"].append({**whole, "name": "decode", "ts": begin, "dur": part})
    path.write_text(json.dumps(trace))
    results = ft.explain(path, step="decode")
    (answer,) = ft.whatif(results, host_speed=2, step="decode")
    assert answer.latency_ns.value < part * 1e3
    with pytest.raises(UsageError, match="step="):
        ft.whatif(results, host_speed=2)


def test_a_wait_inside_a_step_refuses_graphs_by_either_name():
    for asked in ({"graphs": True}, {"runtime": "cuda-graph"}):
        (answer,) = ft.whatif(TRACE, **asked)
        assert answer.latency_ns is None and "the host waits" in answer.reason


@pytest.mark.parametrize("asked", [{"host_speed": 2}, {"graphs": True}])
def test_streams_of_one_number_on_two_devices_are_two_streams(tmp_path, asked):
    """CUPTI calls the default stream 7 on every device."""
    found = []
    for streams in ((7, 8), (7, 7)):
        events, free, at = [], [0, 0], 10_000
        for number in range(1, 17):
            device = number % 2
            start = max(at + 6_000, free[device] + 1_000)
            free[device] = start + 90_000
            events += [
                cases.launch(at, at + 4_000, number),
                cases.kernel(start, free[device], number, device=device, stream=streams[device]),
            ]
            at += 50_000
        events += [
            cases.launch(at, max(free) + 2_000, 99, "cudaDeviceSynchronize"),
            cases.event("user_annotation", "ProfilerStep#1", 0, max(free) + 5_000),
        ]
        path = tmp_path / "trace.json"
        path.write_text(cases.trace(*events))
        (answer,) = ft.whatif(path, **asked)
        found.append(answer)
    assert found[0] == found[1]
    assert found[0].factor.value > 1


def copied_out(copy_ends, at=10_000):
    """Return a step whose result of 0.5 ms is copied out in its middle.

    The call of the copy returns at ``copy_ends``, the synchronise after it when all is done.
    """
    return [
        cases.event("user_annotation", "ProfilerStep#1", 0, 700_000),
        cases.launch(at, at + 5_000, 1),
        cases.kernel(at + 8_000, at + 508_000, 1),
        cases.launch(at + 20_000, copy_ends, 2, "cudaMemcpyAsync"),
        cases.kernel(at + 510_000, at + 512_000, 2, cat="gpu_memcpy", name="Memcpy DtoH"),
        cases.launch(copy_ends + 1_000, at + 516_000, 3, "cudaStreamSynchronize"),
        cases.launch(at + 530_000, at + 535_000, 4),
        cases.kernel(at + 538_000, at + 638_000, 4),
        cases.launch(at + 540_000, at + 642_000, 5, "cudaStreamSynchronize"),
    ]


@pytest.mark.parametrize("asked", [{"device_speed": 2}, {"host_speed": 2}, {"graphs": True}])
def test_a_copy_to_pageable_memory_is_a_wait(tmp_path, asked):
    """``tensor.cpu()``: the host waits in the copy, and the synchronise behind it waits no more."""
    path, found = tmp_path / "trace.json", []
    for copy_ends in (35_000, 524_000):  # to pinned memory, to pageable
        path.write_text(cases.trace(*copied_out(copy_ends)))
        (answer,) = ft.whatif(path, **asked)
        found.append(answer)
    assert found[0] == found[1]
    assert (found[0].latency_ns is None) == ("graphs" in asked)


def test_a_copy_that_found_the_device_idle_is_no_wait(tmp_path):
    """Inputs are copied in at the begin of a step, which a graph leaves before it."""
    path = tmp_path / "trace.json"
    events = [
        cases.event("user_annotation", "ProfilerStep#1", 0, 100_000),
        cases.launch(10_000, 30_000, 1, "cudaMemcpyAsync"),
        cases.kernel(20_000, 25_000, 1, cat="gpu_memcpy", name="Memcpy HtoD"),
        *(cases.launch(at, at + 5_000, at) for at in (40_000, 60_000, 80_000)),
        *(cases.kernel(at + 8_000, at + 18_000, at) for at in (40_000, 60_000, 80_000)),
    ]
    path.write_text(cases.trace(*events))
    (answer,) = ft.whatif(path, graphs=True)
    assert answer.factor.value > 1


@pytest.mark.parametrize(
    ("call", "name", "is_wait"),
    [("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", True),
     ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", True),
     ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", False),
     ("cudaMemcpy", "Memcpy DtoD (Device -> Device)", False),
     ("hipMemcpyAsync", "CopyDeviceToHost", True)],
)  # fmt: skip
def test_which_copies_make_the_host_wait(tmp_path, call, name, is_wait):
    path = tmp_path / "trace.json"
    events = copied_out(524_000)
    events[3] = cases.launch(30_000, 524_000, 2, call)
    events[4] = cases.kernel(520_000, 522_000, 2, cat="gpu_memcpy", name=name)
    path.write_text(cases.trace(*events))
    (answer,) = ft.whatif(path, graphs=True)
    assert (answer.latency_ns is None) is is_wait


@pytest.mark.parametrize(
    ("cat", "name"),
    [("gpu_memset", "Memset (Device)"), ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
     ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)")],
)  # fmt: skip
def test_what_is_done_before_its_call_returns_was_not_waited_for(tmp_path, cat, name):
    """A call takes longer under a profiler than the device for a memset."""
    path = tmp_path / "trace.json"
    path.write_text(
        cases.trace(
            cases.event("user_annotation", "ProfilerStep#1", 0, 100_000),
            cases.launch(10_000, 15_000, 1),
            cases.kernel(18_000, 24_000, 1),
            cases.launch(20_000, 35_000, 2, "cudaMemsetAsync"),
            cases.kernel(26_000, 27_000, 2, cat=cat, name=name),
            *(cases.launch(at, at + 5_000, at) for at in (40_000, 60_000, 80_000)),
            *(cases.kernel(at + 8_000, at + 18_000, at) for at in (40_000, 60_000, 80_000)),
        )
    )
    results = ft.explain(path)
    assert results.run.trace["waits"] == []
    (answer,) = ft.whatif(results, graphs=True)
    assert answer.factor.value > 1


def test_earlier_predictions_in_a_document_are_not_told_again(folder):
    run = explain(folder, what_if=WhatIf(host_speed=3)).run
    assert {p.change for p in ft.whatif(run, host_speed=2)} == {"--host-speed 2"}


def test_nothing_asked_nothing_possible_and_nothing_there(folder):
    with pytest.raises(UsageError, match="no change to predict"):
        ft.whatif(folder)
    with pytest.raises(UsageError, match="--host-speed must be"):
        ft.whatif(folder, host_speed=-1)
    with pytest.raises(UsageError, match="no latency"):
        ft.whatif(Run(), host_speed=2)
    with pytest.raises(UsageError, match="no such file"):
        ft.whatif(folder / "none", host_speed=2)
