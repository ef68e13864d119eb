"""Tokens, padding, set-up and places of the tax as people read them, in every format."""

import csv
import io
from dataclasses import replace

import pytest
import sample_records as data
from rich.console import Console
from test_where import stack

from frameworktax.analysis.document import build
from frameworktax.records import Estimate, Note, Operator, SourceLine
from frameworktax.report import html, json_document, run_blocks
from frameworktax.report.families import families
from frameworktax.report.render_markdown import markdown
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.rows import csv_text


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def with_all(run):
    """The run as if it were ragged, generated and set up; times differ by runtime."""

    def told(m):
        if m.runtime == "null":
            return m
        fast = m.runtime != "eager"
        first = Estimate(value=9e6, low=8.1e6, high=9.9e6)
        return replace(
            m,
            workload=replace(
                m.workload, new_tokens=16, kv_cache="static", phase="generate",
                input="ragged", length_mean=20.92, length_sd=10.18,
            ),
            padding_share=0.0 if m.runtime == "inductor" else 0.8366,
            first_token_ns=first,
            per_token_ns=Estimate(value=5e5, low=4e5, high=6e5) if fast else None,
            setup_ns=41_000_000_000 if m.runtime == "inductor" else None,
            artifact_bytes=23_000_000 if m.runtime == "inductor" else None,
            notes=(Note("set-up-reused", "again"),) if m.runtime == "inductor" else (),
        )  # fmt: skip

    return replace(run, measurements=tuple(map(told, run.measurements)))


def tables(run):
    family = families(run)[0]
    return [make(family) for make in (run_blocks.tokens, run_blocks.padding, run_blocks.set_up)]


@pytest.mark.parametrize(
    ("notes", "merged"),
    [
        (["up to 7 % longer", "up to 23 % longer"], "up to 23 % longer"),
        (["±8.0%, asked for ±3.0%", "±40.7%, asked for ±3.0%"], "±8.0 to 40.7%, asked for ±3.0%"),
        (["1,234 of 5,000 lost", "987 of 12,000 lost"], "987 to 1,234 of up to 12,000 lost"),
        (["libc.so.6 of torch 2.13.0, 2 calls"], "libc.so.6 of torch 2.13.0, 2 calls"),
    ],
)
def test_notes_that_differ_in_numbers_alone_are_one(run, notes, merged):
    (first, *_) = [m for m in run.measurements if m.runtime == "eager"]
    points = [
        replace(first, workload=replace(first.workload, batch=n + 1), notes=(Note("code", text),))
        for n, text in enumerate(notes)
    ]
    (family,) = families(replace(run, measurements=tuple(points)))
    found = family.notes(lambda _: True)
    assert [(code, text) for _, code, text in found] == [("code", merged)]
    assert family.notes(lambda _: False) == [("", "code", "")]


def test_a_note_with_a_number_and_one_without_are_two(run):
    (first, *_) = [m for m in run.measurements if m.runtime == "eager"]
    noted = replace(first, notes=(Note("code", "took 5"), Note("code", "took ")))
    (family,) = families(replace(run, measurements=(noted,)))
    assert [text for _, _, text in family.notes(lambda _: True)] == ["took 5", "took "]


def texts(table):
    return {row[0].text: [f"{c.text} {c.note}".rstrip() for c in row[1:]] for row in table.rows}


def test_a_dense_forward_pass_has_none_of_them_but_its_set_up(run):
    tokens, padding, set_up = tables(run)
    assert not tokens.rows and not padding.rows
    assert set_up.rows


def test_the_tables_hold_what_the_records_say(run):
    tokens, padding, set_up = tables(with_all(run))
    assert "16 tokens, static cache" in tokens.title
    found = [[f"{c.text} {c.note}".rstrip() for c in row] for row in tokens.rows]
    assert ["eager", "1", "9.00 ms ±10 %", "–"] in found
    assert ["inductor", "2", "9.00 ms ±10 %", "0.500 ms ±20 %"] in found
    by_runtime = texts(padding)
    assert by_runtime["inductor"][0] == "0 %" and by_runtime["eager"][0] == "84 %"
    assert by_runtime["eager"][1].startswith("61.8 ")
    assert by_runtime["onnxruntime"][1].startswith("warm ")
    assert texts(set_up)["inductor"] == ["41 s", "earlier session", "23 MB", "419 MB"]
    assert texts(set_up)["eager"] == ["–", "–", "–", "419 MB"]
    assert not set_up.folded and set_up.hint


