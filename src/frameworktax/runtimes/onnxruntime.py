"""ONNX Runtime on the CPU: exported by torch's dynamo exporter, inputs and outputs bound.

``onnxruntime@0`` to ``@2`` are its lower levels of graph optimisation, ``onnxruntime@fused`` its
transformer optimiser over the old exporter's graph (``onnx_files.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.ragged import IDS
from frameworktax.runtimes import decoding, onnx_files
from frameworktax.runtimes.artifacts import Artifact, ArtifactLoaded, ArtifactRuntime
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

QUIET = 3
"""ONNX Runtime's log level *error*."""


LEVELS = {"": "ORT_ENABLE_ALL", "0": "ORT_DISABLE_ALL", "1": "ORT_ENABLE_BASIC"}
LEVELS |= {"2": "ORT_ENABLE_EXTENDED", "fused": "ORT_ENABLE_ALL", "bare": "ORT_DISABLE_ALL"}


class OnnxRuntime(ArtifactRuntime):
    """Graph level *all* by default; one session per batch size with the batch fixed.

    int8 is ``quantize_dynamic``: weights of matrix multiplications in 8 bits, activations
    quantised as they come.
    """

    name = "onnxruntime"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "int8")
    packages: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime")
    extra = "onnxruntime"
    options: ClassVar[Mapping[str, str]] = {
        "0": "no graph optimisation",
        "1": "basic: constants folded, redundant nodes removed",
        "2": "extended: operators fused",
        "fused": "all, after the transformer optimiser has fused attention",
        "bare": "no graph optimisation, no memory planned ahead: no arena, no pattern",
    }
    takes_onnx = True
    kv_caches: ClassVar[tuple[str, ...]] = decoding.KV_CACHES

    def cannot(self, workload: Workload) -> str | None:
        """Return why not; the transformer optimiser knows no graph with a cache of any length."""
        if self.option == "fused" and workload.phase == "generate":
            return "fuses forward passes only; choose onnxruntime"
        return super().cannot(workload)

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Export to ONNX; fuse or quantise where that was asked for."""
        configure(target)
        if model.decoding is not None:
            onnx_files.export_step(model, batches, directory)
        elif self.option == "fused":
            onnx_files.export_fused(model, batches, directory)
        else:
            onnx_files.export_onnx(model, batches, directory)
        if target.precision == "int8":
            onnx_files.quantize(directory)
        if not target.is_cuda:
            onnx_files.note_attention(directory, LEVELS[self.option])

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Read what was exported; sessions start when a batch size is bound."""
        artifact, plans = Artifact(directory), self.option != "bare"
        kind = OnnxLoaded if artifact.manifest.new_tokens is None else OnnxDecodingLoaded
        return kind(artifact, target, level=LEVELS[self.option], plans_memory=plans)


class _Sessions(ArtifactLoaded):
    """Sessions over an artefact, with memory planned ahead (arena and pattern) or as it comes."""

    def __init__(
        self,
        artifact: Artifact,
        target: Target,
        *,
        level: str = "ORT_ENABLE_ALL",
        plans_memory: bool = True,
    ) -> None:
        super().__init__(artifact, target)
        self._level = level
        self._plans_memory = plans_memory

    def session(self, batch: int) -> Any:
        """Start the session for a batch size, the batch fixed."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = getattr(levels, self._level)
        options.intra_op_num_threads = self._target.threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = self._plans_memory
        options.enable_mem_pattern = self._plans_memory
        options.log_severity_level = QUIET
        if self._target.threads == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._artifact.manifest.free_dimension is not None:
            options.add_free_dimension_override_by_name(
                self._artifact.manifest.free_dimension, batch
            )
        path = str(self._artifact.file(batch))
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class OnnxLoaded(_Sessions):
    """A forward pass over bound inputs and outputs."""

    place: tuple[Any, ...] = ()
    """Where inputs and outputs are: the CPU, or device and number."""

    def bind(self, batch: int) -> Call:
        """Return a run of the session over bound inputs and preallocated outputs."""
        import onnxruntime

        session = self.session(batch)
        binding = session.io_binding()
        given = dict(zip(self._artifact.manifest.names, self._artifact.inputs(batch), strict=True))
        for port in session.get_inputs():  # those the graph still has
            value = onnxruntime.OrtValue.ortvalue_from_numpy(given[port.name], *self.place)
            binding.bind_ortvalue_input(port.name, value)
        outputs = [port.name for port in session.get_outputs()]
        for name in outputs:
            binding.bind_output(name, *self.place)
        session.run_with_iobinding(binding, *self.trial_options())  # gives the outputs' shapes
        self.synchronize()
        values: list[Any] = binding.get_outputs()
        for name, value in zip(outputs, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        run, options = session.run_with_iobinding, self.run_options()

        def call() -> list[Any]:
            run(binding, *options)
            return values

        return call

    def run_options(self) -> tuple[Any, ...]:
        """Return the options of every run; none for the defaults."""
        return ()

    def trial_options(self) -> tuple[Any, ...]:
        """Return the options of the run that gives the outputs' shapes."""
        return self.run_options()

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the bound outputs."""
        return super().outputs(value.numpy() for value in result)


class OnnxDecodingLoaded(_Sessions, decoding.DecodingLoaded):
    """A step of decoding; what one run returns the next one takes, nothing is copied."""

    def starts(self, batch: int) -> Callable[[], Callable[[np.ndarray], np.ndarray]]:
        """Return what begins with a cache of length 0 and returns the session's step."""
        import numpy as np
        import onnxruntime

        cache = self._artifact.manifest.cache
        run = self.session(batch).run_with_ort_values
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        past = decoding.past_names(cache)
        wanted = [decoding.NEXT, *decoding.present_names(cache)]
        empty = [value(np.zeros((batch, heads, 0, head), np.float32)) for heads, head in cache]

        def start() -> Callable[[np.ndarray], np.ndarray]:
            kept = empty

            def step(tokens: np.ndarray) -> np.ndarray:
                nonlocal kept
                given = dict(zip(past, kept, strict=True))
                given[IDS] = value(tokens)
                found, *kept = run(wanted, given)
                made: np.ndarray = found.numpy()
                return made

            return step

        return start
