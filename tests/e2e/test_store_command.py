"""`frameworktax store` and filtered reports, as typed; every line of docs/store.md is run."""

import json
import os
import shlex
from pathlib import Path

import markdown_blocks
import pytest
import sample_records as data
from sample_records import to_json

from frameworktax import store
from frameworktax.records import Session

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for block in markdown_blocks.blocks(ROOT / "docs" / "store.md")
    if block.language == "bash"
    for line in block.text.splitlines()
]
NAMES = {"frameworktax-results": 12, "node-1": 13, "node-2": 14}
"""Stores that the documentation speaks of, and the hour of their session."""


def fill(folder: Path, hour: int) -> Path:
    session = f"20261120T{hour}0000-aaaaaaaa"
    with store.Writer(folder, session) as writer:
        for record in data.sample_records():
            own = {"session": session}
            if isinstance(record, Session):
                own["started"] = f"2026-11-20T{hour}:00:00+00:00"
            writer.write(json.dumps({**to_json(record), **own}).encode())
    return writer.path


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    """Return a function that runs a command line in a folder, as ``command`` does."""
    for name, hour in NAMES.items():
        fill(tmp_path / name, hour)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    # Sessions of other tests may be running: no cache that they use may be pruned.
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    return lambda line: command(*shlex.split(os.path.expandvars(line))[1:])


def refused(ran) -> str:
    code, out, err = ran
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    return line


def test_every_line_of_the_documentation_runs(run):
    assert len(LINES) >= 8
    for line in LINES:
        assert line.startswith("frameworktax ")
        code, out, err = run(line)
        assert (code, err) == (0, ""), line
        assert out, line
    assert Path("points.parquet").stat().st_size > 0


def test_a_list_has_a_line_a_point(run):
    code, out, _ = run("frameworktax store list node-1 --where runtime=eager --where batch=1..4")
    assert code == 0
    shown = [line.split(", length 128")[0] for line in out.splitlines() if line.startswith("bert-")]
    assert shown == [f"bert-mini, batch {batch}" for batch in (1, 2, 4)]
    assert out.splitlines()[-1] == "3 points from 1 session"
    _, out, _ = run("frameworktax store list node-1 --where runtime=eager --json")
    first = json.loads(out)[0]
    assert first["latency_ns"]["value"] == pytest.approx(data.LATENCY_NS["eager"][0])


def test_a_damaged_store_is_exit_code_1(run, tmp_path):
    path = fill(tmp_path / "bad", 15)
    path.write_bytes(path.read_bytes() + b"rubbish\n")
    code, out, _ = run("frameworktax store check bad")
    assert code == 1
    assert "is no record" in out
    assert "bad: damaged in 1" in out
    code, out, _ = run("frameworktax store check bad --json")
    assert code == 1 and len(json.loads(out)["damage"]) == 1
    _, out, _ = run("frameworktax report bad -o bad.csv")  # which has no place for a note
    assert out.splitlines()[0] == "written: bad.csv" and "is no record and was skipped" in out


def test_a_report_of_a_part(run):
    run("frameworktax report node-1 --where runtime=openvino,eager --quiet -o part.json")
    runtimes = {m["runtime"] for m in json.loads(Path("part.json").read_text())["measurements"]}
    assert runtimes == {"openvino", "eager"}
    assert "batch 2" not in run("frameworktax report node-1 --where batch=1")[1]


def test_a_report_as_parquet_has_the_rows_of_its_csv(run):
    table = pytest.importorskip("pyarrow.parquet")
    run("frameworktax report node-1 -o \udcff.parquet")  # a name may be no UTF-8
    Path("\udcff.parquet").rename("x.parquet")
    run("frameworktax report node-1 -o x.csv")
    frame = table.read_table("x.parquet")
    lines = Path("x.csv").read_text().splitlines()
    assert frame.num_rows == len(lines) - 1
    assert frame.column_names == lines[0].split(",")


def test_a_name_gives_the_terminal_no_orders(run, tmp_path):
    path = fill(tmp_path / "evil", 15)
    path.write_bytes(path.read_bytes()[:-9])
    path.rename(path.with_name("\x1b[31mred\nline.jsonl"))
    _, out, _ = run("frameworktax store check evil")
    assert "is torn" in out
    assert "\x1b" not in out and len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("report node-1 --where modle=x", "did you mean 'model'"),
        ("report node-1 --where model=x", "store list node-1"),
        ("store list nowhere", "no store at nowhere"),
        ("store merge node-1 node-2 -o all", "cp node-1"),
        ("store prune", "give --cache"),
        ("store prune node-1 --older-than 30d", "SESSION.jsonl"),
        ("store prune --cache --limit many", "2GB"),
        ("store export node-1 -o x.csv", "report STORE -o"),
        ("store export node-1 -o x.csv --table blocks", "--json"),
        ("store push node-1 elsewhere", "rsync"),
        ("store pull foo://x y", "rsync"),
    ],
)
def test_wrong_use_is_one_line(run, line, said):
    assert said in refused(run(f"frameworktax {line}"))