def test_the_peak_of_a_runtime_is_that_of_its_largest_point(run):
    whole = with_all(run)
    peaks = {("eager", 1): 800_000_000, ("eager", 16): 1_250_000_000}
    turned = tuple(
        replace(m, peak_memory_bytes=peaks.get((m.runtime, m.workload.batch)))
        for m in whole.measurements
    )
    (*_, set_up) = tables(replace(whole, measurements=turned))
    assert texts(set_up) == {
        "eager": ["–", "–", "–", "1.25 GB"], "inductor": ["41 s", "earlier session", "23 MB", "–"],
    }  # fmt: skip
    none = tuple(replace(m, peak_memory_bytes=None, setup_ns=None) for m in turned)
    assert tables(replace(whole, measurements=none))[2].rows == ()


def test_every_format_shows_them(run):
    whole = with_all(run)
    out = io.StringIO()
    print_blocks(run_blocks.run_blocks(whole), Console(file=out, width=80))
    page = html.fragment(whole)
    for text in (out.getvalue(), markdown(run_blocks.run_blocks(whole)), page):
        flat = " ".join(text.split())
        for part in ("Padding tax", "84 %", "each further", "41 s", "23 MB", "earlier session"):
            assert part in flat
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= 80


def test_the_document_and_the_csv_hold_them(run):
    told = with_all(run)
    rows = list(csv.DictReader(io.StringIO(csv_text(told))))
    (row,) = [r for r in rows if r["runtime"] == "inductor" and r["batch"] == "1"]
    assert (row["padding_share"], row["setup_ns"], row["artifact_bytes"]) == (
        "0.0", "41000000000", "23000000",
    )  # fmt: skip
    assert (row["first_token_ns"], row["per_token_ns_high"]) == ("9000000.0", "600000.0")
    assert (row["input"], row["length_mean"], row["kv_cache"]) == ("ragged", "20.92", "static")
    (m,) = [
        m
        for m in json_document.dump(told)["measurements"]
        if m["runtime"] == "inductor" and m["workload"]["batch"] == 1
    ]
    assert m["first_token_ns"]["value"] == 9e6 and m["padding_share"] == 0.0


def test_names_from_outside_stay_text(run):
    evil = "<img src=x onerror=alert(1)>"
    told = with_all(run)
    turned = tuple(
        replace(m, runtime=evil if m.runtime == "inductor" else m.runtime)
        for m in told.measurements
    )
    page = html.fragment(replace(told, measurements=turned))
    assert evil not in page and "&lt;img src=x" in page


def test_titles_say_how_the_input_is_made(run):
    (family,) = families(with_all(run))
    assert "ragged 20.92 ± 10.18 tokens" in family.title
    assert "generate 16 tokens (static cache)" in family.title


def test_points_that_differ_in_any_field_stand_in_tables_of_their_own(run):
    told = with_all(run)
    other = tuple(
        replace(m, workload=replace(m.workload, kv_cache="none"))
        for m in told.measurements
        if m.runtime == "eager"
    )
    both = families(replace(told, measurements=told.measurements + other))
    assert [f.title.count("static") for f in both] == [1, 0]


def test_the_places_of_the_tax_are_tables_by_layer_operator_and_line(run):
    operator = Operator(
        name="aten::linear",
        time_ns=Estimate(value=2e6, low=1.8e6, high=2.2e6, n=3),
        bill_ns={"kernel": 0.5e6, "dispatch": 1.5e6},
    )
    line = SourceLine(
        file="/home/user/net.py",
        line=9,
        function="Net.forward",
        time_ns=Estimate(value=2e6, low=1.5e6, high=2.5e6, n=3),
        bill_ns={"kernel": 1e6, "python": 1e6},
    )
    layers = tuple(replace(one, operators=(operator,) * (one.path == "")) for one in stack())
    bill = {"kernel": 1e6, "python": 4e6}
    m = replace(run.measurements[0], layers=layers, lines=(line,), bill_ns=bill)
    (family,) = families(replace(run, measurements=(m,)))
    (places,) = run_blocks.places(family)
    assert [row[0].text for row in places.rows][:2] == ["layers.0–5.b", "layers.0–5.a"]
    assert {row[-1].text for row in places.rows[:2]} == {"net.py:7"}
    found = {row[0].text: [cell.text for cell in row[1:]] for row in run_blocks.operators(m).rows}
    assert found["aten::linear"][:2] == ["0.500", "1.50"]
    assert found["aten::linear"][-1] == "dispatch"
    ((at, function, tax, *more),) = run_blocks.source_lines(m).rows
    assert (at.text, at.exact, function.text) == ("net.py:9", "/home/user/net.py:9", "forward")
    assert [tax.note, *(cell.text for cell in (tax, *more))] == ["±25 %", "1.00", "25 %", "python"]
