"""The example's server and load generator, on loopback."""

import io
import os
import re
import runpy
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
LOAD = FOLDER.parent / "load.py"
MODEL = """
import torch


class Tiny(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        return (input_ids * attention_mask).float().sum(1, keepdim=True)


def tiny():
    return Tiny(), None
"""


def test_the_server_answers_and_its_load_is_measured(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    (tmp_path / "tiny_model.py").write_text(MODEL)
    path = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    example = runpy.run_path(str(FOLDER / "before_after.py"))
    load = runpy.run_path(str(LOAD))
    with example["server"](MODULE="tiny_model:tiny") as address:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=600)
        connection.request("POST", "/predict", load["ones"]("encoder"))  # waits until it is up
        with np.load(io.BytesIO(connection.getresponse().read())) as made:
            np.testing.assert_array_equal(made["output"], [[16.0]])
        connection.close()
        ran = subprocess.run(
            [sys.executable, str(LOAD), address, "encoder", "--requests", "50", "--seconds", "600"],
            capture_output=True, text=True,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    throughput, p50, p99 = map(float, re.findall(r"\d+\.\d+", ran.stdout))
    assert throughput > 0
    assert 0 < p50 <= p99


def test_a_server_that_does_not_answer_is_named():
    load = runpy.run_path(str(LOAD))
    with pytest.raises(RuntimeError, match="no answer to request 0"):
        load["send"]("http://127.0.0.1:1", "vision", requests=1)
