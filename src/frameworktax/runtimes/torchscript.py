"""TorchScript: traced; or traced, frozen and optimised for inference."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax import models
from frameworktax.errors import WorkerError
from frameworktax.models.base import EDGES, draw
from frameworktax.runtimes import variants
from frameworktax.runtimes.artifacts import ArtifactRuntime, Export, TorchArtifactLoaded, positional
from frameworktax.runtimes.torch_common import TorchRuntime, to_arrays

if TYPE_CHECKING:
    import numpy as np
    import torch

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

SAME = 1e-3
"""Relative difference up to which a trace counts as valid for another batch size; a trace that
baked a size in is wrong by far more, or fails. The real parity check is the session's."""
OTHER = EDGES + 1
"""Number of the draw that gives other values: the first random one; its masks are the example's."""


class _Loaded(TorchArtifactLoaded):
    def open(self, path: Path) -> Any:
        import torch

        return torch.jit.load(str(path), map_location=self._target.device)


class _FrozenLoaded(_Loaded):
    def open(self, path: Path) -> Any:
        import torch

        # Here and not in ``prepare``: it may repack weights into forms that cannot be saved.
        return torch.jit.optimize_for_inference(super().open(path).eval())


def _fixed_at(module: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> list[str]:
    """Return the lines that make a Python number of a value that inputs decide.

    Such a number is a constant of a trace, and so is what follows from it: drawn inputs need not
    reach the other side of a branch. Torch warns of each number, sizes and weights too, and then
    reads it; whether inputs decide it is followed from operator to operator, by memory. That is a
    trace of its own, and what the module returns is no output of it: one that is watched lacks
    convolutions.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def memory(values: Any) -> set[Any]:
        found = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
        return {StorageWeakRef(t.untyped_storage()) for t in found if t.layout is torch.strided}

    class Called(torch.nn.Module):  # type: ignore[misc] # torch is untyped to mypy here
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            self.module(*given)
            return torch.zeros(())

    own = tuple(tensor.clone() for tensor in tensors)
    decided, lines = memory(own), list[str]()

    class Following(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to mypy here
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            warned = [w for w in seen[-1:] if w.category is torch.jit.TracerWarning]
            seen.clear()
            made = operator(*args, **(kwargs or {}))
            if not decided.isdisjoint(memory((args, kwargs))):
                decided.update(memory(made))
                if warned and operator is torch.ops.aten._local_scalar_dense.default:
                    lines.append(f"{warned[0].filename}:{warned[0].lineno}")
            return made

    with warnings.catch_warnings(record=True) as seen, Following():
        warnings.simplefilter("always", torch.jit.TracerWarning)
        torch.jit.trace(Called(), own, check_trace=False)
    return lines


def _check_values(program: Any, module: torch.nn.Module, model: Model, batch: int) -> None:
    """Refuse a trace in which values of the example are fixed, by other values.

    A branch that values decide, a number taken from a tensor and what numpy computes are constants
    of a trace, so that it agrees with the module on the example alone. Where the module raises on
    other values, or differs from itself, nothing is said.

    Raises:
        WorkerError: outputs differ.
    """

    def given() -> Iterable[torch.Tensor]:
        return draw(model, batch, OTHER).tensors().values()

    try:
        ours, again = to_arrays(module(*given())), to_arrays(module(*given()))
    except Exception:  # noqa: BLE001 - a model's own code on values that it may not take
        return
    if not _agree(ours, again, module):
        return
    try:
        is_same = _agree(ours, to_arrays(program(*given())), module)
    except RuntimeError:  # of sizes that were fixed
        is_same = False
    if not is_same:
        raise WorkerError(
            "unavailable",
            "a trace fixes what the module does with the values of its example: outputs differ for "
            "other values; choose another runtime",
        )


def _agree(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], module: torch.nn.Module
) -> bool:
    """Return whether outputs are the same but for rounding; with NaN they are not."""
    import numpy as np

    # bfloat16 has 8 bits: looser by what float32 has more.
    share = SAME * (100 if any(p.element_size() < 4 for p in module.parameters()) else 1)
    return [a.shape for a in ours] == [b.shape for b in theirs] and all(
        np.allclose(
            a, b, rtol=0, atol=share * max(np.abs(a[np.isfinite(a)]).max(initial=0), 1e-30)
        )  # all may be 0
        for a, b in zip(ours, theirs, strict=True)
    )


class TorchScript(TorchRuntime, ArtifactRuntime):
    """``torch.jit.trace(module)``: a graph without Python; parameters stay parameters."""

    name = "torchscript"
    paradigm = "deferred"
    places = ("operator",)
    serves_with = ("torch",)
    options: ClassVar[Mapping[str, str]] = variants.options(
        "autograd", "autograd-unfused", "bfloat16", "nhwc", "graph"
    )
    loaded = _Loaded
    freezes: ClassVar[bool] = False

    def cannot(self, workload: Workload) -> str | None:
        """Return why not; models that are known to take no images have none to lay out."""
        known = models.describe_name(workload.model)
        if self.option == variants.NHWC and known is not None and not known.has_image_size:
            return "the model takes no images"
        return super().cannot(workload)

    def write(self, export: Export) -> dict[int, str]:
        """Trace once if the trace serves other batch sizes too, otherwise once for each."""
        import torch

        model, module = export.model, positional(export.model)

        def write(batches: Sequence[int], file: Path) -> None:
            # At a batch above 1 where there is one: sizes of 1 hide in broadcasts.
            traced_at = min((batch for batch in batches if batch > 1), default=1)
            tensors = tuple(model.inputs(traced_at).tensors().values())
            program = torch.jit.trace(module, tensors, check_trace=False)
            if lines := _fixed_at(module, tensors):
                text = f"the trace fixes what follows from a value of its inputs ({lines[0]})"
                export.notes.append(("values-fixed", text))
            _check_values(program, module, model, traced_at)
            program = torch.jit.freeze(program) if self.freezes else program
            for other in [batch for batch in batches if batch != traced_at][:1]:
                ours, theirs = (
                    to_arrays(called(*model.inputs(other).tensors().values()))
                    for called in (module, program)  # which may write into its inputs
                )
                if not _agree(ours, theirs, module):
                    raise ValueError(f"a trace is not valid for batch {other}")
            torch.jit.save(program, file)

        return export.save("pt", write)


class TorchScriptFrozen(TorchScript):
    """``torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module)))``."""

    name = "torchscript-frozen"
    options: ClassVar[Mapping[str, str]] = variants.options("bfloat16", "nhwc", "graph")
    tunings: ClassVar[tuple[str, ...]] = ("nhwc",)
    loaded = _FrozenLoaded
    freezes = True
