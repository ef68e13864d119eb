"""Other tools' results: what the files say comes out, what they do not say does not."""

import json
import math
import re
from pathlib import Path

import pytest

from frameworktax.errors import UsageError
from frameworktax.integrations.readers import read
from frameworktax.report.families import families

DATA = Path(__file__).parents[1] / "data" / "other_tools"
PAPER = DATA / "framework_tax_figures.csv"


def written(folder, text, name="table.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def curve(run, **wanted):
    (found,) = [c for c in run.curves if all(getattr(c, k) == v for k, v in wanted.items())]
    return found


def codes(notes):
    return {note.code for note in notes}


def test_the_papers_resnet_is_flat_to_8_in_fp32_and_to_16_in_fp16():
    run = read(PAPER)
    said = [n.text for n in run.notes if n.code == "curve-shape"]
    resnet = [t.split(": ") for t in said if t.startswith("ResNet-50")]
    assert [(name, re.findall(r"\d+", shape)) for name, shape in resnet] == [
        ("ResNet-50 (figure-4), PyTorch, float32", ["8", "32"]),
        ("ResNet-50 (figure-4), PyTorch, float16", ["16", "64"]),
    ]
    fp32 = curve(run, model="ResNet-50 (figure-4)", precision="float32")
    fp16 = curve(run, model="ResNet-50 (figure-4)", precision="float16")
    assert (fp32.axis, fp32.values) == ("batch", (1, 2, 4, 8, 16, 32, 64, 128))
    assert 8 <= fp32.free_batch.value < 16 <= fp16.free_batch.value < 32
    assert not fp32.free_is_lower_bound
    # Latencies alone bound nothing: no tax, no regime, and the note says so.
    assert set(fp32.regimes) == {None}
    assert fp32.latency_ns[0].value == 10_606_000


def test_the_papers_bert_has_kernel_times_and_so_a_tax():
    run = read(PAPER)
    bert = [m for m in run.measurements if m.workload.model.startswith("BERT-Base")]
    shares = {m.workload.batch: m.tax_share.value for m in bert}
    assert shares[1] == pytest.approx(1 - 2.892 / 16.437)
    assert round(shares[1], 2) == 0.82 and round(shares[16], 2) == 0.25
    assert {m.workload.batch: m.regime for m in bert} == {
        1: "framework-bound",
        2: "framework-bound",
        4: "framework-bound",
        8: "framework-bound",
        16: "mixed",
        32: "compute-bound",
        64: "compute-bound",
    }
    assert "0.82" not in run.headline and "82 % framework tax" in run.headline
    resnet = next(m for m in run.measurements if m.workload.model.startswith("ResNet"))
    assert resnet.tax_share is None and resnet.bill_ns is None and resnet.regime is None
    assert "no-interval" in codes(resnet.notes)


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("latency_ms", "2.5", 2_500_000),
        ("ms", "2.5", 2_500_000),
        ("Latency (ms)", "2.5", 2_500_000),
        ("time [us]", "2500", 2_500_000),
        ("latency_s", "0.0025", 2_500_000),
        ("Seconds", "0.0025", 2_500_000),
        ("mean latency µs", "2500", 2_500_000),
        ("total_ns", "2500000", 2_500_000),
        ("runtime_ms", "2.5", 2_500_000),
    ],
)
def test_units_by_the_name_of_the_column(tmp_path, header, cell, expected):
    run = read(written(tmp_path, f"model,{header}\nm,{cell}\n"))
    (m,) = run.measurements
    assert m.latency_ns.value == pytest.approx(expected)
    assert (m.latency_ns.low, m.latency_ns.high) == (m.latency_ns.value,) * 2
    assert m.latency_ns.method == "as given, no interval"
    assert m.runtime == "unknown"


def test_semicolons_and_names_of_other_tools(tmp_path):
    text = "Network;Framework;BS;time ms\nm;trt;1;2.5\nm;trt;2;3\n"
    run = read(written(tmp_path, text))
    assert [m.latency_ns.value for m in run.measurements] == [2_500_000, 3_000_000]
    assert [m.workload.batch for m in run.measurements] == [1, 2]
    assert run.measurements[0].runtime == "trt"


