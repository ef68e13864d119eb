"""The engine that a name stands for: ``local``, ``ray``, ``ray://HOST:PORT``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frameworktax.api import pick_device
from frameworktax.errors import UsageError, nearest
from frameworktax.host.lock import host_lock
from frameworktax.sweep.executor import Engine, Platform
from frameworktax.sweep.local import LocalEngine
from frameworktax.sweep.look import here

NAMES = ("local", "ray", "ray://HOST:PORT")


def engine(
    name: str, folder: Path, reporter: Any, command: Sequence[str], *, allow_code: bool
) -> Engine:
    """Return an engine, to be closed.

    Args:
        name: of the engine.
        folder: the store.
        reporter: told how sessions go (``measure.reporter.Reporter``).
        command: recorded with each session.
        allow_code: whether a user's own model may be sent to other hosts.

    Raises:
        UsageError: no such engine, or its cluster cannot be used.
    """
    if name == "local":
        return LocalEngine(folder, pick_device("auto"), reporter, command)
    if name != "ray" and not name.startswith("ray://"):
        raise UsageError(f"no engine '{name}'{nearest(name, NAMES)}; choose {', '.join(NAMES)}")
    from frameworktax.sweep.ray import RayEngine
    from frameworktax.sweep.ray_cluster import RayCluster, versions

    cluster = RayCluster(None if name == "ray" else name)
    return RayEngine(folder, cluster, reporter, command, versions(), allow_code=allow_code)


def platforms(name: str, say: Callable[[str], None]) -> Sequence[Platform]:
    """Return where an engine could measure now; raises as ``engine`` does."""
    if name == "local":
        return here(pick_device("auto"))
    with contextlib.closing(engine(name, Path(), _Saying(say), (), allow_code=False)) as one:
        return one.platforms()


def lock(
    name: str, command: Sequence[str], say: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """Hold this host where the engine measures on it; a cluster's nodes are held one by one."""
    return host_lock(command, say) if name == "local" else contextlib.nullcontext()


class _Saying:
    """A reporter of lines alone."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def phase(self, text: str) -> None:
        """Say nothing."""
