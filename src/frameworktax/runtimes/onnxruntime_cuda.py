"""ONNX Runtime on a GPU: its CUDA provider, that with CUDA graphs, and its TensorRT provider.

Inputs and outputs stay on the device, work goes to a stream that torch uses too.

ONNX Runtime quietly runs on the CPU what its CUDA provider cannot take, or everything where the
provider's libraries do not load. Both are looked for: the first becomes a note with the number of
nodes, the second is an error.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import ArtifactLoaded, Export, Serve
from frameworktax.runtimes.base import Call, Target
from frameworktax.runtimes.cuda_graph import missing_gpu
from frameworktax.runtimes.onnxruntime import OnnxLoaded, OnnxRuntime, export_onnx
from frameworktax.runtimes.torch_common import NO_TF32

if TYPE_CHECKING:
    import torch

PROVIDER = "CUDAExecutionProvider"
LIBRARY = "libonnxruntime_providers_cuda.so"
TENSORRT = "TensorrtExecutionProvider"
TENSORRT_LIBRARY = "libonnxruntime_providers_tensorrt.so"
ON_DEVICE = (PROVIDER, TENSORRT)
ENGINE = "engine.onnx"
"""The file that a TensorRT engine is run by."""
REFUSED = "fallback to CPU EP has been explicitly disabled"
"""In the error of a session that may not use the CPU but would."""


class OnnxCudaLoaded(OnnxLoaded):
    """Sessions on the device of the target, on a stream that torch uses too."""

    takes_torch = True
    provider: ClassVar[str] = PROVIDER
    """Must be among those that started."""
    libraries: ClassVar[str] = "the CUDA and cuDNN libraries"

    def start(self) -> None:
        """Give torch and the sessions one stream on the device."""
        import onnxruntime
        import torch

        arithmetic = f"cuDNN's convolutions are chosen by timing all of them; {NO_TF32}"
        self.note("device-arithmetic", arithmetic)
        self._device_id = torch.device(self._target.device).index or 0
        self.place = ("cuda", self._device_id)
        # A stream of its own: the default one has the handle 0, which reads as none given.
        self._stream = torch.cuda.Stream(self._device_id)
        onnxruntime.preload_dlls()  # CUDA's, which lie beside torch
        self.run_options = self.trial_options = onnxruntime.RunOptions()
        # Otherwise each run waits for the device and nothing can be queued behind it.
        self.run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def bind(self, batch: int) -> Call:
        """Return a run over bound inputs; torch's events and backlog queue up with the session."""
        import torch

        torch.cuda.set_device(self._device_id)
        torch.cuda.set_stream(self._stream)
        return super().bind(batch)

    def serve(self, batch: int | None) -> Serve:
        """Return a run over the caller's tensors, where they are; outputs are new ones.

        It queues up behind the caller's stream, which goes on behind it. For a batch size the first
        run is here; sizes that are new have their outputs' found by a run of their own.
        """
        import numpy as np
        import torch

        session, at = self.session(batch), self._target.device
        names = self._artifact.names
        taken = [(port.name, names.index(port.name)) for port in session.get_inputs()]
        outputs = [port.name for port in session.get_outputs()]
        known: dict[Any, list[torch.Tensor]] = {}

        def memory(tensor: torch.Tensor) -> tuple[Any, ...]:
            kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
            return *self.place, kind, tuple(tensor.shape), tensor.data_ptr()

        def run(tensors: Sequence[Any], into: Sequence[Any] | None) -> Any:
            binding = session.io_binding()
            for name, i in taken:
                binding.bind_input(name, *memory(tensors[i]))
            for i, name in enumerate(outputs):
                binding.bind_output(name, *(self.place if into is None else memory(into[i])))
            self._stream.wait_stream(torch.cuda.current_stream(at))
            session.run_with_iobinding(binding, None if into is None else self.run_options)
            return binding

        def serve(tensors: Sequence[Any]) -> Sequence[Any]:
            sizes = tuple(tensor.shape for tensor in tensors)
            if sizes not in known:
                arrays = [value.numpy() for value in run(tensors, None).get_outputs()]
                known[sizes] = [torch.from_numpy(array).to("meta") for array in arrays]
            made = [torch.empty_like(like, device=at) for like in known[sizes]]
            run(tensors, made)
            torch.cuda.current_stream(at).wait_stream(self._stream)
            return made

        if batch is not None:
            serve([torch.from_numpy(array).to(at) for array in self._artifact.inputs(batch)])
        return serve

    def session(self, batch: int | None) -> Any:
        """Start the session for a batch size on the CUDA provider.

        Raises:
            WorkerError: it would not run on the device.
        """
        try:
            session = self._start(batch, may_fall_back=False)
        except Exception as error:  # onnxruntime has no class for it, only a text
            if REFUSED not in str(error):
                raise
            session = self._start(batch, may_fall_back=True)
            if self.provider in session.get_providers():
                self.note("cpu-fallback", fallback_text(_assigned(session)))
        if self.provider not in session.get_providers():
            why = f"{self.provider} did not start; do {self.libraries} fit this build?"
            raise WorkerError("failed", f"onnxruntime would run elsewhere: {why}")
        return session

    def _start(self, batch: int | None, *, may_fall_back: bool) -> Any:
        options = self.session_options(batch)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not may_fall_back:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return self.open(batch, options, providers=self.providers(batch), enable_fallback=0)

    def providers(self, batch: int | None) -> list[tuple[str, dict[str, str]]]:
        """Return the providers in the order they may take nodes, with their options."""
        return [(PROVIDER, self.common() | {"use_tf32": "0"})]  # TF32 is on by default

    def common(self) -> dict[str, str]:
        """Return the options of every provider."""
        stream = str(self._stream.cuda_stream)
        return {"device_id": str(self._device_id), "user_compute_stream": stream}


