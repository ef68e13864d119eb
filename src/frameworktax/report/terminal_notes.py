"""What stands around the numbers in a terminal: failures, notes, advice, where it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frameworktax.analysis.estimates import times
from frameworktax.records import Environment, Run
from frameworktax.report.environment import facts
from frameworktax.report.tables import Family
from frameworktax.report.words import duration


def heading(text: str, console: Console) -> None:
    """Print a line of its own, bold."""
    console.print()
    console.print(Text(text, style="bold"))


def lost(family: Family, console: Console) -> None:
    """Print what was not measured, and why."""
    if not family.lost:
        return
    heading("Not measured", console)
    for runtime, status, reason in family.lost:
        style = "red" if status != "unavailable" else "dim"
        _item(console, f"{runtime} {status}:", reason, style)


def notes(family: Family, console: Console, full: bool) -> None:
    """Print the notes of a family, all of them or one a code."""
    if family.notes:
        heading("Notes" if full else "Notes (all of them: --verbose, --report, --json)", console)
    for who, text in family.notes if full else family.brief_notes():
        _item(console, f"{who}:", text, "dim")


def advice(run: Run, console: Console) -> None:
    """Print what to do, what was measured first."""
    if not run.advice:
        return
    heading("What to do", console)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=7, justify="right")
    table.add_column()
    for item in run.advice:
        bold = "bold" if item.kind == "measured" else ""
        gain = Text(f"{'≤ ' if item.kind == 'bound' else ''}{times(item.gain.value)}", style=bold)
        text = Text(item.action, style="bold" if item.kind == "measured" else "")
        low, high = f"{item.gain.low:.2f}", f"{item.gain.high:.2f}"
        text.append(f"\n{item.kind}, {low} to {high} ×; {item.evidence}", style="dim not bold")
        table.add_row(gain, text)
    console.print(table)


def footer(run: Run, console: Console) -> None:
    """Print the harness's own cost, the drift of the host, notes on the run, what was left out."""
    facts = []
    if run.harness_floor_ns is not None:
        facts.append(f"harness floor {duration(run.harness_floor_ns.value)} a call")
    if run.host_drift is not None:
        facts.append(f"the host's speed moved by {100 * run.host_drift:.1f} % meanwhile")
    console.print()
    if facts:
        console.print(Text("; ".join(facts), style="dim"))
    for note in run.notes:
        _item(console, "note:", note.text, "yellow")
    _left_out(run.left_out, console)


def print_environment(environment: Environment, console: Console) -> None:
    """Print everything that is known of where it was measured."""
    heading("Environment", console)
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts(environment):
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)


def _item(console: Console, lead: str, text: str, style: str = "") -> None:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=1)
    table.add_column()
    line = Text(lead, style=style)
    table.add_row("•", line.append(f" {text}" if text else "", style="default"))
    console.print(table)


def _left_out(left_out: Sequence[str], console: Console) -> None:
    if left_out:
        heading("Left out (give it more --time-budget)", console)
        for text in left_out:
            _item(console, text, "")
