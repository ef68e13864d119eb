"""A second run of exported runtimes imports no model library, in whatever process."""

import os
import subprocess
import sys

import hurried
import pytest

from frameworktax import runtimes
from frameworktax.runtimes.base import Target

RUN = """
import frameworktax as ft
results = ft.measure(
    "mlp", runtimes="onnxruntime", batch=[1], width=0.1, depth=0.25, processes=1,
    time_budget=900, until=0.9,
)
for m in results:
    if m.runtime == "null":
        continue
    known = m.latency_ns, m.tax_ns, m.operators, m.parity and m.parity.within_tolerance
    assert all(known), (m.runtime, known, m.status, m.reason)
    print(m.runtime, m.workload.batch, m.operators, sorted(note.code for note in m.notes))
"""
TRAP = """
import os, sys
with open(os.environ["IMPORTED"], "a") as file:
    print(__name__, sys.argv, file=file)
raise ImportError("not in a second run")
"""
"""Each of these packages leaves its name and fails, where any process imports it."""
TRAPPED = ("torch", "transformers", "torchvision")
"""What a second run must not import, in whatever process."""


def test_what_is_exported_needs_no_model_library(tmp_path):
    if missing := runtimes.get("onnxruntime").missing(Target()):
        pytest.skip(missing)
    marks = tmp_path / "imported"

    def run(path):
        environment = {
            **os.environ,
            "FRAMEWORKTAX_CACHE": str(tmp_path / "cache"),
            "IMPORTED": str(marks),
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-c", hurried.CODE + RUN],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert "reference-reused" not in run([])
    traps = tmp_path / "traps"
    for package in TRAPPED:
        (traps / package).mkdir(parents=True)
        (traps / package / "__init__.py").write_text(TRAP)
    second = run([str(traps)])
    assert not marks.exists(), marks.read_text()
    assert len(second.splitlines()) == second.count("reference-reused") == 1
