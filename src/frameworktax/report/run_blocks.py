"""A run as blocks: its answer, each family's latencies and breakdown, advice, trust.

A function of a family returns its tables; one without rows is not shown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from frameworktax.analysis.advice import EMPTY
from frameworktax.analysis.estimates import scaled, share_texts, times_at_most, times_range
from frameworktax.analysis.where import MOST, Where, by_operator, most_of, where
from frameworktax.errors import counted
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
    listed,
    right,
    table,
)
from frameworktax.report.families import Family, families, latency_of, merged
from frameworktax.report.trace_blocks import prediction_blocks, trace_blocks
from frameworktax.report.words import (
    NONE,
    REGIME_MARKS,
    TWIN,
    WORDS,
    duration,
    free_batch,
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
    warm,
)
from frameworktax.stats import within_one_process

CHANGING = frozenset(WORDS["changing"])
"""Codes of a point's notes that change the answer, or how far it may be believed."""
ONE_PROCESS = "intervals are within one process: how processes differ is not in them"
SIZE = re.compile(r"\b\d+(?:\.\d+)?(?= [%×])")
"""A share or a gain in the text of an action."""
POINTS = 6
"""Points of one action that are named."""
PATH = 24
"""Width to which the path of a layer is cut at its head where space is short."""
OUTPUTS: Mapping[str, tuple[str, str, str]] = WORDS["outputs"]
"""Mark of the outputs against eager's → style of the cell, its text, what the mark means."""
UNKNOWN = Cell(NONE, style="dim")


def run_blocks(run: Run, *, folded: bool = True) -> list[Block]:
    """Return the whole document: the answer first, what to know about it last.

    Without ``folded`` what is folded is left out: the breakdown of every point, texts of notes.
    """
    blocks: list[Block] = [Heading(run.headline, 1)]
    found = families(run)
    for family in found:
        blocks.append(Heading(family.title))
        blocks += result_blocks(family, folded=folded)
    blocks += trace_blocks(run.trace)
    blocks += advice_blocks(run.advice)
    blocks += prediction_blocks(run.predictions)
    blocks += [notes_of(family, named=len(found) > 1, folded=folded) for family in found]
    blocks += session_blocks(run)
    return [*blocks, *effort_blocks(run.own_tax), *environment_blocks(run.environment)]


def result_blocks(family: Family, *, folded: bool = True) -> list[Block]:
    """Return a family's results: latencies, breakdown, what else is known, what is missing."""
    made: list[Table] = []
    if family.timed:
        made = [latencies(family)]
    if family.measured:
        made += [
            breakdown(family),
            *([every_breakdown(family)] if folded else []),
            *places(family),
            *(operators(m) for m in family.measured if m.layers),
            *(source_lines(m) for m in family.measured if m.lines),
            tokens(family),
            padding(family),
            set_up(family),
        ]
    return [*(one for one in made if one.rows), *not_measured(family)]


# --- latencies ------------------------------------------------------------------------------------


def latencies(family: Family) -> Table:
    """Return the latency of each runtime at each batch size, with the regime."""
    timed = family.timed
    at = {(m.runtime, m.workload.batch): m for m in reversed(timed)}
    batches = sorted({m.workload.batch for m in timed})
    has_free = any(c.free_batch for c in family.curves if c.runtime in family.runtimes)
    has_outputs = any(m.parity is not None for m in timed)
    columns: list[Column | str] = ["runtime", *(right(f"batch {b}") for b in batches)]
    columns += [right("free up to batch")] * has_free + ["outputs"] * has_outputs
    rows = [
        [
            Cell(runtime),
            *(_latency(at.get((runtime, batch))) for batch in batches),
            *([free_cell(family.curve(runtime))] if has_free else []),
            *([_outputs(family, runtime)] if has_outputs else []),
        ]
        for runtime in dict.fromkeys(m.runtime for m in timed)
    ]
    regimes = {m.regime for m in timed}
    marks = {parity_mark(m) for m in timed} if has_outputs else set()
    free = "free: up to this batch size a call takes at most 10 % longer than at batch 1"
    alone = " within one process" * within_one_process(*(m.latency_ns for m in timed))
    return table(
        f"Latency of one call, ms (± half of its 95 % interval{alone})",
        columns,
        rows,
        hint=free if has_free else "",
        key=(
            *((mark, regime) for regime, mark in REGIME_MARKS.items() if regime in regimes),
            *((mark, meaning) for mark, (_, _, meaning) in OUTPUTS.items() if mark in marks),
        ),
    )


