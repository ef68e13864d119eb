"""The models by name, and the way to the user's own.

The registry holds strings, so that asking what there is imports no engine. A family is one file
with ``build(name, workload) -> Model``; it builds in float32 on the CPU, and ``build`` here moves
the result to the device and precision asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError, UserModelError, nearest
from frameworktax.models.base import Inputs, Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from frameworktax.records import Workload

GROUP = "frameworktax.models"


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered model; ``target`` is ``module:function`` with ``build(name, workload)``."""

    target: str
    family: str
    summary: str
    packages: tuple[str, ...] = ("torch",)
    has_length: bool = False
    has_image_size: bool = False
    default_length: int | None = None
    default_image_size: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A row of ``list models``; ``missing`` says what to install, or is None."""

    name: str
    family: str
    summary: str
    missing: str | None
    has_length: bool
    has_image_size: bool
    default_length: int | None
    default_image_size: int | None


def _text(summary: str) -> Entry:
    return Entry(
        "frameworktax.models.language:build",
        "language",
        summary,
        packages=("torch", "transformers"),
        has_length=True,
        default_length=128,
    )


def _image(summary: str) -> Entry:
    return Entry(
        "frameworktax.models.vision:build",
        "vision",
        summary,
        has_image_size=True,
        default_image_size=224,
    )


BUILT_IN: dict[str, Entry] = {
    "bert-tiny": _text("BERT encoder, 2 layers, 128 wide, 2 heads"),
    "bert-mini": _text("BERT encoder, 4 layers, 256 wide, 4 heads"),
    "bert-small": _text("BERT encoder, 4 layers, 512 wide, 8 heads"),
    "bert-base": _text("BERT encoder, 12 layers, 768 wide, 12 heads"),
    "distilbert": _text("DistilBERT encoder, 6 layers, 768 wide, 12 heads"),
    "gpt2": _text("GPT-2 decoder, 12 layers, 768 wide; one forward pass, no cache, no head"),
    "resnet-18": _image("ResNet, 18 layers, basic blocks, 11.7 M parameters"),
    "resnet-50": _image("ResNet, 50 layers, bottleneck blocks, 25.6 M parameters"),
    "mobilenet-v2": _image("MobileNetV2, inverted residuals, 3.5 M parameters"),
    "mlp": Entry(
        "frameworktax.models.synthetic:build",
        "synthetic",
        "8 times linear (1024 to 1024) and ReLU",
    ),
}


def _registry() -> dict[str, Entry]:
    """Return built-in names and those of other packages.

    Raises:
        UsageError: two packages claim one name.
    """
    known = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        if point.name in known:
            raise UsageError(
                f"model '{point.name}' is registered twice, the second time by {point.value}; "
                "uninstall or rename one"
            )
        known[point.name] = Entry(point.value, "other", f"from {point.value}", packages=())
    return known


def names() -> list[str]:
    """Return every registered name, the built-in ones first."""
    return list(_registry())


def describe_names() -> list[ModelInfo]:
    """Return a row for every registered name without importing any engine."""
    rows = []
    for name, entry in _registry().items():
        absent = [p for p in entry.packages if importlib.util.find_spec(p) is None]
        extra = (
            "torch" if absent == ["torch"] and "transformers" not in entry.packages else "models"
        )
        missing = (
            f"{', '.join(absent)} not installed; pip install 'frameworktax[{extra}]'"
            if absent
            else None
        )
        rows.append(
            ModelInfo(
                name,
                entry.family,
                entry.summary,
                missing,
                entry.has_length,
                entry.has_image_size,
                entry.default_length,
                entry.default_image_size,
            )
        )
    return rows


def is_user_model(name: str) -> bool:
    """Return whether the name points at the user's own function (``file.py:function``)."""
    return ":" in name


def check(workload: Workload) -> None:
    """Refuse a workload that names no model or asks for an axis that its model lacks.

    Cheap: nothing is imported or built.

    Raises:
        UsageError: one line that says what to change.
    """
    if is_user_model(workload.model):
        _refuse(workload, "your own model", length=False, image=False, scales=False)
        where = workload.model.rpartition(":")[0]
        if where.endswith(".py") and not Path(where).is_file():
            raise UserModelError(f"no file {where} (for {workload.model}); check the path")
        return
    known = _registry()
    entry = known.get(workload.model)
    if entry is None:
        raise UsageError(
            f"unknown model '{workload.model}'{nearest(workload.model, known)} "
            "(see 'frameworktax list models'; your own: file.py:function)"
        )
    if entry.family != "other":  # what a plug-in supports is for the plug-in to say
        _refuse(
            workload,
            workload.model,
            length=entry.has_length,
            image=entry.has_image_size,
            scales=True,
        )


def _refuse(workload: Workload, name: str, *, length: bool, image: bool, scales: bool) -> None:
    if workload.batch < 1:
        raise UsageError(f"batch {workload.batch} is impossible; choose 1 or more")
    if workload.length is not None and not length:
        raise UsageError(f"{name} has no length; leave out --length")
    if workload.image_size is not None and not image:
        raise UsageError(f"{name} has no image size; leave out --image-size")
    for option, factor in (("width", workload.width), ("depth", workload.depth)):
        if factor != 1.0 and not scales:
            raise UsageError(f"{name} has no {option} factor; leave out --{option}")
        if not 0 < factor < float("inf"):
            raise UsageError(f"--{option} {factor} is impossible; choose a number above 0")
    if workload.batch_dim is not None and scales:
        raise UsageError(f"{name} knows its batch dimension; leave out --batch-dim")
    if workload.twin and not scales:
        raise UsageError(f"{name} has no width to shrink; no twin can be built")


def build(workload: Workload, device: str = "cpu") -> Model:
    """Build a model with seeded weights, on the device and in the precision asked for.

    Args:
        workload: what to build; ``batch`` is not used, ``Model.inputs`` serves any.
        device: ``cpu`` or ``cuda:N``.

    Raises:
        UsageError: unknown name, or an axis the model does not have.
        UserModelError: the user's function is missing, raises or returns something else.
    """
    check(workload)
    if is_user_model(workload.model):
        user = importlib.import_module("frameworktax.models.user")
        return place(user.build(workload.model, workload), workload.precision, device)
    entry = _registry()[workload.model]
    absent = [p for p in entry.packages if importlib.util.find_spec(p) is None]
    if absent:
        raise UsageError(
            f"model '{workload.model}' needs {', '.join(absent)}; "
            "pip install 'frameworktax[models]'"
        )
    module, _, function = entry.target.partition(":")
    family: Callable[[str, Workload], Model] = getattr(importlib.import_module(module), function)
    return place(family(workload.model, workload), workload.precision, device)


def place(model: Model, precision: str, device: str) -> Model:
    """Return the model in eval mode, in this precision, on this device, and its inputs alike."""
    import torch

    dtype = getattr(torch, precision)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    def inputs(batch: int) -> Inputs:
        made = model.inputs(batch)
        return Inputs(
            tuple(moved(value) for value in made.args),
            {name: moved(value) for name, value in made.kwargs.items()},
        )

    return replace(model, module=model.module.eval().to(device=device, dtype=dtype), inputs=inputs)
