"""What the page holds beyond one model's tables: any axis, overviews, thinning, symbols."""

from dataclasses import replace
from itertools import pairwise

import pytest
import sample_records as data
from test_where import stack

from frameworktax.analysis.document import build
from frameworktax.analysis.whatif.formulas import WhatIf, predict
from frameworktax.errors import UsageError
from frameworktax.records import Attribution, Measurement, Run, Workload
from frameworktax.report import charts, html, page_data, run_blocks, trace_blocks
from frameworktax.report.blocks import table as made_table
from frameworktax.report.families import families


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def changed(run, runtimes=None, **fields):
    """The measured points of a run as another workload's."""
    return tuple(
        replace(m, workload=replace(m.workload, **fields))
        for m in run.measurements
        if m.runtime != "null" and (runtimes is None or m.runtime in runtimes)
    )


def more(run, *sets):
    return replace(run, measurements=run.measurements + sum(sets, ()))


# --- lines that can be drawn -----------------------------------------------------------------


def test_every_axis_with_two_values_has_its_lines(run):
    both = more(run, changed(run, length=256), changed(run, ("eager",), width=2.0))
    shown = families(both)
    numbered = [m for family in shown for m in family.measurements]
    lines = charts.lines(shown)
    assert [line.axis for line in lines].count("batch") == len(shown) == 3
    lengths = [line for line in lines if line.axis == "length"]
    assert [line.title for line in lengths] == [
        f"batch {batch}, bert-mini, float32, cpu, 1 thread" for batch in data.BATCHES
    ]
    for line in lengths:
        values = [(numbered[i].runtime, numbered[i].workload.length) for i in line.rows]
        assert values[:2] == [("eager", 128), ("eager", 256)]
        assert len({numbered[i].workload.batch for i in line.rows}) == 1
    widths = [line for line in lines if line.axis == "width"]
    assert len(widths) == len(data.BATCHES)
    (free,) = lines[0].values["free"]
    assert free == {"x": pytest.approx(4.06, abs=0.1), "text": "eager: free up to batch 4.06"}


def test_columns_give_back_what_was_measured(run):
    columns = page_data.columns(run.measurements)
    for i, m in enumerate(run.measurements):
        coded = columns["runtime"]
        assert coded["of"][coded["at"][i]] == m.runtime
        if m.latency_ns is None:
            assert columns["latency_ns"][i] is None
        else:
            assert columns["latency_ns"][i] == pytest.approx(m.latency_ns.value, rel=1e-5)
        assert columns["batch"][i] == m.workload.batch


# --- what is left out, and said --------------------------------------------------------------


def made(models, batches):
    return tuple(
        Measurement(
            workload=Workload(model=f"m{model}", batch=batch),
            runtime="eager",
            paradigm="eager",
            platform="cpu",
            threads=1,
            status="failed",
            reason="made up",
        )
        for model in range(models)
        for batch in range(1, batches + 1)
    )


def test_thinning_keeps_whole_families_evenly():
    shown = families(Run(measurements=made(100, 10)))
    kept = page_data.thinned(shown, 250)
    assert sum(len(f.measurements) for f in kept) <= 250
    assert len(kept) >= 20
    assert all(len(f.measurements) == 10 for f in kept)
    assert kept[0].model == "m0"
    numbers = [int(f.model[1:]) for f in kept]
    assert max(b - a for a, b in pairwise(numbers)) <= 6
    assert numbers[-1] >= 90
    assert page_data.thinned(shown, 1000) == shown
    assert page_data.thinned(shown, 1) == shown[:1]


def test_a_thinned_page_says_so(run):
    contents = page_data.contents(more(run, changed(run, length=256), changed(run, length=512)))
    assert contents.thinned == ""
    every = sum(len(f.measurements) for f in contents.every)
    kept = page_data.thinned(contents.every, every - 1)
    there = sum(len(f.measurements) for f in kept)
    said = replace(contents, kept=kept, in_full=kept[:1]).thinned
    assert there < every
    assert f"{there} of {every} points: 2 of 3 groups" in said
    assert "The first 1 of 2 groups" in said


