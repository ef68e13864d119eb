"""Records as tables in a notebook."""

from dataclasses import replace

import sample_records as data

from frameworktax import notebook
from frameworktax.analysis.document import build
from frameworktax.block import BlockTax
from frameworktax.records import Estimate, Note, Workload
from frameworktax.report import html
from frameworktax.report.html import fragment

RUN = build(data.sample_records())


def test_a_measurement_is_a_small_table_of_what_was_measured():
    found = next(m for m in RUN.measurements if m.runtime == "eager")
    rows = dict(notebook.rows_of(found))
    assert rows["workload"] == "model bert-mini, length 128"
    assert rows["runtime"] == "eager"
    assert rows["latency_ns"].startswith("4.4e+06 (")
    assert rows["flops"] == "813,694,976"
    assert rows["samples_ns"] == "3 entries"
    assert "enqueue_ns" not in rows  # not measured
    assert "seeded, not trained" in rows["notes"]
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(rows)
    assert len(shown) < 10_000


def test_values_as_text():
    assert notebook.text_of(1234567) == "1,234,567"
    assert notebook.text_of(0.25) == "0.25"
    assert notebook.text_of(True) == "True"
    assert notebook.text_of(Estimate(value=2.0, low=1.5, high=2.5)) == "2 (1.5 to 2.5)"
    assert notebook.text_of(Note("code", "said")) == "said"
    assert notebook.text_of({"kernel": 3, "python": 1.5}) == "kernel 3, python 1.5"
    assert notebook.text_of((1, 2)) == "1; 2"
    assert notebook.text_of(tuple(range(9))) == "9 entries"
    assert notebook.text_of(Workload(model="m", batch=2)) == "model m, batch 2"
    long = Workload(model="x" * 1000)
    assert len(dict(notebook.rows_of(long))["model"]) == notebook.LONGEST


def test_names_and_texts_are_only_text():
    hostile = '<img src=x onerror="alert(1)">'
    m = RUN.measurements[0]
    m = replace(
        m,
        workload=replace(m.workload, model=hostile),
        runtime=hostile,
        notes=(Note("a-note", hostile),),
        bill_ns={hostile: 1.0},
    )
    assert "<img" not in m._repr_html_()
    block = BlockTax(name=hostile, calls=0, wall_ns=0, latency=None, own_cost_ns=1)
    assert "<img" not in block._repr_html_()


def test_a_large_study_shows_its_first_groups(monkeypatch):
    monkeypatch.setattr(html, "SECTIONS", 1)
    m = next(m for m in RUN.measurements if m.runtime == "eager")
    more = replace(m, workload=replace(m.workload, model="another"))
    shown = fragment(replace(RUN, measurements=(m, more)))
    assert shown.count("<h2>") == 1
    assert "The first 1 of 2 groups" in shown


def test_no_control_sign_reaches_a_notebook():
    found = replace(RUN.measurements[1], reason="\x1b[2Jna\u202eme\x00")
    assert ">name</td>" in found._repr_html_()
