"""The models by name, and the way to any other: torchvision's, timm's, Hugging Face's, your own.

The registry is the table in ``models.toml``, so that listing models imports no engine. A family is
a function ``build(name, workload) -> Model``; it builds in float32 on the CPU. ``build`` here seeds
torch, numpy and Python before, and moves the result to the device and precision asked for.
"""

from __future__ import annotations

import functools
import random
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from frameworktax.errors import UsageError, UserModelError, flat, nearest
from frameworktax.models.base import SEED, Model
from frameworktax.models.finalize import NO_IMAGES, finalize, no_generation, unmasked
from frameworktax.models.libraries import libraries_in, not_installed
from frameworktax.models.onnx_file import check as check_file
from frameworktax.models.torchvision_operators import declare
from frameworktax.records import Workload

GROUP = "frameworktax.models"
PLUGIN = "other"
"""The family of models from other packages: what they support is for them to say."""
T = TypeVar("T")


# --- what other packages register -----------------------------------------------------------------


@functools.cache
def _registered(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return what installed packages register, read once for a search path: that takes 0.1 s."""
    return _registered(group, tuple(sys.path))


def with_plugins(known: Mapping[str, T], group: str, entry: Callable[[str], T]) -> dict[str, T]:
    """Return what is built in, and what other packages register.

    Args:
        known: name → entry of what is built in.
        group: of entry points, ``frameworktax.models`` or ``frameworktax.runtimes``.
        entry: makes one of ``module:function``.

    Raises:
        UsageError: two packages claim one name.
    """
    found = dict(known)
    for point in entry_points(group=group):
        if point.name in found:
            raise UsageError(
                f"{group.partition('.')[2][:-1]} '{point.name}' is registered twice, the second "
                f"time by {point.value}; uninstall or rename one"
            )
        found[point.name] = entry(point.value)
    return found


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered model; ``models.toml`` says what its fields mean, ``row`` is all it says."""

    target: str
    family: str
    summary: str
    packages: tuple[str, ...] = ("torch",)
    has_length: bool = False
    has_image_size: bool = False
    default_length: int | None = None
    default_image_size: int | None = None
    max_length: int | None = None
    min_length: int = 1
    min_image_size: int | None = None
    image_step: int = 1
    factors: tuple[str, ...] = ("width", "depth")
    generates: bool = False
    extra: str = "torch"
    row: Mapping[str, Any] = field(default_factory=dict)


def _read() -> dict[str, Entry]:
    """Return name → entry of every model in ``models.toml``, in its order."""
    known = {field.name for field in fields(Entry)}
    groups = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    found = {}
    for group in groups.values():
        common = {key: value for key, value in group.items() if not isinstance(value, dict)}
        for name, own in group.items():
            if name in common:
                continue
            row = common | own
            plain: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in known
            }
            found[name] = Entry(**plain, row=row)
    return found


_ALL = _read()
BUILT_IN = {name: entry for name, entry in _ALL.items() if ":" not in name}
"""Name → entry, in the order of ``list models``: one family after the other."""
PREFIXES = {name: entry for name, entry in _ALL.items() if ":" in name}
"""What stands before the colon → entry."""
USER = Entry(
    "frameworktax.models.user:build",
    "your own",
    "file.py:function or package.module:function",
    factors=(),
    generates=True,
)
FILES = {"onnx": "onnx:{}", "py": "{}:function"}
"""How a model in a file is named, by the end of the file's name."""
LISTED = (
    *("has_length", "has_image_size", "default_length", "default_image_size", "max_length"),
    *("factors", "generates"),
)
"""Of an entry, beside its family and summary, what ``list models --json`` says."""


def length_of(workload: Workload) -> int:
    """Return the length of a sample as asked for, or its model's own; 0 where it has none."""
    return workload.length or BUILT_IN[workload.model].default_length or 0


def image_size_of(workload: Workload) -> int:
    """Return the pixels a side as asked for, or the model's own; 0 where it takes no image."""
    return workload.image_size or BUILT_IN[workload.model].default_image_size or 0


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
        {"name": name, "family": entry.family, "summary": entry.summary}
        | {"missing": not_installed(entry.packages, entry.extra)}
        | {field: getattr(entry, field) for field in LISTED}
        for name, entry in sorted(known.items(), key=lambda row: families.index(row[1].family))
    ]


def describe_name(name: str) -> Entry | None:
    """Return what is known of a registered name, None for any other."""
    if ":" in name:
        return None
    return (BUILT_IN if name in BUILT_IN else _registry()).get(name)


def is_user_model(name: str) -> bool:
    """Return whether the name points at the user's own function (``file.py:function``)."""
    return ":" in name and entry_of(name) is USER


