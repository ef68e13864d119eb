"""`frameworktax list` and `frameworktax env`, as a user calls them."""

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
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
