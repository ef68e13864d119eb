"""A whole race by the command line: own model, a liar, a crash; delivered, loaded, measured again.

The race is decided by sleeps ten times apart, and by a lie: by no machine's speed.
"""

import json
import os
import subprocess
import sys

import race_plugin

from frameworktax.comparing import measure_again

OPTIONS = ["--batch", "2,4", "-o", "deploy", "--time-budget", "900s", "--until", "90%"]
OPTIONS += ["--processes", "1", "--runtimes", "steady,liar,crasher", "--json", "race.json"]
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


def test_a_race_with_a_liar_and_a_crash(measuring, monkeypatch):
    folder = measuring.folder
    race_plugin.install(folder)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(folder))
    ran = measuring("optimize", "slow_model.py:build", *OPTIONS)
    assert ran.code == 0, ran.err
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
