"""What a study comes to, before anything is measured: what is there, what is open, how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frameworktax import host, store
from frameworktax.api import DEFAULT_STORE, pick_device
from frameworktax.campaign.estimate import Estimator
from frameworktax.campaign.held import Held, survey
from frameworktax.campaign.schedule import Group, groups, within
from frameworktax.records import Note, Point, Record
from frameworktax.session import MEMORY_SHARE
from frameworktax.study.grid import Planned
from frameworktax.study.load import Study, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a study comes to, before anything is measured.

    Attributes:
        chosen: its points within the point budget.
        held: how each of them stands.
        groups: what is to be measured, session by session.
        beyond: points that the point budget leaves out.
        known: open points whose estimate rests on the store.
    """

    study: Study
    chosen: tuple[Planned, ...]
    held: Mapping[Point, Held]
    groups: tuple[Group, ...]
    beyond: int
    known: int

    @property
    def estimate_s(self) -> float:
        """How long it will take; no longer than the time budget."""
        total = sum(group.estimate_s for group in self.groups)
        return min(total, self.study.settings.time_budget or total)


def outlook(
    study: str | Path | Mapping[str, Any],
    *overrides: str,
    store: str | Path = DEFAULT_STORE,
    resume: bool = True,
    allow_code: bool = False,
) -> Outlook:
    """Return what a study comes to, without measuring; raises as ``sweep`` does."""
    device = pick_device("auto")
    platforms = {"local": device, "cpu": "cpu", device: device}
    loaded = load(study, overrides, platforms=platforms, allow_code=allow_code)
    return look(loaded, read(Path(store))[0] if resume else [])


def look(study: Study, records: Sequence[Record], begun: Sequence[Record] | None = None) -> Outlook:
    """Return how a study stands by the records of a store.

    Args:
        study: what is asked for.
        records: what tells how points stand.
        begun: what tells how long they take, where that is more.
    """
    settings = study.settings
    chosen = within(study.planned, settings.point_budget)
    held = survey([one.point for one in chosen], records, settings.attempts)
    estimator = Estimator(records if begun is None else begun)
    todo = [one for one in chosen if held[one.point].status == "open"]
    return Outlook(
        study=study,
        chosen=chosen,
        held=held,
        groups=tuple(
            groups(
                todo,
                estimator,
                processes=settings.processes,
                together=settings.together,
                memory_bytes=MEMORY_SHARE * host.memory_available_bytes(),
            )
        ),
        beyond=len(study.planned) - len(chosen),
        known=sum(estimator.knows(one.point) for one in todo),
    )


def read(folder: Path) -> tuple[list[Record], list[Note]]:
    """Return a store's records and notes on it; nothing where there is no store yet."""
    if not folder.is_dir() or not any(folder.glob("*.jsonl")):
        return [], []
    return store.read(folder)