def test_a_large_document_stays_in_the_store(monkeypatch, run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    assert page_data.contents(run).document == "whole"
    whole = len(page_data.contents(run).data["run"]["measurements"][1]["samples_ns"])
    assert whole > 0
    monkeypatch.setattr(page_data, "DOCUMENT_BYTES", 140_000)
    lean = page_data.contents(run)
    assert lean.document == "without samples"
    assert not any(m["samples_ns"] for m in lean.data["run"]["measurements"])
    assert 'id="get-json"' in html.page(run)
    monkeypatch.setattr(page_data, "DOCUMENT_POINTS", 3)
    least = page_data.contents(run)
    assert least.document == "left out"
    assert "run" not in least.data
    assert 'id="get-json"' not in html.page(run)


def test_a_table_of_thousands_is_cut_and_says_so():
    table = made_table("t", ("a",), [(str(i),) for i in range(2000)], hint="why")
    cut = html.first_rows(table, 60)
    assert len(cut.rows) == 60
    assert "60 of 2,000" in cut.hint and cut.hint.endswith("why")
    assert html.first_rows(cut, 60) is cut


# --- pictures for paper ----------------------------------------------------------------------


def test_any_axis_and_all_points_can_be_drawn_on_paper(run, tmp_path):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    both = more(run, changed(run, length=256))
    charts.figure(both, "length", tmp_path / "f.svg")
    drawn = (tmp_path / "f.svg").read_text()
    assert "length, tokens" in drawn
    assert "batch 1, bert-mini, float32, cpu, 1 thread" in drawn
    counted = tuple(replace(m, flops=(i + 1) * 10**9) for i, m in enumerate(run.measurements))
    charts.figure(replace(run, measurements=counted), "operations", tmp_path / "f.svg")
    assert "GFLOP of one call" in (tmp_path / "f.svg").read_text()
    for name in ("length", "operations", "threads"):
        with pytest.raises(UsageError, match="no numbers"):
            charts.figure(replace(run, measurements=run.measurements[:1]), name, tmp_path / "f.svg")


# --- overviews -------------------------------------------------------------------------------


def texts(table):
    return [tuple(cell.text for cell in row) for row in table.rows]


def test_only_what_is_proven_equal_is_ranked(run):
    (family,) = families(run)
    rows = texts(run_blocks.ranked(family))
    ranked = ["onnxruntime", "inductor", "torchscript-frozen", "inference-mode", "eager"]
    assert [row[:2] for row in rows] == [
        *((name, str(place)) for place, name in enumerate(ranked, start=1)),
        ("openvino", "not ranked"),
    ]
    assert rows[0][3].startswith("2.20 ×")
    assert rows[-1][4].startswith("≠")


def test_what_ran_where(run):
    both = more(run, changed(run, ("eager",), model="other"))
    table = run_blocks.matrix(families(both))
    heads = [column.title for column in table.columns]
    rows = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in texts(table)}
    assert rows["bert-mini"]["onnxruntime"] == "="
    assert rows["bert-mini"]["openvino"] == "≠"
    assert rows["bert-mini"]["aot-inductor"] == "crashed"
    assert rows["other"] == {
        name: "reference" if name == "eager" else "–" for name in rows["other"]
    }
    assert not run_blocks.matrix(families(run)).rows


def test_hardware_stands_side_by_side(run):
    cuda = tuple(
        replace(m, platform="cuda:0", latency_ns=replace(m.latency_ns, value=1e6))
        for m in run.measurements
        if m.runtime == "eager"
    )
    table = run_blocks.hardware(families(more(run, cuda)))
    heads = [column.title for column in table.columns]
    assert heads == ["model", "runtime", "cpu, 1 thread", "cuda:0"]
    rows = texts(table)
    assert rows[0][:2] == ("bert-mini, length 128, float32, batch 1", "eager")
    assert rows[0][2].startswith("4.40 ")
    assert rows[0][3].startswith("1.00 ")
    assert len(rows) == len(data.BATCHES)
    assert not run_blocks.hardware(families(run)).rows


# --- symbols ---------------------------------------------------------------------------------


LEADERS = (
    ("kernel", "libtorch_cpu.so", "sgemm", 200),
    ("python", "libpython3.11.so", "<eval>", 100),
    ("no-such-line", "lib&.so", "x", 20),
)


@pytest.fixture(scope="module")
def named():
    records = data.sample_records()
    return build([replace(r, top=LEADERS) if isinstance(r, Attribution) else r for r in records])


