"""A comparison as an HTML table for a notebook: no script, every name escaped."""

from __future__ import annotations

from html import escape

from frameworktax.analysis.comparison import Comparison
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
