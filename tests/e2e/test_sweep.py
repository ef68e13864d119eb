"""`frameworktax sweep` and `init`, as a user types them."""

import json
import os
import re
import sys

import hurried
import pytest

from frameworktax.host.lock import NAME, VARIABLE, host_lock

STUDY = """
[study]
time_budget = "15min"
until = "50%"
[grid]
models = ["mlp", "bert-tiny"]
runtimes = ["null"]
batch = [1, 2]
"""
"""Nothing but the floor: no engine is loaded, so that it takes seconds."""


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))


def test_a_study_is_measured_once_and_said_beforehand(shell, here):
    shell.write("study.toml", STUDY)
    dry = here("sweep", "study.toml", "--dry-run", "--json", "-").json()
    assert len(dry["points"]) == 4 and len(dry["sessions"]) == 2
    assert {p["held"]["status"] for p in dry["points"]} == {"open"}
    assert not (shell.folder / "frameworktax-results").exists()

    ran = shell("sweep", "study.toml", "--json", "run.json", "--report", "report.html")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1].startswith("4 points measured; took ")
    document = json.loads((shell.folder / "run.json").read_text())
    found = [(m["workload"]["model"], m["workload"]["batch"]) for m in document["measurements"]]
    assert sorted(found) == [("bert-tiny", 1), ("bert-tiny", 2), ("mlp", 1), ("mlp", 2)]
    assert all(m["latency_ns"]["value"] > 0 for m in document["measurements"])
    assert (shell.folder / "report.html").exists()

    shards = len(list((shell.folder / "frameworktax-results").glob("*.jsonl")))
    dry = here("sweep", "study.toml", "grid.batch=1,2,4", "--dry-run")
    (planned,) = (line for line in dry.out.splitlines() if line.startswith("6 points"))
    assert re.findall(r"\d+", planned) == ["6", "2", "2", "4"]
    again = here("sweep", "study.toml")
    assert again.code == 0 and "resuming: 4 of 4 points" in again.err
    assert len(list((shell.folder / "frameworktax-results").glob("*.jsonl"))) == shards


def test_wrong_studies(here):
    here.write("study.toml", STUDY.replace("batch", "bacth"))
    here("sweep", "study.toml").refused("study.toml line 8", "did you mean 'batch'")
    here.write("study.toml", STUDY)
    here("sweep", "study.toml", "grid.bach=1").refused("'grid.bach=1'", "'batch'")
    here("sweep", "study.toml", "--engine", "lcoal").refused("local")
    here("sweep", "missing.toml").refused("frameworktax init missing.toml")
    here.write("file", "")
    here("sweep", "study.toml", "--store", "file/store").refused("--store")


def test_code_in_a_study_runs_only_where_it_is_allowed(shell, here):
    shell.write("own.py", "open('ran', 'w')\n\ndef build():\n    raise ValueError('no')\n")
    shell.write("study.toml", STUDY.replace('"bert-tiny"', '"own.py:build"'))
    words = ("sweep", "study.toml", "grid.batch=1")
    here(*words).refused("own.py:build", str(shell.folder / "own.py"), "--allow-code")
    assert here(*words, "--dry-run").code == 0  # which runs nothing
    assert not (shell.folder / "ran").exists()
    ran = shell(*words, "grid.runtimes=null,eager", "~study", "--json", "-",
                "grid.models=own.py:build")  # fmt: skip
    assert re.match(r".*\bcode\b.* own\.py:build \(", ran.err)  # said first
    assert (shell.folder / "ran").exists()
    assert ran.code == 1 and "ValueError" in ran.err and "Traceback" not in ran.err


def test_who_measures_already_is_waited_for(shell, tmp_path):
    import subprocess

    shell.write("study.toml", STUDY)
    with host_lock(["sweep", "other.toml"]):
        child = subprocess.Popen(
            [sys.executable, *hurried.PROGRAM, "sweep", "study.toml", "grid.models=mlp"],
            cwd=shell.folder, env={**os.environ, "COLUMNS": "80"}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = child.stderr.readline()
        assert f"waiting for process {os.getpid()} (frameworktax sweep other.toml" in line
        assert not list(shell.folder.glob("frameworktax-results/*.jsonl"))
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert "2 points measured" in out
    assert (tmp_path / "run" / NAME).exists()


def test_init(here):
    ran = here("init")
    assert ran.code == 0 and "--dry-run" in ran.out
    text = (here.folder / "study.toml").read_text()
    here("init", "study.toml").refused("study.toml", "another")
    assert (here.folder / "study.toml").read_text() == text
    assert here("sweep", "study.toml", "--dry-run").code == 0
    here("init", "new.toml", "--from-optimum-benchmark", "c.yaml").refused("docs/studies.md")
    assert not (here.folder / "new.toml").exists()
    here("schema", "study").refused("docs/studies.md")
