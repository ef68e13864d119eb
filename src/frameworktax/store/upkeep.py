"""Whether a store is whole, and what is lost where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frameworktax.errors import StoreError
from frameworktax.records import RECORDS, Session, Subject, record_id
from frameworktax.store import shards
from frameworktax.store.shards import Fault

REFERRING = tuple(
    kind for kind, cls in RECORDS.items() if cls.__annotations__.get("point") == "str"
)
"""Kinds of records that name a point by its key, which a subject of their session describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a check found.

    Attributes:
        shards: how many files.
        records: how many of each kind, each counted once.
        damage: one line each: where, what, and what is lost by it.
        remarks: torn lines, which cost one record at most.
    """

    shards: int
    records: Mapping[str, int]
    damage: tuple[str, ...]
    remarks: tuple[str, ...]


def check(folder: Path) -> Health:
    """Read every line of a store.

    Raises:
        StoreError: there is no store, or it holds no shard.
    """
    found = shards.find(folder)
    faults: list[Fault] = []
    damage: list[str] = []
    seen: dict[tuple[Any, ...], int] = {}
    """Identity of a record → fingerprint of its line."""
    for shard in found:
        try:
            for record, line in shards.records(shard, faults):
                identity, fingerprint = record_id(record), hash(line.strip())
                if seen.setdefault(identity, fingerprint) != fingerprint:
                    kind, session, *rest = identity
                    of = f" ({', '.join(map(str, rest))})" if rest else ""
                    damage.append(
                        f"{shard.name}: {kind} of session {session}{of} differs from an earlier "
                        "one; the earlier one counts"
                    )
        except StoreError as error:
            damage.append(f"{error} (none of its records is read)")
    lost = [
        f"{fault.shard}: line {fault.line} is no record; what it was is lost"
        for fault in faults
        if fault.kind == "bad"
    ]
    return Health(
        shards=len(found),
        records=dict(Counter(kind for kind, *_ in seen)),
        damage=(*lost, *damage, *_dangling(seen)),
        remarks=tuple(
            f"{fault.shard}: line {fault.line} is torn: its writer was killed, or the copy was "
            "cut; one record at most is lost of it"
            for fault in faults
            if fault.kind == "torn"
        ),
    )


def _dangling(seen: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a line for each reference to a record that is missing, by identities of records."""
    sessions = {identity[1] for identity in seen if identity[0] == Session.kind}
    of_session = Counter(identity[1] for identity in seen)
    for session, count in of_session.items():
        if session not in sessions:
            yield (
                f"session {session}: {count} records, but not where and how they were made; "
                "its environment is lost"
            )
    described = {identity[1:3] for identity in seen if identity[0] == Subject.kind}
    referring = Counter(identity[:3] for identity in seen if identity[0] in REFERRING)
    for (kind, session, point), count in referring.items():
        if (session, point) not in described:
            said = f"session {session}: {count} {kind} records of point {point[:40]}"
            yield f"{said}, which nothing describes; they are not shown"
