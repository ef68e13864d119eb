"""The parts of the page as HTML text; every name and number from outside goes through ``esc``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from frameworktax.analysis.words import times
from frameworktax.records import BILL, Advice, Environment, Measurement, Run
from frameworktax.report import words
from frameworktax.report.environment import facts
from frameworktax.report.overview import ranked
from frameworktax.report.quantities import Quantities, tables_of
from frameworktax.report.tables import Family
from frameworktax.report.words import (
    MEANINGS,
    TWIN,
    duration,
    interval,
    is_reference,
    label,
    milliseconds,
    parity_mark,
    parity_words,
    percent,
)


def esc(value: object) -> str:
    """Return text that is only text in HTML, inside elements and quoted attributes."""
    return html.escape(str(value), quote=True)


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False
) -> str:
    """Return a table from cells that are HTML already; the first cell of a row is its header."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>"
        for row in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{kind}><caption>{caption}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def chart(name: str, title: str, of: int | None = None, step: int = 1) -> str:
    """Return a place for the page's script to draw in.

    Args:
        name: its identity.
        title: what it shows.
        of: number of the line to draw.
        step: one of how many points is drawn.
    """
    line = "" if of is None else f' data-slice="{of}"'
    line += f' data-step="{step}"' if step > 1 else ""
    return (
        f'<figure><div class="chart" id="{name}"{line} role="img" '
        f'aria-label="{title}; the numbers are in the tables below"></div></figure>'
    )


def tiles(run: Run, family: Family) -> str:
    """Return the four numbers of the headline."""
    runtime = "eager" if "eager" in family.runtimes else family.runtimes[0]
    batch = family.batches[0]
    focus = family.at(runtime, batch)
    made = []
    if focus is not None and focus.latency_ns is not None:
        about = f"{runtime}, batch {batch}, {words.about(focus.latency_ns)}"
        made.append(("Latency", f"{milliseconds(focus.latency_ns.value)} ms", about))
    if focus is not None and focus.tax_share is not None:
        half = 50 * (focus.tax_share.high - focus.tax_share.low)
        least = "≥ " if focus.bill_method == TWIN else ""
        about = f"of {runtime} at batch {batch}, ± {half:.1f} points"
        made.append(("Framework tax", least + percent(focus.tax_share.value), about))
    curve = family.curve(runtime)
    if curve is not None and curve.free_batch is not None:
        free = curve.free_batch
        least = "≥ " if curve.free_is_lower_bound else ""
        ends = f", {free.low:.2g} to {free.high:.2g}" if words.has_interval(free) else ""
        about = f"{runtime}, within 10 % of batch 1{ends}"
        made.append(("Free batch", f"{least}{free.value:.2g}", about))
    fastest = _fastest(family, batch)
    if fastest is not None and fastest.ratio_to_eager is not None:
        about = f"{fastest.runtime} over eager at batch {batch}, outputs equal"
        made.append(("Fastest runtime", times(1 / fastest.ratio_to_eager.value), about))
    cells = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(value)}<small>{esc(about)}</small></dd></div>"
        for name, value, about in made
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _fastest(family: Family, batch: int) -> Measurement | None:
    found = [
        (m.ratio_to_eager.value, i, m)
        for i, m in enumerate(family.measured)
        if m.workload.batch == batch
        and m.ratio_to_eager is not None
        and m.ratio_to_eager.high < 1
        and m.parity is not None
        and m.parity.within_tolerance
    ]
    return min(found)[2] if found else None


def family_section(
    family: Family,
    number: int,
    charts: Sequence[str],
    line: int | None = None,
    symbols: str = "",
) -> str:
    """Return one family: its pictures, then the same numbers as tables.

    Args:
        family: the points.
        number: of the section.
        charts: names of its pictures.
        line: number of its latency along the batch among the page's lines.
        symbols: HTML that goes on below the bill.
    """
    parts = [f'<section aria-labelledby="f{number}"><h2 id="f{number}">{esc(family.title)}</h2>']
    about = {
        "latency": (
            "Latency against batch size",
            "Both axes logarithmic. Bars are 95 % intervals; the shape of a point names its "
            f"regime, the shading the regimes of {esc(next(iter(family.runtimes), 'none'))}. "
            "Press a name to see it alone, another to add it.",
        ),
        "bill": (
            "Where the time of a call goes",
            "Blue is work in math kernels, the rest is what the framework costs on top. "
            "The black whisker is the interval of the kernel time.",
        ),
        "shares": ("How the bill changes with batch size", "Shares of the latency, by runtime."),
    }
    for name in charts:
        title, hint = about[name]
        parts.append(f'<h3>{title}</h3><p class="hint">{hint}</p>')
        parts.append(chart(f"{name}-{number}", title, of=line if name == "latency" else None))
        parts.append(symbols if name == "bill" else "")
    if family.measured:
        found = [ranked(family), *tables_of(family)]
        parts += [_latencies(family), _bills(family)]
        parts += [quantities(one) for one in found if one is not None]
    if family.lost:
        rows = [[esc(who), esc(status), esc(why)] for who, status, why in family.lost]
        parts.append(table("Not measured", ["point", "status", "reason"], rows, words=True))
    if family.notes:
        items = "".join(f"<li><b>{esc(who)}:</b> {esc(said)}</li>" for who, said in family.notes)
        parts.append(f'<h3>How far to trust it</h3><ul class="notes">{items}</ul>')
    return "".join(parts) + "</section>"