@pytest.mark.parametrize(
    ("text", "words"),
    [("model,ms\nm,1\n", {"batch", "threads"}), ("model,batch,threads,ms\nm,1,2,1\n", set())],
)
def test_what_is_taken_as_1_is_said(tmp_path, text, words):
    (note,) = [n for n in read(written(tmp_path, text)).notes if n.code == "other-tool"]
    assert {"batch", "threads"} & set(re.findall(r"\w+", note.text)) == words


def test_repeats_give_an_interval_and_a_bootstrap(tmp_path):
    lines = ["model,runtime,batch,repeat,latency_ms"]
    for batch, latency in ((1, 10.0), (2, 10.1), (4, 20.0)):
        lines += [
            f"m,eager,{batch},{i},{latency * f}" for i, f in enumerate((0.98, 0.99, 1, 1.01, 1.02))
        ]
    run = read(written(tmp_path, "\n".join(lines)))
    first = run.measurements[0].latency_ns
    assert first.value == pytest.approx(10e6) and first.n == 5
    half = 2.776 * 10e6 * math.sqrt(0.0010 / 4) / math.sqrt(5)
    assert first.high - first.value == pytest.approx(half, rel=1e-3)
    (found,) = run.curves
    assert found.free_batch.low < found.free_batch.value < found.free_batch.high
    assert len(run.measurements[0].samples_ns[0]) == 5
    assert "no-interval" not in codes(run.measurements[0].notes)


def test_each_axis_gives_its_curves_with_the_others_fixed(tmp_path):
    rows = ["model,batch,seq_len,heads,ms"]
    rows += [f"m,{b},{n},{h},{b * n * h}" for b in (1, 2) for n in (8, 16) for h in (2, 4)]
    run = read(written(tmp_path, "\n".join(rows)))
    assert sorted(c.axis for c in run.curves) == ["batch"] * 4 + ["heads"] * 4 + ["length"] * 4
    assert all(c.elasticity == pytest.approx((1, 1)) for c in run.curves)
    assert {n.text for m in run.measurements for n in m.notes if n.code == "axis-value"} == {
        "heads 2",
        "heads 4",
    }


def test_a_free_length_or_width_is_no_free_batch(tmp_path):
    """Nor is the curve of one length another's, whose latency at batch 1 reads alike."""
    text = (
        "model,runtime,batch,length,latency_ms\n"
        "m,eager,1,128,10\nm,eager,4,128,10.1\nm,eager,8,128,20\n"
        "m,eager,1,256,10\nm,eager,1,512,10.5\n"
    )
    run = read(written(tmp_path, text))
    assert {curve.axis for curve in run.curves} == {"batch", "length"}
    found = {one.title: one.curve("eager") for one in families(run)}
    axes = [curve and curve.axis for curve in found.values()]
    assert axes == ["batch", None, None]


def test_text_columns_that_vary_tell_points_apart_and_constant_ones_do_not(tmp_path):
    text = "model,batch,host,driver,ms\nm,1,a,x,1\nm,1,b,x,2\n"
    run = read(written(tmp_path, text))
    assert [m.workload.model for m in run.measurements] == ["m (a)", "m (b)"]


def test_kernel_times_on_a_cpu_follow_the_rule_for_cpus(tmp_path):
    text = "model,device,batch,ms,kernel_ms\nm,cpu,1,10,6\nm,cuda:0,1,10,6\n"
    cpu, gpu = read(written(tmp_path, text)).measurements
    assert cpu.tax_share.value == gpu.tax_share.value == pytest.approx(0.4)
    assert (cpu.regime, gpu.regime) == ("mixed", "framework-bound")
    assert cpu.bill_ns == {"kernel": 6e6, "remainder": 4e6}


def test_curves_have_the_regimes_of_their_points_whatever_the_order_of_columns(tmp_path):
    rows = ["model,device,seq_len,batch,ms,kernel_ms"]
    rows += [f"m,cuda:0,{n},{b},{n},{0.95 * n}" for n in (8, 16) for b in (1, 2)]
    run = read(written(tmp_path, "\n".join(rows)))
    assert {m.regime for m in run.measurements} == {"kernel-flat"}
    assert [c.axis for c in run.curves] == ["length"] * 2 + ["batch"] * 2
    assert {regime for c in run.curves for regime in c.regimes} == {"kernel-flat"}


