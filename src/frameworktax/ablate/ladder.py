"""The ladder: what is added to what, and which point has it; the steps stand in ``ladder.toml``.

The eager steps follow one another; engines branch off after the last step that changes what is
computed (fused attention), each with its own steps.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from frameworktax.errors import check_known
from frameworktax.records import Point

BASE = "base"
UNFUSED = "-unfused"
STEPS: dict[str, list[dict[str, Any]]] = tomllib.loads(
    files("frameworktax.ablate").joinpath("ladder.toml").read_text(encoding="utf-8")
)
"""Path → its steps; the file says what each field means."""
PATHS = tuple(STEPS)
"""The paths, in the order they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder.

    Attributes:
        name: for programs.
        title: for people.
        path: the branch.
        after: name of the rung it is added to; None for the base.
        point: what is measured, with all steps before it.
        alone: the base with this step only; None where that cannot be.
        why: why it cannot be had alone, or what comes with it there.
    """

    name: str
    title: str
    path: str
    after: str | None
    point: Point
    alone: Point | None = None
    why: str = ""


def base_point(point: Point, *, attention: bool) -> Point:
    """Return the base: autograd on, attention spelled out where the model has a choice."""
    return replace(point, runtime="eager@autograd" + (UNFUSED if attention else ""))


def chosen(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths in order, eager with them; raises UsageError for an unknown one."""
    wanted = {"eager", *paths}
    for name in wanted:
        check_known("path", name, PATHS)
    return tuple(path for path in PATHS if path in wanted)


def ladder(
    base: Point, *, images: bool, processors: int, paths: Sequence[str] = PATHS
) -> tuple[Rung, ...]:
    """Return the rungs in the order they are shown, the base first.

    Args:
        base: as ``base_point`` gives it.
        images: whether a memory layout can be chosen.
        processors: threads of the last eager step; 1 leaves it out.
        paths: branches wanted, see ``chosen``.
    """
    attention = base.runtime.endswith(UNFUSED)
    there = {None: True, "attention": attention, "images": images, "processors": processors > 1}
    words = {
        "spelled": "@unfused" if attention else "",
        "base": base.runtime.removeprefix("eager@"),
        "unfused": "; its graph spells attention out in any case" if attention else "",
        "processors": processors,
    }

    def having(step: dict[str, Any], point: Point, runtime: str) -> Point:
        layout = point.workload.channels_last or step.get("channels_last", False)
        return replace(
            point,
            runtime=runtime.format(**words),
            workload=replace(point.workload, channels_last=layout),
            threads=processors if step.get("threads") else point.threads,
        )

    rungs = [Rung(name=BASE, title="eager as it comes", path="eager", after=None, point=base)]
    for path, steps in STEPS.items():
        before = rungs[0] if path == "eager" else None
        point, last = base, before
        for step in steps:
            if not there[step.get("needs")]:
                continue
            point = having(step, point, step.get("runtime", point.runtime))
            after = before if step.get("beside") else last
            rung = Rung(
                name=step["name"],
                title=step["title"].format(**words),
                path=path,
                after=after.name if after else trunk_of(base),
                point=point,
                alone=having(step, base, step["alone"]) if "alone" in step else None,
                why=step.get("why", "").format(**words),
            )
            before, last = after, rung
            rungs.append(rung)
    return tuple(rung for rung in rungs if rung.path in paths)


def trunk_of(base: Point) -> str:
    """Return the name of the rung that engines branch off from."""
    return "fused-attention" if base.runtime.endswith(UNFUSED) else "inference-mode"