def _latency(m: Measurement | None) -> Cell:
    if m is None:
        return UNKNOWN
    if m.latency_ns is None:
        (_, _, ns), *_ = m.blocks_ns
        brief = milliseconds(ns)
        return Cell(time_text(ns), style="dim", short=brief, exact=f"{brief} (one block)")
    latency, regime = m.latency_ns, m.regime or ""
    note = plus_minus(latency)
    tight = f" {note.replace(' ', ''):>4}" if note else ""
    return Cell(
        time_text(latency.value),
        style=regime,
        note=note,
        tag=regime,
        short=f"{milliseconds(latency.value)}{tight} {REGIME_MARKS.get(regime, ' ')}",
        exact=interval(latency),
    )


def _estimate(estimate: Estimate | None, text: str = "") -> Cell:
    """Return a time with its interval; ``text`` stands for the value where it has no unit."""
    if estimate is None:
        return UNKNOWN
    shown = text or time_text(estimate.value)
    return Cell(shown, note=plus_minus(estimate), exact=interval(estimate))


def free_cell(curve: Curve | None) -> Cell:
    """Return a free batch size, ``≥`` before a lower bound; exactly what was interpolated too."""
    if curve is None or curve.free_batch is None:
        return UNKNOWN
    free = curve.free_batch
    text = free_batch(free, is_lower_bound=curve.free_is_lower_bound)
    inside = free.low < free.value < free.high
    return Cell(text, exact=text + f" (interpolated: {free.value:.3g})" * inside)


def _outputs(family: Family, runtime: str) -> Cell:
    """Return how outputs compare with eager's at the batch size where that looks worst."""
    points = [m for m in family.timed if m.runtime == runtime]
    if is_reference(points[0]):
        return Cell("reference", style="dim", short=" ")
    marks = {m.workload.batch: parity_mark(m) for m in points}
    mark = max(marks.values(), key="=?≠".index)
    style, text, _ = OUTPUTS[mark]
    exact = next(parity_words(m.parity) for m in points if parity_mark(m) == mark)
    if len(set(marks.values())) == 1:
        return Cell(text, style=style, short=mark, exact=exact)
    batches = [str(batch) for batch, its in marks.items() if its == mark]
    at = f"batch {', '.join(batches)}"
    short = f"{mark} {'/'.join(batches)}"
    return Cell(f"{text} at {at}", style=style, short=short, exact=f"{at}: {exact}")


# --- where the time goes --------------------------------------------------------------------------


BREAKDOWN = (right("framework tax"), "breakdown", "most of the tax")


def breakdown(family: Family) -> Table:
    """Return tax and breakdown of each runtime at the smallest batch, where one is known."""
    points = [m for m in family.smallest if m.bill_ns]
    methods: dict[str, list[str]] = defaultdict(list)
    for m in points:
        methods[m.bill_method or ""].append(m.runtime)
    hints = [
        f"{method}{' (warm overhead, not the tax)' if method == TWIN else ''}"
        + (f": {', '.join(runtimes)}" if len(methods) > 1 else "")
        for method, runtimes in methods.items()
    ]
    return table(
        f"Where the time goes at batch {family.batches[0]}",
        ["runtime", *BREAKDOWN],
        [[Cell(p.runtime), *breakdown_cells(p)] for p in points],
        hint=_said(f"method: {'; '.join(hints)}", *(m.tax_share for m in points)),
    )


def _said(hint: str, *shown: Estimate | None) -> str:
    """Return a hint, and where intervals are of one process that too."""
    return "; ".join(filter(None, (hint, ONE_PROCESS * within_one_process(*shown))))


def breakdown_cells(m: Measurement) -> list[Cell]:
    """Return the cells of a point under ``BREAKDOWN``."""
    bar = bar_cell(m.bill_ns or {}, latency_of(m).value)
    most = max(
        (part for part in bar.bar if part[0] != "kernel"), key=lambda part: part[1], default=None
    )
    leader = Cell(f"{label(most[0])} {percent(most[1])}") if most else UNKNOWN
    return [tax_cell(m), bar, leader]


def bar_cell(bill_ns: Mapping[str, float], total_ns: float) -> Cell:
    """Return a breakdown as a bar, a dash where it is not known."""
    bar = tuple((name, ns / total_ns) for name, ns in lines_of(bill_ns)) if total_ns else ()
    return Cell("" if bar else NONE, bar=bar)


def tax_cell(m: Measurement) -> Cell:
    """Return the tax share of a point, or its warm overhead under that name."""
    return share_cell(m.tax_share, m.regime or "", warm(m))


