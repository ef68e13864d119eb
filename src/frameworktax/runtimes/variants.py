"""Steps that a runtime can be varied by, one at a time: what an ablation adds and takes away.

An option joins words with a dash: ``eager@autograd-unfused-malloc``. Words of the allocator are
environment variables of the measuring process; the others act on the module and on its calls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.models.base import Model
from frameworktax.models.finalize import is_image
from frameworktax.runtimes.base import Target

AUTOGRAD, UNFUSED, MALLOC, JEMALLOC = "autograd", "unfused", "malloc", "jemalloc"
NARROW, NHWC, GRAPH = "bfloat16", "nhwc", "graph"
STEPS: Mapping[str, str] = {
    AUTOGRAD: "autograd on",
    UNFUSED: "attention spelled out in operators",
    MALLOC: "freed memory stays in the process",
    JEMALLOC: "jemalloc in malloc's place",
    NARROW: "computes in bfloat16; inputs and outputs as they were",
    NHWC: "images and weights channels-last",
    GRAPH: "captured as a CUDA graph when it is loaded, then replayed",
}
KEEP: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
"""glibc: no block is mapped on its own and none is given back (mallopt(3)), so that no page of a
freed tensor has to be faulted in again."""
Tensors = Callable[[Any], Any]
LIBRARY = "libjemalloc.so*"
FOLDERS = ("usr/lib", "usr/lib64", "usr/local/lib", "opt/conda/lib")


def options(*names: str) -> dict[str, str]:
    """Return option → what it does, for options of these words."""
    return {name: ", ".join(STEPS[word] for word in words(name)) for name in names}


def words(option: str) -> list[str]:
    """Return the words of an option."""
    return option.split("-") if option else []


def jemalloc(root: Path = Path("/")) -> Path | None:
    """Return the shared library of jemalloc, or None where it is not installed."""
    for folder in FOLDERS:
        for pattern in (LIBRARY, f"*-linux-*/{LIBRARY}"):
            found = sorted((root / folder).glob(pattern))
            if found:
                return found[-1]
    return None


def missing(option: str, target: Target) -> str | None:
    """Return why the words of an option cannot be had here, or None."""
    if JEMALLOC in words(option) and jemalloc() is None:
        return "jemalloc not installed; install it (apt install libjemalloc2)"
    if target.precision == "int8" and target.is_cuda:
        return "int8 runs on a CPU only; choose --device cpu"
    if target.precision == "int8" and option:
        return "int8 has no variants; choose another --precision"
    if GRAPH in words(option) and not target.is_cuda:
        return "runs on cuda only; choose --device cuda"
    return None


def variables(option: str) -> Mapping[str, str]:
    """Return the environment variables that an option stands for."""
    if MALLOC in words(option):
        return KEEP
    library = jemalloc() if JEMALLOC in words(option) else None
    return {"LD_PRELOAD": str(library)} if library is not None else {}


def mode(option: str, otherwise: Any) -> Any:
    """Return what is entered around a call: nothing where autograd stays on."""
    return nullcontext if AUTOGRAD in words(option) else otherwise


def applied(model: Model, option: str) -> Model:
    """Return the model as the words of an option want it; notes say what was done."""
    model = unfused(model) if UNFUSED in words(option) else model
    if NARROW in words(option):
        return _cast(
            model,
            lambda module: module.bfloat16(),
            lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor,
            lambda tensor: tensor.float() if tensor.is_floating_point() else tensor,
        )
    if NHWC in words(option):
        return _channels_last(model)
    return model


def _channels_last(model: Model) -> Model:
    import torch

    if not any(is_image(value) for _, value in model.inputs(1).items()):
        raise WorkerError("unavailable", "the model takes no images")
    form = torch.channels_last
    return _cast(
        model,
        lambda module: module.to(memory_format=form),
        lambda value: value.contiguous(memory_format=form) if is_image(value) else value,
        lambda value: value.contiguous(),
    )


def _cast(model: Model, whole: Tensors, given: Tensors, made: Tensors) -> Model:
    """Return a copy whose weights, inputs and outputs are cast by these, in the graph."""
    import torch
    from torch.utils._pytree import tree_map_only

    class Cast(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map_only(torch.Tensor, given, (args, kwargs))
            return tree_map_only(torch.Tensor, made, self.module(*args, **kwargs))

    return replace(model, module=Cast(whole(copy.deepcopy(model.module))).eval())


def unfused(model: Model) -> Model:
    """Return a copy of the model that computes attention operator by operator.

    That is transformers' ``eager`` attention in place of scaled-dot-product attention. A model
    that has one way only is returned as it is, and a note says so.
    """
    own = getattr(getattr(model.module, "config", None), "_attn_implementation", "eager")
    if own != "eager" and hasattr(model.module, "set_attn_implementation"):
        module = copy.deepcopy(model.module)
        module.set_attn_implementation("eager")
        note = ("attention-unfused", f"attention is computed operator by operator, not by {own}")
    else:
        module = model.module
        note = ("attention-as-it-is", "this model has one way to compute attention, or none")
    return replace(model, module=module, notes=[*model.notes, note])
