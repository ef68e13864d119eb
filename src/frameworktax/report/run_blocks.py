"""A run as blocks: its answer, each family's latencies and breakdown, advice, trust."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from frameworktax.analysis.estimates import scaled, times, times_range
from frameworktax.analysis.where import MOST, OperatorSum, Where, by_operator, most_of, where
from frameworktax.records import (
    BILL,
    Advice,
    Curve,
    Environment,
    Estimate,
    Measurement,
    OwnTax,
    Run,
    SourceLine,
)
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
    right,
    table,
)
from frameworktax.report.families import Family, families, latency_of
from frameworktax.report.trace_blocks import prediction_blocks, trace_blocks
from frameworktax.report.words import (
    REGIME_MARKS,
    TWIN,
    duration,
    has_interval,
    interval,
    is_reference,
    label,
    lines_of,
    milliseconds,
    parity_mark,
    parity_words,
    percent,
    plus_minus,
    points_text,
    size_text,
    time_text,
)

CHANGING = frozenset(
    {
        *("calls-not-blocks", "clock-jump", "last-try-failed", "no-interval", "not-ranked"),
        *("own-environment", "process-lost", "quantised-reference", "samples-lost"),
    }
)
"""Codes of a point's notes that change the answer, or how far it may be believed."""
REUSED = "set-up-reused"
OUTSIDE_OPERATORS = "outside operators"
PATH = 24
"""Width to which the path of a layer is cut at its head where space is short."""
OUTPUTS = {
    "=": ("equal", "equal", "outputs equal eager's"),
    "≠": ("differs", "different", "outputs differ from eager's"),
    "?": ("unproven", "not compared", "outputs not compared with eager's"),
}
"""Mark of the outputs against eager's → style of the cell, its text, what the mark means."""
NONE = "–"


def run_blocks(run: Run) -> list[Block]:
    """Return the whole document: the answer first, what to know about it last."""
    blocks: list[Block] = [Heading(run.headline, 1)]
    found = families(run)
    for family in found:
        blocks.append(Heading(family.title))
        blocks += result_blocks(family)
    blocks += trace_blocks(run.trace)
    blocks += advice_blocks(run.advice)
    blocks += prediction_blocks(run.predictions)
    blocks += [notes_of(family, named=len(found) > 1) for family in found]
    blocks += session_blocks(run)
    return [*blocks, *effort_blocks(run.own_tax), *environment_blocks(run.environment)]


def result_blocks(family: Family) -> list[Block]:
    """Return a family's results: latencies, breakdown, what else is known, what is missing."""
    blocks: list[Block] = []
    if family.measured:
        blocks += [one for make in FIRST if (one := make(family)) is not None]
        blocks += [*places(family), *operators(family), *source_lines(family)]
        blocks += [one for make in FURTHER if (one := make(family)) is not None]
    return [*blocks, *not_measured(family)]


# --- latencies ------------------------------------------------------------------------------------


def latencies(family: Family) -> Table:
    """Return the latency of each runtime at each batch size, with the regime."""
    batches, curves = family.batches, {r: family.curve(r) for r in family.runtimes}
    has_free = any(c is not None and c.free_batch is not None for c in curves.values())
    has_outputs = any(m.parity is not None for m in family.measured)
    columns: list[Column] = [Column("runtime"), *(right(f"batch {b}") for b in batches)]
    columns += [right("free up to batch")] if has_free else []
    columns += [Column("outputs")] if has_outputs else []
    rows = [
        [
            Cell(runtime),
            *(_latency(family.at(runtime, batch)) for batch in batches),
            *([_free(family, runtime)] if has_free else []),
            *([_outputs(family, runtime)] if has_outputs else []),
        ]
        for runtime in family.runtimes
    ]
    regimes = {m.regime for m in family.measured}
    marks = {parity_mark(m) for m in family.measured} if has_outputs else set()
    return table(
        "Latency of one call, ms (± half of its 95 % interval)",
        columns,
        rows,
        hint="free: up to this batch size a call takes at most 10 % longer than at batch 1"
        if has_free
        else "",
        key=(
            *((mark, regime) for regime, mark in REGIME_MARKS.items() if regime in regimes),
            *((mark, meaning) for mark, (_, _, meaning) in OUTPUTS.items() if mark in marks),
        ),
    )


def _latency(m: Measurement | None) -> Cell:
    if m is None or m.latency_ns is None:
        return Cell(NONE, style="dim")
    whole, regime = _estimate(m.latency_ns), m.regime or ""
    tight = f" {whole.note.replace(' ', ''):>4}" if whole.note else ""
    brief = f"{milliseconds(m.latency_ns.value)}{tight} {REGIME_MARKS.get(regime, ' ')}"
    return replace(whole, style=regime, tag=regime, short=brief)


