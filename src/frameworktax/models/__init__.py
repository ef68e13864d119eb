"""The models by name, and the way to any other: torchvision's, timm's, Hugging Face's, your own.

The registry is a table, so that listing models imports no engine. A family is a function
``build(name, workload) -> Model``; it builds in float32 on the CPU. ``build`` here seeds torch
before, and moves the result to the device and precision asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError, UserModelError, nearest
from frameworktax.models.base import SEED
from frameworktax.models.finalize import NO_IMAGES, finalize, no_generation, unmasked
from frameworktax.models.libraries import libraries_in
from frameworktax.models.registry import BUILT_IN, PREFIXES, USER, Entry, with_plugins
from frameworktax.models.torchvision_operators import declare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from frameworktax.models.base import Model
    from frameworktax.records import Workload

__all__ = [
    "BUILT_IN", "GROUP", "PREFIXES", "Entry", "build", "check", "describe_name",
    "describe_names", "is_user_model", "libraries", "names",
]  # fmt: skip

GROUP = "frameworktax.models"
PLUGIN = "other"
"""The family of models from other packages: what they support is for them to say."""


LISTED = (
    *("has_length", "has_image_size", "default_length", "default_image_size", "max_length"),
    *("factors", "generates"),
)
"""Of an entry, beside its family and summary, what ``list models --json`` says."""


def _registry() -> dict[str, Entry]:
    """Return built-in names and those of other packages."""
    return with_plugins(
        BUILT_IN, GROUP, lambda target: Entry(target, PLUGIN, f"from {target}", packages=())
    )


def names() -> list[str]:
    """Return every registered name, the built-in ones first."""
    return list(_registry())


def describe_names() -> list[dict[str, Any]]:
    """Return a row for every registered name, and every prefix, one family after the other.

    ``missing`` says what to install, or is None. No engine is imported.
    """
    known = _registry() | PREFIXES
    families = list(dict.fromkeys(entry.family for entry in known.values()))
    return [
        {"name": name, "family": entry.family, "summary": entry.summary, "missing": _missing(entry)}
        | {field: getattr(entry, field) for field in LISTED}
        for name, entry in sorted(known.items(), key=lambda row: families.index(row[1].family))
    ]


def describe_name(name: str) -> Entry | None:
    """Return what is known of a registered name, None for any other."""
    if ":" in name:
        return None
    return (BUILT_IN if name in BUILT_IN else _registry()).get(name)


def _missing(entry: Entry) -> str | None:
    absent = [p for p in entry.packages if importlib.util.find_spec(p) is None]
    if not absent:
        return None
    return f"{', '.join(absent)} not installed; pip install 'frameworktax[{entry.extra}]'"


def is_user_model(name: str) -> bool:
    """Return whether the name points at the user's own function (``file.py:function``)."""
    return ":" in name and _prefix(name) not in PREFIXES


def _prefix(name: str) -> str:
    return name.partition(":")[0] + ":NAME"


FILES = {"onnx": "onnx:{}", "py": "{}:function"}
"""How a model in a file is named, by the end of the file's name."""


def _entry(name: str) -> Entry:
    """Return what is known about a name of any kind.

    Raises:
        UsageError: there is no such model.
    """
    if ":" in name:
        return PREFIXES.get(_prefix(name), USER)
    known = BUILT_IN if name in BUILT_IN else _registry()
    if name not in known:
        meant = FILES.get(name.rpartition(".")[2])
        near = f", did you mean '{meant.format(name)}'?" if meant else nearest(name, known)
        raise UsageError(
            f"unknown model '{name}'{near} "
            "(see 'frameworktax list models'; your own: file.py:function)"
        )
    return known[name]


def libraries(workload: Workload) -> tuple[str, ...]:
    """Return the libraries that building a model imports, in that order; imports none of them.

    There are none for a name that is unknown: that it is, building it says.
    """
    try:
        return libraries_in(_entry(workload.model).packages)
    except UsageError:
        return ()


