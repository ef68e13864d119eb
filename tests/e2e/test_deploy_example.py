"""The example's server and load generator, on loopback."""

import asyncio
import io
import re
import runpy
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import frameworktax
from frameworktax.errors import DeploymentError

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
LOAD = FOLDER.parent / "load.py"
MODEL = """
import torch


class Tiny(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        return (input_ids * attention_mask).float().sum(1, keepdim=True)


def tiny():
    ids = torch.full((1, 4), 4)
    return Tiny(), (ids, torch.ones_like(ids))
"""


def test_the_server_answers_and_its_load_is_measured(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    (tmp_path / "tiny_model.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    example = runpy.run_path(str(FOLDER / "before_after.py"))
    monkeypatch.chdir(tmp_path)
    with example["server"](MODULE="tiny_model.py:tiny") as address:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=600)
        body = example["request"]("tiny_model.py:tiny")
        (tmp_path / "request.npz").write_bytes(body)
        connection.request("POST", "/predict", body)  # waits until it is up
        with np.load(io.BytesIO(connection.getresponse().read())) as made:
            np.testing.assert_array_equal(made["output"], [[16.0]])
        connection.close()
        ran = subprocess.run(
            [sys.executable, str(LOAD), address, str(tmp_path / "request.npz"),
             "--requests", "50", "--seconds", "600"],
            capture_output=True, text=True,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    throughput, p50, p99 = map(float, re.findall(r"\d+\.\d+", ran.stdout))
    assert throughput > 0
    assert 0 < p50 <= p99


def test_a_server_that_does_not_answer_is_named():
    load = runpy.run_path(str(LOAD))
    with pytest.raises(RuntimeError, match="no answer to request 0"):
        load["send"]("http://127.0.0.1:1", b"", requests=1)


def test_what_a_deployment_does_not_serve_is_answered_with_the_reason(monkeypatch):
    pytest.importorskip("starlette")

    reading, load = [], np.load

    def refuse(**arrays):
        raise DeploymentError("no artifact serves it")

    def noted(*given, **how):
        reading.append(threading.current_thread())
        return load(*given, **how)

    class Request:
        async def body(self):
            file = io.BytesIO()
            np.savez(file, x=np.ones(1))
            return file.getvalue()

    monkeypatch.setattr(frameworktax, "load", lambda folder: refuse)
    monkeypatch.delenv("MODULE", raising=False)
    monkeypatch.setattr(np, "load", noted)
    answer = asyncio.run(runpy.run_path(str(FOLDER / "serve.py"))["predict"](Request()))
    assert (answer.status_code, answer.body) == (400, b"no artifact serves it")
    assert reading == [threading.main_thread()]
