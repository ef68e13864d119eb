"""The records of a comparison: what ``frameworktax compare --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from frameworktax.analysis.where import Moved
from frameworktax.records import Estimate, Note, Point, Workload

COMPARISON_SCHEMA = "frameworktax.comparison"
COMPARISON_VERSION = 1

Verdict = Literal["faster", "slower", "same", "cannot tell"]
Gate = Literal["passed", "regressed", "undecided"]
Metric = Literal["latency", "tax", "launches", "kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One point, before and after.

    Attributes:
        workload: of the side after.
        runtime: of the side after.
        against: the name on the side before, where it differs.
        before: the metric, ns or a count; None if not measured.
        after: the same.
        ratio: after over before, with its own 95 % interval; None where there is none.
        p_value: how often noise alone goes this far; None for counts, which have no noise.
        p_adjusted: the same over all points of the comparison (Holm).
        verdict: faster, slower, same, cannot tell; for launches, fewer is faster.
        gate: against the gate; None without one.
        reason: the verdict in words.
        host_ratio: the host's speed after over before, as far as calibrators show it above their
            noise; None if not known, or if both sides were measured in one session.
        measured_ratio: after over before with the host's part in it; None where nothing was taken
            out, and ``ratio`` is as measured.
        method: how the ratio was got.
        counts: launches, operators, FLOPs and parameters that changed: (before, after).
        moved: where in the model the tax changed, if both sides have layers.
    """

    workload: Workload
    runtime: str
    platform: str
    threads: int
    against: str | None = None
    before: Estimate | None = None
    after: Estimate | None = None
    ratio: Estimate | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = "cannot tell"
    gate: Gate | None = None
    reason: str = ""
    host_ratio: float | None = None
    measured_ratio: float | None = None
    method: str | None = None
    counts: Mapping[str, tuple[int, int]] | None = None
    moved: tuple[Moved, ...] = ()

    @property
    def point(self) -> Point:
        """The point, as the side after has it."""
        return Point(
            workload=self.workload,
            runtime=self.runtime,
            platform=self.platform,
            threads=self.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of the environment that differs; ``machine`` where it makes timings another's."""

    field: str
    before: str
    after: str
    machine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All points, and what is to know about both sides.

    Attributes:
        gate: regression that fails, a fraction; None: no gate.
        margin: what counts as the same, a fraction: the gate, or 0.05.
        confidence: one less the error of the whole family of points.
        unpaired_before: points that only the side before has, in words.
        unpaired_after: points that only the side after has.
        exit_code: 0; 1 a regression beyond the gate; 3 a verdict is missing.
    """

    schema: str = COMPARISON_SCHEMA
    version: int = COMPARISON_VERSION
    before: str = ""
    after: str = ""
    metric: Metric = "latency"
    gate: float | None = None
    margin: float = 0.05
    confidence: float = 0.95
    headline: str = ""
    exit_code: int = 0
    points: tuple[Change, ...] = ()
    unpaired_before: tuple[str, ...] = ()
    unpaired_after: tuple[str, ...] = ()
    environment: tuple[Difference, ...] = ()
    notes: tuple[Note, ...] = ()


def signed(factor: float) -> str:
    """Return a ratio as a signed change: ``+10.3 %``."""
    text = f"{100 * (factor - 1):+.1f}".replace("-", "−")
    return f"{text} %"


def share(margin: float) -> str:
    """Return a margin as text: ``5 %``."""
    return f"{100 * margin:.3g} %"
