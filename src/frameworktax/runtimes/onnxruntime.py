"""ONNX Runtime on the CPU: exported by torch's dynamo exporter, inputs and outputs bound.

``onnxruntime@0`` to ``@2`` are its lower levels of graph optimisation, ``onnxruntime@fused`` its
transformer optimiser over the old exporter's graph (``onnx_files.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.ragged import IDS
from frameworktax.runtimes import decoding, onnx_files
from frameworktax.runtimes.artifacts import ArtifactLoaded, ArtifactRuntime, Export, Serve
from frameworktax.runtimes.base import SERIAL, Call

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.records import Workload

LEVELS = {"0": "ORT_DISABLE_ALL", "1": "ORT_ENABLE_BASIC", "2": "ORT_ENABLE_EXTENDED"}
LEVELS |= {"bare": "ORT_DISABLE_ALL"}
ALL = "ORT_ENABLE_ALL"


class OnnxSessions(ArtifactLoaded):
    """Sessions over an artefact, one for each batch size, the batch fixed."""

    def session(self, batch: int | None) -> Any:
        """Start the session for a batch size on the CPU; for None one that takes any.

        Memory is planned ahead (arena and pattern), or taken as it comes with the option *bare*.
        """
        options = self.session_options(batch)
        options.enable_cpu_mem_arena = options.enable_mem_pattern = self._option != "bare"
        if self._threads() == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return self.open(batch, options, providers=["CPUExecutionProvider"])

    def session_options(self, batch: int | None) -> Any:
        """Return the options of a session for a batch size on any device."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS.get(self._option, ALL))
        options.graph_optimization_level = level
        options.intra_op_num_threads = self._threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = onnx_files.QUIET
        symbol = self._artifact.manifest.free_dimension
        if symbol is not None and batch is not None:
            options.add_free_dimension_override_by_name(symbol, batch)
        return options

    def _threads(self) -> int:
        return 1 if self._option == SERIAL else self._target.threads

    def open(self, batch: int | None, options: Any, **settings: Any) -> Any:
        """Start a session on the file that serves a batch size."""
        import onnxruntime

        return onnxruntime.InferenceSession(str(self._artifact.file(batch)), options, **settings)


class OnnxLoaded(OnnxSessions):
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

    def serve(self, batch: int | None) -> Serve:
        """Return a run of the session over the caller's arrays; ONNX Runtime takes many threads."""
        session, names = self.session(batch), self._artifact.manifest.names
        run, outputs = session.run, [port.name for port in session.get_outputs()]
        # Those the graph still has.
        places = [(port.name, names.index(port.name)) for port in session.get_inputs()]

        def serve(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            return run(outputs, {name: arrays[at] for name, at in places})  # type: ignore[no-any-return] # an engine's

        return serve

    def run_options(self) -> tuple[Any, ...]:
        """Return the options of every run; none for the defaults."""
        return ()

    def trial_options(self) -> tuple[Any, ...]:
        """Return the options of the run that gives the outputs' shapes."""
        return self.run_options()

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the bound outputs."""
        return super().outputs(value.numpy() for value in result)


class OnnxDecodingLoaded(OnnxSessions, decoding.DecodingLoaded):
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
                given = {IDS: value(tokens), **dict(zip(past, kept, strict=True))}
                found, *kept = run(wanted, given)
                return found.numpy()  # type: ignore[no-any-return] # an engine's

            return step

        return start


class OnnxRuntime(ArtifactRuntime):
    """Graph level *all* by default; one session per batch size with the batch fixed.

    int8 is ``quantize_dynamic``: weights of matrix multiplications in 8 bits, activations
    quantised as they come.
    """

    name = "onnxruntime"
    places = ("operator",)
    precisions: ClassVar[tuple[str, ...]] = ("float32", "int8")
    packages: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime")
    extra = "onnxruntime"
    serves_with: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    tunings: ClassVar[tuple[str, ...]] = ("2", "fused", SERIAL)
    options: ClassVar[Mapping[str, str]] = {
        "0": "no graph optimisation",
        "1": "basic: constants folded, redundant nodes removed",
        "2": "extended: operators fused",
        "fused": "all, after the transformer optimiser has fused attention",
        "bare": "no graph optimisation, no memory planned ahead: no arena, no pattern",
        SERIAL: "one thread, whatever --threads says",
        "int8": "quantize_dynamic; floating-point inputs and outputs",
    }
    takes_onnx = True
    kv_caches: ClassVar[tuple[str, ...]] = decoding.KV_CACHES
    loaded: ClassVar[type[ArtifactLoaded]] = OnnxLoaded
    decoding_loaded: ClassVar[type[ArtifactLoaded] | None] = OnnxDecodingLoaded

    def cannot(self, workload: Workload) -> str | None:
        """Return why not; the transformer optimiser knows no graph with a cache of any length."""
        if self.option == "fused" and workload.phase == "generate":
            return "fuses forward passes only; choose onnxruntime"
        return super().cannot(workload)

    def write(self, export: Export) -> dict[int, str]:
        """Export to ONNX; fuse or quantise where that was asked for."""
        if export.model.decoding is not None:
            files = onnx_files.export_step(export)
        elif self.option == "fused":
            files = onnx_files.export_fused(export)
        else:
            files = onnx_files.export_onnx(export)
        if self.computes_in(export.target.precision) == "int8":
            files = onnx_files.quantize(export, files)
        if not export.target.is_cuda:
            onnx_files.note_attention(export, files, LEVELS.get(self.option, ALL))
        return files
