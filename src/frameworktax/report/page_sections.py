"""Sections of the page beyond those of one model: any axis, overviews, downloads, how to cite."""

from __future__ import annotations

from dataclasses import replace

from frameworktax.records import Run
from frameworktax.report import overview
from frameworktax.report.page_data import Contents
from frameworktax.report.quantities import Quantities
from frameworktax.report.sections import chart, esc, quantities
from frameworktax.version import __version__

ROWS = 60
"""Rows of a table over all points; the page opens slowly with thousands."""
REDRAW = "frameworktax report STORE --where model=… -o report.html"


def explore(contents: Contents) -> str:
    """Return the chart of any line; nothing where the sections above draw all of them."""
    drawn = sum(bool(family.measured) for family in contents.in_full)
    if len(contents.slices) <= drawn:
        return ""
    parts = [
        '<section aria-labelledby="any-axis"><h2 id="any-axis">Latency against any axis</h2>',
        _thinned(contents),
        '<p class="pick"><label for="explore-axis">Against</label>'
        '<select id="explore-axis"></select><label for="explore-slice">of</label>'
        '<select id="explore-slice"></select></p>',
        chart("explore", "Latency against the axis chosen"),
    ]
    return "".join(parts) + "</section>"


def _thinned(contents: Contents) -> str:
    every = sum(len(family.measurements) for family in contents.every)
    kept = sum(len(family.measurements) for family in contents.kept)
    said = []
    if kept < every:
        said.append(
            f"This page holds {kept:,} of {every:,} points: {len(contents.kept):,} of "
            f"{len(contents.every):,} groups, evenly picked, each with all of its points."
        )
    if len(contents.in_full) < len(contents.kept):
        said.append(
            f"The first {len(contents.in_full)} of {len(contents.kept):,} groups have a section "
            "above; every one can be drawn here."
        )
    if not said:
        return ""
    said.append(f"To see others in full: <code>{REDRAW}</code>")
    return f'<p class="hint" id="thinned">{" ".join(said)}</p>'


def overview_of(run: Run, contents: Contents) -> list[Quantities]:
    """Return the tables over all points that have anything to say."""
    measurements = [m for family in contents.kept for m in family.measurements]
    found = (
        overview.matrix(run),
        overview.hardware(run),
        overview.free_sizes(contents.slices, measurements),
    )
    return [_first(one) for one in found if one is not None]


def _first(table: Quantities) -> Quantities:
    """Return a table with ``ROWS`` rows at most, and a word on the others."""
    if len(table.rows) <= ROWS:
        return table
    said = f"The first {ROWS} of {len(table.rows):,} rows. {table.hint}"
    return replace(table, rows=table.rows[:ROWS], hint=said.strip())


def overview_section(run: Run, contents: Contents) -> str:
    """Return FLOPs against latency and the tables over all points."""
    counted = {m.flops for family in contents.kept for m in family.measured if m.flops}
    parts = []
    if len(counted) > 1:
        title = "FLOPs against latency"
        part = f" One point in {contents.step} is drawn." if contents.step > 1 else ""
        parts.append(
            f'<h3>{title}</h3><p class="hint">Were FLOPs a proxy of latency, the points would lie '
            f"on one line. Both axes logarithmic.{part}</p>"
            + chart("operations", title, step=contents.step)
        )
    parts += [quantities(one) for one in overview_of(run, contents)]
    return f"<section><h2>All together</h2>{''.join(parts)}</section>" if parts else ""


def numbers(contents: Contents) -> str:
    """Return the downloads of the whole, and what of it is not here."""
    about = {
        "whole": "The document behind this page, raw samples included, and one row a point.",
        "without samples": "The document behind this page without raw samples, which the store "
        "has, and one row a point.",
        "left out": "Too many points for the whole document: their columns are here, six digits "
        "each; the store has the rest: <code>frameworktax report STORE -o points.parquet</code>",
    }[contents.document]
    buttons = (
        '<p class="buttons"><button type="button" id="get-json">JSON</button>'
        '<button type="button" id="get-csv">CSV</button></p>'
    )
    return f"<p>{about}</p>" + (buttons if contents.document != "left out" else "")


def cite(run: Run) -> str:
    """Return how to cite the numbers, and where the question is from."""
    days = sorted({(m.session or "")[:8] for m in run.measurements if m.session})
    when = f", measured {_day(days[0])}" if days and days[0].isdigit() else ""
    if len(days) > 1 and when:
        when += f" to {_day(days[-1])}"
    where = f", {run.environment.cpu}" if run.environment else ""
    own = f"frameworktax {__version__}{where}{when}."
    paper = (
        "Jared Fernandez, Jacob Kahn, Clara Na, Yonatan Bisk, Emma Strubell. The Framework Tax: "
        "Disparities Between Inference Efficiency in NLP Research and Deployment. EMNLP 2023. "
        "arXiv:2302.06117."
    )
    return (
        "<section><h2>How to cite</h2><p>The numbers, with the environment above: "
        f'<q>{esc(own)}</q></p><p class="hint">The term and the question: {paper}</p></section>'
    )


def _day(stamp: str) -> str:
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
