"""The latencies of a session while it runs: a table that stands with its first value.

Only what is cheap is computed: an interval over the block medians at hand, not the whole analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from frameworktax.records import FLOOR, FamilyKey, Point, point_name
from frameworktax.report.blocks import Cell, Column, Table, right, table
from frameworktax.report.words import milliseconds, plus_minus, time_text
from frameworktax.stats import UNTIL, process_interval, relative_half_width

Medians = Sequence[Sequence[float]]
"""For each process of a point the medians of its blocks, ns."""
LEAST = 3
"""Values from which on an interval is shown: that of two is many times as wide."""


class Growing:
    """Takes a point's medians after every block, and shows what is known so far."""

    def __init__(self) -> None:
        self._asked: dict[Point, FamilyKey] = {}
        self._until = UNTIL
        self._medians: dict[Point, Medians] = {}
        self._said: set[tuple[FamilyKey | None, str]] = set()
        self._newest: Point | None = None

    def asked(self, points: Iterable[Point], until: float) -> None:
        """Take over which points are to be measured, and how narrow their intervals shall be."""
        self._asked |= {point: point.family() for point in points}
        self._until = until

    def measured(self, point: Point, medians_ns: Medians) -> bool:
        """Take over the medians of a point; return whether they are a result.

        Those of a twin and of the floor are none.
        """
        if point.runtime == FLOOR or point.workload.twin or not any(medians_ns):
            return False
        if point not in self._asked:
            self._asked[point] = point.family()
        self._medians[point] = medians_ns
        self._newest = point
        return True

    @property
    def counts(self) -> tuple[int, int]:
        """Number of points that have a value, and of those that are asked for."""
        return len(self._medians), len(self._asked)

    def table(self) -> Table | None:
        """Return the family of the point measured last: runtimes by batch; None before that."""
        if self._newest is None:
            return None
        family = self._asked[self._newest]
        points = [p for p, its in self._asked.items() if its == family]
        batches = sorted({p.workload.batch for p in points})
        runtimes = dict.fromkeys(p.runtime for p in points if p in self._medians)
        at = {(p.runtime, p.workload.batch): p for p in points}
        columns: list[Column] = [Column("runtime"), *(right(f"batch {b}") for b in batches)]
        rows = [
            [Cell(runtime), *(self._cell(at.get((runtime, batch))) for batch in batches)]
            for runtime in runtimes
        ]
        name = point_name(self._newest, runtime=False, batch=False, defaults=True)
        return table(f"{name}: latency of one call, ms", columns, rows)

    def first_line(self, point: Point) -> str | None:
        """Return the values of a point's runtime once each of its batches has one; once only."""
        family = self._asked.get(point)
        key = (family, point.runtime)
        if family is None or key in self._said:
            return None
        mine = [p for p, its in self._asked.items() if (its, p.runtime) == key]
        if any(p not in self._medians for p in mine):
            return None
        self._said.add(key)
        mine.sort(key=lambda p: p.workload.batch)
        values = []
        for p in mine:
            ns, around, _ = self._known(self._medians[p])
            said = f"{time_text(ns)} {around}".rstrip()
            values.append(f"{said} at batch {p.workload.batch}")
        return f"{point.runtime}: {', '.join(values)}"

    def _cell(self, point: Point | None) -> Cell:
        medians = self._medians.get(point) if point is not None else None
        if medians is None:
            return Cell("·", style="dim")
        ns, around, is_done = self._known(medians)
        brief = milliseconds(ns)
        note = around.replace(" ", "")
        return Cell(brief, style="strong" if is_done else "", note=note, short=brief)

    def _known(self, medians: Medians) -> tuple[float, str, bool]:
        """Return the value of a point, ns, its interval as text, and whether that is narrow enough.

        Below ``LEAST`` values it is the mean of processes, and no interval is shown.
        """
        found = process_interval(medians)
        if found is None or found.n < LEAST:
            return fmean(median(blocks) for blocks in medians if blocks), "", False
        return found.value, plus_minus(found), relative_half_width(found) <= self._until
