"""Which points studies of the paper ask for, as one study for ``sweep``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from frameworktax.api import pick_device
from frameworktax.records import Point
from frameworktax.reproduce import files
from frameworktax.reproduce.files import Scale, StudyFile
from frameworktax.reproduce.rows import ROLES, axes_of
from frameworktax.sweep.grid import expand
from frameworktax.sweep.load import HERE
from frameworktax.sweep.schema import StudyFile as Grids
from frameworktax.sweep.source import Source

SETTINGS: Mapping[Scale, Mapping[str, Any]] = {
    "small": {"processes": 3, "until": "5%"},
    "full": {"processes": 3, "until": "3%"},
}
SMALL_LIMIT_S = 1620.0
"""Wall time of every study together at the small scale, at most."""


def chosen(names: Sequence[str]) -> tuple[StudyFile, ...]:
    """Return the studies of these names, ``all`` being every one.

    Raises:
        UsageError: there is no study of a name.
    """
    wanted = files.names() if "all" in names else tuple(dict.fromkeys(names))
    return tuple(files.load(name) for name in wanted)


def default_scale() -> Scale:
    """Return ``full`` where there is a GPU; on a CPU the paper's sizes take hours."""
    return "small" if pick_device("auto") == "cpu" else "full"


def study_data(studies: Sequence[StudyFile], scale: Scale, device: str = "cpu") -> dict[str, Any]:
    """Return one study for ``sweep`` that holds the points of all of these, each once.

    Args:
        studies: whose points.
        scale: which of their grids.
        device: on a GPU, ONNX Runtime runs there.
    """
    points = []
    for study in studies:
        for axes in study.grid(scale):
            data = {name: list(values) for name, values in axes.given().items()}
            if device != "cpu":
                part = {role: name for name, role in ROLES.items()}
                data["runtimes"] = [part.get(name, name) for name in data["runtimes"]]
            points.append(data)
    settings: dict[str, Any] = {**SETTINGS[scale], "name": ", ".join(s.name for s in studies)}
    settings["name"] = settings["name"][:200]
    measured = {name for axes in points for name in axes["models"]}  # a scale may leave models out
    settings["together"] = _joined([set(names) & measured for s in studies for names in s.together])
    if scale == "small":
        settings["time_budget"] = min(SMALL_LIMIT_S, sum(s.small_budget_s for s in studies))
    later = {
        model for s in studies if s.later for axes in s.grid(scale) for model in axes.models or ()
    }
    last = [{"models": sorted(later), "value": -1}] if later else []
    return {"study": settings, "point": points, "priority": last}


def _joined(sets: Iterable[set[str]]) -> list[list[str]]:
    """Return sets of two models or more, those that share one as one."""
    found: list[set[str]] = []
    for one in (names for names in sets if len(names) > 1):
        touching = [other for other in found if other & one]
        found = [other for other in found if not other & one]
        found.append(one.union(*touching))
    return [sorted(one) for one in found]


def planned_points(study: StudyFile, scale: Scale) -> tuple[Point, ...]:
    """Return every point a study asks for at a scale, on this machine's CPU."""
    return _planned(study.name, scale)


@cache
def _planned(name: str, scale: Scale) -> tuple[Point, ...]:
    # laid out and not checked: what was measured elsewhere is told without the models' libraries
    file = Grids.model_validate(study_data([files.load(name)], scale))
    planned, _ = expand(file, Source(name, ""), HERE)
    return tuple(one.point for one in planned)


def axes_key(point: Point) -> tuple[Any, ...]:
    """Return what a planned point and a measured one are matched by: all but the platform."""
    at = axes_of(point.workload, point.runtime)
    more = (point.workload.new_tokens, point.workload.kv_cache, point.workload.length_mean)
    return (*sorted(at.items()), *more, point.threads)
