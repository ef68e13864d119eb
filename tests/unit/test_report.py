import csv
import gzip
import io
import json
import math
import re
import sys
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
import sample_records as data
from rich.console import Console

from frameworktax.analysis.document import build
from frameworktax.analysis.estimates import exactly, times_at_most
from frameworktax.api import Results
from frameworktax.cli.deliver import Output
from frameworktax.errors import StoreError, UsageError
from frameworktax.records import Advice, Estimate, Note, Run
from frameworktax.report import blocks, charts, export, html, json_document, page_data, rows, vega
from frameworktax.report import run_blocks as run_document
from frameworktax.report.families import families, merged
from frameworktax.report.render_markdown import escape, markdown
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.run_blocks import advice_blocks, run_blocks
from frameworktax.report.trace_blocks import trace_blocks
from frameworktax.report.words import (
    duration,
    interval,
    milliseconds,
    plus_minus,
    size_text,
    time_text,
)
from frameworktax.stats import within_one_process

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def run():
    return replace(build(data.sample_records()), left_out=("openvino at batch 32",))


def hostile(run):
    """The run with every name from outside turned against the page."""

    def turned(m):
        return replace(
            m,
            workload=replace(m.workload, model=HOSTILE),
            runtime=m.runtime if m.runtime in ("eager", "null") else f"{m.runtime}{HOSTILE}",
            reason=m.reason and HOSTILE,
            notes=(Note("x", HOSTILE),),
        )

    return replace(
        run,
        headline=f"{HOSTILE}: {HOSTILE}; {HOSTILE}",
        measurements=tuple(turned(m) for m in run.measurements),
        notes=(Note("x", HOSTILE),),
        left_out=(HOSTILE,),
        environment=replace(run.environment, host=HOSTILE, libraries={HOSTILE: HOSTILE}),
        advice=tuple(replace(a, action=HOSTILE, evidence=HOSTILE) for a in run.advice),
    )


# --- terminal --------------------------------------------------------------------------------


def printed(run, width=80, *, full=False, **more):
    out = io.StringIO()
    print_blocks(run_blocks(run), Console(file=out, width=width, **more), full=full)
    return out.getvalue()


