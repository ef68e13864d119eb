"""JAX: the exported program as a JAX function (torchax), compiled by XLA in each process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded, ArtifactRuntime, Export
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.environments import Recipe
from frameworktax.runtimes.torch_common import confine

if TYPE_CHECKING:
    import numpy as np

WEIGHTS = "weights.npz"


@contextmanager
def _named_overloads() -> Iterator[None]:
    """Have torch answer for overloads with named dimensions, which 2.13 no longer has.

    torchax 0.0.13 names them in its tables when it is imported, and calls none of them.
    """
    import torch

    packet = torch._ops.OpOverloadPacket
    original = packet.__getattr__

    def lenient(self: Any, key: str) -> Any:
        try:
            return original(self, key)
        except AttributeError:
            if "name" not in key.lower():
                raise
            return (str(self), key)

    packet.__getattr__ = lenient
    try:
        yield
    finally:
        packet.__getattr__ = original


class _Loaded(ArtifactLoaded):
    def __init__(self, artifact: Artifact, target: Target, option: str = "") -> None:
        confine(target.threads)  # before JAX starts its threads
        import jax
        import numpy as np

        super().__init__(artifact, target, option)
        # Inline on the calling thread: the call ends when its outputs are complete.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # What one process compiled, the next one reads.
        jax.config.update("jax_compilation_cache_dir", str(artifact.directory / "xla-cache"))
        with np.load(artifact.folder / WEIGHTS) as stored:
            self._weights = [jax.device_put(stored[f"arr_{i}"]) for i in range(len(stored.files))]

    def bind(self, batch: int) -> Call:
        import jax
        import jax.export

        program = jax.export.deserialize(bytearray(self._artifact.file(batch).read_bytes()))
        function = jax.jit(program.call)
        weights = self._weights
        inputs = tuple(jax.device_put(array) for array in self._artifact.inputs(batch))

        def call() -> Any:
            return function(weights, inputs)

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        import jax
        import numpy as np

        return super().outputs(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result))


class Jax(ArtifactRuntime):
    """``jax.jit`` of the model's function, weights as arguments as JAX programs pass them.

    Integers are 32 bits wide there by default; token ids fit.
    """

    name = "jax"
    paradigm = "deferred"
    packages = ("torch", "jax", "torchax")
    extra = "jax"
    environment = "jax"
    recipe = Recipe(("jax==0.10.2", "torchax==0.0.13"), 400)
    libraries = ("jaxlib",)
    loaded = _Loaded

    def write(self, export: Export) -> dict[int, str]:
        """Convert and write StableHLO for each batch size, weights apart."""
        import numpy as np

        with _named_overloads():
            import torchax.export
        import jax
        import jax.export

        files = export.each("stablehlo")
        for batch, name in files.items():
            (exported,) = export.programs([batch])
            weights, function = torchax.export.exported_program_to_jax(exported.program)
            weights = [np.asarray(weight) for weight in weights]
            if batch == min(files):
                np.savez(export.folder / WEIGHTS, *weights)
            inputs = [np.asarray(t) for t in exported.program.example_inputs[0]]
            program = jax.export.export(jax.jit(function))(weights, tuple(inputs))
            (export.folder / name).write_bytes(program.serialize())
        return files
