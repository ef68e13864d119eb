"""What a page holds, and what it leaves out so that it opens at once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from frameworktax.records import Run
from frameworktax.report import points
from frameworktax.report.charts import LABEL_GAP, LETTER_WIDTH
from frameworktax.report.json_document import dump
from frameworktax.report.latency_layers import AXES, latency_template
from frameworktax.report.markdown import csv_text
from frameworktax.report.overview_charts import operations_template
from frameworktax.report.palette import HEIGHT, OTHER_COLOURS, RUNTIME_COLOURS, SHAPES
from frameworktax.report.tables import Family, families

SECTIONS = 12
"""Families with a section of their own; more pictures are drawn for too long."""
FEW_SECTIONS = 3
"""The same in a page of more than ``MANY_POINTS``."""
MANY_POINTS = 1_000
DRAWN_POINTS = 2_500
"""Points that one picture draws; of more, every second, third …"""
DOCUMENT_POINTS = 1_000
"""Points above which the page carries columns only, not the document."""
DOCUMENT_BYTES = 2_000_000
"""The same for the document's text; without raw samples it may fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A run as its page tells it.

    Attributes:
        every: all families of the run.
        kept: those whose points are in the page.
        in_full: those with a section of their own, the first of ``kept``.
        slices: lines that can be drawn of ``kept``.
        data: for the page's script.
        document: ``whole``, ``without samples`` or ``left out``.
    """

    every: Sequence[Family]
    kept: Sequence[Family]
    in_full: Sequence[Family]
    slices: Sequence[points.Slice]
    data: dict[str, Any]
    document: str

    @property
    def step(self) -> int:
        """One of how many points is drawn where all are drawn together."""
        return math.ceil(sum(len(family.measurements) for family in self.kept) / DRAWN_POINTS)


def contents(run: Run) -> Contents:
    """Return what the page of a run holds."""
    every = families(run)
    kept = points.thinned(every)
    lines = points.slices(kept)
    measurements = [m for family in kept for m in family.measurements]
    document, carried = _document(run)
    return Contents(
        every=every,
        kept=kept,
        in_full=kept[: SECTIONS if len(measurements) <= MANY_POINTS else FEW_SECTIONS],
        slices=lines,
        document=document,
        data={
            **carried,
            "columns": points.columns(measurements),
            "slices": [asdict(line) for line in lines],
            "templates": {
                "wide": latency_template(legend=False),
                "narrow": latency_template(wide=False, legend=False),
                "operations": {
                    "wide": operations_template(),
                    "narrow": operations_template(wide=False),
                },
            },
            "palette": {
                "axes": AXES,
                "runtimes": RUNTIME_COLOURS,
                "others": OTHER_COLOURS,
                "shapes": SHAPES,
                "letter": LETTER_WIDTH,
                "gap": LABEL_GAP,
                "height": HEIGHT,
            },
        },
    )


def _document(run: Run) -> tuple[str, dict[str, Any]]:
    """Return what of the document fits into the page, and that part."""
    if len(run.measurements) <= DOCUMENT_POINTS:
        text = csv_text(run)
        for said, part in (("whole", run), ("without samples", _without_samples(run))):
            dumped = dump(part)
            if len(json.dumps(dumped)) + len(text) <= DOCUMENT_BYTES:
                return said, {"run": dumped, "csv": text}
    return "left out", {}


def _without_samples(run: Run) -> Run:
    lean = (replace(m, samples_ns=(), blocks_ns=(), calibrator_ns=()) for m in run.measurements)
    return replace(run, measurements=tuple(lean))
