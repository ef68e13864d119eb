"""--quiet and --verbose: the same on every verb, and not both."""

from dataclasses import replace
from pathlib import Path

import comparison_records as made
import pytest
import sample_records as data

from frameworktax.records import Note, Outcome

ABLATION = Path(__file__).parents[2] / "docs/results/ablation/store"
VERBS = {
    "measure": ["mlp"],
    "sweep": ["study.toml"],
    "reproduce": ["figure-4"],
    "ablate": ["mlp"],
    "explain": ["trace.json"],
    "compare": ["before", "after"],
    "report": ["store"],
}


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    noted = [
        replace(r, notes=(Note("not-settled", f"round {i} was odd"),))
        if isinstance(r, Outcome) and r.status == "ok"
        else r
        for i, r in enumerate(data.sample_records())
    ]
    made.write(tmp_path / "store", noted)
    made.write(tmp_path / "before", made.session(batches=(1, 2)))
    slower = dict.fromkeys(made.LATENCY_NS, 1.5)
    made.write(tmp_path / "after", made.session(made.NEW, batches=(1, 2), factors=slower))
    return command


@pytest.mark.parametrize("verb", VERBS)
def test_both_are_an_error_of_one_line(run, verb):
    code, out, err = run(verb, *VERBS[verb], "--quiet", "--verbose")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("frameworktax: ") and "--quiet" in line and "--verbose" in line


def test_a_report_in_full_has_every_note_and_the_environment(run):
    _, brief, _ = run("report", "store")
    _, full, _ = run("report", "store", "--verbose")
    assert full.count("was odd") > brief.count("was odd")
    assert "Environment" in full and "Environment" not in brief
    assert data.ENVIRONMENT.cpu in full
    assert max(map(len, full.splitlines())) <= 80
    assert run("report", "store", "--quiet") == (0, "", "")


def test_a_terminal_that_does_not_know_its_size_has_one(run, monkeypatch):
    expected = run("report", "store")
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    assert run("report", "store") == expected


def test_a_comparison_in_full_shows_more(run):
    words = ("compare", "before", "after", "--gate", "5%")
    _, brief, _ = run(*words)
    _, full, _ = run(*words, "--verbose")
    assert full != brief


def test_an_error_is_traced_on_request_alone(run):
    code, _, err = run("report", "nowhere")
    assert code == 2 and len(err.splitlines()) == 1
    code, _, err = run("report", "nowhere", "--verbose")
    assert code == 2 and "Traceback" in err
    assert err.splitlines()[-1].startswith("frameworktax: ")


def test_tables_are_printed_where_their_file_cannot_be_written(run):
    code, out, err = run("compare", "before", "after", "--json", "/dev/full")
    assert code == 2 and "slower" in out
    assert err.startswith("frameworktax: cannot write /dev/full") and err.count("\n") == 1
    words = ("ablate", "bert-base", "--store", str(ABLATION), "--redraw", "--json", "/dev/full")
    code, out, _ = run(*words)
    assert code == 2 and "eager as it comes" in out
