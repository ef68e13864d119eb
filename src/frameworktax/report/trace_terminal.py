"""A trace and predictions in a terminal or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frameworktax.records import Prediction
from frameworktax.report import trace_words

WORDS = 1
"""Columns of words, from the right, that may be broken over lines."""


def print_trace(trace: Mapping[str, Any], console: Console) -> None:
    """Print steps, bill, causes of idle time, and who is behind them."""
    _section("Steps", *trace_words.steps(trace), console, names="first")
    _section("Where the time goes", *trace_words.bill(trace), console)
    _section("Why devices were idle", *trace_words.idle(trace), console)
    what, head, rows = trace_words.starved_by(trace)
    _section(f"What kept them waiting, by {what}", head, rows, console)
    _section("Operators by tax, not by time", *trace_words.operators(trace), console)
    _section("Devices", *trace_words.devices(trace), console)


def print_predictions(found: Sequence[Prediction], console: Console) -> None:
    """Print what was predicted, and what was refused and why."""
    _, rows = trace_words.predictions(found)
    if rows:
        _title("What if", console)
    for change, gain, latency, proof, subject in rows:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=1)
        table.add_column()
        line = Text(change, style="bold")
        line.append(f"  {gain}" + (f", {latency}" if latency != "–" else ""), style="not bold")
        line.append(f"\n{subject}: {proof}", style="dim not bold")
        table.add_row("•", line)
        console.print(table)


def _title(text: str, console: Console) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _section(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    names: str = "last",
) -> None:
    if not rows:
        return
    _title(title, console)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for number, column in enumerate(head):
        is_number = 0 < number < len(head) - WORDS or (names == "last" and column.endswith("ms"))
        table.add_column(
            column,
            justify="right" if is_number else "left",
            no_wrap=number < len(head) - WORDS,
            overflow="ellipsis" if number == 0 else "fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
