"""The coverage matrix: its marks and tables, and the page made of the committed one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import coverage
from coverage import Cell
from frameworktax import runtimes
from frameworktax.models import BUILT_IN

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


def test_a_cell_in_a_word() -> None:
    assert [coverage.mark(cell) for cell in CELLS] == [
        "runs", "runs 9e-04", "differs 3e+00", "cannot",
    ]  # fmt: skip
    assert [coverage.why(cell) for cell in CELLS] == [
        "", "", "2.6 off", "aten.einsum: no such operator",
    ]  # fmt: skip


def test_tables() -> None:
    assert coverage.grid(CELLS) == (
        ["model", "openvino", "tract"],
        [["bert-tiny", "runs", "runs 9e-04"], ["funnel", "differs 3e+00", "cannot"]],
    )
    assert coverage.tally(CELLS) == {"runs": 2, "differs": 1, "cannot": 1}


def test_the_committed_matrix_is_whole_and_its_page_is_made_of_it() -> None:
    """Every cell names a model and a runtime that exist, and says why it does not run."""
    matrix = coverage.read(coverage.CELLS)
    assert matrix.versions["torch"]
    pairs = [(cell.model, cell.runtime) for cell in matrix.cells]
    assert len(pairs) == len(set(pairs)) > 0
    for cell in matrix.cells:
        assert cell.model in BUILT_IN
        assert runtimes.get(cell.runtime).name == cell.runtime
        assert cell.verdict in coverage.VERDICTS
        if cell.verdict in ("runs", "differs"):
            assert cell.difference is not None or cell.reason
        else:
            assert cell.reason
    assert coverage.TABLE.read_text(encoding="utf-8") == coverage.table(matrix)
