"""A comparison in HTML, for a notebook and beside a report: every name escaped."""

from __future__ import annotations

from html import escape

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.report.compare_words import (
    change_told,
    flat,
    footers,
    point,
    reason,
    unit,
    value,
    verdict,
)
from frameworktax.report.sections import chart, table

COLOURS = {"slower": "#b3261e", "faster": "#146c2e"}


def fragment(comparison: Comparison) -> str:
    """Return headline, table and footers."""
    head = (f"{comparison.metric}{unit(comparison.metric)}", "before", "after", "change", "verdict")
    rows = []
    for change in comparison.points:
        cells = (
            value(change.before, comparison.metric),
            value(change.after, comparison.metric),
            change_told(change),
        )
        colour = COLOURS.get(change.verdict)
        style = f' style="color:{colour}"' if colour else ""
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(
            f"<tr><th scope='row' style='text-align:left'>{escape(point(change))}</th>{told}"
            f'<td{style} title="{escape(reason(change))}">{escape(verdict(change))}</td></tr>'
        )
    titles = "".join(f"<th scope='col'>{escape(title)}</th>" for title in head)
    more = "".join(f"<li>{escape(text)}</li>" for text in footers(comparison))
    return (
        f"<p><strong>{escape(flat(comparison.headline))}</strong></p>"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        + (f"<ul>{more}</ul>" if more else "")
    )


def section(comparison: Comparison, drawn: bool) -> str:
    """Return two results side by side as a section of the page.

    Args:
        comparison: of the two.
        drawn: whether the page draws its picture in ``changes``.
    """
    metric = comparison.metric
    head = ("point", f"before{unit(metric)}", f"after{unit(metric)}", "change", "verdict")
    rows = []
    for change in comparison.points:
        sides = (value(change.before, metric), value(change.after, metric), change_told(change))
        why = f'<span title="{escape(reason(change))}">{escape(verdict(change))}</span>'
        rows.append([escape(point(change)), *map(escape, sides), why])
    title = "What changed, after over before"
    picture = f"<h3>{title}</h3>{chart('changes', title)}" if drawn else ""
    named = f"Before: {flat(comparison.before)}. After: {flat(comparison.after)}."
    more = "".join(f"<li>{escape(text)}</li>" for text in footers(comparison))
    return (
        '<section aria-labelledby="beside"><h2 id="beside">Side by side</h2>'
        f"<p>{escape(flat(comparison.headline))}</p>"
        f'<p class="hint">{escape(named)} The rest of this page is of the side after.</p>{picture}'
        + (table("Both sides, point by point", head, rows) if rows else "")
        + (f'<ul class="notes">{more}</ul>' if more else "")
        + "</section>"
    )
