"""One offline page: the verdict, its pictures and tables, and every number.

Jinja2 renders the templates in ``page/`` with autoescape; tables, lists and notes are the blocks
that the terminal and Markdown show as well, what can be pressed or moved are components of the page
that its scripts fill with data. Nothing is loaded and nothing is evaluated: the page carries a
Content-Security-Policy that names its two scripts by their hashes, expressions of pictures are
interpreted, and data is in a block that is no script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.analysis.estimates import times
from frameworktax.errors import UsageError
from frameworktax.records import BILL, Measurement, Run
from frameworktax.report import (
    charts,
    compare_blocks,
    overview,
    page_data,
    run_blocks,
    trace_blocks,
    vega,
    words,
)
from frameworktax.report.blocks import Block, Heading, Text
from frameworktax.report.families import Family, families
from frameworktax.report.page_data import Contents
from frameworktax.report.palette import LINE_COLOURS
from frameworktax.report.words import TWIN, duration, flat, label, percent, time_text
from frameworktax.version import __version__

SCRIPTS = ("page.js", "charts.js", "tables.js", "flame.js", "whatif.js")
"""Joined in this order into one script of the page."""
ROWS = 60
"""Rows of a table over all points; the page opens slowly with thousands."""
LEAST = 0.001
"""Share of the call below which a box of the flame view is not drawn."""
PLAIN = ("var(--card)", "var(--ink)")


def write_report(run: Run, path: Path, beside: Comparison | None = None) -> None:
    """Write the page.

    Args:
        run: what it shows.
        path: of the page.
        beside: a comparison whose side after is the run, shown first.

    Raises:
        UsageError: the package that carries the plotting scripts is not installed, or the file
            cannot be written.
    """
    try:
        path.write_text(page(run, beside), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def page(run: Run, beside: Comparison | None = None) -> str:
    """Return the page as text; the arguments are those of ``write_report``.

    Raises:
        UsageError: the package that carries the plotting scripts is not installed.
    """
    vega.engine()  # before what may be left from an earlier page
    bundle = _bundle()
    script = "".join(map(_text, SCRIPTS))
    contents = page_data.contents(run)
    shown = contents.in_full
    drawn = {
        f"{name}-{i}": {
            "wide": charts.BARS[name](family),
            "narrow": charts.BARS[name](family, wide=False),
        }
        for i, family in enumerate(shown)
        for name in charts.bars(family)
    }
    side = _beside(beside, drawn) if beside else None
    data = json_block({**contents.data, "charts": page_data.rounded(drawn)})
    return _rendered(
        "page.html",
        policy=(
            f"default-src 'none'; script-src {_hash(bundle)} {_hash(script)}; "
            "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        run=run,
        contents=contents,
        headline=headline(run),
        tiles=_tiles(shown[0]) if shown and shown[0].measured else [],
        beside=side,
        advice=run_blocks.advice_blocks(run.advice),
        families=[_section(family, i, shown) for i, family in enumerate(shown)],
        explorable=len(contents.slices) > sum(bool(family.measured) for family in shown),
        thinned=_thinned(contents),
        operations=len({m.flops for f in contents.kept for m in f.measured if m.flops}) > 1,
        overview=_overview(run, contents),
        trace=trace_blocks.trace_blocks(run.trace),
        predictions=trace_blocks.prediction_blocks(run.predictions),
        whatif=contents.data["whatif"],
        sliders=page_data.SLIDERS,
        stops={name: [f"{x:g}" for x in at] for name, at in page_data.STOPS.items()},
        session=run_blocks.session_blocks(run),
        facts=run_blocks.facts(run.environment) if run.environment else [],
        citation=_citation(run),
        css=_safe(_text("page.css")),
        data=_safe(data),
        bundle=_safe(bundle),
        script=_safe(script),
    )


def fragment(run: Run) -> str:
    """Return the headline and the tables as HTML for a notebook, without scripts."""
    every = families(run)
    found: list[Block] = [Text(run.headline, style="strong")]
    for family in every[: page_data.SECTIONS]:
        found += [Heading(family.title), *_family_blocks(family)]
    if len(every) > page_data.SECTIONS:
        text = f"The first {page_data.SECTIONS} of {len(every):,} groups; a report has all."
        found.append(Text(text))
    if run.trace:
        found += [Heading("The trace"), *trace_blocks.trace_blocks(run.trace)]
    return blocks_html([*found, *trace_blocks.prediction_blocks(run.predictions)])


def comparison_fragment(comparison: Comparison) -> str:
    """Return a comparison as HTML for a notebook."""
    found = compare_blocks.compare_blocks(comparison)[1:]
    return blocks_html([Text(comparison.headline, style="strong"), *found])


def blocks_html(blocks: Sequence[Block]) -> str:
    """Return blocks as HTML for a notebook, without scripts and styles of their own."""
    return _rendered("fragment.html", found=blocks)


def document_html(title: str, blocks: Sequence[Block]) -> str:
    """Return blocks as a page of its own without scripts; pictures are drawn in it.

    Raises:
        UsageError: there are pictures, and the package that draws is not installed.
    """
    return _rendered("document.html", title=title, found=blocks, css=_safe(_text("page.css")))


# --- parts of the page -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A headline ``subject: clause; rest`` in three."""

    subject: str
    verdict: str
    rest: str