class OnnxCudaGraphLoaded(OnnxCudaLoaded):
    """Sessions that replay; every node must be on the device, or starting one raises.

    Before microsoft/onnxruntime#28686 a replay waits for the device, whatever the run options say:
    then nothing queues up behind it, and there is no span.
    """

    def providers(self, batch: int | None) -> list[tuple[str, dict[str, str]]]:
        """Return the CUDA provider with graphs recorded."""
        ((name, settings),) = super().providers(batch)
        return [(name, settings | {"enable_cuda_graph": "1"})]

    def start(self) -> None:
        """Have the trial run not recorded.

        A graph holds the addresses of its inputs and outputs, and the first run that may be
        recorded is; so it must come after the outputs have got their final place.
        """
        import onnxruntime

        super().start()
        self.trial_options = onnxruntime.RunOptions()
        self.trial_options.add_run_config_entry("gpu_graph_id", "-1")


class TensorRtLoaded(OnnxCudaLoaded):
    """Sessions on TensorRT, which read an engine; or build one, with CUDA for what it leaves."""

    provider = TENSORRT
    libraries = "the TensorRT libraries"

    def start(self) -> None:
        """Load TensorRT's libraries before the device is used."""
        if not all(map(self._is_engine, self._artifact.files)):
            # TensorRT takes TF32 for float32 by default; read when an engine is built, and better
            # not set where one runs (TensorRT's documentation, "Reduced precision").
            os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        # Its wheel holds libnvinfer; once loaded, the provider finds it by name.
        importlib.import_module("tensorrt")
        super().start()
        self._written: Mapping[str, str] = {}

    def build(self, batch: int) -> str:
        """Build the engine of a batch size; return the file of the artefact that serves it.

        It is an ONNX file of one EPContext node, which names the engine beside it: a session on it
        reads that engine and builds none. No such file is right where TensorRT leaves nodes to
        CUDA, for it writes one for each part; then the exported file stays.
        """
        import onnx

        def ports(path: Path) -> tuple[set[str], list[str]]:
            graph = onnx.load(str(path), load_external_data=False).graph
            return {port.name for port in graph.input}, [port.name for port in graph.output]

        source = self._artifact.file(batch)
        file = self._artifact.folder / f"batch-{batch}" / ENGINE
        file.parent.mkdir()
        self._written = {
            "trt_dump_ep_context_model": "1",
            "trt_ep_context_file_path": str(file),
            "trt_ep_context_embed_mode": "0",
        }
        self._start(batch, may_fall_back=True)
        if file.is_file():
            (inputs, outputs), (given, wanted) = ports(file), ports(source)
            if inputs <= given and outputs == wanted:
                for path in source.parent.glob(f"{source.name}*"):  # and its weights
                    path.unlink()
                return str(file.relative_to(self._artifact.folder))
        shutil.rmtree(file.parent)
        return source.name

    def serve(self, batch: int | None) -> Serve:
        """Return a run of the engine, which must have been built before."""
        if batch is None or not self._is_engine(batch):
            text = "TensorRT takes only parts of the model, whose engines are built when loaded"
            raise WorkerError("unavailable", f"{text}; choose onnxruntime-cuda")
        return super().serve(batch)

    def _is_engine(self, batch: int) -> bool:
        return self._artifact.file(batch).name == ENGINE

    def providers(self, batch: int | None) -> list[tuple[str, dict[str, str]]]:
        """Return TensorRT and, behind it, CUDA.

        Engines that are built here are kept by names of the graph, which no size is part of
        (microsoft/onnxruntime#32254): each batch size has a folder of its own.
        """
        half = {"trt_fp16_enable": "1" if self._target.precision == "float16" else "0"}
        settings = self._written
        if not settings and not (batch is not None and self._is_engine(batch)):
            own = self._artifact.directory / "engines" / str(batch)
            own.mkdir(parents=True, exist_ok=True)
            settings = {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": str(own),
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": str(own.parent),
            }
        return [(TENSORRT, {**self.common(), **half, **settings}), *super().providers(batch)]