def test_symbols_take_their_share_of_a_call(named):
    m = next(m for m in named.measurements if m.runtime == "eager")
    line, library, symbol, ns = m.symbols_ns[0]
    assert (line, library, symbol) == ("kernel", "libtorch_cpu.so", "sgemm")
    # 200 of 10,000 samples of the time on the processor
    assert ns == pytest.approx(0.02 * (1 - data.OFF_CPU) * 4_400_000, rel=1e-3)
    assert m.symbols_ns[2][0] == "remainder"


def test_boxes_are_as_wide_as_their_time(named):
    (family,) = families(named)
    _, found = html.flames(family)
    assert len(found) == 4  # the runtimes that were sampled
    assert all(root.share == 1 for root in found)
    shares = {box.name: box.share for box in found[0].inner}
    assert shares["kernel"] == pytest.approx(0.382, abs=1e-3)
    for root in found:
        assert all(sum(one.share for one in box.inner) <= box.share + 1e-12 for box in root.inner)


def test_a_call_down_to_layers_is_as_wide_as_the_call(run):
    layers = tuple(stack())
    bill = {"kernel": 600.0, "python": 555.0}
    m = replace(run.measurements[0], layers=layers, bill_ns=bill)
    (family,) = families(replace(run, measurements=(m,)))
    ((root,), _) = html.flames(family)
    assert root.ns == 1155
    net, outside = root.inner
    assert net.name == "Net net.py:7"
    assert outside.name == "outside the model"
    assert [one.name for one in net.inner[0].inner] == [
        "a Linear net.py:7",
        "b Linear net.py:7",
        "python",
    ]
    assert sum(one.share for one in root.inner) == pytest.approx(1)
    shown = html.page(replace(run, measurements=(m,)))
    assert shown.count('data-name="layers.') == 6
    older = replace(m, layers=tuple(stack(spin=400.0)))
    sides, _ = html.flames(family, replace(run, measurements=(older,)))
    name = root.name
    assert [(one.name, one.ns) for one in sides] == [
        (f"before: {name}", 1555),
        (f"after: {name}", 1155),
    ]


def test_symbols_are_only_text(named):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    page = html.page(named)
    assert page.count('<details class="flame"') == 4
    assert "&lt;eval&gt;" in page and "<eval>" not in page and "lib&amp;.so" in page


def test_no_names_no_flames(run):
    (family,) = families(replace(run, measurements=tuple(
        replace(m, symbols_ns=()) for m in run.measurements)))  # fmt: skip
    assert html.flames(family)[1] == []


# --- headline and what-if ----------------------------------------------------------------------


def test_a_headline_keeps_the_names_of_runtimes(run):
    said = html.headline(replace(run, headline="m here: onnxruntime is 2 × faster; eager waits"))
    assert said == ("m here", "onnxruntime is 2\u00a0× faster", "Eager waits")


def test_the_sliders_have_the_answers_of_explain(run):
    found = page_data.whatif(run)
    eager = next(s for s in found["subjects"] if "eager" in s["name"])
    assert set(eager["answers"]) == {"host_speed"}
    for stop, answer in eager["answers"]["host_speed"].items():
        (wanted, *_) = predict(WhatIf(host_speed=float(stop)), run)
        assert answer[0] == trace_blocks.latency_text(wanted.latency_ns)
        assert found["texts"][answer[2]].startswith(wanted.formula)


def test_what_interacts_is_answered_together(run):
    cuda = tuple(
        replace(
            m,
            platform="cuda:0",
            enqueue_ns=replace(m.latency_ns, value=m.latency_ns.value * 0.9),
            kernel_ns=replace(m.latency_ns, value=m.latency_ns.value * 0.5),
            launches=30,
        )
        for m in run.measurements
        if m.runtime == "eager"
    )
    (eager,) = page_data.whatif(replace(run, measurements=cuda))["subjects"]
    stops = eager["answers"]["machine"]
    assert len(stops) == 4 * 4 * 2 - 1
    both = WhatIf(device_speed=2.0, host_speed=2.0, graphs=True)
    wanted = predict(both, replace(run, measurements=cuda))[-1]
    assert stops["2 2 1"][0] == trace_blocks.latency_text(wanted.latency_ns)
