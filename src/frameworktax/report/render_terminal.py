"""Blocks in a terminal or a log: 80 columns or more, in colour where there is any."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence

from rich import table as rich_table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text as Line

from frameworktax.errors import flat
from frameworktax.records import BILL
from frameworktax.report.blocks import Block, Cell, Heading, Item, Items, Note, Notes, Table, Text
from frameworktax.report.words import label

STYLES = {
    "framework-bound": "bold dark_orange",
    "compute-bound": "bold dodger_blue1",
    "memory-bound": "bold purple",
    "mixed": "yellow",
    "kernel-flat": "bold cyan",
    "slower": "bold red",
    "faster": "bold green",
    "cannot tell": "yellow",
    "equal": "green",
    "differs": "bold red",
    "unproven": "yellow",
    "strong": "bold",
    "dim": "dim",
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
}
BAR_STYLES = {
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
BAR_WIDTH = 22
GAP = 2
"""Columns of space between two columns of a table."""
FOLDED = 20
"""Width that a column of text keeps when its text is folded over lines."""
HEAD = 15
"""Width from which a head is folded where its cells are narrower."""
MOST = 10
"""Entries of a list that are shown without ``--verbose``."""
LEAD = 14
"""Width up to which the leads of a list stand in a column of their own."""


def print_blocks(blocks: Iterable[Block], console: Console, *, full: bool = False) -> None:
    """Print blocks; text from anywhere means nothing to the terminal, and a hint comes once.

    Args:
        blocks: of a document.
        console: from rich; its width decides how tables are laid out.
        full: folded tables and every note as well.
    """
    folded = 0
    hints: set[str] = set()
    for block in blocks:
        match block:
            case Heading():
                style = STYLES.get(block.style, "bold underline" if block.level == 2 else "bold")
                console.print()
                console.print(Line(flat(block.text), style=style))
            case Text():
                console.print()
                console.print(Line(flat(block.text), style=STYLES.get(block.style, "")))
            case Table() if full or not block.folded:
                _title(block.title, console)
                print_table(block, console, hint="" if block.hint in hints else block.hint)
                hints.add(block.hint)
            case Items() if block.items:
                _title(block.title, console)
                _items(block.items if full else block.items[:MOST], console)
                if len(block.items) > MOST and not full:
                    more = f"{len(block.items) - MOST} more: see --verbose, --report or --json"
                    console.print(Line(more, style="dim"))
            case Notes():
                shown = [n for n in block.notes if full or n.severity != "info"]
                folded += len(block.notes) - len(shown)
                if shown:
                    _title(block.title, console)
                    _notes(shown, console)
    if folded:
        notes = f"{folded} note{'s' * (folded > 1)} on how this was measured"
        console.print()
        console.print(Line(f"{notes}: see --verbose, --report or --json", style="dim"))


def drawn(block: Table, console: Console) -> Line:
    """Return a table as a renderable that can be part of another, laid out for a console."""
    text = io.StringIO()
    inner = Console(
        file=text,
        width=console.width,
        color_system=console.color_system,  # type: ignore[arg-type] # what rich says, it takes
        force_terminal=console.is_terminal,
        no_color=console.no_color,
        highlight=False,
    )
    inner.print(Line(flat(block.title), style="bold"))
    print_table(block, inner)
    return Line.from_ansi(text.getvalue())


class Renderable:
    """Blocks as something ``rich.print`` can show."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.capture() as capture:
            print_blocks(self._blocks, console)
        yield Line.from_ansi(capture.get())


