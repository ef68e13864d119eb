"""The verdict in a terminal or a log: 80 columns, in colour where there is any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from frameworktax.records import BILL, Measurement, Run
from frameworktax.report import trace_terminal
from frameworktax.report.quantities import tables_of
from frameworktax.report.tables import Family, families
from frameworktax.report.terminal_notes import (
    advice,
    footer,
    heading,
    lost,
    notes,
    print_environment,
)
from frameworktax.report.words import (
    REGIME_MARKS,
    TWIN,
    half_width,
    label,
    lines_of,
    milliseconds,
    parity_mark,
    percent,
)

REGIME_STYLES = {
    "framework-bound": "bold dark_orange",
    "compute-bound": "bold dodger_blue1",
    "memory-bound": "bold purple",
    "mixed": "yellow",
    "kernel-flat": "bold cyan",
}
LINE_STYLES = {
    "kernel": "white on blue",
    "dispatch": "black on dark_orange",
    "python": "black on gold1",
    "allocator": "black on plum2",
    "runtime": "white on dark_red",
    "threading": "black on light_salmon3",
    "system": "black on thistle3",
    "launch": "black on khaki3",
    "device_gap": "black on grey70",
    "wait": "white on grey42",
    "remainder": "white on grey27",
}
LETTERS = {name: name[0].upper() for name in BILL} | {"remainder": "·", "device_gap": "G"}
NAME_WIDTH = 20
CELL_WIDTH = 10
FREE_WIDTH = 4
BAR_WIDTH = 22
LEADER_WIDTH = 16


def print_run(run: Run, console: Console, *, full: bool = False) -> None:
    """Print headline, latencies, bills, what failed, advice and notes.

    Args:
        run: the document.
        console: from rich; its width decides how many batch sizes stand beside each other.
        full: every note with its own numbers, and where it was measured.
    """
    console.print()
    console.print(Text(run.headline, style="bold"))
    for family in families(run):
        console.print()
        console.print(Text(family.title, style="bold underline"))
        if family.measured:
            _latencies(family, console)
            _bills(family, console)
            _quantities(family, console)
        lost(family, console)
        notes(family, console, full)
    if run.trace:
        trace_terminal.print_trace(run.trace, console)
    advice(run, console)
    trace_terminal.print_predictions(run.predictions, console)
    footer(run, console)
    if full and run.environment is not None:
        print_environment(run.environment, console)


def print_rows(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table; cells are text from anywhere and mean nothing to the terminal."""
    table = _table()
    for number, title in enumerate(head):
        table.add_column(title, no_wrap=not number)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