def test_terminal_fits_its_width_without_colour(run):
    for width in (60, 80, 100, 120, 200):
        text = printed(run, width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert "\x1b" not in text


def rows_of(text, name):
    return [line.split() for line in text.splitlines() if line.startswith(f"{name} ")]


def test_tables_are_printed_where_a_file_cannot_be_written(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(html, "MOST", 0)
    with pytest.raises(UsageError, match="too many"):
        Output(None, tmp_path / "page.html").run(run)
    assert "torchscript" in capsys.readouterr().out
    with pytest.raises(UsageError, match="/dev/full"):
        Output("/dev/full").deliver({}, "", [blocks.Text("what was seen")])
    assert "what was seen" in capsys.readouterr().out


def test_a_reader_that_leaves_costs_no_file(run, tmp_path, monkeypatch):
    def left(*_):
        raise BrokenPipeError

    monkeypatch.setattr(Output, "blocks", left)
    with pytest.raises(BrokenPipeError):
        Output(str(tmp_path / "run.json"), tmp_path / "run.md").run(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.md"]


def test_terminal_shows_words_where_the_width_allows_and_letters_where_not(run):
    cells = "4.40 ±2% F 4.60 ±2% M 4.80 ±2% M 7.20 ±2% M 12.9 ±2% M 4 to 7"
    assert rows_of(printed(run, 120), "eager")[0] == ["eager", *cells.split()]
    assert {"F framework-bound", "M mixed"} <= set(re.split(r"\n|  +", printed(run, 120)))
    (row, *_) = rows_of(printed(run, 200), "eager")
    assert " ".join(row[:6]) == "eager 4.40 ms ±2 % framework-bound"
    assert row[-4:] == ["4", "to", "7", "reference"]
    assert "F framework-bound" not in printed(run, 200)


def test_terminal_repeats_the_first_column_of_a_table_that_is_too_wide(run):
    assert len(rows_of(printed(run, 40), "eager")) > len(rows_of(printed(run, 200), "eager"))


def test_terminal_names_what_failed_and_what_was_left_out(run):
    text = printed(run)
    assert "aot-inductor crashed: segmentation fault" in text
    assert "openvino at batch 32" in text
    assert "200 ns a call" in text


def test_terminal_bar_is_as_long_as_the_shares(run):
    (_, row) = [
        line for line in printed(run).splitlines() if "61.8 ±0.7 %" in line
    ]  # 1st: headline
    (bar,) = re.findall(r"K[A-Z·]{10,}", row)
    assert len(bar) == 22
    assert bar.count("K") == round(22 * 0.3822)
    assert row.rstrip().endswith("dispatch 28 %")


def test_terminal_folds_long_names_and_no_bar(run):
    longer = {"eager": "eager@autograd-unfused-malloc"}
    points = (replace(m, runtime=longer.get(m.runtime, m.runtime)) for m in run.measurements)
    text = printed(replace(run, measurements=tuple(points)), 80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    (row,) = [line for line in text.splitlines() if line.startswith("eager@") and "KKKK" in line]
    (bar,) = re.findall(r"K[A-Z·]{10,}", row)
    assert len(bar) == 22


def test_outputs_are_shown_as_at_the_batch_size_where_they_look_worst(run):
    largest = data.BATCHES[-1]
    told = {"onnxruntime": False, "inductor": None, "inference-mode": True}
    points = tuple(
        replace(m, parity=replace(m.parity, within_tolerance=told[m.runtime]))
        if m.workload.batch == largest and m.runtime in told
        else m
        for m in run.measurements
    )
    (family,) = families(replace(run, measurements=points))
    cells = {row[0].text: row[-1] for row in run_document.latencies(family).rows}
    differs = cells["onnxruntime"]
    assert (differs.text, differs.style) == (f"different at batch {largest}", "differs")
    assert differs.short == f"≠ {largest}"
    assert cells["inductor"].text == f"not compared at batch {largest}"
    assert (cells["inference-mode"].text, cells["openvino"].text) == ("equal", "different")


def test_terminal_names_the_overhead_of_a_twin(run):
    assert any("warm 6.5 ±0.2 %" in line for line in printed(run).splitlines())


def test_terminal_folds_notes_unless_all_are_asked_for(run):
    codes = {n.code for m in run.measurements for n in m.notes if m.runtime != "null"}
    assert codes and not codes & run_document.CHANGING
    texts = [n.text.split()[0] for f in families(run) for n in run_document.notes_of(f).notes]
    brief, full = printed(run), printed(run, full=True)
    folded = re.compile(rf"\b{len(texts)} notes on how\b")
    assert folded.search(brief) and not folded.search(full)
    assert len(full) > len(brief)


def test_a_note_that_changes_the_answer_is_not_folded(run):
    m = replace(run.measurements[1], notes=(Note("no-interval", "one value"), Note("x", "folded")))
    text = printed(replace(run, measurements=(m,)))
    assert "one value" in text and "folded" not in text


def test_terminal_in_colour_says_the_same(run):
    coloured = printed(run, force_terminal=True, color_system="256")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(run)


def test_terminal_prints_markup_of_others_as_it_is(run):
    assert "[bold red]x[/]" in printed(replace(run, headline="[bold red]x[/]", measurements=()))


def lines_of(block, width):
    out = io.StringIO()
    print_blocks([block], Console(file=out, width=width))
    return out.getvalue().splitlines()[1:]  # below an empty one


def test_terminal_sets_columns_below_their_heads():
    columns = ["runtime", blocks.right("latency of a call (ms)"), ""]
    shown = blocks.table("", columns, [["eager", "3.63", "a"], ["onnx", "12.6", "bbb"]])
    assert lines_of(shown, 26) == [
        "         latency of a     ",
        "runtime     call (ms)     ",
        "eager            3.63  a  ",
        "onnx             12.6  bbb",
    ]
    for width in (10, 20, 25):  # in two parts, of which no number is cut off
        assert [line.rstrip() for line in lines_of(shown, width)] == [
            "         latency of a",
            "runtime     call (ms)",
            "eager            3.63",
            "onnx             12.6",
            "runtime",
            "eager    a",
            "onnx     bbb",
        ]
    folded = lines_of(blocks.table("why", ["reason"], [["a long text " * 10]]), 40)
    assert folded[0] == "why" and max(map(len, folded)) <= 40 and len(folded) > 4
    bare = blocks.table("", ["", blocks.right("")], [["eager", "3.6"], ["onnx", "12"]])
    assert lines_of(bare, 80) == ["eager  3.6", "onnx    12"]


def test_empty_run_prints():
    assert printed(Run(headline="nothing could be measured")).strip() == "nothing could be measured"


# --- JSON ------------------------------------------------------------------------------------


def test_document_comes_back_as_it_was(run, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json_document.text(run))
    assert json_document.load(path) == run


OLDER = sorted((Path(__file__).parents[1] / "data" / "older_documents").glob("*.json.gz"))


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name.partition(".")[0])
def test_a_document_that_the_version_before_wrote_is_read_and_shown(path, tmp_path):
    """Written before the source was laid out anew, in November 2026."""
    then = json.loads(gzip.decompress(path.read_bytes()))
    (tmp_path / "run.json").write_text(json.dumps(then))
    run = json_document.load(tmp_path / "run.json")
    assert run.headline == then["headline"] in printed(run, 1000)
    assert [m.latency_ns and m.latency_ns.value for m in run.measurements] == [
        m["latency_ns"] and m["latency_ns"]["value"] for m in then["measurements"]
    ]
    assert (run.trace is None) == (then["trace"] is None)


def test_an_older_trace_without_a_device_is_read_without_the_table_that_it_lacks():
    (path,) = (path for path in OLDER if path.name.startswith("explain-h100"))
    then = json.loads(gzip.decompress(path.read_bytes()))
    operator = {"name": "aten::mm", "tax_ns": 1, "calls": 1, "host_ns": 9, "kernel_ns": None}
    then["trace"] |= {"idle_ns": None, "devices": {}, "operators": [operator]}
    titles = [one.title for one in trace_blocks(json_document.parse(then, "old.json").trace)]
    assert "Steps" in titles and "Operators by own time" not in titles


def test_document_never_holds_nan(run):
    broken = replace(run, host_drift=float("nan"), harness_floor_ns=Estimate(
        value=1.0, low=float("-inf"), high=float("inf")))  # fmt: skip
    dumped = json_document.dump(broken)
    assert dumped["host_drift"] is None
    assert dumped["harness_floor_ns"]["low"] is None
    assert "NaN" not in json_document.text(broken)
    assert "Infinity" not in json_document.text(broken)


def test_schema_names_the_document_and_its_fields():
    schema = json_document.schema()
    assert schema["properties"]["schema"]["const"] == "frameworktax.run"
    assert {"schema", "version"} <= set(schema["required"])
    assert "latency_ns" in schema["$defs"]["Measurement"]["properties"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON document"),
        ("[]", "is no frameworktax.run document"),
        ('{"schema": "frameworktax.run", "version": 99}', "has version 99"),
        ('{"schema": "frameworktax.run", "version": 1, "measurements": 3}', "measurements: "),
        (
            '{"schema": "frameworktax.run", "version": 1, "advice": [{"action": "x"}]}',
            "advice.0.evidence",
        ),
    ],
)
def test_a_bad_document_is_one_line(tmp_path, text, said):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=re.escape(said)) as caught:
        json_document.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["measurements"][0]["latency_ns"].update(value=math.nan), "NaN was never"),
        (lambda d: d["measurements"][0]["latency_ns"].update(high=1e31), "1e+31 was never"),
        (lambda d: d["measurements"][0].update(flops=10**40), "was never measured"),
        (lambda d: d["measurements"][0]["workload"].update(model="m\ud800"), "surrogates not"),
        (lambda d: d["measurements"][0]["latency_ns"].update(value=0), ": a size, the threads"),
        (lambda d: d["measurements"][0]["workload"].update(batch=-1), ": a size, the threads"),
        (lambda d: d["measurements"][9]["ratio_to_eager"].update(low=-1), ": a size, the threads"),
        (lambda d: d["measurements"][0]["blocks_ns"][0].__setitem__(2, 0), " or a time"),
        (lambda d: d["measurements"][0]["calibrator_ns"][0].__setitem__(1, 0), " or a time"),
        (lambda d: d["measurements"][0]["samples_ns"][0].__setitem__(0, -1), " or a time"),
        (lambda d: d.update(trace={"x": 1}), "KeyError: 'steps'"),
    ],
)
def test_a_document_of_what_cannot_be_is_refused_in_one_line(run, tmp_path, change, said):
    document, path = json.loads(json_document.text(run)), tmp_path / "changed.json"
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=re.escape(said)) as caught:
        json_document.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_document(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        json_document.load(tmp_path / "none.json")


# --- Markdown and CSV ------------------------------------------------------------------------


def test_markdown_tables(run):
    text = markdown(run_blocks(run))
    assert "| eager | 4.40 (4.29 to 4.51), framework-bound |" in text
    assert "- **aot-inductor crashed**: segmentation fault (signal 11) in load" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_markdown_cells_stay_cells():
    assert escape("a|b\nc <i>`x`") == "a\\|b c &lt;i>\\`x\\`"


def test_csv_has_one_row_a_point_with_plain_numbers(run):
    found = list(csv.DictReader(io.StringIO(rows.csv_text(run))))
    assert len(found) == len(run.measurements)
    (row,) = [r for r in found if (r["runtime"], r["batch"]) == ("onnxruntime", "1")]
    assert float(row["latency_ns"]) == pytest.approx(2_000_000)
    assert float(row["bill_runtime_ns"]) == pytest.approx(130_000)
    (lost,) = [r for r in found if r["runtime"] == "aot-inductor"]
    assert (lost["status"], lost["latency_ns"]) == ("crashed", "")


def test_a_line_of_a_breakdown_that_is_not_known_is_no_column(run):
    m = replace(run.measurements[1], bill_ns={"kernel": 1.0, "novel": 2.0})
    (row,) = csv.DictReader(io.StringIO(rows.csv_text(replace(run, measurements=(m,)))))
    assert float(row["bill_kernel_ns"]) == 1.0
    assert "bill_novel_ns" not in row


def test_csv_runs_nothing_in_a_spreadsheet(run):
    m = replace(run.measurements[1], workload=replace(run.measurements[1].workload, model="=1+1"))
    text = rows.csv_text(replace(run, measurements=(m,)))
    assert text.splitlines()[1].startswith("'=1+1,")


# --- words and families ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (4_400_000, "4.40"),
        (12_340_000, "12.3"),
        (234_000_000, "234"),
        (200, "0.0002"),
        (94_300, "0.094"),
        (None, "–"),
    ],
)
def test_milliseconds(ns, text):
    assert milliseconds(ns) == text


