"""What a part of the package leaves alone: engines, heavy libraries, the other wing."""

import subprocess
import sys

import pytest

ENGINES = ("torch", "transformers", "onnx", "openvino")  # and what begins so, as onnxruntime
MEASURING = tuple(f"frameworktax.{n}" for n in ("measure.", "runtimes", "models", "attribution"))
ASKS = """
from frameworktax import models, runtimes
from frameworktax.runtimes.base import Target
models.describe_names(), runtimes.distributions()
for name in runtimes.names():
    for device in ('cpu', 'cuda:0'): runtimes.get(name).missing(Target(device))
"""
READS = """
import frameworktax.analysis.document, frameworktax.report.html
import frameworktax.report.render_terminal
"""
PROBES = """
from frameworktax import host
from frameworktax.attribution import probe
probe()
"""


@pytest.mark.parametrize(
    ("code", "others"),
    [
        (ASKS, (*ENGINES, "numpy")),
        (READS, (*ENGINES, *MEASURING, "pandas", "vl_convert")),
        (PROBES, ("torch", "scipy", "pydantic", "rich", "typer", "pandas")),
    ],
    ids=["asking", "reading", "probing"],
)
def test_it_imports_nothing_that_it_does_not_need(code, others):
    code += "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "frameworktax.host" in loaded
    assert [name for name in loaded if name.startswith(others)] == []


def test_windows_is_sent_to_wsl():
    code = "import sys; sys.platform = 'win32'; import frameworktax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "run it in WSL" in done.stderr.splitlines()[-1]
