"""A whole race by the command line: own model, a liar, a crash; delivered, loaded, measured again.

The race is decided by sleeps ten times apart, and by a lie: by no machine's speed.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import closing

import hurried
import pytest
import race_plugin

import frameworktax as ft
from frameworktax import store
from frameworktax.comparing import measure_again
from frameworktax.errors import DeploymentError, WorkerError
from frameworktax.measure.template import Templates
from frameworktax.optimize.delivery import Prover
from frameworktax.records import FLOOR, Subject, Workload
from frameworktax.runtimes.base import Target

OPTIONS = ["--batch", "2,4", "-o", "deploy", "--time-budget", "900s", "--until", "90%"]
OPTIONS += ["--processes", "1", "--runtimes", "steady,liar,crasher", "--json", "race.json"]
KILLED = f"""{hurried.CODE}
import os, signal
from frameworktax.cli import main
from frameworktax.optimize.delivery import Delivery
Delivery.make = lambda self, decided: os.kill(os.getpid(), signal.SIGKILL)
main()
"""
LOAD = """
import sys
import numpy as np
import frameworktax as ft
fast = ft.load("deploy")
x = np.arange(12, dtype=np.float32).reshape(3, 4)
y = fast(x)["y"]
assert np.allclose(y, x @ (np.eye(4) + 0.5)), y
assert not {"torch", "slow_model"} & set(sys.modules)
"""


@pytest.fixture
def racing(measuring, monkeypatch):
    """The command line, in a folder with the model and its runtimes."""
    folder = measuring.folder
    if not (folder / "race_runtimes.py").exists():
        race_plugin.install(folder)
    model = folder / "slow_model.py"
    model.write_text(race_plugin.MODEL)
    os.utime(model, (0, 0))  # a stage is not taken from the store where the model is newer
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(folder))
    return measuring


def test_a_race_with_a_liar_and_a_crash_that_is_killed_and_resumed(racing):
    folder, results = racing.folder, racing.folder / "frameworktax-results"
    (folder / "tmp").mkdir()
    words = [sys.executable, "-c", KILLED, "optimize", "slow_model.py:build", *OPTIONS]
    variables = {**os.environ, "TMPDIR": str(folder / "tmp")}
    ran = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert len(list(folder.glob(".deploy*"))) == 1
    sessions = {record.session for record in store.read(results)[0]}

    ran = racing("optimize", "slow_model.py:build", *OPTIONS, "--resume")
    assert ran.code == 0, ran.err
    subjects = [record for record in store.read(results)[0] if isinstance(record, Subject)]
    again = {one.point.runtime for one in subjects if one.session not in sessions}
    assert again - {FLOOR} == {"eager", "deployed"}  # nothing of the race
    found = json.loads((folder / "race.json").read_text())
    fate = {(one["runtime"], one["batch"]): one for one in found["candidates"]}
    for batch in (2, 4):
        assert fate["steady", batch]["won"]
        assert "outputs differ" in fate["liar", batch]["reason"]
        assert "SIGSEGV" in fate["crasher", batch]["reason"]
    for shape in found["shapes"]:
        assert shape["runtime"] == "steady"
        assert shape["draws"] == 32
        assert shape["gain"][1] > 1
    manifest = json.loads((folder / "deploy/manifest.json").read_text())
    assert "numpy" in manifest["builds"]
    assert "--resume" not in manifest["command"]
    assert {s["batch"]: s["is_between"] for s in manifest["shapes"]} == {
        2: False,
        4: False,
        3: True,
    }
    assert "numpy==" in (folder / "deploy/requirements.txt").read_text()
    assert list(folder.glob(".deploy*")) == []

    (folder / "slow_model.py").unlink()  # nothing of the model is needed any more
    words = [sys.executable, "-P", "-c", LOAD]
    loaded = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr

    again = measure_again(folder / "deploy", gate=0.99, processes=1, until=0.9, time_budget=900)
    assert {p.workload.batch for p in again.comparison.points} == {2, 4}
    assert all(p.before and p.after for p in again.comparison.points)


def test_a_live_module_is_delivered_and_called_where_nothing_serves(racing, monkeypatch):
    import torch

    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # templates serve one environment
    folder = racing.folder
    module, x = runpy.run_path(str(folder / "slow_model.py"))["build"]()
    given = {"runtimes": "steady", "batch": [2, 4], "processes": 1, "until": 0.9}
    given |= {"output": folder / "live", "store": folder / "live-results", "time_budget": 900.0}
    fast = ft.optimize(module, x, **given)
    assert fast.manifest.is_live and fast.manifest.command.startswith("ft.optimize(")
    asked = {shape.batch: shape for shape in fast.shapes if not shape.is_between}
    assert {batch: shape.runtime for batch, shape in asked.items()} == {2: "steady", 4: "steady"}
    assert all(shape.draws == 32 and shape.gain[1] > 1 for shape in asked.values())
    module.eval()
    for batch in (2, 3, 9):
        given = torch.randn(batch, 4)
        torch.testing.assert_close(fast(given)["y"], module(given)["y"])
    with pytest.raises(DeploymentError, match="no artifact"):
        ft.load(folder / "live")(torch.ones(9, 4))


def test_an_export_that_needs_too_long_is_ended(racing, tmp_path):
    workload = Workload(model=f"{racing.folder / 'slow_model.py'}:build", batch=2)
    with (
        closing(Templates()) as templates,
        Prover(Target(), None, tmp_path, 1.0, templates) as prover,
        pytest.raises(WorkerError) as error,
    ):
        prover.export(workload, "dawdler", [2], tmp_path / "made")  # an hour
    assert error.value.status == "timeout"