def _latencies(family: Family) -> str:
    batches = family.batches
    head = ["runtime", *(f"batch {b}" for b in batches), "free batch", "outputs against eager"]
    rows = [
        [
            esc(r),
            *(_cell(family.at(r, b)) for b in batches),
            _free(family, r),
            _outputs(family, r),
        ]
        for r in family.runtimes
    ]
    caption = "Latency of one call in ms, half-width of the 95 % interval, regime"
    return table(caption, head, rows)


def _cell(m: Measurement | None) -> str:
    if m is None or m.latency_ns is None:
        return "–"
    regime = esc(m.regime or "not known")
    title = esc(interval(m.latency_ns))
    return (
        f'<span title="{title} ms">{milliseconds(m.latency_ns.value)} '
        f"{words.about(m.latency_ns)}</span><small>{regime}</small>"
    )


def _free(family: Family, runtime: str) -> str:
    curve = family.curve(runtime)
    if curve is None or curve.free_batch is None:
        return "–"
    free = curve.free_batch
    least = "≥ " if curve.free_is_lower_bound else ""
    if not words.has_interval(free):
        return f"{least}{free.value:.2g}"
    return f"{least}{free.value:.2g}<small>{free.low:.2g} to {free.high:.2g}</small>"


def _outputs(family: Family, runtime: str) -> str:
    m = next(m for m in family.measured if m.runtime == runtime)
    if is_reference(m):
        return "reference"
    mark = parity_mark(m)
    kind = {"=": "equal", "≠": "differs"}.get(mark, "unproven")
    return f'<span class="{kind}">{mark} {esc(parity_words(m.parity))}</span>'


def _bills(family: Family) -> str:
    billed = [m for m in family.measured if m.bill_ns]
    if not billed:
        return ""
    used = [name for name in BILL if any((m.bill_ns or {}).get(name) for m in billed)]
    head = ["runtime", "batch", "latency", "tax share"]
    head += [f'<span title="{esc(MEANINGS[name])}">{esc(label(name))}</span>' for name in used]
    rows = [
        [
            esc(m.runtime),
            str(m.workload.batch),
            milliseconds(m.latency_ns.value if m.latency_ns else None),
            _share(m),
            *(milliseconds((m.bill_ns or {}).get(name)) for name in used),
            esc(m.bill_method or ""),
        ]
        for m in billed
    ]
    bills = table("The bill in ms; its lines add up to the latency", [*head, "method"], rows)
    title = "The bill of every point as a table"
    return f'<details class="bills"><summary>{title}</summary>{bills}</details>'


def quantities(found: Quantities) -> str:
    """Return a table of plain text and what to know about it."""
    head = [esc(title) for title in found.head]
    rows = [[esc(cell) for cell in row] for row in found.rows]
    hint = f'<p class="hint">{esc(found.hint)}</p>' if found.hint else ""
    return table(esc(found.caption), head, rows) + hint


def _share(m: Measurement) -> str:
    if m.tax_share is None:
        return "–"
    half = 50 * (m.tax_share.high - m.tax_share.low)
    least = "≥ " if m.bill_method == TWIN else ""
    return f"{least}{100 * m.tax_share.value:.0f} ± {half:.1f} %"


def advice_section(advice: Sequence[Advice]) -> str:
    """Return what to do, in the order given."""
    if not advice:
        return ""
    items = "".join(
        f'<li><b class="gain {a.kind}">{"≤ " if a.kind == "bound" else ""}{times(a.gain.value)}</b>'
        f"<div><p>{esc(a.action)}</p><p>{esc(a.kind)}, {a.gain.low:.2f} to {a.gain.high:.2f} ×. "
        f"{esc(a.evidence)}</p></div></li>"
        for a in advice
    )
    return f'<section><h2>What to do</h2><ol class="advice">{items}</ol></section>'


def trust_section(run: Run) -> str:
    """Return the harness's own cost, the drift of the host, notes, and what was left out."""
    items = []
    if run.harness_floor_ns is not None:
        floor = duration(run.harness_floor_ns.value)
        items.append(f"Harness floor: calling a runtime that does nothing takes {floor}.")
    if run.host_drift is not None:
        items.append(f"The host's own speed moved by {100 * run.host_drift:.1f} % meanwhile.")
    items += [note.text for note in run.notes]
    items += [f"Left out: {text}" for text in run.left_out]
    listed = "".join(f"<li>{esc(item)}</li>" for item in items)
    return (
        f'<section><h2>The session</h2><ul class="notes">{listed}</ul></section>' if items else ""
    )


def environment_section(environment: Environment | None) -> str:
    """Return where it ran."""
    if environment is None:
        return ""
    rows = "".join(f"<dt>{esc(k)}</dt><dd>{esc(v)}</dd>" for k, v in facts(environment))
    return f'<section><h2>Environment</h2><dl class="facts">{rows}</dl></section>'