def headline(run: Run) -> Headline:
    """Return the headline in its parts, each a sentence; names of models and runtimes stay."""
    subject, colon, said = run.headline.partition(": ")
    if not colon:
        subject, said = "", run.headline
    verdict, _, rest = said.partition("; ")
    names = {m.runtime for m in run.measurements} | {m.workload.model for m in run.measurements}
    names -= {"eager"}

    def sentence(text: str) -> str:
        tied = text.replace(" %", "\u00a0%").replace(" ×", "\u00a0×")
        return tied if text.split(" ")[0] in names else tied[:1].upper() + tied[1:]

    return Headline(subject=subject, verdict=sentence(verdict), rest=sentence(rest))


def _tiles(family: Family) -> list[tuple[str, str, str]]:
    """Return the four numbers of the headline: name, value, and what it is about."""
    runtime = "eager" if "eager" in family.runtimes else family.runtimes[0]
    batch = family.batches[0]
    focus = family.at(runtime, batch)
    made = []
    if focus is not None and focus.latency_ns is not None:
        about = f"{runtime}, batch {batch}, {words.plus_minus(focus.latency_ns) or 'no interval'}"
        made.append(("Latency", time_text(focus.latency_ns.value), about))
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
        made.append(("Free batch size", f"{least}{free.value:.2g}", about))
    fastest = _fastest(family, batch)
    if fastest is not None and fastest.ratio_to_eager is not None:
        about = f"{fastest.runtime} over eager at batch {batch}, outputs equal"
        made.append(("Fastest runtime", times(1 / fastest.ratio_to_eager.value), about))
    return made


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


def _section(family: Family, number: int, shown: Sequence[Family]) -> dict[str, Any]:
    """Return one family: its pictures, then the same numbers as tables."""
    pictures: list[tuple[str, str, str, int | None]] = []
    if family.measured:
        line = sum(bool(f.measured) for f in shown[:number])
        hint = (
            "Both axes logarithmic. Bars are 95 % intervals; the shape of a point names its "
            f"regime, the shading the regimes of {family.runtimes[0]}. Press a name to see it "
            "alone, another to add it."
        )
        pictures.append(("latency", "Latency against batch size", hint, line))
    about = {
        "bill": (
            "Where the time of a call goes",
            "Blue is work in math kernels, the rest is what the framework costs on top. "
            "The line under a bar is the interval of the kernel time.",
        ),
        "shares": (
            "How the breakdown changes with batch size",
            "Shares of the latency, by runtime.",
        ),
    }
    pictures += [(name, *about[name], None) for name in charts.bars(family)]
    return {
        "title": family.title,
        "charts": [
            {
                "name": f"{name}-{number}",
                "title": title,
                "hint": hint,
                "slice": line,
                "flames": flames(family) if name == "bill" else [],
            }
            for name, title, hint, line in pictures
        ],
        "blocks": _family_blocks(family),
    }


def _family_blocks(family: Family) -> list[Block]:
    """Return the tables of one family with the ranking, which only HTML shows, and its notes."""
    results = run_blocks.result_blocks(family)
    if family.measured and (ranked := overview.ranked(family)) is not None:
        results.insert(1, ranked)
    return [*results, run_blocks.notes_of(family)]


def _thinned(contents: Contents) -> str:
    """Return what of the points the page does not have, or shows only in the chart of any axis."""
    every = sum(len(family.measurements) for family in contents.every)
    kept = sum(len(family.measurements) for family in contents.kept)
    said = []
    if kept < every:
        said.append(
            f"This page has {kept:,} of {every:,} points: {len(contents.kept):,} of "
            f"{len(contents.every):,} groups, evenly picked, each with all of its points."
        )
    if len(contents.in_full) < len(contents.kept):
        said.append(
            f"The first {len(contents.in_full)} of {len(contents.kept):,} groups have a section "
            "above; every one can be drawn here."
        )
    return " ".join(said)


def _overview(run: Run, contents: Contents) -> list[Block]:
    """Return the tables over all points that have anything in them, ``ROWS`` rows at most."""
    measurements = [m for family in contents.kept for m in family.measurements]
    found = (
        overview.matrix(run),
        overview.hardware(run),
        overview.free_sizes(contents.slices, measurements),
    )
    return [overview.first_rows(one, ROWS) for one in found if one is not None]


