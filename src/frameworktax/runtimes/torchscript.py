"""TorchScript: traced; or traced, frozen and optimised for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax import models
from frameworktax.runtimes import variants
from frameworktax.runtimes.artifacts import ArtifactRuntime, Export, TorchArtifactLoaded, positional
from frameworktax.runtimes.torch_common import TorchRuntime, to_arrays

if TYPE_CHECKING:
    import torch

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

SAME = 1e-3
"""Relative difference up to which a trace counts as valid for another batch size; a trace that
baked a size in is wrong by far more, or fails. The real parity check is the session's."""


class _Loaded(TorchArtifactLoaded):
    def open(self, path: Path) -> Any:
        import torch

        return torch.jit.load(str(path), map_location=self._target.device)


class _FrozenLoaded(_Loaded):
    def open(self, path: Path) -> Any:
        import torch

        # Here and not in ``prepare``: it may repack weights into forms that cannot be saved.
        return torch.jit.optimize_for_inference(super().open(path).eval())


def _check(program: Any, module: torch.nn.Module, model: Model, batch: int) -> None:
    """Raise ValueError where a trace does not compute what the module computes."""
    import numpy as np

    tensors = model.inputs(batch).tensors().values()
    for ours, theirs in zip(to_arrays(module(*tensors)), to_arrays(program(*tensors)), strict=True):
        # bfloat16 has 8 bits: looser by what float32 has more.
        is_narrow = any(p.element_size() < 4 for p in module.parameters())
        scale = SAME * (100 if is_narrow else 1) * max(np.abs(ours).max(), 1e-30)  # all may be 0
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=scale):
            raise ValueError(f"a trace is not valid for batch {batch}")


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
            program = torch.jit.freeze(program) if self.freezes else program
            for other in [batch for batch in batches if batch != traced_at][:1]:
                _check(program, module, model, other)
            torch.jit.save(program, file)

        return export.save("pt", write)


class TorchScriptFrozen(TorchScript):
    """``torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module)))``."""

    name = "torchscript-frozen"
    options: ClassVar[Mapping[str, str]] = variants.options("bfloat16", "nhwc", "graph")
    tunings: ClassVar[tuple[str, ...]] = ("nhwc",)
    loaded = _FrozenLoaded
    freezes = True