def test_duration():
    assert [duration(n) for n in (200, 2_500, 4_400_000, 2e9)] == [
        "200 ns", "2.5 µs", "4.4 ms", "2 s"
    ]  # fmt: skip
    assert [duration(n) for n in (999.6e3, 999.96e6, 2e12)] == ["1 ms", "1 s", "2000 s"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 MB"),
        (23_000_000, "23 MB"),
        (999_400_000, "999 MB"),
        (999_700_000, "1 GB"),
        (1_310_000_000, "1.31 GB"),
        (1_234_000_000_000, "1234 GB"),
    ],
)
def test_sizes_have_no_exponents(count, text):
    assert size_text(count) == text


def test_times_and_intervals_carry_their_units():
    assert [time_text(n) for n in (4_400_000, 99.97e6, 999.4e6, 1e9, 43.43e9, 123e9, None)] == [
        "4.40 ms", "100 ms", "999 ms", "1.00 s", "43.4 s", "123 s", "–"
    ]  # fmt: skip
    around = [plus_minus(Estimate(value=100, low=100 - h, high=100 + h)) for h in (4, 0.4, 0.01, 0)]
    assert around == ["±4 %", "±0.4 %", "±0.1 %", ""]


def test_a_merged_part_of_a_number_is_of_the_largest():
    texts = [f"in {part} of {whole} processes" for part, whole in ((2, 2), (2, 3), (3, 3))]
    assert merged(texts) == "in 2 to 3 of up to 3 processes"
    assert merged(texts[1:]) == "in 2 to 3 of 3 processes"