def _estimate(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell(NONE, style="dim")
    return Cell(time_text(estimate.value), note=plus_minus(estimate), exact=interval(estimate))


def _free(family: Family, runtime: str) -> Cell:
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None:
        return Cell(NONE, style="dim")
    text, ends = free_text(curve)
    least = text.partition(" ")[0] + " " if curve.free_is_lower_bound else ""
    whole = math.floor(curve.free_batch.value + 1e-9)
    return Cell(f"{least}{whole}", exact=f"{text}{f' ({ends})' if ends else ''}")


def free_text(curve: Curve, digits: str = ".3g") -> tuple[str, str]:
    """Return a free batch size, ``≥`` before a lower bound, and the ends of its interval."""
    if curve.free_batch is None:
        return NONE, ""
    free, least = curve.free_batch, "≥ " if curve.free_is_lower_bound else ""
    ends = f"{free.low:{digits}} to {free.high:{digits}}" if has_interval(free) else ""
    return f"{least}{free.value:{digits}}", ends


def _outputs(family: Family, runtime: str) -> Cell:
    m = next(m for m in family.measured if m.runtime == runtime)
    if is_reference(m):
        return Cell("reference", style="dim", short=" ")
    mark = parity_mark(m)
    style, text, _ = OUTPUTS[mark]
    return Cell(text, style=style, short=mark, exact=parity_words(m.parity))


# --- where the time goes --------------------------------------------------------------------------


BREAKDOWN = (right("framework tax"), Column("breakdown"), Column("most of the tax"))


def breakdown(family: Family) -> Table | None:
    """Return tax and breakdown of each runtime at the smallest batch; None where none is known."""
    points = [m for m in family.smallest if m.bill_ns]
    if not points:
        return None
    methods = dict.fromkeys(p.bill_method or "" for p in points)
    hints = [
        f"{method}{' (the tax is a lower bound)' if method == TWIN else ''}"
        + (f": {', '.join(p.runtime for p in points if p.bill_method == method)}")
        * (len(methods) > 1)
        for method in methods
    ]
    return table(
        f"Where the time goes at batch {family.batches[0]}",
        ["runtime", *BREAKDOWN],
        [[Cell(p.runtime), *breakdown_cells(p)] for p in points],
        hint=f"method: {'; '.join(hints)}",
    )


def breakdown_cells(m: Measurement) -> list[Cell]:
    """Return the cells of a point under ``BREAKDOWN``."""
    return [tax_cell(m), Cell("", bar=_shares(m)), _leader(m)]


def tax_cell(m: Measurement) -> Cell:
    """Return the tax share of a point, ``≥`` before a lower bound."""
    return share_cell(m.tax_share, m.regime or "", "≥ " if m.bill_method == TWIN else "")


def share_cell(share: Estimate | None, style: str = "", least: str = "") -> Cell:
    """Return a tax share with its interval, a dash where it is not known."""
    if share is None:
        return Cell(NONE, style="dim")
    if not has_interval(share):
        return Cell(f"{least}{percent(share.value)}", style=style)
    half = max(0.1, 50 * (share.high - share.low))  # at this width 0.0 would read as exact
    return Cell(f"{least}{100 * share.value:.0f}", style, f"±{half:.1f} %")


def _shares(m: Measurement) -> tuple[tuple[str, float], ...]:
    """Return the lines of a breakdown with their shares of the latency."""
    total = latency_of(m).value
    return tuple((name, ns / total if total else 0.0) for name, ns in lines_of(m.bill_ns or {}))


def _leader(m: Measurement) -> Cell:
    tax = [(name, share) for name, share in _shares(m) if name != "kernel"]
    if not tax:
        return Cell(NONE, style="dim")
    name, share = max(tax, key=lambda line: line[1])
    return Cell(f"{label(name)} {percent(share)}")


def every_breakdown(family: Family) -> Table | None:
    """Return the breakdown of every point in ms, folded; None where none is known."""
    points = [m for m in family.measured if m.bill_ns]
    used = [name for name in BILL if any((m.bill_ns or {}).get(name) for m in points)]
    if not points:
        return None
    heads = ("batch", "latency", "tax", *map(label, used))
    return table(
        "Breakdown of every point in ms; the parts add up to the latency",
        ["runtime", *map(right, heads), "method"],
        [
            (
                m.runtime,
                str(m.workload.batch),
                milliseconds(latency_of(m).value),
                tax_cell(m),
                *(milliseconds((m.bill_ns or {}).get(name)) for name in used),
                m.bill_method or "",
            )
            for m in points
        ],
        folded=True,
    )


def places(family: Family) -> list[Table]:
    """Return where in the model the tax arises: a table of the first runtime that says, open."""
    found: list[Table] = []
    for m in family.measured:
        rows = where(m.layers) if any(layer.class_ for layer in m.layers) else []
        if rows:
            title = f"{m.runtime} at batch {m.workload.batch}"
            found.append(place_table(title, rows, folded=bool(found)))
    return found


def place_table(subject: str, rows: Sequence[Where], *, folded: bool) -> Table:
    """Return where in a call the tax arises."""
    return table(
        f"Where the tax arises: {subject}, ms in a call",
        ["layer", right("tax"), right("share"), "mostly", "source"],
        [_place(place) for place in rows],
        hint="* without the modules inside it" if any(p.alone for p in rows) else "",
        folded=folded,
    )


def operators(family: Family) -> list[Table]:
    """Return what each operator costs over all layers, where that was asked for."""
    found = []
    for m in family.measured:
        rows = by_operator(m.layers)[:MOST]
        if rows:
            found.append(
                table(
                    f"Operators: {m.runtime} at batch {m.workload.batch}, ms in a call",
                    ["operator", right("kernel"), right("tax"), right("share of tax"), "mostly"],
                    [_operator(row) for row in rows],
                )
            )
    return found


def _operator(row: OperatorSum) -> tuple[Cell | str, ...]:
    return (
        row.name or OUTSIDE_OPERATORS,
        milliseconds(row.kernel_ns),
        replace(_estimate(row.tax_ns), text=milliseconds(row.tax_ns.value)),
        percent(row.share),
        label(row.line),
    )


def source_lines(family: Family) -> list[Table]:
    """Return the lines of Python that hold most of the tax, where they were asked for."""
    return [
        table(
            f"Lines of Python: {m.runtime} at batch {m.workload.batch}, ms of tax in a call",
            ["line", "function", right("tax"), right("share"), "mostly"],
            [_line(line, m.bill_ns or {}) for line in m.lines[:MOST]],
        )
        for m in family.measured
        if m.lines
    ]


def _line(line: SourceLine, bill: Mapping[str, float]) -> tuple[Cell | str, ...]:
    tax_ns, whole = (
        sum(ns for name, ns in one.items() if name != "kernel") for one in (line.bill_ns, bill)
    )
    factor = tax_ns / line.time_ns.value if line.time_ns.value else 0.0
    where = f"{line.file}:{line.line}"
    return (
        Cell(where.rpartition("/")[2], exact=where),
        Cell(line.function.rpartition(".")[2][:PATH], exact=line.function),
        replace(_estimate(scaled(line.time_ns, factor)), text=milliseconds(tax_ns)),
        percent(tax_ns / whole if whole else None),
        label(most_of(line.bill_ns)),
    )


def _place(place: Where) -> tuple[Cell | str, ...]:
    name, star = place.name or place.class_, " *" if place.alone else ""
    short = name
    while len(short) > PATH and "." in short.strip("…."):
        short = f"…{short.lstrip('…').partition('.')[2]}"
    return (
        Cell(f"{short}{star}", exact=f"{name}{star}"),
        replace(_estimate(place.tax_ns), text=milliseconds(place.tax_ns.value)),
        percent(place.share),
        label(place.line),
        Cell(place.source.rpartition("/")[2], exact=place.source),
    )


# --- what not every point has ---------------------------------------------------------------------


def tokens(family: Family) -> Table | None:
    """Return time to the first token and for each further one; None where none are made."""
    points = [m for m in family.measured if m.first_token_ns is not None]
    if not points:
        return None
    w = family.measured[0].workload
    return table(
        f"Generating {w.new_tokens} tokens, {w.kv_cache} cache, ms",
        ["runtime", right("batch"), right("first token"), right("each further token")],
        [
            (m.runtime, str(m.workload.batch), *map(_estimate, (m.first_token_ns, m.per_token_ns)))
            for m in points
        ],
    )


def padding(family: Family) -> Table | None:
    """Return the padding tax beside the framework tax at the smallest batch; None if dense."""
    rows = [
        (m.runtime, percent(m.padding_share), tax_cell(m))
        for m in family.smallest
        if m.padding_share is not None
    ]
    if not rows:
        return None
    return table(
        f"Padding tax and framework tax at batch {family.batches[0]}",
        ["runtime", right("tokens that are padding"), right("framework tax")],
        rows,
        hint="A share of tokens is no share of time: what padding costs shows beside nested, or "
        "with a shorter --length.",
    )


def set_up(family: Family) -> Table | None:
    """Return what exporting and compiling took and left, and the memory of a measuring process.

    Folded where nothing was set up; None where no memory is known either.
    """
    rows, was_set_up = [], False
    for name in family.runtimes:
        points = [m for m in family.measured if m.runtime == name]
        m = points[0]
        peak = max((p.peak_memory_bytes or 0 for p in points), default=0)
        if m.setup_ns is None and not peak:
            continue
        was_set_up |= m.setup_ns is not None
        reused = any(n.code == REUSED for n in m.notes)
        when = NONE if m.setup_ns is None else "earlier session" if reused else "this session"
        took = NONE if m.setup_ns is None else duration(m.setup_ns)
        rows.append((name, took, when, size_text(m.artifact_bytes), size_text(peak or None)))
    if not rows:
        return None
    return table(
        "Set-up (export and compilation, once) and memory",
        ["runtime", right("set-up time"), "set up in", right("size on disk"), right("peak memory")],
        rows,
        hint="peak memory: of a measuring process, interpreter and libraries included"
        if any(row[-1] != NONE for row in rows)
        else "",
        folded=not was_set_up,
    )


def not_measured(family: Family) -> list[Block]:
    """Return what has no latency, and why."""
    if not family.lost:
        return []
    items = [
        Item(f"{who} {status}", reason, style="dim" if status == "unavailable" else "bad")
        for who, status, reason in family.lost
    ]
    return [Items("Not measured", tuple(items))]


FIRST = (latencies, breakdown, every_breakdown)
FURTHER = (tokens, padding, set_up)


# --- advice and trust -----------------------------------------------------------------------------


def advice_blocks(advice: Iterable[Advice]) -> list[Block]:
    """Return what to do, in the order given."""
    items = [
        Item(
            f"≤ {times(a.gain.high)}" if a.kind == "bound" else times_range(a.gain),
            a.action,
            f"{a.kind}; {a.evidence}",
            style="strong" if a.kind == "measured" else "",
        )
        for a in advice
    ]
    return [Items("What to do", tuple(items))] if items else []


def notes_of(family: Family, *, named: bool = False) -> Notes:
    """Return the notes on a family's points, equal ones together.

    Args:
        family: the points.
        named: whether the family is named, where a document has several.
    """
    codes = {note.text: note.code for m in family.measured for note in m.notes}
    notes = [
        Note(codes[text], text, who, "warning" if codes[text] in CHANGING else "info")
        for who, text in family.notes
    ]
    return Notes(f"Notes on {family.title}" if named else "Notes", tuple(notes))


def session_blocks(run: Run) -> list[Block]:
    """Return notes on the run, what was left out, the harness's own cost, the drift of the host."""
    notes = tuple(Note(n.code, n.text, severity="warning") for n in run.notes)
    blocks: list[Block] = [Notes("Notes on the run", notes)] if notes else []
    if run.left_out:
        left_out = tuple(Item("", text) for text in run.left_out)
        blocks.append(Items("Left out", left_out))
    facts = []
    if run.points is not None and run.points.measured < run.points.asked:
        facts.append(f"{points_text(run.points)} measured")
    if run.harness_floor_ns is not None:
        facts.append(f"harness overhead {duration(run.harness_floor_ns.value)} a call")
    if run.host_drift is not None and not any(note.code == "host-drift" for note in run.notes):
        facts.append(f"the host's speed moved by {100 * run.host_drift:.1f} % meanwhile")
    return [*blocks, Text("; ".join(facts), style="dim")] if facts else blocks


def effort_blocks(own: OwnTax | None) -> list[Block]:
    """Return what the tool itself cost."""
    if own is None:
        return []
    rows = [
        ("wall time", time_text(own.wall_ns)),
        ("set-up", time_text(own.setup_ns)),
        ("measuring", time_text(own.measuring_ns)),
        ("calls of the model", time_text(own.calls_ns)),
        ("own tax", percent(own.share)),
    ]
    return [table("Cost of the tool", ["", ""], rows, folded=True)]


def environment_blocks(environment: Environment | None) -> list[Block]:
    """Return where it was measured."""
    if environment is None:
        return []
    return [table("Environment", ["", ""], facts(environment), folded=True)]


def facts(environment: Environment) -> list[tuple[str, str]]:
    """Return what is known of an environment as (name, value), its GPUs at the end."""
    e = environment
    known: list[tuple[str, object]] = [
        ("host", e.host),
        ("system", e.system),
        ("processor", e.cpu),
        ("cores", f"{e.cores}, {e.threads_per_core or 'unknown'} threads a core"),
        ("memory", f"{e.memory_bytes / 2**30:.1f} GiB" if e.memory_bytes else None),
        ("load at the start", e.load_1min),
        ("governor", e.governor),
        ("frequency", f"{e.frequency_mhz:.0f} MHz" if e.frequency_mhz else None),
        ("turbo", e.turbo),
        ("virtualisation", e.virtualization),
        ("affinity", ", ".join(map(str, e.affinity)) or None),
        ("sampler", e.sampler),
        ("python", e.python),
        ("libraries", _listed(e.libraries)),
        *(("GPU", _listed(gpu)) for gpu in e.gpus),
    ]
    return [(name, str(value)) for name, value in known if value is not None]


def _listed(values: Mapping[str, object]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or None