BAD_REPORTS = [
    ('{"machine_info": {}, "benchmarks": []}', "no benchmark"),
    ('{"machine_info": {}, "benchmarks": [{"name": "a", "stats": {}}]}', "no times"),
    (
        '{"machine_info": {}, "benchmarks": [{"name": "a", '
        '"stats": {"mean": 1, "stddev": NaN, "rounds": 9}}]}',
        "no times",
    ),
    ('{"machine_info": {}, "benchmarks": [', "cut short"),
    ('{"machine_info": ' + "[" * 200_000, "recursion"),
    ('{"machine_info": ' + "1" * 5_000 + "}", "digits"),
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *BAD_REPORTS,
        ("", "empty"),
        ("\n\n", "empty"),
        ("model,ms\n", "no rows"),
        ("model,batch\nm,1\n", r"model, batch.*latency_ms"),
        ("model,latency\nm,1\n", r"model, latency\b.*latency_ms"),
        ("model,latency_ms,time_s\nm,1,2\n", "latency_ms and time_s"),
        ("model,ms,kernel_ms,gpu_us\nm,3,1,2\n", "kernel_ms and gpu_us"),
        ("model,kernel_ms,gpu_us\nm,1,2\n", "latency_ms"),
        ("model,backend,framework,ms\nm,eager,torch,1\nm,trt,torch,2\n", "backend and framework"),
        ("model,ms\nm,abc\n", "line 2: ms 'abc'"),
        ("model,ms\nm,nan\n", "line 2"),
        ("model,ms\nm,inf\n", "line 2"),
        ("model,ms\nm,-3\n", "above zero"),
        ("model,ms\nm,0\n", "above zero"),
        ("model,batch,ms\nm,1.5,3\n", "not whole"),
        ("model,batch,ms\nm,0,3\n", "no such number"),
        ("model,ms\na,b,3\n", "3 cells"),
        ("model,time,unit\nm,3,ms\n", r"model, time, unit.*latency_ms"),
        ("model;ms\nm;2,5\n", "no such number"),
        ("model,quantity,ms\nm,kernel_time,3\n", "no latencies"),
        ("model,quantity,ms\nm,latency,3\nm,overhead,1\n", "line 3: quantity 'overhead'"),
        ("model,ms\n" + "x" * 200_000 + ",1\n", "no table"),
    ],
)
def test_bad_tables_and_reports_are_one_line(tmp_path, text, said):
    name = "x.json" if text.startswith("{") else "x.csv"
    with pytest.raises(UsageError, match=said) as found:
        read(written(tmp_path, text, name))
    assert "\n" not in str(found.value)
    assert found.value.exit_code == 2


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"model,ms\n\xff\xfe\x00,1\n")
    with pytest.raises(UsageError, match="no text"):
        read(path)
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "missing.csv")


def test_optimum_benchmark_reports_of_a_folder_are_one_document():
    run = read(DATA / "optimum_benchmark")
    first, second = sorted(run.measurements, key=lambda m: m.workload.batch)
    assert (first.workload.model, first.workload.batch, first.workload.length) == (
        "tiny-bert",
        1,
        16,
    )
    assert (second.workload.batch, first.runtime, first.platform) == (4, "eager", "cpu")
    data = json.loads((DATA / "optimum_benchmark/batch-1/benchmark.json").read_text())
    latency = data["report"]["forward"]["latency"]
    assert first.latency_ns.value == pytest.approx(latency["p50"] * 1e9)
    assert len(first.samples_ns[0]) == latency["count"] == 6
    assert "calls-not-blocks" in codes(first.notes)
    assert run.environment.cores == data["config"]["environment"]["cpu_count"]
    assert run.environment.libraries["optimum_benchmark"] == "0.6.0"
    (found,) = run.curves
    assert found.values == (1, 4)


