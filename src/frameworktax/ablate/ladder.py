"""The ladder: what is added to what, and which point has it.

The eager steps follow one another; engines branch off after the last step that changes what is
computed (fused attention), each with its own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from frameworktax.errors import UsageError, nearest
from frameworktax.records import Point

BASE = "base"
UNFUSED = "-unfused"

NEEDS_GRAPH = "cannot be had without a graph; see what it adds"
NESTED = "holds the steps before it by construction; see what it adds"
Branch = tuple[tuple[str, str, str, str, str], ...]
BRANCHES: Mapping[str, Branch] = {
    "torchscript": (
        ("no-python", "no Python (traced graph)", "torchscript", "torchscript@{base}", ""),
        ("frozen", "constants folded, frozen", "torchscript-frozen", "", NEEDS_GRAPH),
    ),
    "inductor": (
        (
            "fused-loops",
            "loops fused (Inductor)",
            "inductor",
            "inductor{spelled}",
            "with no autograd: a training graph would be another program",
        ),
        ("frozen-loops", "weights frozen, packed", "inductor@freezing", "", NEEDS_GRAPH),
        ("ahead-of-time", "no Python (ahead of time)", "aot-inductor", "", NESTED),
    ),
    "onnxruntime": (
        (
            "executor",
            "executor in C++",
            "onnxruntime@bare",
            "onnxruntime@bare",
            "with no autograd",
        ),
        ("static-memory", "memory planned ahead", "onnxruntime@0", "", "needs the executor"),
        ("basic", "basic: constants folded", "onnxruntime@1", "", NESTED),
        ("extended", "extended: operators fused", "onnxruntime@2", "", NESTED),
        ("all", "all: layouts as well", "onnxruntime", "", NESTED),
        ("attention-operator", "attention as one operator", "onnxruntime@fused", "", NESTED),
    ),
    "device": (
        ("graph-replay", "graph replay", "cuda-graph", "", "records no training"),
        ("compiled-replay", "replay of fused loops", "inductor-reduce-overhead", "", NESTED),
    ),
}
"""Path → name, title, runtime, runtime of the step alone, and ``why`` of each of its steps; each is
added to the one before, the first to the last eager step that changes the computation."""
PATHS = ("eager", *BRANCHES)
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
    for name in wanted - set(PATHS):
        raise UsageError(f"no path '{name}'{nearest(name, PATHS)}; choose {', '.join(PATHS)}")
    return tuple(path for path in PATHS if path in wanted)


def ladder(
    base: Point,
    *,
    images: bool,
    processors: int,
    paths: Sequence[str] = PATHS,
) -> tuple[Rung, ...]:
    """Return the rungs in the order they are shown, the base first.

    Args:
        base: as ``base_point`` gives it.
        images: whether a memory layout can be chosen.
        processors: threads of the last eager step; 1 leaves it out.
        paths: branches wanted, see ``chosen``.
    """
    attention = base.runtime.endswith(UNFUSED)
    rungs = [Rung(name=BASE, title="eager as it comes", path="eager", after=None, point=base)]
    rungs += _eager(base, attention=attention, images=images, processors=processors)
    trunk = trunk_of(base)
    spelled = "@unfused" if attention else ""
    for path, names in BRANCHES.items():
        after = trunk
        for name, title, runtime, alone, why in names:
            if name == "attention-operator" and not attention:
                continue
            if name == "executor" and attention:
                why += "; its graph spells attention out in any case"
            alone = alone.format(spelled=spelled, base=base.runtime.removeprefix("eager@"))
            rungs.append(
                Rung(
                    name=name,
                    title=title,
                    path=path,
                    after=after,
                    point=replace(base, runtime=runtime),
                    alone=replace(base, runtime=alone) if alone else None,
                    why=why,
                )
            )
            after = name
    return tuple(rung for rung in rungs if rung.path in paths)


def trunk_of(base: Point) -> str:
    """Return the name of the rung that engines branch off from."""
    return "fused-attention" if base.runtime.endswith(UNFUSED) else "inference-mode"


def _eager(base: Point, *, attention: bool, images: bool, processors: int) -> list[Rung]:
    """Return the steps that follow one another; engines branch off before the memory layout."""
    spelled = "@unfused" if attention else ""
    rungs: list[Rung] = []

    def add(name: str, title: str, point: Point, alone: Point, why: str = "") -> None:
        after = rungs[-1].name if rungs else BASE
        rung = Rung(
            name=name, title=title, path="eager", after=after, point=point, alone=alone, why=why
        )
        rungs.append(rung)

    no_grad = replace(base, runtime=f"eager{spelled}")
    add("no-autograd", "no autograd (no_grad)", no_grad, no_grad)
    inference = replace(base, runtime=f"inference-mode{spelled}")
    add("inference-mode", "inference mode", inference, inference, "with no autograd in it")
    last = replace(base, runtime="inference-mode")
    if attention:
        add("fused-attention", "fused attention", last, replace(base, runtime="eager@autograd"))
    if images:
        last = replace(last, workload=replace(last.workload, channels_last=True))
        alone = replace(base, workload=replace(base.workload, channels_last=True))
        add("memory-layout", "channels-last", last, alone)
    before = rungs[-1].name
    for name, title in (("jemalloc", "jemalloc"), ("malloc", "malloc keeps memory")):
        variant = replace(last, runtime=f"{last.runtime}@{name}")
        add(name, title, variant, replace(base, runtime=f"{base.runtime}-{name}"))
        rungs[-1] = replace(rungs[-1], after=before)  # one allocator or the other
    if processors > 1:
        threads = replace(rungs[-1].point, threads=processors)
        add("threads", f"{processors} threads", threads, replace(base, threads=processors))
    return rungs