class Renderable:
    """A run as something ``rich.print`` can show."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.capture() as capture:
            print_run(self._run, console)
        yield Text.from_ansi(capture.get())


def _latencies(family: Family, console: Console) -> None:
    room = console.width - (NAME_WIDTH + 1) - FREE_WIDTH
    across = max(1, room // (CELL_WIDTH + 1))
    batches = family.batches
    heading("Latency, ms, and half-width of its 95 % interval, %", console)
    for start in range(0, len(batches), across):
        part = batches[start : start + across]
        table = _table()
        table.add_column("batch", width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
        for batch in part:
            table.add_column(str(batch), width=CELL_WIDTH, justify="right", no_wrap=True)
        table.add_column("free", width=FREE_WIDTH, justify="right", no_wrap=True)
        for runtime in family.runtimes:
            cells = [_cell(family.at(runtime, batch)) for batch in part]
            table.add_row(_name(family, runtime), *cells, _free(family, runtime))
        console.print(table)
    console.print(_key(family))


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _name(family: Family, runtime: str) -> Text:
    first = next(m for m in family.measured if m.runtime == runtime)
    mark = parity_mark(first)
    style = {"=": "green", "≠": "bold red", "?": "yellow"}.get(mark, "")
    return Text(runtime) + Text(f" {mark}" if mark else "", style=style)


def _cell(m: Measurement | None) -> Text:
    if m is None or m.latency_ns is None:
        return Text("–", style="dim")
    mark = REGIME_MARKS[m.regime] if m.regime else " "
    text = Text(milliseconds(m.latency_ns.value))
    text.append(f" {half_width(m.latency_ns).rstrip('%'):>2}", style="dim")
    return text.append(f" {mark}", style=REGIME_STYLES.get(m.regime or "", ""))


def _free(family: Family, runtime: str) -> Text:
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None:
        return Text("–", style="dim")
    value = curve.free_batch.value
    text = f"{value:.1f}" if value < 9.95 and not value.is_integer() else f"{value:.0f}"
    return Text(f"{'≥' if curve.free_is_lower_bound else ''}{text}")


def _key(family: Family) -> Text:
    text = Text(style="dim")
    seen = {m.regime for m in family.measured}
    regimes = [f"{mark} {name}" for name, mark in REGIME_MARKS.items() if name in seen]
    text.append("  ".join(regimes) + ("\n" if regimes else ""))
    marks = {parity_mark(m) for m in family.measured}
    means = {"=": "= outputs equal eager's", "≠": "≠ they differ", "?": "? not proven"}
    said = [means[mark] for mark in means if mark in marks]
    return text.append("   ".join([*said, "free: batch within 10 % of batch 1"]))


def _bills(family: Family, console: Console) -> None:
    batch = family.batches[0]
    points = [p for name in family.runtimes if (p := family.at(name, batch)) is not None]
    billed = [(m, m.bill_ns) for m in points if m.bill_ns is not None]
    if not billed:
        return
    heading(f"Where the time goes at batch {batch}", console)
    table = _table()
    table.add_column("", width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("ms", width=6, justify="right", no_wrap=True)
    table.add_column("tax", width=12, justify="right", no_wrap=True)
    table.add_column("", width=BAR_WIDTH, no_wrap=True)
    table.add_column("most of the tax", width=LEADER_WIDTH, no_wrap=True)
    for m, bill in billed:
        total = m.latency_ns.value if m.latency_ns else 0.0
        table.add_row(
            Text(m.runtime), milliseconds(total), _tax(m), _bar(bill, total), _leader(bill, total)
        )
    console.print(table)
    _bill_key([name for name in BILL if any(bill.get(name) for _, bill in billed)], console)
    methods = dict.fromkeys(m.bill_method or "" for m, _ in billed)
    for method in methods:
        names = ", ".join(m.runtime for m, _ in billed if m.bill_method == method)
        console.print(Text(f"{method}: {names}", style="dim"))


def _bill_key(used: Sequence[str], console: Console) -> None:
    """Print the letters and their lines, no line broken between the two."""
    key, width = Text(style="dim"), 0
    for name in used:
        item = f"{LETTERS[name]} {label(name)}"
        if width and width + 2 + len(item) > console.width:
            key.append("\n")
            width = 0
        elif width:
            key.append("  ")
            width += 2
        key.append(LETTERS[name], style=LINE_STYLES[name]).append(item[1:])
        width += len(item)
    console.print(key)


def _tax(m: Measurement) -> Text:
    if m.tax_share is None:
        return Text("–")
    half = 50 * (m.tax_share.high - m.tax_share.low)
    least = "≥ " if m.bill_method == TWIN else ""
    text = Text(
        f"{least}{100 * m.tax_share.value:.0f}", style=REGIME_STYLES.get(m.regime or "", "")
    )
    return text.append(f" ± {half:.1f} %", style="dim")


def _bar(bill: Mapping[str, float], total: float) -> Text:
    text, filled, upto = Text(), 0, 0.0
    for name, ns in lines_of(bill):
        upto += max(ns, 0.0)  # a line below zero has no length; the table of the report tells it
        end = min(BAR_WIDTH, round(BAR_WIDTH * upto / total)) if total else 0
        text.append(LETTERS[name] * (end - filled), style=LINE_STYLES[name])
        filled = max(filled, end)
    return text


def _leader(bill: Mapping[str, float], total: float) -> str:
    tax = sorted((x for x in lines_of(bill) if x[0] != "kernel"), key=lambda item: -item[1])
    if not tax or not total:
        return "–"
    name, ns = tax[0]
    return f"{label(name)} {percent(ns / total)}"


def _quantities(family: Family, console: Console) -> None:
    for found in tables_of(family):
        heading(found.caption, console)
        table = _table()
        for number, title in enumerate(found.head):
            table.add_column(title, justify="right" if number else "left", no_wrap=not number)
        for row in found.rows:
            table.add_row(*map(Text, row))
        console.print(table)
        if found.hint:
            console.print(Text(found.hint, style="dim"))
