"""Every model the project brings, read from ``models.toml``: asking imports no engine."""

from __future__ import annotations

import functools
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from frameworktax.records import Workload

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered model.

    Attributes:
        target: ``module:function`` with ``build(name, workload) -> Model``.
        family: what ``list models`` groups by.
        summary: what it is, in a line.
        packages: importable names that must be there.
        has_length: whether ``--length`` means something.
        has_image_size: whether ``--image-size`` does.
        default_length: tokens a sample, or samples of audio.
        default_image_size: pixels a side.
        max_length: most tokens a sample may have, where the model has learned positions.
        min_length: fewest.
        min_image_size: fewest pixels a side.
        image_step: what must divide them.
        factors: which of ``width`` and ``depth`` scale it; a twin needs a width.
        generates: whether it can decode greedily.
        extra: the project's extra that installs ``packages``.
        asks_batch_dim: whether the user may have to say which dimension is the batch.
        check: ``module:function`` that looks at a workload more closely, importing no engine.
        row: all that ``models.toml`` says, for the function that builds it.
    """

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
    asks_batch_dim: bool = False
    check: str = ""
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
            plain: dict[str, Any] = {k: v for k, v in row.items() if k in known}
            plain |= {k: tuple(v) for k, v in plain.items() if isinstance(v, list)}
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
    asks_batch_dim=True,
)


def length_of(workload: Workload) -> int:
    """Return the length of a sample as asked for, or its model's own; 0 where it has none."""
    return workload.length or BUILT_IN[workload.model].default_length or 0


def image_size_of(workload: Workload) -> int:
    """Return the pixels a side as asked for, or the model's own; 0 where it takes no image."""
    return workload.image_size or BUILT_IN[workload.model].default_image_size or 0
