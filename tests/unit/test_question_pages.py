"""The pages of ``make questions`` on a session whose truth is known."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sample_records as data

import ablation
import architectures
import operator_times
import operators
import question
from frameworktax.analysis.document import build
from frameworktax.sweep.study import load


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def test_the_study_has_every_architecture_of_the_page_and_no_other():
    study = load(architectures.STUDY, (), platforms={"local": "cpu"}, allow_code=False)
    models = {one.point.workload.model for one in study.planned}
    assert models == set(architectures.KINDS)
    assert any(one.point.workload.phase == "generate" for one in study.planned)
    assert study.settings.time_budget <= 12 * 60


def test_a_row_an_architecture(run, monkeypatch):
    monkeypatch.setattr(architectures, "KINDS", {data.MODEL: "encoder", "gnn": "graph"})
    text = architectures.text(run)
    (row,) = [line for line in text.splitlines() if line.startswith("| encoder")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "`bert-mini`, 128 tokens"
    assert cells[2].startswith("4.40 (")
    assert cells[3].startswith("62 % (")  # of the time off the CPU, 2 %, none is a kernel's
    assert cells[9] == "onnxruntime"
    assert cells[10].startswith("2.20 (")
    assert "at 16" in cells[8]
    assert "- graph (`gnn`): not measured." in text


def test_the_bill_by_layer_adds_up_and_names_what_was_left_out(run):
    m = next(m for m in run.measurements if m.runtime == "eager" and m.workload.batch == 1)
    itemised = {
        "latency_ns": 1e6,
        "calls": {"linear": 20},
        "time_ns": {"linear": 4e5, operator_times.AROUND: 6e5},
    }
    lines = operators._model(m, run, data.sample_records(), itemised)
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    shares = {row[0]: row[-1] for row in rows if len(row) == 5}
    assert shares["kernel"] == "38 %"
    assert any("Recording gradients" in line and "not measured" in line for line in lines)
    saved = next(line for line in lines if "Inference mode" in line)
    assert "a ratio of 0.886 (" in saved and "the tax by -0.500" in saved
    assert "| linear | 20 | 0.400 | 40 % | 20.00 |" in lines
    assert operators._operators(m, {}) == ["Not measured."]


def test_cells_cannot_break_a_table():
    assert question.table(("a", "b"), [("x|y", "1")]) == ["| a | b |", "|---|--:|", "| x\\|y | 1 |"]


def test_the_page_of_optimisations_is_as_the_code_writes_it_from_its_store(monkeypatch):
    monkeypatch.setattr(ablation.vega, "write", lambda spec, path: None)
    at = question.place("ablation", "", ["--redraw"])
    assert ablation.page(at, {}) == at.page.read_text(encoding="utf-8")
