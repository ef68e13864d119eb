"""Tables that only the page has: the ranking, and those over all points of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import inverse
from frameworktax.records import Measurement
from frameworktax.report.blocks import Block, Table, right, table
from frameworktax.report.families import Family, latency_of
from frameworktax.report.words import (
    factor,
    interval,
    is_reference,
    milliseconds,
    parity_mark,
    parity_words,
    plus_minus,
    tax,
)

MARKS = "= outputs proven equal to eager's, ≠ different, ? neither"
ROWS = 60
"""Rows of a table over all points; the page opens slowly with thousands."""


def ranked(family: Family) -> Table | None:
    """Return the runtimes at the smallest batch, fastest first; None for a single one.

    Only what is proven to compute the same is ranked; the rest follows.
    """
    points = sorted(family.smallest, key=lambda m: (not _is_proven(m), latency_of(m).value))
    if len(points) < 2:
        return None
    rows = [
        (
            m.runtime,
            str(place) if _is_proven(m) else "not ranked",
            interval(m.latency_ns),
            factor(inverse(m.ratio_to_eager)) if m.ratio_to_eager else "–",
            "reference" if is_reference(m) else f"{parity_mark(m)} {parity_words(m.parity)}",
        )
        for place, m in enumerate(points, start=1)
    ]
    return table(
        f"Runtimes ranked at batch {family.batches[0]}",
        ("runtime", *map(right, ("rank", "latency, ms", "faster than eager", "outputs"))),
        rows,
        hint=f"{MARKS}. Only what is proven equal is ranked.",
    )


def _is_proven(m: Measurement) -> bool:
    return is_reference(m) or parity_mark(m) == "="


# --- over all points ------------------------------------------------------------------------------


def overview_blocks(shown: Sequence[Family]) -> list[Block]:
    """Return the tables that have anything in them, ``ROWS`` rows each at most.

    Args:
        shown: the families whose points the page has.
    """
    found = (matrix(shown), hardware(shown))
    return [first_rows(one, ROWS) for one in found if one is not None]


def hardware(shown: Sequence[Family]) -> Table | None:
    """Return equal points on several platforms or thread counts beside each other, ms."""
    lines: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for family in shown:
        place = _place(family.measurements[0])
        dropped = (*place.split(", "), "1 thread")
        title = ", ".join(part for part in family.title.split(", ") if part not in dropped)
        for m in family.measured:
            text = f"{milliseconds(latency_of(m).value)} {plus_minus(latency_of(m))}".rstrip()
            share = f", {tax(m)}" if m.tax_share else ""
            lines[f"{title}, batch {m.workload.batch}", m.runtime][place] = text + share
    places = list(dict.fromkeys(place for found in lines.values() for place in found))
    rows = [
        (*names, *(found.get(place, "–") for place in places))
        for names, found in lines.items()
        if len(found) > 1
    ]
    if not rows:
        return None
    return table(
        "Hardware side by side: latency, ms, and framework tax",
        ("model", "runtime", *map(right, places)),
        rows,
    )


def _place(m: Measurement) -> str:
    if m.platform != "cpu":
        return m.platform
    return f"{m.platform}, {m.threads} thread{'s' if m.threads != 1 else ''}"


def matrix(shown: Sequence[Family]) -> Table | None:
    """Return which model ran in which runtime; None for a single model."""
    cells: dict[str, dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for family in shown:
        for m in family.measurements:
            cells[family.model][m.runtime].append(m)
    if len(cells) < 2:
        return None
    runtimes = list(dict.fromkeys(name for found in cells.values() for name in found))
    return table(
        "What ran where",
        ("model", *map(right, runtimes)),
        [(name, *(_cell(found.get(r, [])) for r in runtimes)) for name, found in cells.items()],
        hint=f"{MARKS}; a word is why there is no latency; – was not asked for.",
    )


def _cell(points: Sequence[Measurement]) -> str:
    """Return the worst that was found: a difference, no proof, equality; or why nothing ran."""
    if not points:
        return "–"
    measured = [m for m in points if m.latency_ns is not None]
    if not measured:
        return points[0].status
    marks = {"reference" if is_reference(m) else parity_mark(m) for m in measured}
    found = next(mark for mark in ("≠", "?", "=", "reference") if mark in marks)
    lost = len(points) - len(measured)
    return f"{found}, {lost} of {len(points)} lost" if lost else found


def first_rows(found: Table, most: int) -> Table:
    """Return a table with so many rows at most, and how many there are in its hint."""
    if len(found.rows) <= most:
        return found
    said = f"The first {most} of {len(found.rows):,} rows. {found.hint}"
    return replace(found, rows=found.rows[:most], hint=said.strip())
