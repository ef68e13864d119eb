"""A program that was run or attached to, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.where import OUTSIDE, Where, where
from frameworktax.errors import counted, cut
from frameworktax.programs.document import CALLS, Function, Kind, Process, Program, Section
from frameworktax.report.blocks import (
    Block,
    Cell,
    Column,
    Heading,
    Item,
    Items,
    Note,
    Notes,
    Table,
    Text,
    listed,
    right,
    table,
)
from frameworktax.report.run_blocks import bar_cell, environment_blocks, place_table, share_cell
from frameworktax.report.stacks import text_of
from frameworktax.report.words import label, milliseconds, percent, time_text

MISSING = ("no-calls", "calls-not-noted", "threads-not-sampled", "unseen-processes")
"""Notes on why numbers are missing."""
BETWEEN = {"data": "waiting for data", "tokenise": "tokenising"}
CALLING = 4
"""Threads with calls, and modules whose layers are shown, that a terminal shows."""
FEW = 50
"""Samples placed in layers below which a terminal does not show them."""
BUSIEST = 6
BUSY = 0.01
"""Share of the program's processor time from which a thread without calls is named."""
NAMED = 3
"""Kinds of calls that a note names."""
SHOWN = 10
"""Rows of a table that a terminal shows without ``--verbose``; a page has the others folded."""
MOST = 200
"""Rows that a page has; the document has all."""
SYMBOL_WIDTH = 50
READING = (
    "processor: 100 % is one processor all the time; tax: share of processor time outside math "
    "kernels, its interval over stretches of this observation. What a thread waits is no tax"
)


def program_blocks(program: Program) -> list[Block]:
    """Return the whole document: the answer first."""
    found: list[Block] = [Heading(program.headline, 1)]
    for process in program.processes:
        if len(program.processes) > 1:
            command = cut(" ".join(process.command), SYMBOL_WIDTH)
            found.append(Heading(f"Process {process.pid}: {command}"))
        found += [Text(load(process)), *_process(process, program.sections)]
    found += _calling([section for section in program.sections if section.kinds])
    found += _others([section for section in program.sections if section.between], program)
    steps = [Item("", said) for text, commands in program.advice for said in (text, *commands)]
    if steps:
        found.append(Items("What to do", tuple(steps)))
    if program.observer_cpu_ns is not None:
        part = percent(program.observer_cpu_ns / (program.wall_ns or 1))
        text = f"Observing took {time_text(program.observer_cpu_ns)} of processor time elsewhere, "
        text += f"{part} of a processor."
        found.append(Text(text, style="dim"))
    notes = Notes("Notes", tuple(dict.fromkeys(_notes(program))))
    return [*found, notes, *environment_blocks(program.environment)]


def _notes(program: Program) -> list[Note]:
    notes = [
        Note(note.code, note.text, "", "warning" if note.code in MISSING else "info")
        for note in program.notes
    ]
    several = len(program.processes) > 1
    for process in program.processes:
        subject = f"process {process.pid}" if several else ""
        notes += [Note(note.code, note.text, subject, "warning") for note in process.notes]
    of_kinds: dict[Note, dict[str, None]] = {}
    for kind in (kind for section in program.sections for kind in section.kinds):
        said = [Note(note.code, note.text) for note in kind.notes]
        if kind.reason is not None:
            said.append(Note("no-tax", kind.reason, severity="warning"))
        for note in said:
            of_kinds.setdefault(note, {})[kind.name] = None
    for note, names in of_kinds.items():
        who = ", ".join(list(names)[:NAMED])
        more = len(names) - NAMED
        notes.append(replace(note, who=f"{who} and {more:,} more" if more > 0 else who))
    return notes


# --- a process that was attached to ---------------------------------------------------------------


def load(process: Process) -> str:
    """Return how much of the time the process ran, in a sentence."""
    text = f"{percent(process.cpu_ns / (process.wall_ns or 1))} of a processor"
    return text + "; it has ended" if process.ended else text


