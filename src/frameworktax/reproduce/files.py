"""A study of the paper as a file: two grids, the figure's layout, the claims with their rules."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frameworktax.errors import UsageError, nearest
from frameworktax.reproduce.rows import AXES, QUANTITIES
from frameworktax.sweep.schema import Axes

Scale = Literal["full", "small"]
Rule = Literal[
    "value",  # of one point
    "ratio",  # of one point to another
    "mean_reduction",  # 1 − ratio, averaged over the pairs that share every axis but the runtime
    "slope",  # d log latency / d log axis between the first two values, or the last two
    "free",  # largest value of an axis within 10 % of its first value's latency
    "free_ratio",  # of one curve's to another's
    "spread",  # largest over smallest among the points
    "rank_correlation",  # Spearman's, of latency with a proxy
    "rank_advantage",  # how much higher it is for one proxy than for another
    "free_on_faster",  # share of pairs of machines whose faster device has the larger free batch
    "floor_follows_host",  # share of pairs whose batch-1 latency goes with host time
    "not_measured",  # what this tool has no number for
]
Value = str | int | float


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _known_axes(where: dict[str, Any]) -> dict[str, Any]:
    for axis in where:
        if axis not in AXES:
            raise ValueError(f"no axis '{axis}'; choose from {', '.join(AXES)}")
    return where


class Part(_Table):
    """One rule over one selection, held against bounds."""

    rule: Rule
    says: str = Field(description="What it computes, in words.")
    of: dict[str, Value | list[Value]] = {}
    to: dict[str, Value | list[Value]] = {}
    each: tuple[str, ...] = Field((), description="Judged for every combination of these axes.")
    quantity: str = "latency"
    axis: str = "batch"
    at: Literal["start", "end"] = "start"
    proxy: str | None = None
    than: str | None = None
    above: float | None = None
    below: float | None = None
    unit: Literal["", "%"] = ""
    reason: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Part:
        _known_axes(self.of)
        _known_axes(self.to)
        for name in (self.quantity, self.proxy, self.than):
            if name is not None and name not in QUANTITIES:
                raise ValueError(f"no quantity '{name}'; choose from {', '.join(QUANTITIES)}")
        if self.rule == "not_measured":
            if not self.reason:
                raise ValueError("not_measured needs a reason")
        elif self.above is None and self.below is None:
            raise ValueError("needs above or below, or both")
        if self.rule in ("rank_correlation", "rank_advantage") and self.proxy is None:
            raise ValueError(f"{self.rule} needs a proxy")
        if self.rule == "rank_advantage" and self.than is None:
            raise ValueError("rank_advantage needs than, the other proxy")
        return self


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
    where: dict[str, Value | list[Value]] = {}
    x: str = "batch"
    quantities: tuple[str, ...] = ("latency",)
    series: tuple[str, ...] = ("runtime",)
    mark: Literal["line", "label"] = "line"
    linear: bool = False


class Line(_Table):
    """A line of a table."""

    label: str
    where: dict[str, Value | list[Value]]


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
    proxies: dict[str, Value | list[Value]] | None = Field(
        None, description="Which points the table of proxies is over."
    )
    panel: tuple[Panel, ...] = ()
    line: tuple[Line, ...] = ()
    free: Annotated[tuple[str, ...], Field(description="Axes whose free value is told.")] = ()
    claim: tuple[Claim, ...] = Field(min_length=1)

    def grid(self, scale: Scale) -> tuple[Axes, ...]:
        """Return the tables of points of a scale."""
        return self.small if scale == "small" else self.full


def names() -> tuple[str, ...]:
    """Return the studies in the order of the paper."""
    folder = files("frameworktax.reproduce").joinpath("studies")
    found = [entry.name.removesuffix(".toml") for entry in folder.iterdir()]
    return tuple(sorted((n for n in found if "." not in n), key=_place))


def _place(name: str) -> tuple[int, int]:
    kind, _, number = name.partition("-")
    return ("figure", "table", "text").index(kind), int(number or 0)


@cache
def load(name: str) -> StudyFile:
    """Return a study.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in names():
        raise UsageError(
            f"no study '{name}'{nearest(name, names()) or ';'} choose from {', '.join(names())}, "
            "or all"
        )
    path = files("frameworktax.reproduce").joinpath("studies", f"{name}.toml")
    return StudyFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