def test_a_merged_bound_is_the_widest():
    assert merged(["below 3 µs", "below 5 µs"]) == "below 5 µs"
    assert merged(["at least 3", "at least 5"]) == "at least 3"


def test_bounds_are_rounded_so_that_they_are_still_bounds():
    assert [times_at_most(x) for x in (1.41, 1.4, 1.1, 1.101, 1.2, 2.001, 1.4 * 3)] == [
        "1.5 ×", "1.4 ×", "1.10 ×", "1.11 ×", "1.2 ×", "2.1 ×", "4.2 ×"
    ]  # fmt: skip
    (item,) = advice_blocks(
        [Advice(action="", evidence="", gain=exactly(1.43, "exact"), kind="bound")]
    )[0].items
    assert item.lead == "≤ 1.5 ×"


def test_families_leave_out_the_floor_and_keep_lengths_apart(run):
    (family,) = families(run)
    assert "null" not in family.runtimes
    longer = replace(run.measurements[1], workload=replace(run.measurements[1].workload, length=8))
    both = families(replace(run, measurements=(*run.measurements, longer)))
    assert [f.title.split(", ")[1] for f in both] == ["length 128", "length 8"]
    floor_only = replace(run, measurements=run.measurements[:1])
    assert families(floor_only)[0].runtimes == ["null"]


