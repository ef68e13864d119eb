"""Tables of what not every point has: tokens, padding, set-up. Plain text, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from frameworktax.records import Estimate, Measurement
from frameworktax.report.tables import Family
from frameworktax.report.words import TWIN, about, duration, milliseconds, percent

REUSED = "set-up-reused"


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
        (m.runtime, percent(m.padding_share), _tax(m))
        for m in points
        if m.padding_share is not None
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
    """Return what exporting and compiling took and left; None where nothing was set up."""
    rows = []
    for name in family.runtimes:
        m = next(m for m in family.measured if m.runtime == name)
        if m.setup_ns is not None:
            size = "–" if m.artifact_bytes is None else f"{m.artifact_bytes / 1e6:.3g} MB"
            when = "earlier session" if any(n.code == REUSED for n in m.notes) else "this session"
            rows.append((name, duration(m.setup_ns), size, when))
    if not rows:
        return None
    return Quantities("Set-up: export and compilation, once", ("", "time", "size", ""), tuple(rows))


def _told(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{milliseconds(estimate.value)} {about(estimate)}"


def _tax(m: Measurement) -> str:
    if m.tax_share is None:
        return "–"
    return ("≥ " if m.bill_method == TWIN else "") + percent(m.tax_share.value)
