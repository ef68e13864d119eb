"""What ``frameworktax optimize`` delivered, as a runtime to be measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import WorkerError
from frameworktax.records import DEPLOYED
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model
    from frameworktax.runtimes.serving import Deployment


class Deployed(Runtime):
    """What ``frameworktax optimize`` delivered, called as its user calls it.

    The folder that it is loaded from is that of one length within a deployment.
    """

    name = DEPLOYED
    paradigm = "ahead-of-time"
    devices = ("cpu", "cuda")
    needs_model = False
    has_symbols = False
    by_name_only = True

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Load the deployment above the folder."""
        from frameworktax.runtimes.serving import load

        return _DeployedLoaded(load(directory.parent), directory.name)


class _DeployedLoaded(Loaded):
    def __init__(self, fast: Deployment, name: str) -> None:
        self._fast, self._name = fast, name

    def bind(self, batch: int) -> Call:
        from frameworktax.runtimes import deployment
        from frameworktax.runtimes.artifacts import Artifact

        manifest = self._fast.manifest
        for shape in deployment.served(manifest.shapes):
            if (shape.batch, deployment.configuration(shape.length)) == (batch, self._name):
                break
        else:
            raise WorkerError("unavailable", f"no artifact serves batch {batch}")
        arrays = Artifact(self._fast.folder / str(shape.folder)).inputs(batch)
        given = dict(zip(manifest.interface.inputs, arrays, strict=True))
        args, kwargs = self._fast.arguments(given)
        fast = self._fast

        def call() -> Any:
            return fast(*args, **kwargs)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        from frameworktax.runtimes.torch_common import to_arrays

        return to_arrays(result)