def test_names_at_the_ends_of_lines_keep_their_distance():
    placed = charts.spaced([1.0, 1.01, 1.02, 3.0], 0.1, 0.0, 4.0)
    assert all(b - a >= 0.1 - 1e-12 for a, b in pairwise(placed))
    assert charts.spaced([3.9, 3.95], 0.2, 0.0, 4.0)[-1] <= 4.0 - 0.1 + 1e-12


def test_the_table_of_every_point_marks_no_outputs_of_a_point_that_failed(run):
    column = page_data.columns(run.measurements)["outputs"]
    marks = [column["of"][at] for at in column["at"]]
    shown = {m.status: mark for m, mark in zip(run.measurements, marks, strict=True)}
    assert {"ok", "crashed", "unavailable"} == set(shown)
    assert (shown["crashed"], shown["unavailable"]) == ("", "") and "=" in marks


def test_ticks():
    assert charts.ticks(0.9, 12) == [1, 2, 5, 10]
    assert charts.ticks(2.6, 4.9) == [3, 4]  # a flat curve
    assert charts.ticks(5.1, 6.9) == [5.5, 6, 6.5]
    assert charts.ticks(0.0101, 0.0126) == [0.011, 0.012]


def test_a_known_runtime_has_the_same_colour_everywhere():
    assert vega.colours(["mine", "eager"])[1] == vega.colours(["eager"])[0]
    many = [f"r{i}" for i in range(len(vega.OTHERS))]
    assert len({*vega.colours(many), *vega.FAMILIAR.values()}) == len(many) + len(vega.FAMILIAR)


