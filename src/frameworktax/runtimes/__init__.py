"""The runtimes by name.

The registry holds strings, so that listing runtimes imports no engine. Another package adds
a runtime by an entry point in the group ``frameworktax.runtimes``: name → ``module:class``.
"""

from __future__ import annotations

import importlib

from frameworktax import models
from frameworktax.errors import UsageError, nearest
from frameworktax.models import entry_points, with_plugins
from frameworktax.records import DEPLOYED
from frameworktax.runtimes.base import Runtime

GROUP = "frameworktax.runtimes"

BUILT_IN: dict[str, str] = {
    "eager": "frameworktax.runtimes.eager:Eager",
    "inference-mode": "frameworktax.runtimes.eager:InferenceMode",
    "torchscript": "frameworktax.runtimes.torchscript:TorchScript",
    "torchscript-frozen": "frameworktax.runtimes.torchscript:TorchScriptFrozen",
    "inductor": "frameworktax.runtimes.inductor:Inductor",
    "inductor-reduce-overhead": "frameworktax.runtimes.inductor:InductorReduceOverhead",
    "inductor-max-autotune": "frameworktax.runtimes.inductor:InductorMaxAutotune",
    "zentorch": "frameworktax.runtimes.inductor:ZenTorch",
    "jax": "frameworktax.runtimes.apart:Jax",
    "aot-inductor": "frameworktax.runtimes.inductor:AotInductor",
    "onnxruntime": "frameworktax.runtimes.onnxruntime:OnnxRuntime",
    "openvino": "frameworktax.runtimes.openvino:OpenVino",
    "executorch": "frameworktax.runtimes.apart:ExecuTorch",
    "litert": "frameworktax.runtimes.apart:LiteRt",
    "iree": "frameworktax.runtimes.apart:Iree",
    "tract": "frameworktax.runtimes.apart:Tract",
    "onnxruntime-cuda": "frameworktax.runtimes.onnxruntime_cuda:OnnxRuntimeCuda",
    "tensorrt": "frameworktax.runtimes.onnxruntime_cuda:TensorRt",
    "cuda-graph": "frameworktax.runtimes.cuda_graph:CudaGraph",
    "onnxruntime-cuda-graph": "frameworktax.runtimes.onnxruntime_cuda:OnnxRuntimeCudaGraph",
    "nested": "frameworktax.runtimes.nested:Nested",
    DEPLOYED: "frameworktax.runtimes.deployment:Deployed",
    "null": "frameworktax.runtimes.eager:Null",
}


def names() -> list[str]:
    """Return every registered name, the built-in ones first."""
    return list(with_plugins(BUILT_IN, GROUP, str))


def every(input_kind: str = "dense") -> list[str]:
    """Return what ``all`` stands for.

    That is every name but those that say otherwise, and those for sparse input where it is dense:
    nothing is there to be left out.
    """
    return [
        name
        for name in names()
        if not (runtime := get(name)).by_name_only
        and (input_kind == "ragged" or runtime.paradigm != "sparse-input")
    ]


def get(name: str) -> Runtime:
    """Return the runtime of this name; imports its file, not its engine.

    A name may end in an option: ``onnxruntime@1``. That is a runtime of its own, with its own
    results; ``names`` leaves it out. So is one that ends in ``deployed``: ``onnxruntime@deployed``,
    ``onnxruntime@1-deployed``, called as a deployment calls it.

    Raises:
        UsageError: there is no such name, no such option of it, or it cannot be delivered.
    """
    if (plain := without_deployed(name)) != name:
        from frameworktax.runtimes.deployment import as_deployed

        return as_deployed(get(plain), name)
    bare, _, option = name.partition("@")
    # Other packages' metadata is read only for a name that is not built in.
    known = BUILT_IN if bare in BUILT_IN else with_plugins(BUILT_IN, GROUP, str)
    if bare not in known:
        raise UsageError(
            f"unknown runtime '{name}'{nearest(name, known)} (see 'frameworktax list runtimes')"
        )
    module, _, attribute = known[bare].partition(":")
    runtime = getattr(importlib.import_module(module), attribute)()
    if not isinstance(runtime, Runtime):
        raise UsageError(f"runtime '{bare}' ({known[bare]}) is no Runtime; uninstall its package")
    if bare == name:
        return runtime
    if option not in runtime.options:
        have = ", ".join(f"{bare}@{known}" for known in runtime.options)
        raise UsageError(f"{bare} has no option '{option}'; choose {have or f'{bare} alone'}")
    runtime.name, runtime.option = name, option
    return runtime


def deployed(name: str) -> str:
    """Return the name of a runtime as a deployment calls it."""
    return f"{name}{'-' if '@' in name else '@'}{DEPLOYED}"


def without_deployed(name: str) -> str:
    """Return the name of a runtime that ``deployed`` made this of; another name as it is."""
    if "@" not in name:
        return name
    return name.removesuffix(f"@{DEPLOYED}").removesuffix(f"-{DEPLOYED}")


def distributions() -> tuple[str, ...]:
    """Return the distributions that runtimes and models are made of, plug-ins' own included.

    Their versions are recorded with every session and are part of the key of what is prepared.
    Nothing of a plug-in is imported.
    """
    found = {
        name for entry in (models.BUILT_IN | models.PREFIXES).values() for name in entry.packages
    }
    for name in BUILT_IN:
        found |= get(name).distributions()
    for group in (GROUP, models.GROUP):
        found |= {point.dist.name for point in entry_points(group) if point.dist}
    return tuple(sorted(found))
