"""Measuring a ladder, and reading one back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from frameworktax import api, host, models, store
from frameworktax.ablate.ladder import PATHS, base_point, chosen, ladder
from frameworktax.ablate.steps import Ablation, build
from frameworktax.errors import UsageError
from frameworktax.measure.plan import DEFAULT_PROCESSES, DEFAULT_SETUP_LIMIT_S, Plan, points_for
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Point, Record, Workload, sessions_of
from frameworktax.stats import UNTIL

BUDGET_S = 600.0
CHOICE = "transformers"
"""The package whose classes let attention be chosen."""


def ablate(
    model: str,
    workload: Workload | None = None,
    *,
    paths: Iterable[str] = PATHS,
    device: str = "auto",
    threads: int | None = None,
    time_budget: float = BUDGET_S,
    setup_limit: float = DEFAULT_SETUP_LIMIT_S,
    until: float = UNTIL,
    processes: int = DEFAULT_PROCESSES,
    folder: str | Path = api.DEFAULT_STORE,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
) -> tuple[Ablation, api.Results]:
    """Measure the ladder of a model in one session.

    Args:
        model: a name, ``file.py:function`` or ``package.module:function``.
        workload: batch, length, image size, factors, precision, phase; its model is replaced.
        paths: branches to climb; eager is always among them.
        device: auto, cpu or cuda:N.
        threads: of the step with several; all processors if left out, 1 leaves the step out.
        time_budget: seconds of wall time for measuring.
        setup_limit: seconds that each step of set-up may take.
        until: half-width of the interval, as a share, at which a point is done.
        processes: fresh processes a point.
        folder: store that keeps every sample.
        reporter: gets progress.
        command: recorded with the session.

    Returns:
        The ladder, and the session's results as ``measure`` gives them.

    Raises:
        UsageError: what was asked for cannot be.
        NothingMeasuredError: no step could be measured.
    """
    if min(processes, 1 if threads is None else threads) < 1 or time_budget <= 0 or until <= 0:
        raise UsageError("processes, threads, time budget and until must be above zero")
    if model.startswith("onnx:"):
        raise UsageError(f"{model} is no torch module, there is no eager to start from; name one")
    points = points_of(model, workload or Workload(model=model), paths, device, threads)
    models.check(points[0].workload)
    place = Path(folder)
    plan = Plan(
        points=points,
        processes=processes,
        until=until,
        budget_s=time_budget,
        setup_limit_s=setup_limit,
    )
    results = api.run_plan(plan, place, reporter=reporter, command=command)
    return read(place), results


def points_of(
    model: str,
    workload: Workload,
    paths: Iterable[str],
    device: str,
    threads: int | None = None,
) -> tuple[Point, ...]:
    """Return every point that a ladder needs, the base first.

    Raises:
        UsageError: an unknown path or device, or a workload that cannot be.
    """
    (point,) = points_for(
        replace(workload, model=model),
        batches=[workload.batch],
        runtimes=["eager"],
        precisions=[workload.precision],
        device=api.pick_device(device),
    )
    usable = threads or len(host.usable_cpus())
    rungs = ladder(
        base_point(point, attention=may_choose_attention(model)),
        images=takes_images(model),
        processors=usable if point.platform == "cpu" else 1,
        paths=chosen(paths),
    )
    wanted = [rung.point for rung in rungs]
    wanted += [rung.alone for rung in rungs if rung.alone is not None]
    return tuple(dict.fromkeys(wanted))


def may_choose_attention(model: str) -> bool:
    """Return whether a model may have more than one way to compute attention.

    A model that turns out to have one only carries the note ``attention-as-it-is``.
    """
    entry = models.BUILT_IN.get(model)
    if entry is not None:
        return CHOICE in entry.packages
    return not model.startswith(("torchvision:", "timm:"))


def takes_images(model: str) -> bool:
    """Return whether a model certainly takes images, whose memory layout can be chosen."""
    entry = models.BUILT_IN.get(model)
    if entry is not None:
        return entry.has_image_size
    return model.startswith(("torchvision:", "timm:"))


def read(folder: str | Path, model: str | None = None) -> Ablation:
    """Return the newest ladder that a store holds, without measuring.

    Args:
        folder: the store.
        model: of this model; any if left out.

    Raises:
        StoreError: there is no store, or another version wrote it.
        UsageError: it holds no ladder.
    """
    records, _ = store.read(Path(folder))
    for session in reversed(sessions_of(records)):
        mine: list[Record] = [r for r in records if r.session == session.session]
        try:
            found = build(mine)
        except UsageError:
            continue
        if model is None or found.base.rung.point.workload.model == model:
            return found
    said = f" of {model}" if model else ""
    raise UsageError(f"{folder} holds no ladder{said}; frameworktax ablate MODEL measures one")