# --- the page --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    return html.page(run)


def test_page_is_one_file_that_loads_nothing(page):
    head = page[: page.index("<style>")]
    assert "default-src 'none'" in unescape(head)
    assert "unsafe-eval" not in head
    assert not re.findall(r"<(?:link|iframe|img|object|embed)\b", page.split("<script")[0])
    assert not re.search(r"<script[^>]+src=", page)
    assert len(page) < 1_500_000


def test_page_names_its_scripts_by_hash(page):
    import base64
    import hashlib

    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in unescape(page)


def test_page_carries_the_document_and_the_rows(run, page):
    block = re.search(r'<script type="application/json" id="ft-data">(.*?)</script>', page, re.S)
    found = json.loads(block[1])
    lean = [replace(m, samples_ns=(), blocks_ns=(), calibrator_ns=()) for m in run.measurements]
    whole = json_document.dump(replace(run, measurements=tuple(lean)))
    assert found["run"] == json.loads(json.dumps(whole))
    assert found["csv"] == rows.csv_text(run)
    assert set(found["charts"]) == {"latency-0", "bill-0", "shares-0", "operations"}
    assert [line["title"] for line in found["lines"]] == [
        "bert-mini, length 128, float32, cpu, 1 thread"
    ]


def test_no_curve_is_drawn_through_one_batch_size(run):
    """The second family has one batch size; pictures of the third keep their numbers."""
    others = [replace(m, threads=2) for m in run.measurements if m.workload.batch == 1]
    third = [replace(m, threads=4) for m in run.measurements]
    page = html.page(replace(run, measurements=(*run.measurements, *others, *third)))
    block = re.search(r'<script type="application/json" id="ft-data">(.*?)</script>', page, re.S)
    found = json.loads(block[1])
    drawn = {name: at for name, at in found["charts"].items() if name.startswith("latency")}
    assert drawn == {"latency-0": 0, "latency-2": 2}
    assert "4 threads" in found["lines"][2]["title"]


def test_page_tells_the_verdict_in_words_and_tables(page):
    assert re.search(r"<h1>eager [^<]*\b61\.8 ±0\.7 % [^<]*batch 1</h1>", page)
    assert page.count("<caption>") == 4
    assert page.count('scope="row"') > 30