def test_an_optimum_report_alone_takes_its_shapes_from_the_configuration_beside_it(tmp_path):
    beside = read(DATA / "optimum_benchmark/batch-4/benchmark_report.json").measurements[0]
    assert beside.workload.batch == 4 and beside.workload.model == "tiny-bert"
    report = (DATA / "optimum_benchmark/batch-4/benchmark_report.json").read_text()
    alone = read(written(tmp_path, report, "benchmark_report.json")).measurements[0]
    assert alone.latency_ns == beside.latency_ns
    assert (alone.runtime, alone.workload.precision) == ("unknown", "unknown")


def test_an_optimum_report_of_generation(tmp_path):
    latency = {"unit": "s", "values": [0.5] * 6}
    token = {"unit": "s", "values": [0.02] * 6}
    report = {
        "load_model": {},
        "prefill": {"latency": token},
        "generate": {"latency": latency, "memory": {"max_ram": 100.0}},
        "per_token": {"latency": token},
    }
    (m,) = read(written(tmp_path, json.dumps(report), "benchmark_report.json")).measurements
    assert m.workload.phase == "generate"
    assert m.latency_ns.value == 0.5e9
    assert m.first_token_ns.value == m.per_token_ns.value == 0.02e9
    assert m.peak_memory_bytes == 100_000_000


def test_a_forward_pass_and_generation_are_not_one_curve(tmp_path):
    for phase, batch in (("forward", 1), ("generate", 4)):
        report = {phase: {"latency": {"unit": "s", "values": [0.5] * 6}}}
        config = {"backend": {"model": "m"}, "scenario": {"input_shapes": {"batch_size": batch}}}
        (tmp_path / phase).mkdir()
        text = json.dumps({"report": report, "config": config})
        written(tmp_path / phase, text, "benchmark.json")
    run = read(tmp_path)
    assert {m.workload.batch for m in run.measurements} == {1, 4} and run.curves == ()


def test_an_optimum_report_without_latency_says_how_to_get_it(tmp_path):
    text = json.dumps({"report": {"forward": {"latency": None}}, "config": {}})
    with pytest.raises(UsageError, match="latency=true"):
        read(written(tmp_path, text, "benchmark.json"))


def test_pytest_benchmark_parameters_become_points():
    run = read(DATA / "pytest_benchmark.json")
    assert {(m.workload.model, m.runtime, m.workload.batch) for m in run.measurements} == {
        ("toy", runtime, batch) for runtime in ("plain", "other") for batch in (1, 2, 4)
    }
    assert len(run.curves) == 2
    data = json.loads((DATA / "pytest_benchmark.json").read_text())["benchmarks"][0]
    assert run.measurements[0].latency_ns.value == pytest.approx(data["stats"]["median"] * 1e9)
    assert run.environment.host == "node-1" and run.environment.cores == 2


def test_pytest_benchmark_without_rounds_keeps_mean_and_standard_error(tmp_path):
    stats = {"mean": 2e-3, "stddev": 1e-4, "rounds": 16, "median": 2e-3}
    test = {"name": "test_a[x]", "params": {"mode": "x"}, "extra_info": {}, "stats": stats}
    data = {"machine_info": {}, "benchmarks": [test], "version": "5.1.0"}
    (m,) = read(written(tmp_path, json.dumps(data), "x.json")).measurements
    assert m.latency_ns.value == pytest.approx(2e6)
    assert m.latency_ns.high - 2e6 == pytest.approx(2.131 * 1e5 / 4, rel=1e-3)
    assert m.workload.model == "test_a (x)" and m.samples_ns == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.json", '{"schemaVersion": 1, "traceEvents": []}'),
        ("other.json", "[1, 2]"),
        ("other.json", '{"benchmarks": 3, "machine_info": 4}'),
        ("other.json", '{"report": [], "config": 7}'),
        ("notes.txt", "model,ms\nm,1\n"),
    ],
)
def test_what_is_not_ours_is_left_to_others(tmp_path, name, text):
    assert read(written(tmp_path, text, name)) is None
    assert read(tmp_path) is None


def test_names_from_files_stay_data(tmp_path):
    text = 'model,ms\n"<script>alert(1)</script>",1\n"=cmd()|x",2\n'
    models = [m.workload.model for m in read(written(tmp_path, text)).measurements]
    assert models == ["<script>alert(1)</script>", "=cmd()|x"]
