"""Blocks in a terminal or a log: 80 columns or more, in colour where there is any."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text as Line

from frameworktax.errors import counted, flat
from frameworktax.records import BILL
from frameworktax.report import blocks as report_blocks
from frameworktax.report.blocks import Block, Cell, Heading, Item, Items, Note, Notes, Table, Text
from frameworktax.report.words import WORDS, label

STYLES: Mapping[str, str] = WORDS["styles"]
BAR_STYLES = {line: style for line, (*_, style) in WORDS["lines"].items()}
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
Pieces = list[tuple[str, str]]
"""Texts with their styles, one after the other in a line."""


def print_blocks(blocks: Iterable[Block], console: Console, *, full: bool = False) -> None:
    """Print blocks; text from anywhere means nothing to the terminal, and a hint comes once.

    ``full``: folded tables and every note as well.
    """
    page, folded = _Page(console), 0
    hints: set[str] = set()
    for block in blocks:
        match block:
            case Heading():
                style = STYLES.get(block.style, "bold underline" if block.level == 2 else "bold")
                page.paragraph("")
                page.paragraph(block.text, style)
            case Text():
                page.paragraph("")
                page.paragraph(block.text, STYLES.get(block.style, ""))
            case Table() if full or not block.folded:
                _title(block.title, page)
                _table(block, page, hint="" if block.hint in hints else block.hint)
                hints.add(block.hint)
            case Items() if block.items:
                _title(block.title, page)
                _items(block.items if full else block.items[:MOST], page)
                if len(block.items) > MOST and not full:
                    more = f"{len(block.items) - MOST} more: see --verbose, --report or --json"
                    page.paragraph(more, "dim")
            case Notes():
                shown = [n for n in block.notes if full or n.severity != "info"]
                folded += len(block.notes) - len(shown)
                if shown:
                    _title(block.title, page)
                    _notes(shown, page)
    if folded:
        notes = f"{counted(folded, 'note')} on how this was measured"
        page.paragraph("")
        page.paragraph(f"{notes}: see --verbose, --report or --json", "dim")
    page.write()


class _Page:
    """Lines that are written to a console together: rich takes 0.1 ms for one by itself."""

    def __init__(self, console: Console) -> None:
        self.console, self.width = console, console.width
        self.parts: list[RenderableType] = []
        """``Segments``, and what rich lays out."""

    def paragraph(self, text: str, style: str = "") -> None:
        """Add text from anywhere, folded at the width."""
        text = flat(text)
        lines = [text]
        if cell_len(text) > self.width:
            lines = [one.plain for one in Line(text).wrap(self.console, self.width)]
        for line in lines:
            self.line([(line, style)])

    def line(self, pieces: Iterable[tuple[str, str]]) -> None:
        """Add a line that fits."""
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, Segments):
            last = Segments([])
            self.parts.append(last)
        look = self.console.get_style
        last.segments += [Segment(text, look(name) if name else None) for text, name in pieces]
        last.segments.append(Segment.line())

    def write(self) -> None:
        """Write all of it."""
        for part in self.parts:
            if isinstance(part, Segments):
                self.console.print(part, soft_wrap=True, end="")
            else:
                self.console.print(part)


def drawn(block: Table, console: Console) -> RenderableType:
    """Return a table as a renderable that can be part of another, laid out for a console."""
    page = _Page(console)
    page.paragraph(block.title, "bold")
    _table(block, page)
    return Group(*page.parts)


def print_rows(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table of strings."""
    page = _Page(console)
    _table(report_blocks.table("", head, rows), page)
    page.write()


def _title(text: str, page: _Page) -> None:
    page.paragraph("")
    if text:
        page.paragraph(text, "bold")


# --- tables ---------------------------------------------------------------------------------------


def _table(block: Table, page: _Page, *, hint: str = "") -> None:
    """Add a table without its title: in short forms, or in parts, where it is too wide."""
    most = page.width if any(c.short for row in block.rows for c in row) else math.inf
    columns = _columns(block, most)
    is_short = _width(columns) > most
    if is_short:
        columns = _columns(block, short=True)
    for part in _parts(columns, page.width, block.named_by):
        _part(part, page)
    _key(block, is_short, page)
    if hint:
        page.paragraph(hint, "dim")


class _Printed:
    """A column as it is printed: its cells padded, its head folded over lines."""

    def __init__(self, column: report_blocks.Column, cells: Sequence[Cell], short: bool) -> None:
        self.is_right = is_right = column.align == "right"
        self.cells, tags = _padded(cells, is_right, short)
        self.widths = [sum([cell_len(text) for text, _ in cell]) for cell in self.cells]
        self.width = max(self.widths, default=0)
        is_text = not is_right and not any(cell.bar for cell in cells)
        self.folds = is_text and self.width > FOLDED
        room = max(HEAD, self.width)
        title = flat(column.title)
        head = textwrap.wrap(title, room) or [""] if len(title) > room else [title]
        self.width = max(self.width, *map(len, head))
        below = " " * tags if all(len(line) + tags <= self.width for line in head) else ""
        self.head = [
            f"{line}{below}".rjust(self.width) if is_right and line else line for line in head
        ]

    def padded(self, number: int) -> Pieces:
        """Return a cell as wide as the column."""
        space = " " * (self.width - self.widths[number]), ""
        cell = self.cells[number]
        return [space, *cell] if self.is_right else [*cell, space]


