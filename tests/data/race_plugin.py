"""Runtimes for a race whose outcome no machine's speed decides: found as a plug-in's are.

``install`` writes a package with a model that sleeps in eager, and runtimes that multiply by the
weight with numpy: one is right, one lies at one input of many, one crashes, one needs minutes.
"""

from pathlib import Path

RUNTIMES = {
    "steady": "Steady",
    "liar": "Liar",
    "crasher": "Crasher",
    "dawdler": "Dawdler",
}

CODE = """
import os, signal, time
from pathlib import Path

import numpy as np

from frameworktax.runtimes.artifacts import ArtifactLoaded, ArtifactRuntime


class Loaded(ArtifactLoaded):
    def weight(self, batch):
        return np.load(self._artifact.file(batch))

    def run(self, weight):
        def run(arrays):
            time.sleep(0.001)
            return [arrays[0] @ weight]
        return run

    def bind(self, batch):
        run, inputs = self.run(self.weight(batch)), self._artifact.inputs(batch)
        return lambda: run(inputs)

    def serve(self, batch):
        return self.run(self.weight(batch))


class Steady(ArtifactRuntime):
    name = "steady"
    packages = ("torch",)
    serves_with = ("numpy",)
    loaded = Loaded

    def write(self, export):
        weight = export.model.module.weight.detach().numpy()
        np.save(export.folder / "model.npy", weight)
        return dict.fromkeys(export.batches, "model.npy")


class Lying(Loaded):
    def run(self, weight):
        def run(arrays):
            lies = int(1000 * abs(arrays[0].sum())) % 16 == 7  # at one draw of many
            return [arrays[0] @ weight + (1.0 if lies else 0.0)]
        return run


class Liar(Steady):
    name = "liar"
    loaded = Lying


class Crashing(Loaded):
    def weight(self, batch):
        os.kill(os.getpid(), signal.SIGSEGV)


class Crasher(Steady):
    name = "crasher"
    loaded = Crashing


class Dawdler(Steady):
    name = "dawdler"

    def write(self, export):
        time.sleep(3600)
"""

MODEL = """
import time

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(4) + 0.5)

    def forward(self, x, scale=None):
        time.sleep(0.01)
        return {"y": x @ self.weight}


def build():
    torch.manual_seed(0)
    return Net(), torch.randn(2, 4)
"""


def install(folder: Path) -> None:
    """Write model and runtimes, and the metadata that installing would have written."""
    (folder / "race_runtimes.py").write_text(CODE)
    (folder / "slow_model.py").write_text(MODEL)
    metadata = folder / "race_runtimes-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: race-runtimes\nVersion: 0.1\n")
    lines = [f"{name} = race_runtimes:{kind}" for name, kind in RUNTIMES.items()]
    (metadata / "entry_points.txt").write_text(
        "\n".join(["[frameworktax.runtimes]", *lines]) + "\n"
    )
