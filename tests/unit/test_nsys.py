"""The reader of Nsight Systems' exports."""

import sqlite3

import pytest
import trace_cases as cases

from frameworktax.errors import TraceError
from frameworktax.traces import nsys, timeline


def test_a_step_with_a_graph(tmp_path):
    found = nsys.read(cases.nsys(tmp_path / "t.sqlite"))
    assert (found.source, found.records, found.device_names) == ("nsys", 8, {0: "NVIDIA L4"})
    line = timeline.build(found)
    assert line.windows.names == ("step 4",)
    assert line.windows.end_ns.tolist() == [10_000]
    assert cases.busy_ns(found) == {0: 4_000}
    assert line.launch_start_ns.tolist() == [1_000, 1_600, 1_700]
    assert line.is_launch.tolist() == [True, True, False]
    assert line.is_graph.tolist() == [False, True, False]
    operators = found.events.of("cpu_op")
    assert [operators.name_of(i) for i in range(len(operators))] == ["aten::linear"]


def test_it_is_not_written_to(tmp_path):
    path = cases.nsys(tmp_path / "t.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    nsys.read(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_times_that_cannot_be_are_counted(tmp_path):
    rows = "('x', 5, 0, 7, 1, 1), (9, 5, 0, 7, 1, 1), (1, NULL, 0, 7, 1, 1)"
    more = f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {rows}"
    found = nsys.read(cases.nsys(tmp_path / "t.sqlite", extra=[more]))
    assert found.invalid == 3
    assert cases.busy_ns(found) == {0: 4_000}


def test_a_view_in_place_of_a_table_is_not_run(tmp_path):
    endless = (
        "CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
    )
    found = nsys.read(cases.nsys(tmp_path / "t.sqlite", extra=[endless]))
    assert found.records == 8


def test_an_export_without_some_tables_and_columns(tmp_path):
    base = sqlite3.connect(tmp_path / "t.sqlite")
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 9)")
    base.commit()
    base.close()
    found = nsys.read(tmp_path / "t.sqlite")
    assert cases.busy_ns(found) == {-1: 4}
    assert found.events.name_of(0) == "Kernel"


@pytest.mark.parametrize(
    "content", [b"SQLite format 3\0" + b"\1" * 4096, b"SQLite format 3\0", b""]
)
def test_what_is_no_export_is_one_line(tmp_path, content):
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        nsys.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_export_cut_in_half_is_one_line_or_a_result(tmp_path):
    whole = cases.nsys(tmp_path / "whole.sqlite").read_bytes()
    refused = 0
    for part in range(1, 16):
        path = tmp_path / "cut.sqlite"
        path.write_bytes(whole[: len(whole) * part // 16])
        try:
            nsys.read(path)
        except TraceError as error:
            refused += "\n" not in str(error)
    assert refused > 3
