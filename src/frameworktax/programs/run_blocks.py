"""A program that was run and observed, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.where import OUTSIDE, Where, where
from frameworktax.programs.run_document import Kind, Program, Section
from frameworktax.records import SourceLine
from frameworktax.report.blocks import (
    Block,
    Cell,
    Heading,
    Item,
    Items,
    Note,
    Notes,
    Table,
    right,
    table,
)
from frameworktax.report.run_blocks import environment_blocks, place_table, share_cell
from frameworktax.report.words import (
    has_interval,
    lines_of,
    milliseconds,
    percent,
    plus_minus,
    time_text,
)

CALLS = ("module", "backward", "step")
BETWEEN = {"data": "waiting for data", "tokenise": "tokenising"}
SHOWN = 4
"""Threads with calls, and modules whose layers are shown, that a terminal shows."""
FEW = 50
"""Samples placed in layers below which a terminal does not show them."""
LINES = 8
BUSIEST = 6
BUSY = 0.01
"""Share of the program's processor time from which a thread without calls is named."""


def program_blocks(program: Program) -> list[Block]:
    """Return the whole document: the answer first."""
    found: list[Block] = [Heading(program.headline, 1)]
    calling = [section for section in program.sections if section.kinds]
    layered = 0
    for number, section in enumerate(calling):
        folded = number >= SHOWN
        if len(calling) > 1 and not folded:
            found.append(Heading(title(section)))
        elif number == SHOWN:
            found.append(Heading(f"{len(calling) - SHOWN} more threads with calls"))
        suffix = f": {title(section)}" if folded else ""
        found += [_calls(section, suffix, folded=folded)]
        for kind in section.kinds:
            places = where(kind.layers)
            if places:
                # A few samples say little of each layer.
                is_few = kind.placed < FEW
                layered += not is_few
                fold = folded or is_few or layered > SHOWN
                found.append(place_table(kind.name, list(map(_named, places)), folded=fold))
            if kind.lines:
                found.append(_lines(f"Lines of Python: {kind.name}", kind.lines, folded=folded))
        found.append(_between(section, suffix, folded=folded))
        if section.lines:
            title_ = f"Lines of Python between calls{suffix}"
            found.append(_lines(title_, section.lines, folded=folded))
    found += _others([section for section in program.sections if not section.kinds], program)
    steps = [Item("", said) for text, commands in program.advice for said in (text, *commands)]
    found.append(Items("What to do", tuple(steps)))
    found += _notes(program)
    return [*found, *environment_blocks(program.environment)]


def title(section: Section) -> str:
    """Return how a thread is called."""
    name = f" ({section.name})" if section.name else ""
    main = section.pid == section.tid
    return f"Process {section.pid}" + ("" if main else f", thread {section.tid}") + name


def _calls(section: Section, suffix: str, *, folded: bool) -> Table:
    kinds = [kind for kind in section.kinds if kind.kind in CALLS]
    return table(
        f"Calls, ms{suffix}",
        [
            "kind", right("calls"), right("p50"), right("p90"), right("p99"),
            right("time"), right("tax"), "breakdown",
        ],
        [
            (
                Cell(kind.name, note=kind.called_from, short=kind.name),
                f"{kind.calls:,}",
                milliseconds(kind.p50_ns),
                milliseconds(kind.p90_ns),
                milliseconds(kind.p99_ns),
                time_text(kind.wall_ns),
                share_cell(kind.tax_share),
                _breakdown(kind),
            )
            for kind in kinds
        ],
        hint="tax: share of the calls' time that is not spent in math kernels; its interval is "
        "over stretches of consecutive calls of this run, and says nothing of another run",
        folded=folded,
    )  # fmt: skip


def _named(place: Where) -> Where:
    """Return a place; what no layer has is not outside: samples do not show where a call waits."""
    return replace(place, name="in no layer") if place.name == OUTSIDE else place


def _breakdown(kind: Kind) -> Cell:
    total = kind.latency_ns.value if kind.latency_ns else 0.0
    bar = tuple((name, ns / total) for name, ns in lines_of(kind.bill_ns)) if total else ()
    return Cell("" if bar else "–", bar=bar)


def _between(section: Section, suffix: str, *, folded: bool) -> Table:
    whole = section.wall_ns or 1
    rows: list[tuple[Cell | str, ...]] = [
        (
            f"{BETWEEN[kind.kind]}: {kind.name}",
            f"{kind.calls:,}",
            milliseconds(kind.p50_ns),
            time_text(kind.wall_ns),
            percent(kind.wall_ns / whole),
        )
        for kind in section.kinds
        if kind.kind in BETWEEN
    ]
    rows += [
        (part.name, "", "", time_text(part.time_ns), percent(part.share))
        for part in section.between
    ]
    begin = f"; the first call began {time_text(section.before_ns)} after the start"
    return table(
        f"Between calls{suffix}",
        ["where", right("number"), right("p50, ms"), right("time"), right("share")],
        rows,
        hint=f"of {time_text(section.wall_ns)} from the first call to the last{begin}",
        folded=folded,
    )


def _lines(name: str, lines: Sequence[SourceLine], *, folded: bool) -> Table:
    return table(
        name,
        ["line", "function", right("ms")],
        [
            (
                Cell(f"{one.file}:{one.line}".rpartition("/")[2], exact=f"{one.file}:{one.line}"),
                one.function.rpartition(".")[2],
                Cell(
                    milliseconds(one.time_ns.value),
                    note=plus_minus(one.time_ns) if has_interval(one.time_ns) else "",
                ),
            )
            for one in lines[:LINES]
        ],
        folded=folded,
    )


def _others(sections: Sequence[Section], program: Program) -> list[Block]:
    """Return threads without calls that used the processor."""
    whole = program.cpu_ns or 0
    busy = [section for section in sections if section.cpu_ns > BUSY * whole]
    if not busy:
        return []
    busy.sort(key=lambda section: -section.cpu_ns)
    busy, rest = busy[:BUSIEST], busy[BUSIEST:]
    more = f"; {len(rest)} more are in the document" if rest else ""
    return [
        table(
            "Threads and processes without calls",
            ["thread", right("CPU time"), right("share"), "where"],
            [
                (
                    title(section),
                    time_text(section.cpu_ns),
                    percent(section.cpu_ns / whole),
                    ", ".join(
                        f"{part.name} {percent(part.time_ns / section.cpu_ns)}"
                        for part in section.between[:3]
                    ),
                )
                for section in busy
            ],
            hint=f"share: of the CPU time of all{more}",
        )
    ]


def _notes(program: Program) -> list[Block]:
    notes = [Note(note.code, note.text) for note in program.notes]
    for section in program.sections:
        for kind in section.kinds:
            notes += [Note(note.code, note.text, kind.name) for note in kind.notes]
            if kind.reason is not None:
                notes.append(Note("no-tax", kind.reason, kind.name, "warning"))
    return [Notes("Notes", tuple(dict.fromkeys(notes)))] if notes else []