def _process(process: Process, sections: Sequence[Section]) -> list[Table]:
    threads = [one for one in sections if one.pid == process.pid and one.cpu_ns > 0]
    tax = [one for one in process.symbols_ns if one[0] != "kernel"]
    kernels = [one for one in process.symbols_ns if one[0] == "kernel"]
    return [
        *_parts(thread_table("Threads", threads)),
        *_parts(symbol_table("Where the tax is", tax, process.cpu_ns)),
        *_parts(_function_table(process.functions)),
        *_parts(symbol_table("Kernels", kernels, process.cpu_ns), shown=0),
    ]


def _parts(whole: Table, shown: int = SHOWN) -> list[Table]:
    """Return a table of the first rows and a folded one of those that follow."""
    first, rest = whole.rows[:shown], whole.rows[shown:MOST]
    more = f"{whole.title}: the others" if first else whole.title
    parts = replace(whole, rows=first), replace(whole, title=more, rows=rest, folded=True)
    return [part for part in parts if part.rows]


def thread_table(title: str, threads: Sequence[Section]) -> Table:
    """Return how much each thread runs, and what of that is tax."""
    return listed(
        title,
        threads,
        {
            Column("thread"): lambda t: f"{t.tid} {t.name}",
            right("processor"): lambda t: percent(t.cpu_ns / t.wall_ns if t.wall_ns else None),
            right("time"): lambda t: time_text(t.cpu_ns),
            right("tax"): lambda t: share_cell(t.tax_share),
            Column("breakdown"): lambda t: bar_cell(t.bill_ns, t.cpu_ns),
        },
        hint=READING,
    )


def symbol_table(title: str, rows: Sequence[tuple[str, str, str, float]], cpu_ns: int) -> Table:
    """Return places in native code, with their share of the processor time."""
    return table(
        title,
        ["part", "library", "symbol", right("share")],
        [
            (
                label(line),
                library,
                Cell(cut(symbol, SYMBOL_WIDTH) or "–", exact=symbol or "–"),
                f"{100 * ns / (cpu_ns or 1):.1f} %",
            )
            for line, library, symbol, ns in rows
        ],
        hint="share: of the processor time of the process",
    )


def _function_table(functions: Sequence[Function]) -> Table:
    """Return functions of Python by their own samples."""
    return listed(
        "Functions of Python",
        functions,
        {
            Column("function"): lambda f: cut(f.name, SYMBOL_WIDTH),
            Column("file"): lambda f: Cell("/".join(f.file.split("/")[-2:]), exact=f.file),
            right("own samples"): lambda f: f"{f.own:,}",
            right("with called"): lambda f: f"{f.total:,}",
        },
        hint="own: in it or in native code that it called; from py-spy, 10 times a second or "
        "less, of threads that were running",
    )


def collapsed(program: Program) -> str:
    """Return a line a stack, for flame graph tools and speedscope, and ns of processor time.

    From the process over the line of the breakdown to library and symbol.
    """
    return text_of(
        ((f"process {process.pid}", label(line), library, symbol), ns)
        for process in program.processes
        for line, library, symbol, ns in process.symbols_ns
        if ns > 0  # missing ticks can make the operating system's part negative
    )


# --- threads that called modules, and others of a run ---------------------------------------------


def _calling(sections: Sequence[Section]) -> list[Block]:
    found: list[Block] = []
    layered = 0
    for number, section in enumerate(sections):
        folded = number >= CALLING
        if len(sections) > 1 and not folded:
            found.append(Heading(_title(section)))
        elif number == CALLING:
            found.append(Heading(f"{len(sections) - CALLING} more threads with calls"))
        suffix = f": {_title(section)}" if folded else ""
        calls = _calls(section, suffix, folded)
        found += [replace(calls, rows=calls.rows[:MOST])] if folded else _parts(calls)
        for kind in section.kinds:
            places = where(kind.layers)
            if places:
                # A few samples say little of each layer.
                is_few = kind.placed < FEW
                layered += not is_few
                fold = folded or is_few or layered > CALLING
                found.append(place_table(kind.name, list(map(_named, places)), folded=fold))
        found.append(_between(section, suffix, folded))
    return found


