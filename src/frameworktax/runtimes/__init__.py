"""The runtimes by name.

The registry holds strings, so that asking what there is imports no engine. Another package adds
a runtime by an entry point in the group ``frameworktax.runtimes``: name → ``module:class``.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from frameworktax.errors import UsageError, nearest
from frameworktax.runtimes.base import Runtime

GROUP = "frameworktax.runtimes"

BUILT_IN: dict[str, str] = {
    "eager": "frameworktax.runtimes.eager:Eager",
    "inference-mode": "frameworktax.runtimes.eager:InferenceMode",
    "torchscript-frozen": "frameworktax.runtimes.torchscript:TorchScriptFrozen",
    "inductor": "frameworktax.runtimes.inductor:Inductor",
    "aot-inductor": "frameworktax.runtimes.aot_inductor:AotInductor",
    "onnxruntime": "frameworktax.runtimes.onnxruntime:OnnxRuntime",
    "openvino": "frameworktax.runtimes.openvino:OpenVino",
    "cuda-graph": "frameworktax.runtimes.cuda_graph:CudaGraph",
    "onnxruntime-cuda": "frameworktax.runtimes.onnxruntime_cuda:OnnxRuntimeCuda",
    "null": "frameworktax.runtimes.null:Null",
}
FLOOR = "null"
"""Does nothing: what its calls take is the harness's own."""


def _registry() -> dict[str, str]:
    """Return built-in names and those of other packages.

    Raises:
        UsageError: two packages claim one name.
    """
    known = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        if point.name in known:
            raise UsageError(
                f"runtime '{point.name}' is registered twice, the second time by {point.value}; "
                "uninstall or rename one"
            )
        known[point.name] = point.value
    return known


def names() -> list[str]:
    """Return every registered name, the built-in ones first."""
    return list(_registry())


def get(name: str) -> Runtime:
    """Return the runtime of this name; imports its file, not its engine.

    Raises:
        UsageError: there is no such name.
    """
    known = _registry()
    if name not in known:
        raise UsageError(
            f"unknown runtime '{name}'{nearest(name, known)} (see 'frameworktax list runtimes')"
        )
    module, _, attribute = known[name].partition(":")
    runtime = getattr(importlib.import_module(module), attribute)()
    if not isinstance(runtime, Runtime):
        raise UsageError(f"runtime '{name}' ({known[name]}) is no Runtime; uninstall its package")
    return runtime
