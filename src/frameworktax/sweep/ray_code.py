"""What of a user's own models goes to a node, and what cannot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from frameworktax import models
from frameworktax.errors import UsageError
from frameworktax.records import Point

MOST_BYTES = 4 << 20
"""A larger file is no source of a model."""


def shipped(points: Iterable[Point], allow_code: bool) -> dict[str, str]:
    """Return the files of the user's own models among points, with their source.

    A file goes alone: what it imports must be installed on the nodes, as must a model that is
    named by its package.

    Raises:
        UsageError: code may not be sent, a file cannot be read, or it has no place on a node.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(point.workload.model for point in points):
        if not models.is_user_model(name):
            _must_be_there(name)
            continue
        if not allow_code:
            raise UsageError(f"{name} is code of yours; read it, then give --allow-code")
        where = name.rpartition(":")[0]
        if not (where.endswith(".py") or "/" in where):
            continue
        path = Path(where)
        if path.is_absolute() or ".." in path.parts:
            raise UsageError(
                f"{where} cannot be sent to a node; go to its folder and name it from there"
            )
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{where} is larger than {MOST_BYTES >> 20} MB; send no data")
            found[where] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {where} to send it to a node: {error}") from error
    return found


def _must_be_there(name: str) -> None:
    """Refuse a model in a file or folder beside us: a node has another current folder."""
    where = name.partition(":")[2] or name
    if Path(where).exists() and not Path(where).is_absolute():
        raise UsageError(
            f"{where} is not sent to nodes; name it by a path from the root that they all have"
        )
