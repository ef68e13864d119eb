"""Blocks as Markdown; text from anywhere starts no markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from frameworktax.errors import flat
from frameworktax.report.blocks import Block, Cell, Chart, Heading, Item, Items, Notes, Table, Text
from frameworktax.report.words import label, percent

LEAST = 0.005
"""Share from which a part of a bar is named; all of them stand in a table of their own."""
STARTS = re.compile(r"^(\d*)(#{1,6} |[-+] |>|[.)] |~~~)")
"""What begins a heading, an item of a list, a quotation or code where a line begins with it."""
EMPHASISED = ("strong", "bad")
"""Styles of text in bold type."""


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown that ends with a line break."""
    parts = [part for block in blocks for part in _parts(block) if part]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text that stays one cell of a table and starts no markup."""
    line = flat(text)
    for sign in ("\\", "|", "`", "*", "_", "["):
        line = line.replace(sign, f"\\{sign}")
    line = STARTS.sub(r"\1\\\2", line)
    # as entities: not every renderer takes a backslash before them
    return line.replace("&", "&amp;").replace("<", "&lt;")


def _parts(block: Block) -> list[str]:
    match block:
        case Heading():
            return [f"{'#' * block.level} {escape(block.text)}"]
        case Text():
            return [escape(block.text)]
        case Table():
            return [_bold(block.title), _table(block), escape(block.hint)]
        case Chart():
            return [f"![{escape(block.title)}]({block.file})" if block.file else ""]
        case Items():
            return [_bold(block.title), "\n".join(map(_item, block.items))] if block.items else []
        case Notes():
            lines = [
                f"- {escape(f'{note.who}: {note.text}' if note.who else note.text)}"
                for note in block.notes
            ]
            return [_bold(block.title), "\n".join(lines)] if lines else []


def _item(item: Item) -> str:
    parts = [f"**{escape(item.lead)}**:" if item.lead else "", escape(item.text)]
    parts += [f"({escape(item.detail)})"] if item.detail else []
    return "- " + " ".join(part for part in parts if part)


def _bold(title: str) -> str:
    return f"**{escape(title)}**" if title else ""


def _table(block: Table) -> str:
    head = [escape(column.title) for column in block.columns]
    rule = ["---:" if column.align == "right" else "---" for column in block.columns]
    rows = [[_cell(cell) for cell in row] for row in block.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _cell(cell: Cell) -> str:
    if cell.bar:
        parts = [f"{label(name)} {percent(share)}" for name, share in cell.bar if share >= LEAST]
        return escape(", ".join(parts))
    text = escape(cell.exact or f"{cell.text} {cell.note}".rstrip())
    if cell.link:
        text = f"[{text}]({cell.link})"
    tag = escape(cell.tag)
    if cell.style in EMPHASISED:
        text, tag = (f"{text}", f"**{tag}**") if tag else (f"**{text}**", "")
    return f"{text}, {tag}" if tag else text
