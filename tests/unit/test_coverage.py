"""The coverage matrix: read, selected, shown; and the one that ships."""

import json

import pytest

from frameworktax import coverage, runtimes
from frameworktax.coverage import Cell, Matrix
from frameworktax.errors import StoreError, UsageError
from frameworktax.models.registry import BUILT_IN

CELLS = (
    Cell(model="bert-tiny", runtime="openvino", verdict="runs", difference=2e-7),
    Cell(model="bert-tiny", runtime="tract", verdict="runs", difference=9e-4),
    Cell(model="funnel", runtime="openvino", verdict="differs", difference=2.6, worst="2.6 off"),
    Cell(
        model="funnel",
        runtime="tract",
        verdict="cannot",
        reason="no such operator",
        stopped_by="aten.einsum",
    ),
)


def matrix(**versions: str) -> Matrix:
    return Matrix(made="2026-11-20", cpu="a CPU", versions=versions, limit_s=120, cells=CELLS)


def test_a_cell_in_a_word() -> None:
    assert [coverage.mark(cell) for cell in CELLS] == [
        "runs", "runs 9e-04", "differs 3e+00", "cannot",
    ]  # fmt: skip
    assert [coverage.why(cell) for cell in CELLS] == [
        "", "", "2.6 off", "aten.einsum: no such operator",
    ]  # fmt: skip


def test_one_model_or_one_runtime() -> None:
    assert coverage.select(matrix()) == CELLS
    assert coverage.select(matrix(), model="funnel") == CELLS[2:]
    assert coverage.select(matrix(), "funnel", "tract") == CELLS[3:]
    with pytest.raises(UsageError, match=r"unknown model 'funel', did you mean 'funnel'"):
        coverage.select(matrix(), model="funel")
    with pytest.raises(UsageError, match="runtime 'eager' is not in the matrix; measure it"):
        coverage.select(matrix(), runtime="eager")


def test_tables() -> None:
    assert coverage.grid(CELLS) == (
        ["model", "openvino", "tract"],
        [["bert-tiny", "runs", "runs 9e-04"], ["funnel", "differs 3e+00", "cannot"]],
    )
    _, rows = coverage.digest(CELLS)
    assert rows == [
        ["bert-tiny", "2 of 2", "runs 9e-04: tract"],
        ["funnel", "0 of 2", "differs 3e+00: openvino; cannot: tract"],
    ]
    assert coverage.tally(CELLS) == {"runs": 2, "differs": 1, "cannot": 1}


def test_other_versions_are_told(monkeypatch) -> None:
    monkeypatch.setattr(coverage.host, "libraries", lambda: {"torch": "2.14+cpu", "onnx": "1"})
    notes = coverage.footnotes(matrix(torch="2.13", onnx="1", jax="9"), CELLS)
    assert notes == [
        "2 runs, 1 differs, 1 cannot; made 2026-11-20 on a CPU, models shrunk, 120 s a cell",
        "other versions are installed here (torch 2.14+cpu here, 2.13 there): measure to be sure",
    ]
    assert len(coverage.footnotes(matrix(torch="2.14"), CELLS)) == 1


def test_what_is_no_matrix_is_told(monkeypatch, tmp_path) -> None:
    with pytest.raises(StoreError, match="no coverage matrix of version 1"):
        coverage.decode({"schema": "other"})
    monkeypatch.setattr(coverage, "files", lambda package: tmp_path)
    with pytest.raises(StoreError, match=r"cannot be read .*; reinstall frameworktax"):
        coverage.load()


def test_the_one_that_ships_is_whole() -> None:
    """Every cell names a model and a runtime that exist, and says why it does not run."""
    shipped = coverage.load()
    assert shipped.versions["torch"]
    pairs = [(cell.model, cell.runtime) for cell in shipped.cells]
    assert len(pairs) == len(set(pairs)) > 0
    for cell in shipped.cells:
        assert cell.model in BUILT_IN
        assert runtimes.get(cell.runtime).name == cell.runtime
        assert cell.verdict in coverage.VERDICTS
        if cell.verdict in ("runs", "differs"):
            assert cell.difference is not None or cell.reason
        else:
            assert cell.reason
    json.dumps([cell.reason for cell in shipped.cells], allow_nan=False)
