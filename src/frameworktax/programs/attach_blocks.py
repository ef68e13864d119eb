"""A process that was attached to, as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from frameworktax.errors import flat
from frameworktax.programs.attach_document import Function, Process, Program, Section
from frameworktax.report.blocks import (
    Block,
    Cell,
    Heading,
    Note,
    Notes,
    Table,
    Text,
    right,
    table,
)
from frameworktax.report.run_blocks import environment_blocks, share_cell
from frameworktax.report.words import label, lines_of, percent, time_text

T = TypeVar("T")

SHOWN = 10
"""Rows of a table that a terminal shows without ``--verbose``; a page has the others folded."""
MOST = 200
"""Rows that a page has; the document has all."""
SYMBOL_WIDTH = 50
READING = (
    "processor: 100 % is one processor all the time; tax: share of processor time outside math "
    "kernels, its interval over stretches of this observation. What a thread waits is no tax"
)


def attach_blocks(program: Program) -> list[Block]:
    """Return the whole document: the answer first."""
    found: list[Block] = [Heading(program.headline, 1)]
    several = len(program.processes) > 1
    for process in program.processes:
        if several:
            found.append(Heading(f"Process {process.pid}: {_command(process)}"))
        found += [Text(load(process)), *process_blocks(process, program.sections)]
    notes = [
        Note(note.code, note.text, f"process {process.pid}" if several else "", "warning")
        for process in program.processes
        for note in process.notes
    ]
    notes += [Note(note.code, note.text) for note in program.notes]
    if program.observer_cpu_ns is not None:
        text = f"Observing took {time_text(program.observer_cpu_ns)} of processor time elsewhere."
        found.append(Text(text, style="dim"))
    return [*found, Notes("Notes", tuple(notes)), *environment_blocks(program.environment)]


def load(process: Process) -> str:
    """Return how much of the time the process ran, in a sentence."""
    wall = process.wall_ns or 1
    least, most = (percent(ns / wall) for ns in process.idle_ns)
    idle = least if least == most else f"{least} to {most}"
    return f"{percent(process.cpu_ns / wall)} of a processor; idle for {idle} of the time"


def process_blocks(process: Process, sections: Sequence[Section]) -> list[Block]:
    """Return the tables of one process."""
    threads = [one for one in sections if one.pid == process.pid and one.cpu_ns > 0]
    symbols = process.symbols_ns

    def places(title: str, rows: Sequence[tuple[str, str, str, float]], *, folded: bool) -> Table:
        return place_table(title, rows, process.cpu_ns, folded=folded)

    return [
        *_parts("Threads", threads, thread_table),
        *_parts("Where the tax is", [one for one in symbols if one[0] != "kernel"], places),
        *_parts("Functions of Python", process.functions, function_table),
        *_parts("Kernels", [one for one in symbols if one[0] == "kernel"], places, shown=0),
    ]


def _parts(
    title: str, rows: Sequence[T], made: Callable[..., Table], shown: int = SHOWN
) -> list[Table]:
    """Return a table of the first rows and a folded one of those that follow."""
    first, rest = rows[:shown], rows[shown:MOST]
    more = f"{title}: the others" if first else title
    tables = [made(title, first, folded=False)] if first else []
    return [*tables, *([made(more, rest, folded=True)] if rest else [])]


def thread_table(title: str, threads: Sequence[Section], *, folded: bool = False) -> Table:
    """Return how much each thread runs, and what of that is tax."""
    return table(
        title,
        ["thread", right("processor"), right("time"), right("tax"), "breakdown"],
        [
            (
                one.name if one.tid is None else f"{one.tid} {one.name}",
                percent(one.cpu_ns / one.wall_ns) if one.wall_ns else "–",
                time_text(one.cpu_ns),
                share_cell(one.tax_share),
                _breakdown(one),
            )
            for one in threads
        ],
        hint=READING,
        folded=folded,
    )


def place_table(
    title: str,
    rows: Sequence[tuple[str, str, str, float]],
    cpu_ns: int,
    *,
    folded: bool = False,
) -> Table:
    """Return places in native code, with their share of the processor time."""
    return table(
        title,
        ["part", "library", "symbol", right("share")],
        [
            (
                label(line),
                library,
                Cell(_cut(symbol) or "–", exact=symbol or "–"),
                f"{100 * ns / cpu_ns:.1f} %",
            )
            for line, library, symbol, ns in rows
        ],
        hint="share: of the processor time of the process",
        folded=folded,
    )


def function_table(title: str, functions: Sequence[Function], *, folded: bool = False) -> Table:
    """Return functions of Python by their own samples."""
    return table(
        title,
        ["function", "file", right("own samples"), right("with called")],
        [
            (
                _cut(one.name),
                Cell("/".join(PurePosixPath(one.file).parts[-2:]), exact=one.file),
                f"{one.own:,}",
                f"{one.total:,}",
            )
            for one in functions
        ],
        hint="own: in it or in native code that it called; from py-spy, 10 times a second, of "
        "threads that were running",
        folded=folded,
    )


def _breakdown(section: Section) -> Cell:
    bar = tuple((name, ns / section.cpu_ns) for name, ns in lines_of(section.bill_ns))
    return Cell("" if bar else "–", bar=bar)


def _cut(symbol: str) -> str:
    text = flat(symbol)
    return text if len(text) <= SYMBOL_WIDTH else f"{text[: SYMBOL_WIDTH - 1]}…"


def _command(process: Process) -> str:
    return _cut(" ".join(process.command))


def collapsed(program: Program) -> str:
    """Return a line a stack, for flame graph tools and speedscope, and ns of processor time.

    From the process over the line of the breakdown to library and symbol.
    """
    return "".join(
        ";".join(flat(part).replace(";", ":") for part in (name, label(line), library, symbol))
        + f" {round(ns)}\n"
        for process in program.processes
        for name in [f"process {process.pid}"]
        for line, library, symbol, ns in process.symbols_ns
        if ns > 0  # missing ticks can make the operating system's part negative
    )
