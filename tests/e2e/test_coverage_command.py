"""`frameworktax list coverage` and `frameworktax env`, as a user calls them."""

import json
import os
import subprocess
import sys

import pytest


def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-P", "-m", "frameworktax", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **variables},
    )


def test_the_matrix_as_json_names_versions_and_date():
    done = run("list", "coverage", "--json", "--model", "bert-tiny")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["versions"]["torch"]
    assert document["made"].startswith("20")
    assert {cell["model"] for cell in document["cells"]} == {"bert-tiny"}
    assert {"runtime", "verdict", "reason", "stopped_by", "difference"} <= set(document["cells"][0])


def test_the_matrix_as_text_ends_with_how_it_was_made():
    done = run("list", "coverage")
    assert done.returncode == 0, done.stderr
    assert any(line.split()[:1] == ["bert-tiny"] for line in done.stdout.splitlines())
    assert ", models shrunk, " in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "coverage", "--model", "bert-tny"), "unknown model 'bert-tny', did you mean"),
        (("list", "coverage", "--runtime", "null"), "runtime 'null' is not in the matrix"),
        (("env", "create", "executorc"), "no environment 'executorc', did you mean 'executorch'?"),
        (("env", "remove", "nothing"), "no environment 'nothing' (see 'frameworktax env list')"),
        (
            ("measure", "mlp", "--runtimes", "onnxruntime@9"),
            "onnxruntime has no option '9'; choose onnxruntime@0, onnxruntime@1",
        ),
        (
            ("measure", "mlp", "--runtimes", "eager@9"),
            "eager has no option '9'; choose eager@autograd, eager@unfused",
        ),
    ],
)
def test_wrong_names_are_one_line(words, said, tmp_path):
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_environments_are_listed_and_the_command_that_makes_one_is_named(tmp_path):
    folder = {"FRAMEWORKTAX_ENVIRONMENTS": str(tmp_path)}
    rows = json.loads(run("env", "list", "--json", **folder).stdout)
    assert {"jax", "executorch", "litert", "iree"} <= {row["name"] for row in rows}
    assert not any(row["ready"] for row in rows)
    runtimes = json.loads(run("list", "runtimes", "--json", **folder).stdout)
    (litert,) = [row for row in runtimes if row["name"] == "litert"]
    if not litert["available"]:
        assert litert["reason"].endswith("not installed; frameworktax env create litert")
    assert litert["environment"] == "litert"
