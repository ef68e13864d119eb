"""Studies of the paper carried out, or told from a store alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frameworktax import store as stores
from frameworktax.api import pick_device
from frameworktax.errors import StoreError
from frameworktax.reproduce.files import Scale, StudyFile
from frameworktax.reproduce.plans import chosen, default_scale, study_data
from frameworktax.reproduce.told import Reproduction, tell
from frameworktax.sweep.look import Outlook, outlook
from frameworktax.sweep.results import StudyReporter
from frameworktax.sweep.run import sweep


def forecast(studies: Sequence[StudyFile], scale: Scale, folder: Path) -> Outlook:
    """Return what there is to measure, and how long it will take."""
    data = study_data(studies, scale, pick_device("auto"))
    return outlook(data, store=folder)


def reproduce(
    names: Sequence[str],
    *,
    scale: Scale | None = None,
    store: str | Path = "frameworktax-results/paper",
    redraw: bool = False,
    time_budget: float | None = None,
    reporter: StudyReporter | None = None,
    command: Sequence[str] | None = None,
) -> Reproduction:
    """Measure studies of the paper, as far as the store does not hold them, and judge its claims.

    Args:
        names: of studies; ``all`` for every one.
        scale: full, the paper's sizes, or small; full where there is a GPU.
        store: folder that keeps every sample; studies share it, and each point is measured once.
        redraw: measure nothing; the scale, if not given, is the one the store holds more of.
        time_budget: seconds for everything; what the files say if left out.
        reporter: told of progress.
        command: recorded with each session.

    Raises:
        UsageError: no such study.
        StoreError: nothing to redraw from, or a store of another version.
        NothingMeasuredError: not one point could be measured.
    """
    studies = chosen(names)
    folder = Path(store)
    if not redraw:
        size = scale or default_scale()
        data = study_data(studies, size, pick_device("auto"))
        if time_budget is not None:
            data["study"]["time_budget"] = time_budget
        sweep(data, store=folder, reporter=reporter, command=command)
    elif not folder.is_dir():
        raise StoreError(f"no store at {folder}; name one with --store, or leave out --redraw")
    records, _ = stores.read(folder)
    return tell(studies, records, folder, scale if redraw else size)
