"""What a study comes to, before anything is measured: what is there, what is open, how long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworktax import host, store
from frameworktax.api import DEFAULT_STORE, pick_device
from frameworktax.measure.session import MEMORY_SHARE
from frameworktax.records import Note, Point, Record
from frameworktax.store import shards
from frameworktax.sweep.estimate import Estimator
from frameworktax.sweep.executor import Platform
from frameworktax.sweep.grid import Planned
from frameworktax.sweep.load import Study, load
from frameworktax.sweep.schedule import Group, groups, within
from frameworktax.sweep.status import Held, Survey

UNUSED = ("calibration", "parity")
"""Kinds of records that say nothing of a point's status or duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a study comes to, before anything is measured.

    Attributes:
        chosen: its points within the point budget.
        held: how each of them stands.
        groups: what is to be measured, session by session.
        beyond: points that the point budget leaves out.
        known: open points whose estimate rests on the store.
        places: where it will be measured, by label.
    """

    study: Study
    chosen: tuple[Planned, ...]
    held: Mapping[Point, Held]
    groups: tuple[Group, ...]
    beyond: int
    known: int
    places: Mapping[str, Platform] = field(default_factory=dict)

    @property
    def whole_s(self) -> float:
        """How long it will take, nodes of a platform side by side, if time is not short."""
        hosts: dict[str, float] = {}
        for group in self.groups:
            place = self.places.get(group.platform, Platform(label=group.platform, device=""))
            took = group.estimate_s / max(1, place.slots)
            hosts[place.host] = hosts.get(place.host, 0.0) + took
        return max(hosts.values(), default=0.0)

    @property
    def estimate_s(self) -> float:
        """The same within the time budget."""
        return min(self.whole_s, self.study.settings.time_budget or self.whole_s)


def outlook(
    study: str | Path | Mapping[str, Any],
    *overrides: str,
    store: str | Path = DEFAULT_STORE,
    resume: bool = True,
    allow_code: bool = False,
    platforms: Sequence[Platform] | None = None,
) -> Outlook:
    """Return what a study comes to, without measuring; raises as ``sweep`` does.

    Args:
        study: a TOML file, or the same as nested data.
        overrides: ``key=value`` over what the study says.
        store: where points may have been measured before.
        resume: whether that counts.
        allow_code: whether models may be Python code.
        platforms: of the engine, None for this host's.
    """
    places = here(pick_device("auto")) if platforms is None else platforms
    devices = {place.label: place.device for place in places}
    loaded = load(study, overrides, platforms=devices, allow_code=allow_code)
    return look(loaded, scan(Path(store)) if resume else [], platforms=places)


def here(device: str) -> tuple[Platform, ...]:
    """Return this host under the names a study may give it."""
    devices = dict.fromkeys(["cpu", device])
    return (
        Platform(label="local", device=device),
        *(Platform(label=one, device=one) for one in devices),
    )


def look(
    study: Study,
    records: Iterable[Record],
    *,
    only: Collection[str] | None = None,
    asked: Collection[str] = (),
    platforms: Sequence[Platform] = (),
) -> Outlook:
    """Return how a study stands by the records of a store, in one pass over them.

    Args:
        study: what is asked for.
        records: what tells how points stand, and how long they take.
        only: sessions that tell how points stand, None for all.
        asked: sessions of just now (``held.Survey.standings``).
        platforms: where it will be measured.
    """
    settings = study.settings
    chosen = within(study.planned, settings.point_budget)
    survey = Survey([one.point for one in chosen], settings.attempts)
    estimator = Estimator()
    for record in records:
        estimator.add(record)
        if only is None or record.session in only:
            survey.add(record)
    held = survey.standings(asked)
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
                platforms=platforms,
            )
        ),
        beyond=len(study.planned) - len(chosen),
        known=sum(estimator.knows(one.point) for one in todo),
        places={place.label: place for place in platforms},
    )


def read(folder: Path) -> tuple[list[Record], list[Note]]:
    """Return a store's records and notes on it; nothing where there is no store yet."""
    if not folder.is_dir() or not any(folder.glob("*.jsonl")):
        return [], []
    return store.read(folder)


def scan(folder: Path) -> Iterator[Record]:
    """Yield what tells how points stand and how long they take, and keep none of it.

    Repeated records are not sorted out: they say the same twice.

    Args:
        folder: the store, which may not be there yet, or one shard.
    """
    if not folder.is_file() and (not folder.is_dir() or not any(folder.glob("*.jsonl"))):
        return
    for shard in shards.find(folder):
        for record, _ in shards.records(shard, [], lambda _, kind: kind not in UNUSED):
            yield record
