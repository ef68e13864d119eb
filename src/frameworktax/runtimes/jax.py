"""JAX: the exported program as a JAX function (torchax), compiled by XLA in each process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.runtimes.artifacts import ArtifactLoaded, ArtifactRuntime, Export, Exported
from frameworktax.runtimes.base import Call

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


def _confine(threads: int) -> None:
    """Let this process use only ``threads`` processors.

    JAX sizes its pools by the affinity of the process when it is imported, and ignores torch's
    setting. Which processors does not matter: a session pins the process before it measures.
    """
    usable = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(usable)  # processes that set up side by side spread out
    chosen = [usable[(first + i) % len(usable)] for i in range(min(threads, len(usable)))]
    os.sched_setaffinity(0, chosen)


class _JaxLoaded(ArtifactLoaded):
    def start(self) -> None:
        _confine(self._target.threads)
        import jax
        import numpy as np

        # Inline on the calling thread: the call ends when its outputs are complete.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        # What one process compiled, the next one reads.
        cache = self._artifact.directory / "xla-cache"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        with np.load(self._artifact.folder / WEIGHTS) as stored:
            self._weights = [jax.device_put(stored[f"arr_{i}"]) for i in range(len(stored.files))]

    def bind(self, batch: int) -> Call:
        import jax
        import jax.export

        program = jax.export.deserialize(bytearray(self._artifact.file(batch).read_bytes()))
        function, weights = jax.jit(program.call), self._weights
        inputs = tuple(jax.device_put(array) for array in self._artifact.inputs(batch))
        return lambda: function(weights, inputs)

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
    libraries = ("jaxlib",)
    loaded = _JaxLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Convert and write StableHLO for each batch size, weights apart."""
        import numpy as np

        with _named_overloads():
            import torchax.export
        import jax
        import jax.export

        def write(exported: Exported, file: Path) -> None:
            weights, function = torchax.export.exported_program_to_jax(exported.program)
            weights = [np.asarray(weight) for weight in weights]
            if not (export.folder / WEIGHTS).exists():  # they are the same for every batch size
                np.savez(export.folder / WEIGHTS, *weights)
            inputs = [np.asarray(t) for t in exported.program.example_inputs[0]]
            program = jax.export.export(jax.jit(function))(weights, tuple(inputs))
            file.write_bytes(program.serialize())

        return export.save("stablehlo", write, static=True)