def file_of(name: str) -> Path | None:
    """Return the file of the user's own function, None for a package's and any other model."""
    where = name.rpartition(":")[0]
    is_file = where.endswith(".py") or "/" in where
    return Path(where) if is_file and is_user_model(name) else None


def entry_of(name: str) -> Entry:
    """Return what is known about a name of any kind.

    Raises:
        UsageError: there is no such model.
    """
    if not name.isascii() and name.encode(errors="replace").decode() != name:
        raise UsageError(f"the model's name '{flat(name)}' is not UTF-8; rename its file")
    if ":" in name:
        return PREFIXES.get(name.partition(":")[0] + ":NAME", USER)
    known = describe_name(name)
    if known is None:
        meant = FILES.get(name.rpartition(".")[2])
        near = f", did you mean '{meant.format(name)}'?" if meant else nearest(name, _registry())
        raise UsageError(
            f"unknown model '{name}'{near} "
            "(see 'frameworktax list models'; your own: file.py:function)"
        )
    return known


def libraries(workload: Workload) -> tuple[str, ...]:
    """Return the libraries that building a model imports, in that order; imports none of them.

    There are none for a name that is unknown: that it is, building it says.
    """
    try:
        return libraries_in(entry_of(workload.model).packages)
    except UsageError:
        return ()


# --- from a workload to a model -------------------------------------------------------------------


def check(workload: Workload) -> None:
    """Refuse a workload that names no model or asks for what its model lacks.

    Raises UsageError. No engine is imported, nothing is built.
    """
    name = workload.model
    entry = entry_of(name)
    refuse(workload, entry)
    file = file_of(name)
    if file is not None and not file.is_file():
        raise UserModelError(f"no file {file} (for {name}); check the path")
    if name.startswith("onnx:"):
        check_file(workload)
    missing = not_installed(entry.packages, entry.extra)
    if missing is not None:
        raise UsageError(f"model '{name}' cannot be built: {missing}")


def refuse(workload: Workload, entry: Entry) -> None:
    """Raise UsageError for a workload that cannot be, or asks for what such a model lacks."""
    name = "your own model" if entry is USER else workload.model
    length, size = workload.length, workload.image_size
    factors = {"width": workload.width, "depth": workload.depth}
    if workload.batch < 1:
        raise UsageError(f"batch {workload.batch} is impossible; choose 1 or more")
    for option, factor in factors.items():
        if not 0 < factor < float("inf"):
            raise UsageError(f"--{option} {factor} is impossible; choose a number above 0")
    if entry.family == PLUGIN:
        return
    if length is not None and not entry.has_length:
        raise UsageError(f"{name} has no length; leave out --length")
    if size is not None and not entry.has_image_size:
        raise UsageError(f"{name} has no image size; leave out --image-size")
    for option, factor in factors.items():
        if factor != 1.0 and option not in entry.factors:
            raise UsageError(f"{name} has no {option} factor; leave out --{option}")
    if workload.batch_dim is not None and entry is not USER:
        raise UsageError(f"{name} knows its batch dimension; leave out --batch-dim")
    if workload.twin and "width" not in entry.factors:
        raise UsageError(f"{name} has no width to shrink; no twin can be built")
    if workload.phase == "generate" and not entry.generates:
        raise UsageError(no_generation(name))
    if workload.input == "ragged" and not entry.has_length and entry is not USER:
        raise UsageError(f"{name} takes no sentences; leave out --input ragged")
    if workload.trust_remote_code and not workload.model.startswith("hf:"):
        raise UsageError(f"{name} is none of the hub's (hf:); leave out --trust-remote-code")
    if workload.channels_last and not entry.has_image_size and entry is not USER:
        raise UsageError(NO_IMAGES)
    least, most = entry.min_length, entry.max_length
    if length is not None and (length < least or (most is not None and length > most)):
        bounds = f"from {least} to {most}" if most is not None else f"of {least} or more"
        raise UsageError(f"{name} takes lengths {bounds}, not {length}; choose another --length")
    smallest, step = entry.min_image_size or 1, entry.image_step
    if size is not None and (size < smallest or size % step):
        bounds = f"whose side is a multiple of {step}"
        if size < smallest:
            bounds = f"of {smallest} pixels a side or more"
        raise UsageError(f"{name} takes images {bounds}, not {size}; choose another --image-size")


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
    entry = entry_of(workload.model)
    import numpy as np
    import torch

    declare()
    family = metadata.EntryPoint(workload.model, entry.target, GROUP).load()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(SEED)  # every process builds the same weights
    with torch.device("meta" if device == "meta" else "cpu"):
        model: Model = family(workload.model, workload)
    is_dense = workload.input == "dense" and workload.phase == "forward"
    if device.startswith("cuda") and is_dense and "transformers" in entry.packages:
        model = unmasked(model)
    return finalize(model, workload, device)