def _columns(block: Table, most: float = math.inf, *, short: bool = False) -> list[_Printed]:
    """Return the columns of a table up to the first that makes it wider than ``most``."""
    columns: list[_Printed] = []
    for number, column in enumerate(block.columns):
        columns.append(_Printed(column, [row[number] for row in block.rows], short))
        if _width(columns) > most:
            break
    return columns


def _padded(cells: Sequence[Cell], is_right: bool, short: bool) -> tuple[list[Pieces], int]:
    """Return a column's cells, texts, notes and tags below each other, and the width of tags."""
    parts = [
        (_short(c), "", "") if short and c.short else (flat(c.text), flat(c.note), flat(c.tag))
        for c in cells
    ]
    widths = [max(map(len, column)) for column in zip(*parts, strict=True)] or [0, 0, 0]
    made: list[Pieces] = []
    for cell, (text, note, tag) in zip(cells, parts, strict=True):
        style = STYLES.get(cell.style, "")
        if cell.bar:
            made.append(_bar(cell.bar))
            continue
        if not widths[1] and not widths[2]:
            made.append([(text, style)])
            continue
        own = "" if cell.tag else style
        pieces = [(text.rjust(widths[0]) if is_right else text.ljust(widths[0]), own)]
        if widths[1]:
            pieces.append((f" {note.rjust(widths[1])}", f"{own} dim not bold"))
        if widths[2]:
            pieces += [("  ", own), (tag, f"{own} {style}"), (" " * (widths[2] - len(tag)), own)]
        made.append(pieces)
    return made, widths[2] + 2 * bool(widths[2])


def _short(cell: Cell) -> str:
    # ours are set below each other by their spaces, which ``flat`` would take out
    return cell.short if cell.short.isprintable() else flat(cell.short)


def _bar(bar: Sequence[tuple[str, float]]) -> Pieces:
    line, filled, upto = [], 0, 0.0
    for name, share in bar:
        upto += max(share, 0.0)  # a part below zero has no length, and lengthens the others
        end = min(BAR_WIDTH, round(BAR_WIDTH * upto))
        line.append((LETTERS[name] * (end - filled), BAR_STYLES[name]))
        filled = end
    return line


def _width(columns: Sequence[_Printed]) -> int:
    """Return the least width at which nothing but long text is folded."""
    return sum(FOLDED if c.folds else c.width for c in columns) + GAP * (len(columns) - 1)


def _parts(columns: Sequence[_Printed], width: int, named_by: int) -> list[list[_Printed]]:
    """Return columns in groups that fit, those that name a row in each."""
    names = columns[:named_by]
    parts = [[*names]]
    for column in columns[named_by:]:
        if len(parts[-1]) > len(names) and _width([*parts[-1], column]) > width:
            parts.append([*names])
        parts[-1].append(column)
    return parts


def _part(columns: Sequence[_Printed], page: _Page) -> None:
    """Add columns; rich lays out those of which one is folded, so that they fit the page.

    Where none can be folded a line may be wider: rich would cut numbers off.
    """
    height = max(len(column.head) for column in columns)
    heads = [[""] * (height - len(column.head)) + column.head for column in columns]
    has_head = any(map(any, heads))
    rows = range(len(columns[0].cells))
    is_narrow = sum(c.width for c in columns) + GAP * (len(columns) - 1) <= page.width
    if is_narrow or not any(c.folds for c in columns):
        gap = " " * GAP
        if has_head:
            for line in zip(*heads, strict=True):
                texts = zip(line, columns, strict=True)
                page.line([(gap.join(t + " " * (c.width - cell_len(t)) for t, c in texts), "dim")])
        for row in rows:
            first, *others = (column.padded(row) for column in columns)
            page.line([*first, *chain.from_iterable([(gap, ""), *cell] for cell in others)])
        return
    table = rich_table.Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim", show_header=has_head
    )
    for column, head in zip(columns, heads, strict=True):
        table.add_column(Line("\n".join(head)), no_wrap=not column.folds, overflow="fold")
    for row in rows:
        cells = (c.padded(row) if c.is_right else c.cells[row] for c in columns)
        table.add_row(*(Line.assemble(*cell) for cell in cells))
    page.parts.append(table)


def _key(block: Table, is_short: bool, page: _Page) -> None:
    """Add the letters of bars and short forms; no line is broken between sign and meaning."""
    names = {name for row in block.rows for cell in row for name, _ in cell.bar}
    entries = [(LETTERS[name], label(name), BAR_STYLES[name]) for name in BILL if name in names]
    if is_short:
        entries += [(sign, meaning, "") for sign, meaning in block.key]
    line: Pieces = []
    width = 0
    for sign, meaning, style in entries:
        length = len(sign) + 1 + len(meaning)
        if width and width + GAP + length > page.width:
            page.line(line)
            line, width = [], 0
        elif width:
            line.append((" " * GAP, "dim"))
            width += GAP
        line += [(sign, f"dim {style}"), (f" {meaning}", "dim")]
        width += length
    if entries:
        page.line(line)


# --- lists ----------------------------------------------------------------------------------------


def _items(items: Sequence[Item], page: _Page) -> None:
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
        _row(lead if beside else Line("•"), text, width, page)


def _notes(notes: Sequence[Note], page: _Page) -> None:
    for note in notes:
        style = "yellow" if note.severity == "warning" else "dim"
        line = Line(f"{flat(note.who)}: " if note.who else "", style=style)
        _row(Line("•", style=style), line.append(flat(note.text), style="default"), 1, page)


def _row(lead: Line, text: Line, width: int, page: _Page) -> None:
    grid = rich_table.Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=width, justify="right")
    grid.add_column()
    grid.add_row(lead, text)
    page.parts.append(grid)
