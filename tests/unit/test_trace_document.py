"""The document of a trace: totals, steps, operators by tax, trust notes."""

import io
import json
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import trace_cases as cases
from rich.console import Console
from trace_cases import explained

from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.explaining import explain
from frameworktax.report import html, json_document, trace_blocks
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.run_blocks import run_blocks

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(
    os.environ.get("FRAMEWORKTAX_SHARED", Path(__file__).parents[3] / "shared")
)  # fmt: skip


def codes(run):
    return {note.code for note in run.notes}


@pytest.mark.parametrize(
    "host",
    [
        [cases.launch(200, 300, 1)],
        [
            cases.launch(200, 300, 1, "runFunction", cat="mtia_runtime"),
            cases.event("mtia_ccp_events", "fc-dtype_Float", 250, 900, pid=9, tid=4),
        ],
    ],
)
def test_a_device_whose_records_are_missing_is_no_cpu(tmp_path, host):
    """Without the right to profile, or of a device that is not read: operators compute nothing."""
    run = cases.explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 1_000),
        cases.event("cpu_op", "aten::mm", 100, 800),
        *host,
    )
    codes = {note.code for note in run.notes}
    assert "device-missing" in codes and "no-device-records" not in codes
    assert (run.trace["no_regime"], run.advice) == ("device-missing", ())
    assert "operators that compute" not in run.headline


def test_the_headline_names_an_operator_only_for_time_that_it_explains(tmp_path):
    """A queue that waits for 92 % of a step is no operator's, however long the host was in one."""
    run = cases.explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 100_000),
        cases.event("cpu_op", "aten::add", 1_000, 4_000),
        cases.launch(2_000, 4_000, 1),
        cases.kernel(96_000, 98_000, 1),
    )
    assert run.trace["starved_by"]["operator"] == [{"name": "aten::add", "ns": 3_000}]
    assert "device gap, 92 %" in run.headline
    assert "aten::add" not in run.headline


def test_the_document_of_a_known_step(tmp_path):
    run = explained(tmp_path, *cases.one_step())
    trace = run.trace
    assert trace["devices"] == {
        "0": {
            "name": None,
            "kernel_ns": 3_400,
            "span_ns": 5_400,
            "kernels": 2,
            "copies": 1,
            "streams": 2,
        }
    }
    assert (trace["launches"], trace["graph_launches"], trace["events"]) == (2, 0, 13)
    assert trace["bill_ns"] == cases.ONE_STEP
    assert trace["idle_ns"] == {"host_starvation": 4_900, "dependency": 700, "synchronise": 1_000}
    assert trace["tax_share"]["value"] == pytest.approx(0.66)
    assert trace["regime"] == "framework-bound"
    (step,) = trace["steps"]
    assert (step["name"], step["wall_ns"], step["kernel_ns"]) == ("ProfilerStep#3", 10_000, 3_400)
    assert (step["kernels"], step["copies"], step["launches"]) == (2, 1, 2)
    assert step["bill_ns"] == cases.ONE_STEP
    assert codes(run) == {"under-profiler"}


def test_operators_are_ranked_by_tax_and_not_by_time(tmp_path):
    busy = [
        cases.event("cpu_op", "long and busy", 20, 9_000),
        cases.launch(30, 40, 1),
        cases.kernel(45, 8_900, 1),
        cases.event("cpu_op", "short and idle", 9_000, 10_000),
    ]
    mark = cases.event("user_annotation", "ProfilerStep#1", 0, 10_000)
    run = explained(tmp_path, mark, *busy)
    columns = ("name", "calls", "tax_ns", "host_ns", "kernel_ns")
    assert [tuple(o[c] for c in columns) for o in run.trace["operators"]] == [
        ("short and idle", 1, 1_000, 1_000, 0),
        # 20 to 40 before the launch has returned, and 100 after its kernel
        ("long and busy", 1, 120, 8_980, 8_855),
    ]
    assert "rest is kernel" not in run.headline  # though it is the largest line


def test_time_of_several_threads_is_no_share_of_the_wall(tmp_path):
    pool = (cases.event("cpu_op", "aten::mm", 0, 900, tid=tid) for tid in (100, 300, 301))
    run = explained(tmp_path, cases.event("user_annotation", "ProfilerStep#1", 0, 1_000), *pool)
    assert run.trace["bill_ns"] == {"operators": 900, "remainder": 100}
    assert run.trace["operators"][0]["self_ns"] == 2_700
    assert "270 %" not in run.headline


