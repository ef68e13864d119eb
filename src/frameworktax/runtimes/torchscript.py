"""TorchScript: traced; or traced, frozen and optimised for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from frameworktax.runtimes import variants
from frameworktax.runtimes.artifacts import (
    Artifact,
    ArtifactRuntime,
    TorchArtifactLoaded,
    positional,
    split,
    static_note,
)
from frameworktax.runtimes.base import Loaded, Target
from frameworktax.runtimes.torch_common import FLOATS, configure, to_arrays

if TYPE_CHECKING:
    import torch

    from frameworktax.models.base import Model

SAME = 1e-3
"""Relative difference up to which a trace counts as valid for another batch size; a trace that
baked a size in is wrong by far more, or fails. The real parity check is the session's."""


class TorchScript(ArtifactRuntime):
    """``torch.jit.trace(module)``: a graph without Python; parameters stay parameters."""

    name = "torchscript"
    paradigm = "deferred"
    devices = ("cpu", "cuda")
    precisions = FLOATS
    packages = ("torch",)
    needs_torch = True
    extra = "torch"
    has_symbols = True
    options: ClassVar[Mapping[str, str]] = variants.options("autograd", "autograd-unfused")
    freezes: ClassVar[bool] = False

    def prepare(
        self, model: Model, batches: Sequence[int], target: Target, directory: Path
    ) -> None:
        """Trace the model as the option wants it."""
        super().prepare(variants.applied(model, self.option), batches, target, directory)

    def write(
        self, model: Model, batches: Sequence[int], folder: Path, notes: list[tuple[str, str]]
    ) -> dict[int, str]:
        """Trace once if the trace serves other batch sizes too, otherwise once for each."""
        import torch

        module = positional(model)
        # Traced at a batch above 1 where there is one: sizes of 1 hide in broadcasts.
        shared = min((b for b in batches if b > 1), default=batches[0])
        program = self._traced(module, model, shared)
        try:
            for batch in [b for b in batches if b != shared][:1]:
                _check(program, module, model, batch)
        except Exception as error:  # noqa: BLE001 - operators raise anything; the note says it
            notes.append(static_note(error))
            files = {batch: f"model-{batch}.pt" for batch in batches}
            for batch, name in files.items():
                torch.jit.save(self._traced(module, model, batch), folder / name)
        else:
            files = dict.fromkeys(batches, "model.pt")
            torch.jit.save(program, folder / "model.pt")
        return files

    def _traced(self, module: torch.nn.Module, model: Model, batch: int) -> Any:
        import torch

        _, tensors = split(model.inputs(batch))
        traced = torch.jit.trace(module, tuple(tensors), check_trace=False)
        return torch.jit.freeze(traced) if self.freezes else traced

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Load what was traced."""
        configure(target)
        mode = variants.mode(self.option, None)
        return _Loaded(Artifact(directory), target, mode, freezes=self.freezes)


class TorchScriptFrozen(TorchScript):
    """``torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module)))``."""

    name = "torchscript-frozen"
    options: ClassVar[Mapping[str, str]] = {}
    freezes = True


class _Loaded(TorchArtifactLoaded):
    def __init__(self, artifact: Artifact, target: Target, mode: Any, *, freezes: bool) -> None:
        super().__init__(artifact, target, mode)
        self._freezes = freezes

    def open(self, path: Path) -> Any:
        import torch

        program = torch.jit.load(str(path), map_location=self._target.device)
        # Here and not in ``prepare``: it may repack weights into forms that cannot be saved.
        return torch.jit.optimize_for_inference(program.eval()) if self._freezes else program


def _check(program: Any, module: torch.nn.Module, model: Model, batch: int) -> None:
    """Raise ValueError where a trace does not compute what the module computes."""
    import numpy as np

    _, tensors = split(model.inputs(batch))
    for ours, theirs in zip(to_arrays(module(*tensors)), to_arrays(program(*tensors)), strict=True):
        # bfloat16 has 8 bits: looser by what float32 has more.
        scale = (
            SAME * (100 if tensors and _is_narrow(module) else 1) * max(np.abs(ours).max(), 1e-30)
        )
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=scale):
            raise ValueError(f"a trace is not valid for batch {batch}")


def _is_narrow(module: torch.nn.Module) -> bool:
    return any(p.element_size() < 4 for p in module.parameters())
