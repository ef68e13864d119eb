"""TorchScript: traced; or traced, frozen and optimised for inference."""

from __future__ import annotations

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
            export.note_fixed(module, tensors)
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
