"""The example's server and load generator, on loopback."""

import io
import os
import re
import runpy
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

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


@pytest.fixture
def server(tmp_path):
    """Serve the smallest model at a free port; yields the port."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    (tmp_path / "tiny_model.py").write_text(MODEL)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        path = os.pathsep.join(
            filter(None, [str(FOLDER), str(tmp_path), os.environ.get("PYTHONPATH")])
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "serve:app", "--fd", str(listening.fileno())],
            env={**os.environ, "MODULE": "tiny_model:tiny", "PYTHONPATH": path},
            pass_fds=[listening.fileno()],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(600)


def test_the_server_answers_and_its_load_is_measured(server):
    load = runpy.run_path(str(LOAD))
    connection = HTTPConnection("127.0.0.1", server, timeout=600)
    connection.request("POST", "/predict", load["ones"]("encoder"))  # waits until it is up
    with np.load(io.BytesIO(connection.getresponse().read())) as made:
        np.testing.assert_array_equal(made["output"], [[16.0]])
    connection.close()
    ran = subprocess.run(
        [sys.executable, str(LOAD), f"http://127.0.0.1:{server}", "encoder",
         "--seconds", "0.5"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    throughput, p50, p99 = map(float, re.findall(r"\d+\.\d+", ran.stdout))
    assert throughput > 0
    assert 0 < p50 <= p99
