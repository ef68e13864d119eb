"""What a file is, is told by its content."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import sample_records as data
import trace_cases as cases

import frameworktax as ft
from frameworktax.ablate.blocks import SCHEMA as ABLATION
from frameworktax.analysis.compare.comparison import COMPARISON_SCHEMA
from frameworktax.analysis.document import build
from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.errors import FrameworktaxError, UsageError
from frameworktax.explaining import explain
from frameworktax.programs.document import SCHEMA as PROGRAM
from frameworktax.report import export, json_document
from frameworktax.runtimes.deployment import MANIFEST
from frameworktax.runtimes.deployment import SCHEMA as DEPLOYMENT

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["t.json", "t.csv", "t.sqlite", "t"])
def test_a_trace_by_any_name(tmp_path, name):
    path = tmp_path / name
    path.write_text(cases.trace(*cases.one_step()))
    assert explain(path).run.trace["source"] == "kineto"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert explain(path).run.trace["source"] == "kineto"
    path.write_text("  \n[" + ",".join(cases.one_step()) + "]")
    assert explain(path).run.trace["events"] == 13


def test_a_list_of_events_far_behind_what_stands_before_it(tmp_path):
    path = tmp_path / "t.json"
    head = f'"deviceProperties": [{{"id": 0, "name": "{"x" * 5_000_000}"}}], '
    path.write_text(cases.trace(*cases.one_step(), head=head))
    assert explain(path).run.trace["events"] == 13


def test_what_replaces_nsight_systems_and_xplane(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\n\x02\x12\0")
    with pytest.raises(UsageError, match="measure --runtimes jax"):
        explain(tmp_path / "a.bin")
    for process in ("/device:GPU:0", "/host:CPU"):
        named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": process}}
        fusion = {"ph": "X", "pid": 1, "tid": 13, "ts": 1.0, "dur": 2.0, "name": "fusion.3"}
        (tmp_path / "c.json").write_text(json.dumps({"traceEvents": [named, fusion]}))
        with pytest.raises(UsageError, match="JAX, TensorFlow"):
            explain(tmp_path / "c.json")
    (tmp_path / "b.bin").write_bytes(b"SQLite format 3\0")
    with pytest.raises(UsageError, match="export_chrome_trace"):
        explain(tmp_path / "b.bin")


def test_a_store_its_shard_and_its_document(tmp_path):
    records = data.sample_records()
    told = explain(data.write(tmp_path / "store", records)).run
    assert told.headline == build(records).headline
    shard = shutil.copy(tmp_path / f"store/{data.SESSION}.jsonl", tmp_path / "anything")
    assert explain(Path(shard)).run.headline == told.headline
    document = json.loads(json_document.text(told))
    for name, text in {
        "first": json.dumps(document),
        "last": json.dumps({k: document[k] for k in sorted(document, reverse=True)}),
    }.items():
        path = tmp_path / name
        path.write_text(text)
        assert explain(path).run.headline == told.headline


def test_from_python(tmp_path):
    results = ft.explain(DATA / "h100-bert-small-step.json", what_if=WhatIf(device_speed=2))
    assert results.run.trace["devices"]["0"]["kernel_ns"] == 309_437
    assert results.to_json()["trace"]["launches"] == 60
    assert len(results) == 0
    assert results.run.predictions


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"   \n ",
        b"hello",
        b"{}",
        b"3",
        b"[1, 2]",
        b'{"a": ' * 100_000,
        b"[" * 100_000,
        bytes(range(256)) * 9,
        b"\x1f\x8b",
        gzip.compress(b"hello", mtime=0),
        gzip.compress(gzip.compress(b"hello", mtime=0), mtime=0),
        gzip.compress(b"{}", mtime=0)[:-5],
        b"\n\0\0",
        b"SQLite format 3\0",
    ],
)
def test_anything_else_is_one_line(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FrameworktaxError) as caught:
        explain(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *(PROGRAM, COMPARISON_SCHEMA, ABLATION, DEPLOYMENT),
        *("frameworktax.optimization", "frameworktax.baselines"),
    ],
)
def test_another_document_of_ours_is_named_with_what_reads_it(tmp_path, name):
    path = tmp_path / MANIFEST
    path.write_text(json.dumps({"verb": "x", "inside": [{}], "schema": name, "version": 1}))
    for given in (path, tmp_path):
        with pytest.raises(FrameworktaxError) as caught:
            explain(given)
        said = json_document.OTHERS[name.partition(".")[2]]
        assert str(caught.value) == f"{path} is the document {said}"


def test_a_folder_of_traces_names_one_of_them(tmp_path):
    (tmp_path / "host_1.2.pt.trace.json.gz").touch()  # as TensorBoard's handler calls them
    with pytest.raises(UsageError, match=r"host_1\.2\.pt\.trace\.json\.gz"):
        explain(tmp_path)


def test_a_table_of_its_own_names_what_it_was_made_of(tmp_path):
    export.write(build(data.sample_records()), tmp_path / "points.csv")
    with pytest.raises(UsageError, match="explain the store"):
        explain(tmp_path / "points.csv")


def test_nothing_there_and_nothing_asked(tmp_path):
    with pytest.raises(UsageError, match=r"no such file.*explain takes"):
        explain(tmp_path / "none")
    with pytest.raises(FrameworktaxError, match="holds no results"):
        explain(tmp_path)
    with pytest.raises(UsageError, match="--device-speed"):
        explain(DATA / "h100-bert-small-step.json", what_if=WhatIf(device_speed=0))
