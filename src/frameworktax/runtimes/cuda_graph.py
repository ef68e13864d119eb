"""CUDA graphs: the kernels of one call are recorded once and launched again as a whole.

The host's part shrinks to one launch; inputs and outputs stay at fixed addresses, so a caller
copies new inputs into the old ones (that copy is not part of the call, as nowhere else).
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frameworktax import host
from frameworktax.errors import Fault, WorkerError, is_out_of_memory
from frameworktax.models.base import Model
from frameworktax.models.generate import Replayed
from frameworktax.runtimes.base import Call, Loaded, Target
from frameworktax.runtimes.torch_common import TorchLoaded, TorchRuntime, configure, given

HIDING = ("", "-1", "NoDevFiles")
"""Values of ``host.VISIBLE`` that hide every device; the last is Slurm's word."""
WARM_CALLS = 3
"""Calls before capture, on a side stream: libraries set themselves up, which no graph may hold."""


class CudaGraph(TorchRuntime):
    """``torch.cuda.CUDAGraph`` of one call; ``replay()`` is what gets timed."""

    name = "cuda-graph"
    paradigm = "graph-replay"
    devices = ("cuda",)
    kv_caches = ("static",)

    def missing(self, target: Target) -> str | None:
        """Return what is missing: a GPU, a torch built for it, then the rest."""
        return missing_gpu() or super().missing(target)

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Wrap the module; graphs are captured when a batch size is bound."""
        import torch

        configure(target)
        built = given(model)
        called = built.module
        if built.decoding is not None:
            called = Replayed(built.module, built.decoding, recorded)
        return GraphLoaded(built, target, called, torch.inference_mode)


class GraphLoaded(TorchLoaded):
    """One graph for each batch size, with its own inputs, outputs and memory; two to decode."""

    def bind(self, batch: int) -> Call:
        """Capture the module on this batch and return its replay.

        Raises:
            WorkerError: the call or a step cannot be captured; the message says why.
        """
        call = super().bind(batch)
        if self._decoder is not None:  # which records its steps when first called
            call()
            return call
        return replayed(call)


def replayed(call: Call) -> Call:
    """Return a call that replays the kernels of another; each overwrites the last one's output.

    Raises:
        WorkerError: the call cannot be captured; the message says why.
    """
    replay, output = recorded(call)

    def again() -> Any:
        replay()
        return output

    return again


def replaying(
    program: Callable[..., Sequence[Any]], inputs: Sequence[Any], device: str
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a call of a program's graph, whose ``inputs`` tensors are copied into, outputs out of.

    Several threads may call it: a graph's memory is that of one call at a time. The lock orders
    what is enqueued, the event what the device does, for callers may have streams of their own.

    Raises:
        WorkerError: the program cannot be captured; the message says why.
    """
    import torch

    with torch.no_grad():
        replay, outputs = recorded(lambda: program(*inputs))
    lock, done = threading.Lock(), torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))

    def serve(tensors: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad(), lock:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(done)
            for into, tensor in zip(inputs, tensors, strict=True):
                into.copy_(tensor)
            replay()
            made = [output.clone() for output in outputs]
            done.record(stream)
        return made

    return serve


def recorded(call: Call, ready: Call | None = None) -> tuple[Call, Any]:
    """Return what replays the kernels of a call, and its output, which each replay overwrites.

    Args:
        call: run a few times, then captured.
        ready: run before each of these times, not captured.

    Raises:
        WorkerError: the call cannot be captured; the message says why.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            if ready is not None:
                ready()
            call()
    side.synchronize()  # what a kernel did wrong shows here: it is no fault of capturing
    stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    try:
        # torch's default is one stream for all: it is of the device that captured first, and torch
        # gives cuBLAS one workspace a stream, in which two graphs must not compute at once.
        # By default what other threads of a program do meanwhile, as taking memory, breaks the
        # capture, and fails there too: a deployment may be loaded while others are called.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            output = call()
    except Exception as error:  # boundary: the model's own code runs under capture
        torch.cuda.set_stream(stream)  # a broken capture leaves its own stream current
        first = cause(error)
        status: Fault = "out-of-memory" if is_out_of_memory(first) else "failed"
        raise WorkerError(status, f"the call cannot be captured: {reason(first)}") from error
    graph.reads = call  # it knows addresses only: what the call reads must live as long as it does
    return graph.replay, output


def cause(error: BaseException) -> BaseException:
    """Return the error that broke a capture: ending a broken capture raises again."""
    is_second = "captur" in str(error).lower() and error.__context__ is not None
    return error.__context__ or error if is_second else error


def reason(error: BaseException) -> str:
    """Return why a capture failed, in one line."""
    text = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    if "captur" in text.lower():
        text += "; look for .item(), .cpu(), a copy from the host, or a branch on a tensor's value"
    return text


def missing_gpu() -> str | None:
    """Return why torch can use no GPU here, or None if one may be there; torch is not imported."""
    makers = host.gpu_makers()
    if not makers:
        return "no GPU here (no driver found); run it on a machine that has one"
    if os.environ.get(host.VISIBLE, "0").strip() in HIDING:
        return f"{host.VISIBLE} hides every GPU; unset it, or name one there"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None  # the list of packages says that better
    version = Path(spec.origin).with_name("version.py")
    built = built_for(version.read_text(encoding="utf-8")) if version.is_file() else makers
    if not built:
        return "this torch was built without CUDA; install a CUDA build (see pytorch.org)"
    if not built & makers:
        wanted = " and ".join(sorted(built))
        return f"this torch was built for {wanted}'s GPUs, and no driver of those is found here"
    return None


def built_for(text: str) -> frozenset[str]:
    """Return whose GPUs a torch is built for by its ``version.py``; any's where that names none."""
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(.+)$", text, re.MULTILINE))
    return frozenset(
        maker
        for name, maker in (("cuda", "NVIDIA"), ("hip", "AMD"))
        if not built or built.get(name, "None").strip() != "None"
    )