def test_the_line_of_python_that_starves_the_device_most(tmp_path):
    run = explained(tmp_path, *cases.one_step())
    assert run.trace["starved_by"]["python"] == [{"name": "model.py(7): forward", "ns": 3_900}]
    assert run.trace["starved_by"]["module"] == [{"name": "nn.Module: Linear_0", "ns": 3_400}]
    assert [o["name"] for o in run.trace["starved_by"]["operator"]] == [
        "aten::linear",
        "aten::relu",
    ]
    assert run.trace["steps"][0]["starved_by"] == {
        "kind": "python",
        "name": "model.py(7): forward",
        "ns": 3_900,
    }
    assert "model.py(7): forward" in run.headline


def test_share_has_an_interval_from_five_steps_on(tmp_path):
    def steps(count):
        for n in range(count):
            at = n * 1_000
            yield cases.event("user_annotation", f"ProfilerStep#{n}", at, at + 1_000)
            yield cases.launch(at, at + 10, n + 1)
            yield cases.kernel(at + 20, at + 420 + n, n + 1)

    few, many = explained(tmp_path, *steps(4)).trace, explained(tmp_path, *steps(8)).trace
    assert few["tax_share"]["low"] == few["tax_share"]["high"]
    # walls are equal, and devices busy for 400 to 407 ns: t of 7 degrees of freedom
    half = 2.3646 * np.std(range(8), ddof=1) / 8**0.5 / 1_000
    assert many["tax_share"]["value"] == pytest.approx(1 - 403.5 / 1_000)
    assert many["tax_share"]["high"] == pytest.approx(1 - 403.5 / 1_000 + half, rel=1e-4)
    assert (many["tax_share"]["n"], many["regime"]) == (8, "framework-bound")


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([cases.launch(5, 6, 9), *cases.one_step()], "launches-without-kernels"),
        ([cases.kernel(19_000, 19_500, 9), *cases.one_step()], "kernels-without-launch"),
        ([*cases.one_step(), cases.one_step()[6]], "records-repeated"),
        (cases.one_step(-9_000), "clocks-skewed"),
        (cases.one_step()[1:], "no-steps"),
        ([e for e in cases.one_step() if "python_function" not in e], "no-python-frames"),
        ([e for e in cases.one_step() if '"device"' not in e], "device-missing"),
        ([e for e in cases.one_step() if '"correlation"' not in e], "no-device-records"),
        (
            [*cases.one_step(), cases.event("user_annotation", "ProfilerStep#4", 30_000, 31_000)],
            "steps-without-device",
        ),
        (
            [*cases.one_step(), cases.launch(30_000, 30_001, 9), cases.kernel(30_005, 30_009, 9)],
            "records-outside-steps",
        ),
        (
            [*cases.one_step(), cases.event("user_annotation", "ProfilerStep#4", 15_000, 31_000)],
            "steps-overlap",
        ),
        ([*cases.one_step(), '{"ph": "X", "cat": "kernel", "ts": 1}'], "records-invalid"),
        ([*cases.one_step(), '{"ph": "X", "cat": "kernel", "ts": 01}'], "records-malformed"),
    ],
)
def test_what_cannot_be_trusted_is_noted(tmp_path, events, code):
    assert code in codes(explained(tmp_path, *events))
    assert code not in codes(explained(tmp_path, *cases.one_step()))