def missing_provider(library: str) -> str | None:
    """Return that the installed onnxruntime lacks a provider's library, or None if it has it."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec and spec.origin and Path(spec.origin).with_name("capi").joinpath(library).is_file():
        return None
    return (
        "this onnxruntime is the CPU build; "
        "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
    )


def _assigned(session: Any) -> list[tuple[str, str]]:
    """Return (provider, operator) of each node."""
    return [
        (part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def fallback_text(nodes: Sequence[tuple[str, str]]) -> str:
    """Say how many nodes run elsewhere than on the device, and which."""
    others = Counter(operator for provider, operator in nodes if provider not in ON_DEVICE)
    named = ", ".join(f"{operator} {count}" for operator, count in others.most_common(4))
    return f"{others.total()} of {len(nodes)} nodes run on the CPU ({named})"


class OnnxRuntimeCuda(OnnxRuntime):
    """Graph level *all* on the CUDA provider; one session per batch size, the batch fixed."""

    name = "onnxruntime-cuda"
    imports = ("torch",)
    devices = ("cuda",)
    precisions = ("float32", "float16")
    extra = "onnxruntime-cuda"
    libraries = ("onnxruntime-gpu",)
    serves_with: ClassVar[tuple[str, ...]] = ("onnxruntime-gpu", "torch")
    tunings = ()
    options: ClassVar[Mapping[str, str]] = {}
    loaded: ClassVar[type[ArtifactLoaded]] = OnnxCudaLoaded

    def missing(self, target: Target) -> str | None:
        """Return what is missing: a GPU, the packages, the build with the CUDA provider."""
        return missing_gpu() or super().missing(target) or missing_provider(LIBRARY)


class OnnxRuntimeCudaGraph(OnnxRuntimeCuda):
    """The same with ``enable_cuda_graph``: the first run is recorded, later ones are replayed."""

    name = "onnxruntime-cuda-graph"
    paradigm = "graph-replay"
    serves_with = ()
    loaded = OnnxCudaGraphLoaded


class TensorRt(OnnxRuntimeCuda):
    """ONNX Runtime's TensorRT provider; an engine for each batch size is part of the artifact.

    Not torch-tensorrt: its newest release asks for another torch than this project's.
    """

    name = "tensorrt"
    packages = (*OnnxRuntimeCuda.packages, "tensorrt")
    extra = "tensorrt"
    serves_with = ("onnxruntime-gpu", "tensorrt", "torch")
    compiles = True
    loaded = TensorRtLoaded

    def write(self, export: Export) -> dict[int, str]:
        """Export for each batch size, and build its engine."""
        export.files = export_onnx(export, static=True)
        loaded = TensorRtLoaded(export, export.target)
        return {batch: loaded.build(batch) for batch in export.files}

    def missing(self, target: Target) -> str | None:
        """Return what is missing; beside the provider, TensorRT's own libraries."""
        return super().missing(target) or missing_provider(TENSORRT_LIBRARY)
