"""The ladder: what is added to what, and which point has it.

The eager steps follow one another; engines branch off after the last step that changes what is
computed (fused attention), each with its own steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from frameworktax.errors import UsageError, nearest
from frameworktax.records import Point

BASE = "base"
PATHS = ("eager", "torchscript", "inductor", "onnxruntime", "device")
"""The branches, in the order they are shown."""
UNFUSED = "-unfused"

NEEDS_GRAPH = "cannot be had without a graph; see what it adds"
NESTED = "holds the steps before it by construction; see what it adds"


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
    for branch in (_torchscript, _inductor, _onnxruntime, _device):
        rungs += branch(base, trunk, attention=attention)
    return tuple(rung for rung in rungs if rung.path in paths)


def trunk_of(base: Point) -> str:
    """Return the name of the rung that engines branch off from."""
    return "fused-attention" if base.runtime.endswith(UNFUSED) else "inference-mode"


def _eager(base: Point, *, attention: bool, images: bool, processors: int) -> list[Rung]:
    spelled = "@unfused" if attention else ""
    no_grad = replace(base, runtime=f"eager{spelled}")
    inference = replace(base, runtime=f"inference-mode{spelled}")
    rungs = [
        Rung(
            name="no-autograd", title="no autograd (no_grad)", path="eager", after=BASE,
            point=no_grad, alone=no_grad,
        ),
        Rung(
            name="inference-mode", title="inference mode", path="eager", after="no-autograd",
            point=inference, alone=inference, why="with no autograd in it",
        ),
    ]  # fmt: skip
    last = replace(base, runtime="inference-mode")
    if attention:
        rungs.append(
            Rung(
                name="fused-attention", title="fused attention", path="eager",
                after="inference-mode", point=last, alone=replace(base, runtime="eager@autograd"),
            )
        )  # fmt: skip
    if images:
        last = replace(last, workload=replace(last.workload, channels_last=True))
        alone = replace(base, workload=replace(base.workload, channels_last=True))
        rungs.append(
            Rung(
                name="memory-layout", title="channels-last", path="eager", after=rungs[-1].name,
                point=last, alone=alone,
            )
        )  # fmt: skip
    before = rungs[-1].name
    for name, title in (("jemalloc", "jemalloc"), ("malloc", "malloc keeps memory")):
        rungs.append(
            Rung(
                name=name, title=title, path="eager", after=before,
                point=replace(last, runtime=f"{last.runtime}@{name}"),
                alone=replace(base, runtime=f"{base.runtime}-{name}"),
            )
        )  # fmt: skip
    if processors > 1:
        rungs.append(
            Rung(
                name="threads", title=f"{processors} threads", path="eager", after=rungs[-1].name,
                point=replace(rungs[-1].point, threads=processors),
                alone=replace(base, threads=processors),
            )
        )  # fmt: skip
    return rungs


def _torchscript(base: Point, trunk: str, *, attention: bool) -> list[Rung]:
    alone = base.runtime.removeprefix("eager@")
    return [
        Rung(
            name="no-python", title="no Python (traced graph)", path="torchscript", after=trunk,
            point=replace(base, runtime="torchscript"),
            alone=replace(base, runtime=f"torchscript@{alone}"),
        ),
        Rung(
            name="frozen", title="constants folded, frozen", path="torchscript", after="no-python",
            point=replace(base, runtime="torchscript-frozen"), why=NEEDS_GRAPH,
        ),
    ]  # fmt: skip


def _inductor(base: Point, trunk: str, *, attention: bool) -> list[Rung]:
    alone = "inductor@unfused" if attention else "inductor"
    return [
        Rung(
            name="fused-loops", title="loops fused (Inductor)", path="inductor", after=trunk,
            point=replace(base, runtime="inductor"), alone=replace(base, runtime=alone),
            why="with no autograd: a training graph would be another program",
        ),
        Rung(
            name="frozen-loops", title="weights frozen, packed", path="inductor",
            after="fused-loops", point=replace(base, runtime="inductor@freezing"), why=NEEDS_GRAPH,
        ),
        Rung(
            name="ahead-of-time", title="no Python (ahead of time)", path="inductor",
            after="frozen-loops", point=replace(base, runtime="aot-inductor"), why=NESTED,
        ),
    ]  # fmt: skip


def _onnxruntime(base: Point, trunk: str, *, attention: bool) -> list[Rung]:
    bare = replace(base, runtime="onnxruntime@bare")
    steps = [
        ("static-memory", "memory planned ahead", "onnxruntime@0"),
        ("basic", "basic: constants folded", "onnxruntime@1"),
        ("extended", "extended: operators fused", "onnxruntime@2"),
        ("all", "all: layouts as well", "onnxruntime"),
        ("attention-operator", "attention as one operator", "onnxruntime@fused"),
    ]
    spelled = "; its graph spells attention out in any case" if attention else ""
    rungs = [
        Rung(
            name="executor", title="executor in C++", path="onnxruntime", after=trunk, point=bare,
            alone=bare, why=f"with no autograd{spelled}",
        )
    ]  # fmt: skip
    for name, title, runtime in steps if attention else steps[:-1]:
        rungs.append(
            Rung(
                name=name, title=title, path="onnxruntime", after=rungs[-1].name,
                point=replace(base, runtime=runtime),
                why="needs the executor" if name == "static-memory" else NESTED,
            )
        )  # fmt: skip
    return rungs


def _device(base: Point, trunk: str, *, attention: bool) -> list[Rung]:
    return [
        Rung(
            name="graph-replay", title="graph replay", path="device", after=trunk,
            point=replace(base, runtime="cuda-graph"), why="records no training",
        ),
        Rung(
            name="compiled-replay", title="replay of fused loops", path="device",
            after="graph-replay", point=replace(base, runtime="inductor-reduce-overhead"),
            why=NESTED,
        ),
    ]  # fmt: skip