def _beside(comparison: Comparison, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return two results side by side; their picture goes to those that are drawn."""
    wide = charts.changes_chart(comparison)
    if wide:
        drawn["changes"] = {
            "wide": wide,
            "narrow": charts.changes_chart(comparison, wide=False),
        }
    about = (
        f"Before: {flat(comparison.before)}. After: {flat(comparison.after)}. "
        "The rest of this page is of the side after."
    )
    return {
        "head": [Text(flat(comparison.headline)), Text(about, style="dim")],
        "drawn": wide is not None,
        "title": "What changed, after over before",
        "body": [
            replace(compare_blocks.changes(comparison), title="Both sides, point by point"),
            *compare_blocks.compare_blocks(comparison)[2:],
        ],
    }


def _citation(run: Run) -> str:
    days = sorted({(m.session or "")[:8] for m in run.measurements if m.session})
    when = f", measured {_day(days[0])}" if days and days[0].isdigit() else ""
    if len(days) > 1 and when:
        when += f" to {_day(days[-1])}"
    where = f", {run.environment.cpu}" if run.environment else ""
    return f"frameworktax {__version__}{where}{when}."


def _day(stamp: str) -> str:
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"


# --- one call down to symbols ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of the flame view, as wide as its time.

    Attributes:
        name: of the line, library or symbol.
        ns: its time in a call.
        whole: ns of the call.
        colours: fill, and text on it.
        inner: boxes in it; what they leave of it stays empty.
    """

    name: str
    ns: float
    whole: float
    colours: tuple[str, str]
    inner: tuple[Box, ...] = ()

    @property
    def share(self) -> float:
        """Of the call."""
        return self.ns / self.whole

    @property
    def text(self) -> str:
        """Name, time and share."""
        return f"{self.name}, {duration(self.ns)}, {100 * self.share:.1f} %"

    @property
    def rest(self) -> float:
        """Share of the call that the boxes in it leave; 0 where it is too little to be drawn."""
        left = self.share - sum(box.share for box in self.inner)
        return left if left > LEAST else 0.0


def flames(family: Family) -> list[Box]:
    """Return a call of every runtime with named samples, at the smallest batch."""
    points = [p for name in family.runtimes if (p := family.at(name, family.batches[0]))]
    return [_flame(m) for m in points if m.symbols_ns and m.bill_ns]


def _flame(m: Measurement) -> Box:
    bill = m.bill_ns or {}
    whole = sum(ns for ns in bill.values() if ns > 0)

    def boxes(some: Sequence[Box]) -> tuple[Box, ...]:
        return tuple(box for box in some if box.share > LEAST)

    lines = []
    for line in BILL:
        colours = LINE_COLOURS[line]
        libraries: dict[str, list[Box]] = {}
        for name, library, symbol, ns in m.symbols_ns:
            if name == line:
                box = Box(name=symbol, ns=ns, whole=whole, colours=colours)
                libraries.setdefault(library, []).append(box)
        inner = [
            Box(
                name=library,
                ns=sum(box.ns for box in symbols),
                whole=whole,
                colours=colours,
                inner=boxes(symbols),
            )
            for library, symbols in libraries.items()
        ]
        inner.sort(key=lambda box: -box.ns)
        ns = bill.get(line, 0.0)
        lines.append(Box(name=label(line), ns=ns, whole=whole, colours=colours, inner=boxes(inner)))
    title = f"{m.runtime}, batch {m.workload.batch}"
    return Box(name=title, ns=whole, whole=whole, colours=PLAIN, inner=boxes(lines))


# --- rendering ---------------------------------------------------------------------------------


@cache
def _templates() -> Any:
    """Return the templates; Jinja2 is imported when a page is made, not before."""
    import jinja2
    from markupsafe import Markup

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("frameworktax.report") / "page")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["kind"] = lambda block: type(block).__name__
    found.filters["label"] = label
    found.filters["colour"] = lambda line: LINE_COLOURS[line][0]
    found.filters["css"] = lambda style: style.replace(" ", "-")
    found.filters["svg"] = lambda spec: Markup(vega.svg(spec))
    return found


def _rendered(name: str, **values: Any) -> str:
    text: str = _templates().get_template(name).render(**values)
    return text


def _safe(text: str) -> Any:
    """Return text that the templates put in as it is: this package's own, or JSON."""
    from markupsafe import Markup

    return Markup(text)


def json_block(value: Any) -> str:
    """Return JSON that cannot end the script element it is in, nor open a comment in it."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _bundle() -> str:
    """Return the plotting scripts; making them takes a second, once a process."""
    scripts: str = vega.engine().javascript_bundle()
    return scripts.replace("</script", "<\\/script")


def _text(name: str) -> str:
    return files("frameworktax.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
