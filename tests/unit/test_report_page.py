"""What the page holds beyond one model's tables: any axis, downloads, symbols, what-ifs."""

from dataclasses import replace

import pytest
import sample_records as data
from test_where import stack

from frameworktax.analysis.document import build
from frameworktax.analysis.whatif.formulas import WhatIf, predict
from frameworktax.errors import UsageError
from frameworktax.records import Attribution
from frameworktax.report import charts, html, page_data, run_blocks, trace_blocks
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
    assert free == {"x": pytest.approx(4.06, abs=0.1), "text": free["text"]}
    assert free["text"].startswith("eager: ") and free["text"].endswith(" batch 4 to 7")


def test_a_tax_is_the_same_number_in_the_headline_and_the_tile(run):
    tile = next(tile for tile in html._tiles(families(run)[0]) if tile[0] == "Framework tax")
    assert "pays 61.8 ±0.7 % framework tax" in run.headline
    assert tile[1] == "61.8 %" and tile[2].endswith("61.0 to 62.5 %")


def test_a_free_batch_size_is_the_same_number_in_the_table_the_tile_and_the_picture(run):
    family = families(run)[0]
    cell = run_blocks.free_cell(family.curve("eager"))
    tile = next(tile for tile in html._tiles(family) if tile[0] == "Free batch size")
    (free,) = charts.free_of(family)
    assert cell.text == tile[1] == "4 to 7" and free["text"].endswith(" 4 to 7")
    assert cell.exact in tile[2] and "4.06" in cell.exact
    curve = family.curve("eager")
    wide = replace(curve, free_batch=replace(curve.free_batch, low=1.13, high=8))
    assert run_blocks.free_cell(wide).text == "1 to 7"
    assert run_blocks.free_cell(replace(wide, free_is_lower_bound=True)).text == "≥ 1"
    one = replace(curve, free_batch=replace(curve.free_batch, value=1.13))
    none = replace(family, curves=tuple(one if c == curve else c for c in family.curves))
    assert charts.free_of(none) == []


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


def test_a_large_document_stays_in_the_store(monkeypatch, run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    assert 'id="get-json"' in html.page(run)
    monkeypatch.setattr(page_data, "DOCUMENT_POINTS", 3)
    assert 'id="get-json"' not in html.page(run)


def test_more_points_than_a_page_can_show_are_refused(monkeypatch, run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    monkeypatch.setattr(html, "MOST", len(run.measurements) - 1)
    with pytest.raises(UsageError, match="--where"):
        html.page(run)


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


# --- what if ----------------------------------------------------------------------------------


def test_the_sliders_have_the_answers_of_explain(run):
    eager = next(s for s in page_data.whatif(run) if "eager" in s["name"])
    assert (eager["device"], len(eager["answers"])) == ("cpu", 8)
    for stop, answer in eager["answers"].items():
        (wanted, *_) = predict(WhatIf(host_speed=float(stop)), run)
        assert answer[0] == trace_blocks.latency_text(wanted.latency_ns)
        assert f"faster; {wanted.formula}" in answer[1]


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
    (eager,) = page_data.whatif(replace(run, measurements=cuda))
    stops = eager["answers"]
    assert len(stops) == 4 * 4 * 2 - 1
    both = WhatIf(device_speed=2.0, host_speed=2.0, graphs=True)
    wanted = predict(both, replace(run, measurements=cuda))[-1]
    assert stops["2 2 1"][0] == trace_blocks.latency_text(wanted.latency_ns)
