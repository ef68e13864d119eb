"""ONNX Runtime on the CPU: exported by torch's dynamo exporter, inputs and outputs bound.

``onnxruntime@0`` to ``@2`` are its lower levels of graph optimisation, ``onnxruntime@fused`` its
transformer optimiser over the old exporter's graph (``onnx_graphs.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.models.ragged import IDS
from frameworktax.runtimes import decoding, onnx_graphs
from frameworktax.runtimes.artifacts import Artifact, staged, write_manifest
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target
from frameworktax.runtimes.export import export, manifest_of
from frameworktax.runtimes.torch_common import configure

if TYPE_CHECKING:
    import numpy as np

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

QUIET = 3
"""ONNX Runtime's log level *error*."""


LEVELS = {"": "ORT_ENABLE_ALL", "0": "ORT_DISABLE_ALL", "1": "ORT_ENABLE_BASIC"}
LEVELS |= {"2": "ORT_ENABLE_EXTENDED", "fused": "ORT_ENABLE_ALL", "bare": "ORT_DISABLE_ALL"}


class OnnxRuntime(Runtime):
    """Graph level *all* unless told otherwise; one session per batch size with the batch fixed.

    int8 is ``quantize_dynamic``: weights of matrix multiplications in 8 bits, activations
    quantised as they come.
    """

    name = "onnxruntime"
    paradigm = "ahead-of-time"
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
    needs_model = False
    has_symbols = False
    prepares = True
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
            export_step(model, batches, directory)
        elif self.option == "fused":
            onnx_graphs.export_fused(model, batches, directory)
        else:
            export_onnx(model, batches, directory)
        if target.precision == "int8":
            onnx_graphs.quantize(directory)
        if not target.is_cuda:
            onnx_graphs.note_attention(directory, LEVELS[self.option])

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Read what was exported; sessions start when a batch size is bound."""
        artifact, plans = Artifact(directory), self.option != "bare"
        decodes = artifact.manifest.new_tokens is not None
        kind = OnnxDecodingLoaded if decodes else OnnxLoaded
        loaded: Loaded = kind(artifact, target, level=LEVELS[self.option], plans_memory=plans)
        return loaded


def export_onnx(
    model: Model, batches: Sequence[int], directory: Path, *, static: bool = False
) -> None:
    """Export a model to ONNX files with the names of its inputs, and write the manifest.

    A model that is an ONNX file is taken as it is. ``static`` writes one for each batch size, its
    shapes fixed.
    """
    if model.onnx_path is not None:
        if static:
            onnx_graphs.fix(model, model.onnx_path, batches, directory)
        else:
            _take(model, model.onnx_path, batches, directory)
        return
    import torch

    notes: list[tuple[str, str]] = []
    with staged(directory) as folder, torch.no_grad():
        groups = [[batch] for batch in batches] if static else [list(batches)]
        programs = [found for group in groups for found in export(model, group, notes)]
        names = {
            batch: "model.onnx" if exported.is_dynamic else f"model-{batch}.onnx"
            for exported in programs
            for batch in exported.batches
        }
        manifest = manifest_of(model, names, folder, notes)
        for exported in programs:
            program = torch.onnx.export(
                exported.program, (), input_names=manifest.names, dynamo=True, verbose=False
            )
            if exported.is_dynamic:
                manifest.free_dimension = _symbol(program, manifest.batch_dims)
            program.save(str(folder / names[exported.batches[0]]))
        write_manifest(folder, manifest)


def export_step(model: Model, batches: Sequence[int], directory: Path) -> None:
    """Export one step of decoding to one ONNX file for all batch sizes, and write the manifest."""
    import torch

    with staged(directory) as folder, torch.no_grad():
        step = decoding.export_step(model)
        manifest = manifest_of(model, dict.fromkeys(batches, "model.onnx"), folder, [])
        names = {"input_names": step.inputs, "output_names": step.outputs}
        program = torch.onnx.export(step.program, (), dynamo=True, verbose=False, **names)
        manifest.free_dimension = _symbol(program, [0] * len(step.inputs))
        program.save(str(folder / "model.onnx"))
        step.tell(manifest, model.decoding.new_tokens if model.decoding else 0)
        write_manifest(folder, manifest)


def _take(model: Model, path: Path, batches: Sequence[int], directory: Path) -> None:
    """Write the inputs and a manifest that names the model's own file, which stays where it is."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    with staged(directory) as folder:
        files = dict.fromkeys(batches, str(path.resolve()))
        manifest = manifest_of(model, files, folder, [])
        for name, dim in zip(manifest.names, manifest.batch_dims, strict=True):
            sizes = {port.name: port.type.tensor_type.shape.dim for port in graph.input}[name]
            if dim is not None and sizes[dim].dim_param:
                manifest.free_dimension = sizes[dim].dim_param
        write_manifest(folder, manifest)


def _symbol(program: Any, dims: Sequence[int | None]) -> str | None:
    """Return the exporter's name for the batch dimension."""
    for value, dim in zip(program.model.graph.inputs, dims, strict=True):
        if dim is not None:
            return str(value.shape[dim].value)
    return None


class _Sessions:
    """Sessions over an artefact, with memory planned ahead (arena and pattern) or as it comes."""

    def __init__(
        self,
        artifact: Artifact,
        target: Target,
        *,
        level: str = "ORT_ENABLE_ALL",
        plans_memory: bool = True,
    ) -> None:
        self._artifact = artifact
        self._target = target
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


class OnnxLoaded(_Sessions, Loaded):
    """A forward pass over bound inputs and outputs."""

    def bind(self, batch: int) -> Call:
        """Return a run of the session over bound inputs and preallocated outputs."""
        import onnxruntime

        session = self.session(batch)
        binding = session.io_binding()
        given = dict(zip(self._artifact.manifest.names, self._artifact.inputs(batch), strict=True))
        for port in session.get_inputs():  # those the graph still has
            value = onnxruntime.OrtValue.ortvalue_from_numpy(given[port.name])
            binding.bind_ortvalue_input(port.name, value)
        outputs = [port.name for port in session.get_outputs()]
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)  # tells the shapes
        values: list[Any] = binding.get_outputs()
        for name, value in zip(outputs, values, strict=True):
            binding.bind_ortvalue_output(name, value)
        run = session.run_with_iobinding

        def call() -> list[Any]:
            run(binding)
            return values

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the bound outputs."""
        return [wide(value.numpy()) for value in result]

    def notes(self) -> list[tuple[str, str]]:
        """Return what export had to say."""
        return self._artifact.manifest.notes


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


def wide(array: np.ndarray) -> np.ndarray:
    """Return a copy as float64 or int64."""
    import numpy as np

    return array.astype(np.float64 if np.issubdtype(array.dtype, np.floating) else np.int64)
