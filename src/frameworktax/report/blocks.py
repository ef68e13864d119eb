"""What a document looks like, before it is rendered: a list of six kinds of blocks.

Every kind of document (a run, a comparison, a trace, predictions, an ablation, a reproduction) is
one function that returns blocks; the renderers (``render_terminal``, ``render_markdown``, and the
template of the HTML page) know blocks only, and nothing of documents. So

- all text in blocks is plain text from anywhere: each renderer escapes it for its format;
- styles are words with a meaning, and each renderer has one table of how it shows them: the
  regimes (``framework-bound``, ``compute-bound``, ``memory-bound``, ``mixed``, ``kernel-flat``),
  the verdicts (``slower``, ``faster``, ``same``, ``cannot tell``), outputs (``equal``,
  ``differs``, ``unproven``), and ``strong``, ``dim``, ``good``, ``bad``, ``warning``. A style that
  a renderer does not know is shown as plain text;
- a renderer leaves out what it cannot show: the terminal shows no ``Chart``, and shows a cell's
  ``short`` form where a table would be wider than the page; Markdown shows a cell's ``exact`` form
  and no bar; HTML has room for all of them.

``table`` builds a ``Table`` of strings and cells, ``listed`` one whose rows are things of one kind,
``right`` a column of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Severity = Literal["info", "warning"]
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A title; level 1 once a document, 2 for a section, 3 within it.

    Attributes:
        text: the title.
        level: from 1 to 3.
        style: of its text; ``bad`` where the answer is a failure.
        anchor: where links of the same page lead; the one that Markdown derives from the text.
    """

    text: str
    level: int = 2
    style: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it says, ``–`` where nothing is known.
        style: of ``tag`` if there is one, else of the text.
        note: said after the text, less loudly: an interval's half-width.
        tag: a word after both, in the style: a regime.
        short: instead of text, note and tag where the table would be wider than the page.
        exact: instead of text and note where there is room: the interval's ends.
        bar: (line of ``BILL``, share of the whole bar) of a stacked bar, drawn instead of the text;
            a share below zero has no length.
        link: where the text leads: a URL, or ``#`` and an anchor of the same page.
    """

    text: str
    style: str = ""
    note: str = ""
    tag: str = ""
    short: str = ""
    exact: str = ""
    bar: tuple[tuple[str, float], ...] = ()
    link: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head, in words that a newcomer knows, and its alignment."""

    title: str
    align: Align = "left"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cells of a row name the row.

    Attributes:
        title: what it shows, above it.
        columns: heads and alignment.
        rows: as many cells each as there are columns.
        hint: how to read it, below it.
        key: (letter or sign, meaning) of the short forms; shown where these are.
        folded: whether a page shows it folded; a terminal shows it with ``--verbose`` only.
        named_by: how many cells name a row; they are in each part of a table that is too wide.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    hint: str = ""
    key: tuple[tuple[str, str], ...] = ()
    folded: bool = False
    named_by: int = 1


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture.

    Attributes:
        title: what it shows, as heading and alternative text.
        spec: a Vega-Lite specification.
        file: where the picture lies for formats that link to pictures (Markdown).
    """

    title: str
    spec: dict[str, Any] | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list that is part of the answer: advice, a prediction, what was not measured.

    Attributes:
        lead: what it begins with, in the style: a gain, a name; may be empty.
        text: what it says, after a colon where the lead is a name.
        detail: said below, less loudly: evidence.
        style: of the lead.
    """

    lead: str
    text: str
    detail: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list whose entries are part of the answer."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """What to know about the numbers.

    Attributes:
        code: its kind, as in the document.
        text: what it says.
        who: the points that it is said of.
        severity: ``info`` is folded where space is short; what changes the answer is not.
    """

    code: str
    text: str
    who: str = ""
    severity: Severity = "info"


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes that belong together."""

    title: str
    notes: tuple[Note, ...]


Block = Heading | Text | Table | Chart | Items | Notes


def right(title: str) -> Column:
    """Return a column of numbers."""
    return Column(title, "right")


def table(
    title: str,
    columns: Iterable[Column | str],
    rows: Iterable[Sequence[Cell | str]],
    *,
    hint: str = "",
    key: Iterable[tuple[str, str]] = (),
    folded: bool = False,
    named_by: int = 1,
) -> Table:
    """Return a table; a string stands for a cell of plain text, or for a column aligned left."""
    return Table(
        title=title,
        columns=tuple(Column(c) if isinstance(c, str) else c for c in columns),
        rows=tuple(tuple(Cell(c) if isinstance(c, str) else c for c in row) for row in rows),
        hint=hint,
        key=tuple(key),
        folded=folded,
        named_by=named_by,
    )


def listed(
    title: str,
    things: Iterable[T],
    columns: Mapping[Column | str, Callable[[T], Cell | str]],
    **more: Any,
) -> Table:
    """Return a table with a row a thing; ``columns``: head → the cell of a thing under it."""
    rows = [[cell(thing) for cell in columns.values()] for thing in things]
    return table(title, list(columns), rows, **more)