def share_cell(share: Estimate | None, style: str = "", kind: str = "") -> Cell:
    """Return a tax share with its interval, a dash where it is not known."""
    if share is None:
        return UNKNOWN
    value, half = share_texts(share)
    return Cell(f"{kind}{value}{'' if half else ' %'}", style, f"±{half} %" if half else "")


def every_breakdown(family: Family) -> Table:
    """Return the breakdown of every point in ms, folded."""
    points = [m for m in family.measured if m.bill_ns]
    used = [name for name in BILL if any((m.bill_ns or {}).get(name) for m in points)]
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
        named_by=2,
    )


def places(family: Family) -> Iterator[Table]:
    """Yield where in the model the tax arises: a table of the first runtime that says, open."""
    folded = False
    for m in family.measured:
        rows = where(m.layers) if any(layer.class_ for layer in m.layers) else []
        if rows:
            yield place_table(f"{m.runtime} at batch {m.workload.batch}", rows, folded=folded)
            folded = True


def place_table(subject: str, rows: Sequence[Where], *, folded: bool) -> Table:
    """Return where in a call the tax arises."""
    return listed(
        f"Where the tax arises: {subject}, ms in a call",
        rows,
        {
            "layer": _layer,
            right("tax"): lambda p: _estimate(p.tax_ns, milliseconds(p.tax_ns.value)),
            right("share"): lambda p: percent(p.share),
            "mostly": lambda p: label(p.line),
            "source": lambda p: Cell(p.source.rpartition("/")[2], exact=p.source),
        },
        hint=_said(
            "* without the modules inside it" if any(p.alone for p in rows) else "",
            *(p.tax_ns for p in rows),
        ),
        folded=folded,
    )


def _layer(place: Where) -> Cell:
    name, star = place.name or place.class_, " *" if place.alone else ""
    short = name
    while len(short) > PATH and "." in short.strip("…."):
        short = f"…{short.lstrip('…').partition('.')[2]}"
    return Cell(f"{short}{star}", exact=f"{name}{star}")


def operators(m: Measurement) -> Table:
    """Return what each operator costs over all layers, where that was asked for."""
    return listed(
        f"Operators: {m.runtime} at batch {m.workload.batch}, ms in a call",
        by_operator(m.layers)[:MOST],
        {
            "operator": lambda o: o.name or "outside operators",
            right("kernel"): lambda o: milliseconds(o.kernel_ns),
            right("tax"): lambda o: _estimate(o.tax_ns, milliseconds(o.tax_ns.value)),
            right("share of tax"): lambda o: percent(o.share),
            "mostly": lambda o: label(o.line),
        },
    )


def source_lines(m: Measurement) -> Table:
    """Return the lines of Python that hold most of the tax, where they were asked for."""
    return table(
        f"Lines of Python: {m.runtime} at batch {m.workload.batch}, ms of tax in a call",
        ["line", "function", right("tax"), right("share"), "mostly"],
        [_line(line, m.bill_ns or {}) for line in m.lines[:MOST]],
    )


def _line(line: SourceLine, bill: Mapping[str, float]) -> tuple[Cell | str, ...]:
    tax_ns, whole = (
        sum(ns for name, ns in one.items() if name != "kernel") for one in (line.bill_ns, bill)
    )
    part = tax_ns / line.time_ns.value if line.time_ns.value else 0.0
    at = f"{line.file}:{line.line}"
    return (
        Cell(at.rpartition("/")[2], exact=at),
        Cell(line.function.rpartition(".")[2][:PATH], exact=line.function),
        _estimate(scaled(line.time_ns, part), milliseconds(tax_ns)),
        percent(tax_ns / whole if whole else None),
        label(most_of(line.bill_ns)),
    )


# --- what not every point has ---------------------------------------------------------------------


def tokens(family: Family) -> Table:
    """Return time to the first token and for each further one, where any are made."""
    w = family.measured[0].workload
    return listed(
        f"Generating {w.new_tokens} tokens, {w.kv_cache} cache, ms",
        [m for m in family.measured if m.first_token_ns is not None],
        {
            "runtime": lambda m: m.runtime,
            right("batch"): lambda m: str(m.workload.batch),
            right("first token"): lambda m: _estimate(m.first_token_ns),
            right("each further token"): lambda m: _estimate(m.per_token_ns),
        },
    )


def padding(family: Family) -> Table:
    """Return the padding tax beside the framework tax at the smallest batch, of ragged inputs."""
    return listed(
        f"Padding tax and framework tax at batch {family.batches[0]}",
        [m for m in family.smallest if m.padding_share is not None],
        {
            "runtime": lambda m: m.runtime,
            right("tokens that are padding"): lambda m: percent(m.padding_share),
            right("framework tax"): tax_cell,
        },
        hint="A share of tokens is no share of time: what padding costs shows beside nested, or "
        "with a shorter --length.",
    )


