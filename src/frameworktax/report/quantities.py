"""Tables of what not every point has: tokens, padding, set-up. Plain text, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from frameworktax.records import Estimate
from frameworktax.report.tables import Family
from frameworktax.report.words import about, duration, milliseconds, percent, tax

REUSED = "set-up-reused"
PEAK = (
    "Peak memory: the most that a measuring process held of the host's up to its largest batch, "
    "interpreter and libraries included."
)


@dataclass(frozen=True, slots=True)
class Quantities:
    """One table: a caption, a head, rows of cells, and what to know about it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    hint: str = ""


def tables_of(family: Family) -> list[Quantities]:
    """Return the tables that this family has anything to say in."""
    made = (tokens(family), padding(family), set_up(family))
    return [table for table in made if table is not None]


def tokens(family: Family) -> Quantities | None:
    """Return time to the first token and for each further one, ms; None where none are made."""
    rows = tuple(
        (m.runtime, str(m.workload.batch), _told(m.first_token_ns), _told(m.per_token_ns))
        for m in family.measured
        if m.first_token_ns is not None
    )
    if not rows:
        return None
    w = family.measured[0].workload
    return Quantities(
        f"Generating {w.new_tokens} tokens, {w.kv_cache} cache, ms",
        ("", "batch", "first token", "each further"),
        rows,
    )


def padding(family: Family) -> Quantities | None:
    """Return the padding tax beside the framework tax at the smallest batch; None if dense."""
    batch = family.batches[0]
    points = [p for name in family.runtimes if (p := family.at(name, batch)) is not None]
    rows = tuple(
        (m.runtime, percent(m.padding_share), tax(m)) for m in points if m.padding_share is not None
    )
    if not rows:
        return None
    return Quantities(
        f"Padding tax and framework tax at batch {batch}",
        ("", "tokens that are padding", "time that is framework"),
        rows,
        "A share of tokens is no share of time: what padding costs shows beside nested, or with "
        "a shorter --length.",
    )


def set_up(family: Family) -> Quantities | None:
    """Return what exporting and compiling took and left, and what memory a process took to run it.

    None where nothing was set up and no memory is known.
    """
    rows = []
    for name in family.runtimes:
        points = [m for m in family.measured if m.runtime == name]
        m = points[0]
        peak = max((p.peak_memory_bytes or 0 for p in points), default=0)
        if m.setup_ns is None and not peak:
            continue
        reused = any(n.code == REUSED for n in m.notes)
        when = "–" if m.setup_ns is None else "earlier session" if reused else "this session"
        took = "–" if m.setup_ns is None else duration(m.setup_ns)
        rows.append((name, took, _size(m.artifact_bytes), when, _size(peak or None)))
    if not rows:
        return None
    return Quantities(
        "Set-up: export and compilation, once",
        ("", "time", "size", "", "peak memory"),
        tuple(rows),
        PEAK if any(row[-1] != "–" for row in rows) else "",
    )


def _size(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _told(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{milliseconds(estimate.value)} {about(estimate)}"
