"""A comparison in a terminal or a log: a line a point, its reason where it needs one."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.report.compare_words import (
    MARKS,
    change_told,
    counts,
    flat,
    footers,
    point,
    reason,
    unit,
    value,
)

STYLES = {"slower": "bold red", "faster": "bold green", "same": "", "cannot tell": "yellow"}
NUMBER_WIDTH = 6
CHANGE_WIDTH = 24
VERDICT_WIDTH = 13


def print_comparison(comparison: Comparison, console: Console, *, full: bool = False) -> None:
    """Print headline, points, reasons (``full``: each point by name) and what else is known."""
    console.print()
    style = "bold red" if comparison.exit_code == 1 else "bold"
    console.print(Text(flat(comparison.headline), style=style))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(f"{comparison.metric}{unit(comparison.metric)}", overflow="fold")
    for name in ("before", "after"):
        table.add_column(name, min_width=NUMBER_WIDTH, justify="right", no_wrap=True)
    table.add_column("change (95 %)", width=CHANGE_WIDTH, justify="right", no_wrap=True)
    table.add_column("", width=VERDICT_WIDTH, no_wrap=True)
    for change in comparison.points:
        style = STYLES[change.verdict]
        mark = Text(f"{MARKS[change.verdict]} {change.verdict}", style=style)
        table.add_row(
            Text(point(change)),
            value(change.before, comparison.metric),
            value(change.after, comparison.metric),
            Text(change_told(change), style=style),
            mark,
        )
    console.print(table)
    for said, points in _reasons(comparison).items():
        who = "; ".join(points) if full or len(points) == 1 else f"{len(points)} points"
        console.print(Text(f"  {who}: {said}", style="dim"))
    for text in footers(comparison):
        console.print(Text(f"• {text}", style="dim"))


def _reasons(comparison: Comparison) -> dict[str, list[str]]:
    """Return what the table does not show → the points it is said of."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for change in comparison.points:
        parts = reason(change).split("; ")
        if change.ratio is not None:  # the change itself and "within" stand in the table
            parts = parts[2 if change.verdict == "same" else 1 :]
        if change.gate == "regressed":
            parts.insert(0, "beyond the gate")
        said = "; ".join(part for part in (*parts, counts(change)) if part)
        if said:
            reasons[said].append(point(change))
    return reasons


class Renderable:
    """A comparison as something ``rich.print`` can show."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.capture() as capture:
            print_comparison(self._comparison, console)
        yield Text.from_ansi(capture.get())
