"""An ablation in a terminal or a log."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frameworktax.ablate.steps import Ablation
from frameworktax.ablate.words import HEADER, PATH_TITLES, headline, reading, reasons, rows

WIDE = 100
"""Columns from which the changes of tax and kernel time fit beside the rest."""
CHANGES = (6, 7)


def print_ablation(ablation: Ablation, console: Console) -> None:
    """Print headline, the table path by path, and why numbers are missing."""
    console.print()
    console.print(Text(headline(ablation), style="bold"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    shown = [i for i in range(len(HEADER)) if console.width >= WIDE or i not in CHANGES]
    for i in shown:
        table.add_column(HEADER[i], justify="right" if i else "left", no_wrap=i > 0)
    path = None
    for at, cells in rows(ablation, wide=False):
        if at != path:
            table.add_row(Text(PATH_TITLES[at], style="dim italic"))
            path = at
        cells = (*cells[:-1], cells[-1].partition(" (")[0])  # its interval is in the document
        table.add_row(*(Text(cells[i]) for i in shown))
    console.print(table)
    console.print(Text(reading(ablation), style="dim"))
    for reason in reasons(ablation):
        console.print(Text(f"• {reason}", style="dim"))