def test_a_tax_that_is_not_determined_is_no_number_on_the_page(run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    unsure = Estimate(value=0.04, low=-0.33, high=0.41)
    points = [replace(m, tax_share=unsure) if m.tax_share else m for m in run.measurements]
    page = html.page(replace(run, measurements=tuple(points)))
    assert "not determined" in page
    assert "not determined" not in html.page(run)


def test_hostile_names_stay_text(run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    page = html.page(hostile(run))
    assert "<img" not in page.split("<script>")[0]
    assert len(re.findall(r"<script\b", page.split("<script>")[0])) == 1
    assert html.page(run).count("<script") == page.count("<script")


DRIVES = "\x1b[2J\x1b]0;t\x07na\u202eme\x00\u200b\x9b"
"""What drives a terminal, turns text around, or is in no XML; ``name`` is left of it."""
DRIVING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]")


def driving(run):
    def turned(m):
        runtime = m.runtime if m.runtime == "null" else f"{m.runtime}{DRIVES}"
        named = replace(m, runtime=runtime, notes=(Note("x", DRIVES),))
        return replace(named, workload=replace(m.workload, model=DRIVES))

    measured = tuple(turned(m) for m in run.measurements)
    return replace(run, headline=DRIVES, left_out=(DRIVES,), measurements=measured, curves=())


def test_no_control_sign_reaches_a_page(run, tmp_path):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    page = html.page(driving(run))
    body, held = page.split("<script>")[0].split('<script type="application/json" id="ft-data">')
    held = json.loads(held.removesuffix("</script>\n"))
    shown = [held[part] for part in ("columns", "lines", "charts", "colours", "whatif")]
    text = body + json.dumps(shown, ensure_ascii=False).replace("\\u00", "\x00")
    assert "]0;t name" in text
    assert DRIVING.findall(text) == []
    assert held["run"]["left_out"] == [DRIVES]  # a download is what was recorded
    html.write_page(tmp_path / "page.html", DRIVES, [blocks.Heading(DRIVES), blocks.Text(DRIVES)])
    assert DRIVING.findall((tmp_path / "page.html").read_text()) == []
    assert DRIVING.findall(html.fragment(driving(run))) == []


@pytest.mark.parametrize("name", ["latency", "bill", "shares", "operations"])
def test_a_control_sign_in_a_name_ends_no_picture(run, name):
    """A sign that XML cannot hold aborted the process from within the package that draws."""
    shown = families(driving(run))
    points = [m for family in shown for m in family.measurements]
    spec = json.dumps(charts.drawn(charts._figure(shown, name), points), ensure_ascii=False)
    assert name == "operations" or "]0;t name" in spec
    assert DRIVING.findall(spec.replace("\\u00", "\x00")) == []


def test_braces_in_names_are_not_filled_in(run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    page = html.page(replace(run, left_out=("{{data}} {{nothing}}",)))
    assert "{{data}} {{nothing}}" in page


def test_a_run_without_anything_measured_has_a_page(run):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    lost = tuple(m for m in run.measurements if m.status != "ok")
    page = html.page(Run(headline="nothing could be measured", measurements=lost))
    assert "segmentation fault" in page


def test_without_the_package_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=r"pip install 'frameworktax\[report\]'"):
        html.page(run)


def test_a_report_that_cannot_be_written(run, tmp_path):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    (tmp_path / "none").write_text("kept")
    with pytest.raises(UsageError, match="cannot write"):
        export.write(run, tmp_path / "none" / "report.html")
    assert (tmp_path / "none").read_text() == "kept"
    export.write(run, tmp_path / "made" / "report.html")
    assert (tmp_path / "made" / "report.html").is_file()


@pytest.mark.parametrize("name", ["latency", "bill", "shares"])
def test_figures(run, tmp_path, name):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    charts.figure(run, name, tmp_path / "f.svg")
    assert "torchscript-frozen" in (tmp_path / "f.svg").read_text()
    charts.figure(run, name, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["f.svg", "f.png", "f.parquet"])
def test_pictures_and_tables_are_written_as_texts_are(run, tmp_path, name):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    pytest.importorskip("pyarrow", reason="pip install 'frameworktax[parquet]'")
    export.write(run, tmp_path / "new" / name)
    assert (tmp_path / "new" / name).stat().st_size > 100
    with pytest.raises(UsageError, match="cannot write"):
        export.write(run, tmp_path / "new" / name / "below" / name)


def test_figures_that_cannot_be(run, tmp_path):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    with pytest.raises(UsageError, match="did you mean 'latency'"):
        charts.figure(run, "latencies", tmp_path / "f.svg")
    with pytest.raises(UsageError, match=r"choose \.svg"):
        charts.figure(run, "latency", tmp_path / "f.gif")
    with pytest.raises(UsageError, match="no numbers"):
        charts.figure(Run(), "latency", tmp_path / "f.svg")


def test_plotting_scripts_are_made_once_and_also_where_none_can_be_kept(tmp_path, monkeypatch):
    made = []

    class Engine:
        __version__ = "1"

        @staticmethod
        def javascript_bundle():
            made.append(1)
            return "a\r</script>"

    monkeypatch.setattr(html.vega, "engine", Engine)
    for folder, count in ((tmp_path / "cache", 1), (tmp_path / "cache", 1), (Path("/proc/no"), 2)):
        monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(folder))
        assert html._bundle.__wrapped__() == "a\r<\\/script>"
        assert len(made) == count