def set_up(family: Family) -> Table:
    """Return what exporting and compiling took and left, and the memory of a measuring process.

    Folded where nothing was set up; no rows where no memory is known either.
    """
    rows, was_set_up = [], False
    for name in family.runtimes:
        points = [m for m in family.measured if m.runtime == name]
        m = points[0]
        peak = max((p.peak_memory_bytes or 0 for p in points), default=0)
        if m.setup_ns is None and not peak:
            continue
        was_set_up |= m.setup_ns is not None
        reused = any(n.code == "set-up-reused" for n in m.notes)
        when = NONE if m.setup_ns is None else "earlier session" if reused else "this session"
        took = NONE if m.setup_ns is None else duration(m.setup_ns)
        rows.append((name, took, when, size_text(m.artifact_bytes), size_text(peak or None)))
    memory = "peak memory: of a measuring process, interpreter and libraries included"
    return table(
        "Set-up (export and compilation, once) and memory",
        ["runtime", right("set-up time"), "set up in", right("size on disk"), right("peak memory")],
        rows,
        hint=memory if any(row[-1] != NONE for row in rows) else "",
        folded=not was_set_up,
    )


def not_measured(family: Family) -> list[Block]:
    """Return what has no latency, and why."""
    items = [
        Item(
            f"{who}: no interval" if status == "ok" else f"{who} {status}",
            reason,
            style="dim" if status == "unavailable" else "bad",
        )
        for who, status, reason in family.lost
    ]
    return [Items("Not measured", tuple(items))] if items else []


# --- advice and trust -----------------------------------------------------------------------------


def advice_blocks(advice: Iterable[Advice]) -> list[Block]:
    """Return what to do, in the order given: an action once for all points that it is for."""
    alike: dict[tuple[str, str], list[Advice]] = defaultdict(list)
    for one in advice:
        alike[one.kind, SIZE.sub("0", one.action)].append(one)
    return [Items("What to do", tuple(map(_item, alike.values())))] if alike else []


def _item(same: Sequence[Advice]) -> Item:
    first, gains = same[0], [one.gain for one in same]
    whole = first.gain.at(first.gain.value, min(g.low for g in gains), max(g.high for g in gains))
    evidence = first.evidence
    if len(same) > 1:
        points = [f"{a.evidence.partition(': ')[0]} ({_gain(a.kind, a.gain)})" for a in same]
        more = len(points) - POINTS
        evidence = "; ".join([*points[:POINTS], *[f"{more} more"] * (more > 0)])
    empty = first.kind == "bound" and whole.high > EMPTY
    kind = f"a bound above {EMPTY:g} × says nothing" if empty else first.kind
    return Item(
        _gain(first.kind, whole),
        merged([one.action for one in same], SIZE),
        f"{kind}{', within one process' * within_one_process(*gains)}; {evidence}",
        style="strong" if first.kind == "measured" else "",
    )


def _gain(kind: str, gain: Estimate) -> str:
    """Return a gain as text; a bound that says nothing is none."""
    if kind != "bound":
        return times_range(gain)
    return f"≤ {times_at_most(gain.high)}" if gain.high <= EMPTY else "no bound"


def notes_of(family: Family, *, named: bool = False, folded: bool = True) -> Notes:
    """Return the notes on a family's points; ``named`` where a document has several families.

    Without ``folded`` those that change nothing are without their text.
    """
    notes = [
        Note(code, text, who, "warning" if code in CHANGING else "info")
        for who, code, text in family.notes(lambda code: folded or code in CHANGING)
    ]
    return Notes(f"Notes on {family.title}" if named else "Notes", tuple(notes))


def notes_on_run(run: Run) -> list[Block]:
    """Return the notes on a run."""
    notes = tuple(Note(n.code, n.text, severity="warning") for n in run.notes)
    return [Notes("Notes on the run", notes)] if notes else []


def session_blocks(run: Run) -> list[Block]:
    """Return notes on the run, what was left out, the harness's own cost, the drift of the host."""
    blocks = notes_on_run(run)
    if run.left_out:
        blocks.append(Items("Left out", tuple(Item("", text) for text in run.left_out)))
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
        ("cores", f"{e.cores}{_a_core(e.threads_per_core)}"),
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


def _a_core(threads: int | None) -> str:
    return f", {counted(threads, 'thread')} a core" if threads else ""


def _listed(values: Mapping[str, object]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or None