def _title(section: Section) -> str:
    name = f" ({section.name})" if section.name else ""
    main = section.tid in (section.pid, None)
    return f"Process {section.pid}" + ("" if main else f", thread {section.tid}") + name


def _calls(section: Section, suffix: str, folded: bool) -> Table:
    kinds = [kind for kind in section.kinds if kind.kind in CALLS]
    rest = 0 if folded else len(kinds) - SHOWN
    more = (
        f". {rest:,} more kinds: with --verbose, in a page or in the document" if rest > 0 else ""
    )
    return listed(
        f"Calls, ms{suffix}",
        kinds,
        {
            Column("kind"): lambda k: Cell(_copies(k), note=k.called_from, short=_copies(k)),
            right("calls"): lambda k: f"{k.calls - k.skipped:,}",
            right("p50"): lambda k: milliseconds(k.p50_ns),
            right("p90"): lambda k: milliseconds(k.p90_ns),
            right("p99"): lambda k: milliseconds(k.p99_ns),
            right("time"): lambda k: time_text(k.wall_ns),
            right("tax"): lambda k: share_cell(k.tax_share),
            Column("breakdown"): lambda k: bar_cell(
                k.bill_ns, k.latency_ns.value if k.latency_ns else 0.0
            ),
        },
        hint="tax: share of the calls' time that is not spent in math kernels; its interval is "
        f"over stretches of consecutive calls of this run, and says nothing of another run{more}",
        folded=folded,
    )


def _copies(kind: Kind) -> str:
    return f"{kind.name}, {kind.modules:,} modules" if kind.modules > 1 else kind.name


def _named(place: Where) -> Where:
    """Return a place; what no layer has is not outside: samples do not show where a call waits."""
    return replace(place, name="in no layer") if place.name == OUTSIDE else place


def _between(section: Section, suffix: str, folded: bool) -> Table:
    whole = section.wall_ns or 1
    rows: list[tuple[Cell | str, ...]] = [
        (
            f"{BETWEEN[kind.kind]}: {kind.name}",
            f"{kind.calls - kind.skipped:,}",
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
    hidden = f"; --only leaves {counted(section.hidden, 'kind')} out" if section.hidden else ""
    return table(
        f"Between calls{suffix}",
        ["where", right("number"), right("p50, ms"), right("time"), right("share")],
        rows,
        hint=f"of {time_text(section.wall_ns)} from the first call to the last{hidden}",
        folded=folded,
    )


def _others(sections: Sequence[Section], program: Program) -> list[Block]:
    """Return threads of a run without calls that used the processor."""
    whole = program.cpu_ns or 0
    without = [one for one in sections if not one.kinds and not one.hidden]
    busy = [one for one in without if one.cpu_ns > BUSY * whole]
    if not busy:
        return []
    busy.sort(key=lambda section: -section.cpu_ns)
    busy, rest = busy[:BUSIEST], busy[BUSIEST:]
    more = f"; {len(rest)} more are in the document" if rest else ""
    return [
        listed(
            "Threads and processes without calls",
            busy,
            {
                Column("thread"): _title,
                right("CPU time"): lambda s: time_text(s.cpu_ns),
                right("share"): lambda s: percent(s.cpu_ns / whole),
                Column("where"): lambda s: ", ".join(
                    f"{part.name} {percent(part.time_ns / s.cpu_ns)}"
                    for part in s.between[:-1][:3]  # the last is no CPU time
                ),
            },
            hint=f"share: of the CPU time of all{more}",
        )
    ]