def test_a_value_without_an_interval_is_not_shown_as_a_narrow_one():
    alone = Estimate(value=2e6, low=2e6, high=2e6, n=1)
    assert plus_minus(alone) == "" and interval(alone) == "2.00 (no interval)"
    assert plus_minus(Estimate(value=2e6, low=1.999e6, high=2.001e6, n=5)) == "±0.1 %"


def test_intervals_of_one_process_are_named_as_such_wherever_they_are_shown():
    whole = build(data.sample_records())
    run = build([r for r in data.sample_records() if getattr(r, "process", 0) == 0])
    for document, alone in ((run, True), (whole, False)):
        timed = [m for f in families(document) for m in f.measured]
        for m in timed:
            assert within_one_process(m.latency_ns) == alone
            assert within_one_process(m.ratio_to_eager) == (alone and m.ratio_to_eager is not None)
        assert ("one process" in document.headline) == alone
        (table, *_) = (b for b in run_blocks(document) if type(b).__name__ == "Table")
        assert ("one process" in table.title) == alone
        (use, *_) = run_document.advice_blocks(document.advice)[0].items
        assert ("one process" in use.detail) == alone
        tile = html._tiles(families(document)[0])[0]
        assert ("one process" in tile[2]) == alone
    # how much the tax differs between processes is not known from samples of one
    eager = next(m for m in whole.measurements if m.runtime == "eager")
    assert within_one_process(eager.tax_share)
    shown = {n.code: n.severity for b in run_blocks(run) for n in getattr(b, "notes", ())}
    assert shown["few-processes"] == "warning"


def test_a_report_from_python_has_the_format_of_its_suffix(tmp_path):
    results = Results(build(data.sample_records()), tmp_path)
    for suffix in (".html", ".md", ".csv", ".json"):
        ours = results.report(tmp_path / f"ours{suffix}")
        export.write(results.run, tmp_path / f"command{suffix}")
        assert ours.read_text() == (tmp_path / f"command{suffix}").read_text()
    with pytest.raises(UsageError):
        results.report(tmp_path / "report")


@pytest.mark.parametrize(
    ("threads", "said"), [(1, "2, 1 thread a core"), (2, "2, 2 threads a core"), (None, "2")]
)
def test_threads_of_a_core_are_counted_in_words(threads, said):
    one = replace(data.ENVIRONMENT, cores=2, threads_per_core=threads)
    assert dict(run_document.facts(one))["cores"] == said


def test_an_action_for_several_points_is_one_item_with_the_range_of_its_gains():
    def one(length, low, high, action, kind):
        gain = Estimate(value=low, low=low, high=high, method="", n=2)
        return Advice(action=action, evidence=f"m, length {length}: why", gain=gain, kind=kind)

    given = [
        one(16, 2.0, 3.0, "use openvino at batch 1 to 4", "measured"),
        one(32, 1.5, 2.5, "use openvino at batch 1 to 4", "measured"),
        one(64, 1.3, 1.4, "use openvino at batch 1", "measured"),
        one(16, 3.0, 4.0, "at most 4.0 × with eager at batch 1", "bound"),
        one(32, 2.0, 2.1, "at most 2.1 × with eager at batch 1", "bound"),
    ]
    (found,) = run_document.advice_blocks(given)
    assert [(item.lead, item.text) for item in found.items] == [
        ("1.5 to 3.0 ×", "use openvino at batch 1 to 4"),
        ("1.3 to 1.4 ×", "use openvino at batch 1"),
        ("≤ 4.0 ×", "at most 4.0 × with eager at batch 1"),
    ]
    assert "length 16 (2.0 to 3.0 ×)" in found.items[0].detail
    assert "length 32 (≤ 2.1 ×)" in found.items[2].detail
    many = [one(n, 2.0, 3.0, "use openvino", "measured") for n in range(20)]
    (item,) = run_document.advice_blocks(many)[0].items
    assert item.detail.count("length") == run_document.POINTS and "14 more" in item.detail