def check(workload: Workload) -> None:
    """Refuse a workload that names no model or asks for what its model lacks.

    Cheap: no engine is imported, nothing is built.

    Raises:
        UsageError: one line that says what to change.
    """
    name = workload.model
    entry = _entry(name)
    for refusal in _refusals(workload, entry):
        raise UsageError(refusal)
    if entry is USER:
        where = name.rpartition(":")[0]
        if where.endswith(".py") and not Path(where).is_file():
            raise UserModelError(f"no file {where} (for {name}); check the path")
    if entry.check:
        module, _, function = entry.check.partition(":")
        getattr(importlib.import_module(module), function)(workload)
    missing = _missing(entry)
    if missing is not None:
        raise UsageError(f"model '{name}' cannot be built: {missing}")


def _refusals(workload: Workload, entry: Entry) -> Iterator[str]:
    """Yield what cannot be, and what the model lacks, each with what to change."""
    name = "your own model" if entry is USER else workload.model
    length, size = workload.length, workload.image_size
    factors = {"width": workload.width, "depth": workload.depth}
    if workload.batch < 1:
        yield f"batch {workload.batch} is impossible; choose 1 or more"
    for option, factor in factors.items():
        if not 0 < factor < float("inf"):
            yield f"--{option} {factor} is impossible; choose a number above 0"
    if entry.family == PLUGIN:
        return
    if length is not None and not entry.has_length:
        yield f"{name} has no length; leave out --length"
    if size is not None and not entry.has_image_size:
        yield f"{name} has no image size; leave out --image-size"
    for option, factor in factors.items():
        if factor != 1.0 and option not in entry.factors:
            yield f"{name} has no {option} factor; leave out --{option}"
    if workload.batch_dim is not None and not entry.asks_batch_dim:
        yield f"{name} knows its batch dimension; leave out --batch-dim"
    if workload.twin and "width" not in entry.factors:
        yield f"{name} has no width to shrink; no twin can be built"
    if workload.phase == "generate" and not entry.generates:
        yield no_generation(name)
    if workload.input == "ragged" and not entry.has_length and entry is not USER:
        yield f"{name} takes no sentences; leave out --input ragged"
    if workload.channels_last and not entry.has_image_size and entry is not USER:
        yield NO_IMAGES
    least, most = entry.min_length, entry.max_length
    if length is not None and (length < least or (most is not None and length > most)):
        bounds = f"from {least} to {most}" if most is not None else f"of {least} or more"
        yield f"{name} takes lengths {bounds}, not {length}; choose another --length"
    smallest, step = entry.min_image_size or 1, entry.image_step
    if size is not None and (size < smallest or size % step):
        bounds = f"whose side is a multiple of {step}"
        if size < smallest:
            bounds = f"of {smallest} pixels a side or more"
        yield f"{name} takes images {bounds}, not {size}; choose another --image-size"


def build(workload: Workload, device: str = "cpu") -> Model:
    """Build a model with seeded weights, on the device and in the precision asked for.

    Args:
        workload: what to build; ``batch`` is not used, ``Model.inputs`` serves any.
        device: ``cpu``, ``cuda:N``, or ``meta``: shapes without data, to count parameters of
            models of any size in a moment.

    Raises:
        UsageError: unknown name, or an axis the model does not have.
        UserModelError: the user's function is missing, raises or returns something else.
    """
    check(workload)
    entry = _entry(workload.model)
    import torch

    declare()
    module, _, function = entry.target.partition(":")
    family: Callable[[str, Workload], Model] = getattr(importlib.import_module(module), function)
    torch.manual_seed(SEED)  # every process builds the same weights
    with torch.device("meta" if device == "meta" else "cpu"):
        model = family(workload.model, workload)
    is_dense = workload.input == "dense" and workload.phase == "forward"
    if device.startswith("cuda") and is_dense and "transformers" in entry.packages:
        model = unmasked(model)
    return finalize(model, workload, device, entry.default_length)