def print_rows(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table of strings."""
    from frameworktax.report.blocks import table

    print_table(table("", head, rows), console)


def _title(text: str, console: Console) -> None:
    console.print()
    if text:
        console.print(Line(flat(text), style="bold"))


# --- tables ---------------------------------------------------------------------------------------


def print_table(block: Table, console: Console, *, hint: str = "") -> None:
    """Print a table without its title: in short forms, or in parts, where it is too wide."""
    columns = _columns(block, short=False)
    is_short = _width(columns) > console.width and any(c.short for row in block.rows for c in row)
    if is_short:
        columns = _columns(block, short=True)
    for part in _parts(columns, console.width):
        _print_part(part, console)
    _key(block, is_short, console)
    if hint:
        console.print(Line(flat(hint), style="dim"))


class _Printed:
    """A column as it is printed: its cells padded, its head folded over lines."""

    def __init__(self, title: str, is_right: bool, cells: Sequence[Line], tags: int) -> None:
        self.is_right = is_right
        self.cells = cells
        self.width = max((cell.cell_len for cell in cells), default=0)
        self.folds = not is_right and self.width > FOLDED
        room = max(HEAD, self.width)
        head = textwrap.wrap(flat(title), room) or [""]
        self.width = max(self.width, *map(len, head))
        below = " " * tags if all(len(line) + tags <= self.width for line in head) else ""
        self.head = [
            f"{line}{below}".rjust(self.width) if is_right and line else line for line in head
        ]


def _columns(block: Table, *, short: bool) -> list[_Printed]:
    made = []
    for number, column in enumerate(block.columns):
        is_right = column.align == "right"
        cells, tags = _padded([row[number] for row in block.rows], is_right, short)
        made.append(_Printed(column.title, is_right, cells, tags))
    return made


def _padded(cells: Sequence[Cell], is_right: bool, short: bool) -> tuple[list[Line], int]:
    """Return a column's cells, texts, notes and tags below each other, and the width of tags."""
    parts = [
        (flat(c.text), flat(c.note), flat(c.tag)) if not (short and c.short) else (c.short, "", "")
        for c in cells
    ]
    widths = [max((len(part[i]) for part in parts), default=0) for i in range(3)]
    lines = []
    for cell, (text, note, tag) in zip(cells, parts, strict=True):
        style = STYLES.get(cell.style, "")
        if cell.bar:
            lines.append(_bar(cell.bar))
            continue
        if not any(widths[1:]):
            lines.append(Line(text, style=style))
            continue
        line = Line(
            text.rjust(widths[0]) if is_right else text.ljust(widths[0]), "" if cell.tag else style
        )
        if widths[1]:
            line.append(f" {note.rjust(widths[1])}", style="dim not bold")
        if widths[2]:
            line.append("  ").append(tag, style=style).append(" " * (widths[2] - len(tag)))
        lines.append(line)
    return lines, widths[2] + 2 * bool(widths[2])


def _bar(bar: Sequence[tuple[str, float]]) -> Line:
    line, filled, upto = Line(), 0, 0.0
    for name, share in bar:
        upto += max(share, 0.0)  # a part below zero has no length; it stands in the other table
        end = min(BAR_WIDTH, round(BAR_WIDTH * upto))  # a part below zero lengthens the others
        line.append(LETTERS.get(name, "?") * (end - filled), style=BAR_STYLES.get(name, ""))
        filled = max(filled, end)
    return line


def _width(columns: Sequence[_Printed]) -> int:
    """Return the least width at which nothing but long text is folded."""
    return sum(FOLDED if c.folds else c.width for c in columns) + GAP * (len(columns) - 1)


def _parts(columns: Sequence[_Printed], width: int) -> list[list[_Printed]]:
    """Return columns in groups that fit, the first column in each."""
    parts = [[*columns[:1]]]
    for column in columns[1:]:
        if len(parts[-1]) > 1 and _width([*parts[-1], column]) > width:
            parts.append([columns[0]])
        parts[-1].append(column)
    return parts


def _print_part(columns: Sequence[_Printed], console: Console) -> None:
    height = max(len(column.head) for column in columns)
    if not any(c.folds for c in columns) and _width(columns) <= console.width:
        console.print(_plain(columns, height), soft_wrap=True)
        return
    table = rich_table.Table(
        box=None,
        pad_edge=False,
        padding=(0, GAP, 0, 0),
        header_style="dim",
        show_header=any(any(column.head) for column in columns),
    )
    for column in columns:
        head = [""] * (height - len(column.head)) + column.head
        table.add_column(
            Line("\n".join(head)),
            no_wrap=not column.folds,
            overflow="fold",
        )
        if column.is_right:
            for cell in column.cells:
                cell.pad_left(column.width - cell.cell_len)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    console.print(table)


def _plain(columns: Sequence[_Printed], height: int) -> Line:
    """Return columns of which none is folded as lines: a tenth of the time of rich's table."""
    heads = [[""] * (height - len(c.head)) + c.head for c in columns]
    lines: list[list[Line]] = []
    if any(map(any, heads)):
        lines += [[Line(text, style="dim") for text in row] for row in zip(*heads, strict=True)]
    lines += [list(row) for row in zip(*(c.cells for c in columns), strict=True)]
    text = Line()
    for number, line in enumerate(lines):
        text.append("\n" * bool(number))
        for at, (column, cell) in enumerate(zip(columns, line, strict=True)):
            space = " " * (column.width - cell.cell_len)
            text.append(space * column.is_right).append_text(cell).append(
                space * (not column.is_right)
            )
            text.append(" " * GAP * (at + 1 < len(columns)))
    return text


def _key(block: Table, is_short: bool, console: Console) -> None:
    """Print the letters of bars and short forms; no line is broken between sign and meaning."""
    names = dict.fromkeys(name for row in block.rows for cell in row for name, _ in cell.bar)
    order = [*BILL, *(name for name in names if name not in BILL)]
    entries = [(LETTERS.get(n, "?"), label(n), BAR_STYLES.get(n, "")) for n in order if n in names]
    if is_short:
        entries += [(sign, meaning, "") for sign, meaning in block.key]
    line, width = Line(style="dim"), 0
    for sign, meaning, style in entries:
        length = len(sign) + 1 + len(meaning)
        if width and width + GAP + length > console.width:
            line.append("\n")
            width = 0
        elif width:
            line.append(" " * GAP)
            width += GAP
        line.append(sign, style=style).append(f" {meaning}")
        width += length
    if entries:
        console.print(line)


# --- lists ----------------------------------------------------------------------------------------


def _items(items: Sequence[Item], console: Console) -> None:
    beside = all(0 < len(item.lead) <= LEAD for item in items)
    width = max(len(item.lead) for item in items) if beside else 1
    for item in items:
        lead = Line(flat(item.lead), style=STYLES.get(item.style, ""))
        text = Line(flat(item.text), style="bold" if beside and item.style == "strong" else "")
        if not beside:
            colon = ": " if item.lead and item.text else ""
            text = lead.append(f"{colon}{flat(item.text)}", style="not bold default")
        if item.detail:
            text.append(f"\n{flat(item.detail)}", style="dim not bold default")
        _row(lead if beside else Line("•"), text, width, console)


def _notes(notes: Sequence[Note], console: Console) -> None:
    for note in notes:
        style = {"warning": "yellow", "error": "red"}.get(note.severity, "dim")
        line = Line(f"{flat(note.who)}: " if note.who else "", style=style)
        _row(Line("•", style=style), line.append(flat(note.text), style="default"), 1, console)


def _row(lead: Line, text: Line, width: int, console: Console) -> None:
    grid = rich_table.Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=width, justify="right")
    grid.add_column()
    grid.add_row(lead, text)
    console.print(grid)
