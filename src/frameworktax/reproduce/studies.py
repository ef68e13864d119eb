"""A study of the paper as a file: two grids, the figure's layout, the claims with their rules."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from frameworktax.api import pick_device
from frameworktax.errors import check_known
from frameworktax.records import Point
from frameworktax.reproduce.rows import ROLES, axes_of
from frameworktax.stats import CONFIDENCE
from frameworktax.sweep.grid import expand
from frameworktax.sweep.study import HERE, Axes, Source
from frameworktax.sweep.study import StudyFile as Grids

FOLDER = files("frameworktax.reproduce").joinpath("studies")
Scale = Literal["full", "small"]
Value = str | int | float
Where = dict[str, Value | list[Value]]
"""Axis → value or values of the points that are chosen, see ``rows.select``."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Table):
    """One rule over one selection, compared with bounds."""

    rule: str = Field(description="One of ``claims.RULES``.")
    says: str = Field(description="The number it computes, in words.")
    of: Where = {}
    to: Where = {}
    each: tuple[str, ...] = Field((), description="Judged for every combination of these axes.")
    quantity: str = "latency"
    axis: str = "batch"
    at: Literal["start", "end"] = "start"
    proxy: str | None = None
    than: str | None = None
    above: float | None = None
    below: float | None = None
    confidence: float = Field(
        CONFIDENCE, ge=CONFIDENCE, le=CONFIDENCE, description="Of its interval; no file sets it."
    )
    unit: Literal["", "%"] = ""


class Claim(_Table):
    """A claim: it holds if all of its parts do."""

    id: str
    claim: str = Field(description="The paper's claim it belongs to.")
    text: str
    number: str | None = Field(None, description="The paper's, where the whole claim's is not it.")
    part: tuple[Part, ...] = Field(min_length=1)


class Panel(_Table):
    """One drawing, made twice: ours and theirs."""

    title: str
    where: Where = {}
    x: str = "batch"
    quantities: tuple[str, ...] = ("latency",)
    series: tuple[str, ...] = ("runtime",)
    linear: bool = False


class Line(_Table):
    """A line of a table."""

    label: str
    where: Where


class StudyFile(_Table):
    """A study of the paper."""

    name: str
    title: str
    caption: str
    small_budget_s: float = 120.0
    later: bool = Field(False, description="Measured last, with all the time that is left.")
    together: tuple[tuple[str, ...], ...] = ()
    small: tuple[Axes, ...] = Field(min_length=1)
    full: tuple[Axes, ...] = Field(min_length=1)
    proxies: Where | None = Field(None, description="Points that the table of proxies is over.")
    panel: tuple[Panel, ...] = ()
    line: tuple[Line, ...] = ()
    free: tuple[str, ...] = Field((), description="Axes whose free value is in the page.")
    claim: tuple[Claim, ...] = Field(min_length=1)


def every_name() -> tuple[str, ...]:
    """Return the studies in the order of the paper: figures, tables, text, each by number."""

    def place(name: str) -> tuple[str, int]:
        kind, _, number = name.partition("-")
        return kind, int(number or 0)

    names = (entry.name.removesuffix(".toml") for entry in FOLDER.iterdir())
    return tuple(sorted(names, key=place))


@cache
def load(name: str) -> StudyFile:
    """Return the study of a name that there is."""
    text = FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return StudyFile.model_validate(tomllib.loads(text))


SMALL_LIMIT_S = 1620.0
"""Wall time of every study together at the small scale, at most."""


def chosen(names: Sequence[str]) -> tuple[StudyFile, ...]:
    """Return the studies of these names, ``all`` being every one.

    Raises:
        UsageError: there is no study of a name.
    """
    known = every_name()
    for name in names:
        check_known("study", name, (*known, "all"))
    return tuple(map(load, known if "all" in names else dict.fromkeys(names)))


def default_scale() -> Scale:
    """Return ``full`` where there is a GPU; on a CPU the paper's sizes take hours."""
    return "small" if pick_device("auto") == "cpu" else "full"


def study_data(
    studies: Sequence[StudyFile],
    scale: Scale,
    device: str = "cpu",
    time_budget: float | None = None,
) -> dict[str, Any]:
    """Return one study for ``sweep`` that holds the points of all of these, each once.

    On a GPU, ONNX Runtime runs there. ``time_budget``, in seconds, is that of the studies if None.

    Raises:
        UsageError: no such scale.
    """
    check_known("scale", scale, get_args(Scale))
    grids = [axes for study in studies for axes in getattr(study, scale)]
    points = [{name: list(values) for name, values in axes.given().items()} for axes in grids]
    if device != "cpu":
        part = {role: name for name, role in ROLES.items()}
        for data in points:
            data["runtimes"] = [part.get(name, name) for name in data["runtimes"]]
    measured = {name for data in points for name in data["models"]}  # a scale may leave models out
    together = [sorted(measured.intersection(names)) for s in studies for names in s.together]
    settings: dict[str, Any] = {
        "until": "5%" if scale == "small" else "3%",
        "name": ", ".join(study.name for study in studies)[:200],
        "together": [names for names in together if len(names) > 1],
    }
    if time_budget is not None:
        settings["time_budget"] = time_budget
    elif scale == "small":
        settings["time_budget"] = min(SMALL_LIMIT_S, sum(s.small_budget_s for s in studies))
    later = {
        name for s in studies if s.later for axes in getattr(s, scale) for name in axes.models or ()
    }
    last = [{"models": sorted(later), "value": -1}] if later else []
    return {"study": settings, "point": points, "priority": last}


@cache
def planned_points(name: str, scale: Scale) -> tuple[Point, ...]:
    """Return every point that the study of a name asks for at a scale, on this machine's CPU."""
    # Laid out and not checked: results from elsewhere need no model library here.
    file = Grids.model_validate(study_data([load(name)], scale))
    planned, _ = expand(file, Source(name, ""), HERE)
    return tuple(one.point for one in planned)


def axes_key(point: Point) -> tuple[Any, ...]:
    """Return what a planned point and a measured one are matched by: all but the platform."""
    at = axes_of(point.workload, point.runtime)
    more = (point.workload.new_tokens, point.workload.kv_cache, point.workload.length_mean)
    return (*sorted(at.items()), *more, point.threads)
