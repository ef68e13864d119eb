"""ONNX Runtime on a GPU: its CUDA provider, that with CUDA graphs, and its TensorRT provider.

Inputs and outputs stay on the device, work goes to torch's stream.

ONNX Runtime quietly runs on the CPU what its CUDA provider cannot take, or everything where the
provider's libraries do not load. Both are looked for: the first becomes a note with the number of
nodes, the second is an error.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from frameworktax.errors import WorkerError
from frameworktax.runtimes.artifacts import ArtifactLoaded
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.cuda_graph import missing_gpu
from frameworktax.runtimes.onnxruntime import OnnxLoaded, OnnxRuntime
from frameworktax.runtimes.torch_common import NO_TF32

PROVIDER = "CUDAExecutionProvider"
LIBRARY = "libonnxruntime_providers_cuda.so"
TENSORRT = "TensorrtExecutionProvider"
TENSORRT_LIBRARY = "libonnxruntime_providers_tensorrt.so"
ON_DEVICE = (PROVIDER, TENSORRT)
REFUSED = "fallback to CPU EP has been explicitly disabled"
"""In the error of a session that may not use the CPU but would."""


class OnnxCudaLoaded(OnnxLoaded):
    """Sessions on the device of the target, on a stream that torch uses too."""

    provider: ClassVar[str] = PROVIDER
    """Must be among those that started."""
    libraries: ClassVar[str] = "the CUDA and cuDNN libraries"

    def start(self) -> None:
        """Give torch and the sessions one stream on the device."""
        import onnxruntime
        import torch

        self._fallback: dict[str, None] = {}
        self._device_id = torch.device(self._target.device).index or 0
        self.place = ("cuda", self._device_id)
        torch.cuda.set_device(self._device_id)
        # A stream of its own: the default one has the handle 0, which reads as none given. It
        # becomes torch's current one, so that events and backlog queue up with the session.
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        if hasattr(onnxruntime, "preload_dlls"):  # 1.21 and later: finds CUDA beside torch
            onnxruntime.preload_dlls()

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
                self._fallback[fallback_text(_assigned(session))] = None
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

    def run_options(self) -> tuple[Any, ...]:
        """Return options of a run that comes back before it is done."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        # Otherwise each run waits for the device and nothing can be queued behind it.
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return (options,)

    def notes(self) -> list[tuple[str, str]]:
        """Return what export had to say, what decides the arithmetic, and what runs on the CPU."""
        arithmetic = f"cuDNN's convolutions are chosen by timing all of them; {NO_TF32}"
        fallback = [("cpu-fallback", text) for text in self._fallback]
        return [*super().notes(), ("device-arithmetic", arithmetic), *fallback]


class OnnxCudaGraphLoaded(OnnxCudaLoaded):
    """Sessions that replay; every node must be on the device, or starting one raises.

    Before microsoft/onnxruntime#28686 a replay waits for the device, whatever the run options say:
    then nothing queues up behind it, and there is no span.
    """

    def providers(self, batch: int | None) -> list[tuple[str, dict[str, str]]]:
        """Return the CUDA provider with graphs recorded."""
        ((name, settings),) = super().providers(batch)
        return [(name, settings | {"enable_cuda_graph": "1"})]

    def trial_options(self) -> tuple[Any, ...]:
        """Return options of a run that is not recorded.

        A graph holds the addresses of its inputs and outputs, and the first run that may be
        recorded is; so it must come after the outputs have got their final place.
        """
        import onnxruntime

        trial = onnxruntime.RunOptions()
        trial.add_run_config_entry("gpu_graph_id", "-1")
        return (trial,)


class TensorRtLoaded(OnnxCudaLoaded):
    """Sessions on TensorRT, with CUDA for what TensorRT leaves."""

    provider = TENSORRT
    libraries = "the TensorRT libraries"

    def start(self) -> None:
        """Load TensorRT's libraries before the device is used."""
        # TensorRT takes TF32 for float32 by default; read when CUDA starts.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        # Its wheel holds libnvinfer; once loaded, the provider finds it by name.
        importlib.import_module("tensorrt")
        super().start()
        self._engines = self._artifact.directory / "engines"  # those of one process serve the next

    def providers(self, batch: int | None) -> list[tuple[str, dict[str, str]]]:
        """Return TensorRT and, behind it, CUDA.

        Engines are kept by names of the graph, which no size is part of
        (microsoft/onnxruntime#32254): each batch size has a folder of its own.
        """
        own = self._engines / str(batch)
        own.mkdir(parents=True, exist_ok=True)
        settings = {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(own),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(self._engines),
            "trt_fp16_enable": "1" if self._target.precision == "float16" else "0",
        }
        return [(TENSORRT, self.common() | settings), *super().providers(batch)]


def missing_provider(library: str) -> str | None:
    """Return that the installed onnxruntime lacks a provider's library, or None if it has it."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return "onnxruntime not installed; pip install onnxruntime-gpu"
    if (Path(spec.origin).parent / "capi" / library).is_file():
        return None
    return (
        "this onnxruntime is the CPU build; "
        "pip uninstall onnxruntime, then pip install onnxruntime-gpu"
    )


def _assigned(session: Any) -> list[tuple[str, str]] | None:
    """Return (provider, operator) of each node; None before onnxruntime 1.24."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    return [
        (part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def fallback_text(assigned: Iterable[tuple[str, str]] | None) -> str:
    """Say how many nodes run elsewhere than on the device, and which."""
    if assigned is None:
        return "some nodes run on the CPU; this onnxruntime does not say how many"
    nodes = list(assigned)
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
    serves_with: ClassVar[tuple[str, ...]] = ("onnxruntime-gpu",)
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
    """ONNX Runtime's TensorRT provider; engines are built when a batch size is bound, and kept.

    Not torch-tensorrt: its newest release asks for another torch than this project's.
    """

    name = "tensorrt"
    packages = (*OnnxRuntimeCuda.packages, "tensorrt")
    extra = "tensorrt"
    serves_with = ()  # it builds engines when it is loaded, and keeps them beside the artifact
    compiles = True
    loaded = TensorRtLoaded

    def missing(self, target: Target) -> str | None:
        """Return what is missing; beside the provider, TensorRT's own libraries."""
        return super().missing(target) or missing_provider(TENSORRT_LIBRARY)