def test_a_file_that_is_cut_off_is_noted(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(cases.trace(*cases.one_step())[:-120])
    run = explain(path).run
    assert "trace-cut-off" in codes(run)
    assert "within the list" in run.trace["cut"]


def test_it_is_a_document_of_the_schema_and_comes_back_as_it_was(tmp_path):
    run = explained(tmp_path, *cases.one_step(), what_if=WhatIf(device_speed=2))
    document = json.loads(json_document.text(run))
    jsonschema.validate(document, json_document.schema())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert explain(path).run == run


def test_predictions_come_from_the_steps(tmp_path):
    run = explained(
        tmp_path, *cases.one_step(), what_if=WhatIf(device_speed=2, runtime="onnxruntime")
    )
    faster, refused = run.predictions
    assert faster.change == "--device-speed 2"
    assert faster.latency_ns.value == 10_000  # the copy to the host ends last, and stays
    assert faster.latency_ns.low < 10_000  # unless its link is faster too
    assert "communication" in faster.scales
    assert refused.reason is not None


def test_a_step_without_a_device_predicts_nothing(tmp_path):
    events = [e for e in cases.one_step() if '"device"' not in e]
    (refused,) = explained(tmp_path, *events, what_if=WhatIf(device_speed=2)).predictions
    assert refused.latency_ns is None
    assert "no kernel" in refused.reason


def shown(run, width=80):
    out = io.StringIO()
    print_blocks(run_blocks(run), Console(file=out, width=width, no_color=True))
    return out.getvalue()


def test_the_terminal_tells_bill_causes_operators_and_predictions(tmp_path):
    text = shown(explained(tmp_path, *cases.one_step(), what_if=WhatIf(device_speed=2)))
    for word in ("ProfilerStep#3", "host starvation", "aten::linear", "--device-speed 2"):
        assert word in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_trace_without_a_device_shows_none_that_waits(tmp_path):
    run = explained(
        tmp_path,
        cases.event("user_annotation", "ProfilerStep#1", 0, 1_000),
        cases.event("python_function", "m.py(1): f", 0, 900),
        cases.event("cpu_op", "aten::mm", 100, 800),
    )
    (table,) = (t for t in trace_blocks.trace_blocks(run.trace) if "line of Python" in t.title)
    assert [column.title for column in table.columns] == ["time", "share", "line of Python"]
    assert "device" not in table.title


def test_a_million_kernels_are_counted_in_full(tmp_path):
    trace = explained(tmp_path, *cases.one_step()).trace
    (step,) = trace["steps"]
    found = trace_blocks.steps(trace | {"steps": [step | {"kernels": 1_234_567}]})
    assert found.rows[0][3].text == "1234567"


def test_names_from_a_file_are_only_text(tmp_path):
    evil = "<script>alert(1)</script>[red]\x1b[2J\n"
    events = [e.replace("aten::linear", "X").replace("model.py", "Y") for e in cases.one_step()]
    encoded = json.dumps(evil)[1:-1]
    run = explained(tmp_path, *(e.replace('"name": "X"', f'"name": "{encoded}"') for e in events))
    assert run.trace["operators"][0]["name"] == evil
    page = html.fragment(run)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b[2J" not in shown(run)
    assert "<script>alert(1)</script>[red]" in shown(run, 120)
    assert "\n" not in trace_blocks.cut(evil)


def test_the_page_has_the_tables_and_the_predictions(tmp_path):
    page = html.fragment(explained(tmp_path, *cases.one_step(), what_if=WhatIf(device_speed=2)))
    for word in ("The trace", "Operators", "What if", "ProfilerStep#3", "host starvation"):
        assert word in page


@pytest.mark.shared
def test_the_whole_recorded_traces(tmp_path):
    if not (SHARED / "traces").exists():
        pytest.skip("no folder of recorded traces: set FRAMEWORKTAX_SHARED")
    trace = explain(SHARED / "traces" / "h100-bert-small.json.gz").run.trace
    (step,) = trace["steps"]
    assert (step["kernel_ns"], step["device_wall_ns"]) == (309_437, 3_907_827)
    assert (step["kernels"], step["copies"], step["launches"]) == (60, 1, 60)
    assert trace["devices"]["0"]["kernel_ns"] == 309_437
    assert sum(trace["bill_ns"].values()) == step["wall_ns"] == 4_426_114
    (wait,) = trace["waits"]
    assert wait["operator"] == "aten::is_nonzero"
    assert "_prepare_4d_attention_mask_for_sdpa" in wait["line"]
    trace = explain(SHARED / "traces" / "a100-alexnet.json.gz").run.trace
    device = trace["devices"]["0"]
    assert (device["kernel_ns"], device["kernels"], device["copies"]) == (66_141_000, 79, 19)
    assert trace["launches"] == 79
    assert [step["wall_ns"] for step in trace["steps"]] == [36_356_000]
    assert trace["no_regime"] == "start-up"


def test_steps_without_length_have_no_advice(tmp_path):
    step = cases.event("user_annotation", "step 1", 10, 10)
    run = explained(tmp_path, step, cases.kernel(20, 20, 1))
    assert (run.trace["wall_ns"], run.advice) == (0, ())


def test_launches_outside_the_steps_are_none_of_the_steps(tmp_path):
    begins = [(number, 10_000 * (number - 1)) for number in range(1, 21)]
    host = [cases.launch(at, at + 5_000, number) for number, at in begins]
    work = [cases.kernel(at + 6_000, at + 7_000, number) for number, at in begins]
    step = cases.event("user_annotation", "ProfilerStep#1", 100_000, 200_000)
    run = explained(tmp_path, step, *host, *work)
    assert any(a.evidence.startswith("10 launches in 100 µs") for a in run.advice)
