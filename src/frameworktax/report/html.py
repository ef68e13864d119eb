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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from frameworktax.analysis.advice import determined, either, recommend
from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.analysis.estimates import share_texts, times_range
from frameworktax.errors import UsageError, flat, write_text
from frameworktax.host.cache import cache_folder, is_own, private_file
from frameworktax.records import Measurement, Run
from frameworktax.report import charts, compare_blocks, run_blocks, stacks, trace_blocks, vega
from frameworktax.report.blocks import Block, Heading, Text
from frameworktax.report.families import Family, families, latency_of
from frameworktax.report.page_data import STOPS, scripts_data
from frameworktax.report.render_markdown import markdown
from frameworktax.report.stacks import Box
from frameworktax.report.vega import LINE_COLOURS
from frameworktax.report.words import duration, label, percent, plus_minus, time_text, warm
from frameworktax.stats import within_one_process
from frameworktax.version import __version__

SCRIPTS = ("page.js", "charts.js", "tables.js", "flame.js", "whatif.js")
"""Joined in this order into one script of the page."""
MOST = 10_000
"""Points of a page; a browser sorts and draws so many without a pause."""
SECTIONS = 12
"""Families with a section of their own; more pictures are drawn for too long."""


def write_page(path: Path, title: str, blocks: Sequence[Block]) -> None:
    """Write blocks as a page of their own: Markdown where the suffix says so, else HTML.

    HTML has no scripts; pictures are drawn in it.

    Raises:
        UsageError: it cannot be written, or the package that draws is not installed.
    """
    if path.suffix == ".md":
        text = markdown(blocks)
    else:
        text = _rendered("document.html", title=title, found=blocks, css=_text("page.css"))
    write_text(path, text)


def page(run: Run, beside: Comparison | None = None, before: Run | None = None) -> str:
    """Return the page of a run as text.

    A comparison whose side after is the run is shown first; of the side before come the layers
    that stand beside the run's.

    Raises:
        UsageError: the package that carries the plotting scripts is not installed, or there are
            more points than a page can show.
    """
    vega.engine()  # before what may be left from an earlier page
    if len(run.measurements) > MOST:
        raise UsageError(
            f"{len(run.measurements):,} points are too many for a page, which has {MOST:,} at "
            "most; choose some with --where, or write .csv, .parquet or .json"
        )
    bundle = _bundle()
    script = "".join(map(_text, SCRIPTS))
    every = families(run)
    shown = every[:SECTIONS]
    points = [m for family in every for m in family.measurements]
    lines = charts.lines(every)
    pictures = _pictures(shown, points)
    data = scripts_data(run, points, lines, pictures)
    subject, colon, said = run.headline.partition(": ")
    verdict, _, rest = (said if colon else run.headline).partition("; ")
    return _rendered(
        "page.html",
        policy=(
            f"default-src 'none'; script-src {_hash(bundle)} {_hash(script)}; "
            "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        run=run,
        headline=(subject if colon else "", verdict, rest),
        tiles=_tiles(shown[0]) if shown and shown[0].measured else [],
        beside=_beside(beside) if beside else [],
        advice=run_blocks.advice_blocks(run.advice),
        families=[_section(family, i, before) for i, family in enumerate(shown)],
        others=len(every) - len(shown),
        explorable=len(lines) > sum(bool(family.measured) for family in shown),
        operations="operations" in pictures,
        trace=trace_blocks.trace_blocks(run.trace),
        predictions=trace_blocks.prediction_blocks(run.predictions),
        whatif=data["whatif"],
        stops={name: [f"{x:g}" for x in at] for name, at in STOPS.items()},
        session=run_blocks.session_blocks(run),
        facts=run_blocks.facts(run.environment) if run.environment else [],
        version=__version__,
        has_document="run" in data,
        least=stacks.LEAST,
        css=_text("page.css"),
        data=data,
        bundle=bundle,
        script=script,
    )


def fragment(run: Run) -> str:
    """Return the headline and the tables as HTML for a notebook, without scripts."""
    every = families(run)
    found: list[Block] = [Text(run.headline, style="strong")]
    for family in every[:SECTIONS]:
        found += [Heading(family.title), *_family_blocks(family)]
    if len(every) > SECTIONS:
        text = f"The first {SECTIONS} of {len(every):,} groups; a report has all."
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


# --- parts of the page -------------------------------------------------------------------------


def _tiles(family: Family) -> list[tuple[str, str, str]]:
    """Return the four numbers of the headline: name, value, and what it is about."""
    runtime, batch = family.reference, family.batches[0]
    made = []
    if focus := family.at.get((runtime, batch)):
        latency = latency_of(focus)
        alone = ", within one process" * within_one_process(latency)
        about = f"{runtime}, batch {batch}, {plus_minus(latency) or 'no interval'}{alone}"
        made.append(("Latency", time_text(latency.value), about))
        if (share := focus.tax_share) is not None:
            text, _ = share_texts(share)
            digits = len(text.partition(".")[2])
            low, high = (f"{100 * end:.{digits}f}" for end in (share.low, share.high))
            value = f"{warm(focus)}{text} %" if determined(share) else "not determined"
            about = f"of {runtime} at batch {batch}, {low} to {high} %"
            made.append(("Framework tax", value, about))
    curve = family.curve(runtime)
    if curve is not None and curve.free_batch is not None:
        free = run_blocks.free_cell(curve)
        about = f"{runtime}, within 10 % of batch 1: {free.exact}"
        made.append(("Free batch size", free.text, about))
    best = next(iter(recommend(family.smallest)), None)
    if best is not None and best.gain is not None:
        about = f"{either(best.runtimes)} over eager at batch {batch}, outputs equal"
        made.append(("Fastest runtime", times_range(best.gain), about))
    return made


def _names(family: Family) -> list[str]:
    return ["latency"] * (len(family.batches) > 1) + charts.bars(family)


def _pictures(
    shown: Sequence[Family], points: Sequence[Measurement]
) -> dict[str, charts.Picture | int]:
    """Return the pictures by their places in the page; a number is one of the lines."""
    found: dict[str, charts.Picture | int] = {}
    line = 0
    for i, family in enumerate(shown):
        for name in _names(family):
            found[f"{name}-{i}"] = line if name == "latency" else charts.BARS[name](family)
        line += bool(family.measured)
    operations = charts.operations_chart(points)
    return found | ({"operations": operations} if operations else {})


def _section(family: Family, number: int, before: Run | None) -> dict[str, Any]:
    """Return one family: its pictures, then the same numbers as tables."""
    return {
        "title": family.title,
        "charts": [(name, f"{name}-{number}") for name in _names(family)],
        "flames": flames(family, before),
        "opened": 1 if before is None else 2,
        "blocks": _family_blocks(family),
    }


def _family_blocks(family: Family) -> list[Block]:
    return [*run_blocks.result_blocks(family), run_blocks.notes_of(family)]


def _beside(comparison: Comparison) -> list[Block]:
    about = (
        f"Before: {flat(comparison.before)}. After: {flat(comparison.after)}. "
        "The rest of this page is of the side after."
    )
    table = replace(compare_blocks.changes(comparison), title="Both sides, point by point")
    found: list[Block] = [Text(flat(comparison.headline)), Text(about, style="dim"), table]
    return [*found, *compare_blocks.compare_blocks(comparison)[2:]]


def flames(family: Family, before: Run | None = None) -> tuple[list[Box], list[Box]]:
    """Return calls as boxes: of every point with layers, and by symbol at the smallest batch.

    With another result the point's layers before stand in front of those after.
    """
    earlier = {m.point: m for m in before.measurements} if before else {}
    layers = []
    for m in family.measured:
        old = earlier.get(m.point)
        for side, one in (("before: ", old), ("after: ", m)) if old else (("", m),):
            if one.layers:
                found = stacks.flame(one, stacks.of_layers(one))
                layers.append(replace(found, name=f"{side}{found.name}"))
    named = [m for m in family.smallest if m.symbols_ns and m.bill_ns]
    return layers, [stacks.flame(m, stacks.of_symbols(m)) for m in named]


# --- rendering ---------------------------------------------------------------------------------


@cache
def _templates() -> Any:
    """Return the templates; Jinja2 is imported when a page is made, not before."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("frameworktax.report") / "page")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: flat(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {f.__name__: f for f in (label, percent, duration, vega.svg)}
    found.filters["kind"] = lambda block: type(block).__name__
    found.filters["colour"] = lambda line: LINE_COLOURS[line][0]
    found.filters["css"] = lambda style: style.replace(" ", "-")
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return found


def _rendered(name: str, **values: Any) -> str:
    text: str = _templates().get_template(name).render(**values)
    return text


@cache
def _bundle() -> str:
    """Return the plotting scripts; making them takes seconds, so that the user's cache keeps them.

    Where no cache can be had or written they are made each time.
    """
    engine = vega.engine()
    kept: Path | None = None
    with suppress(UsageError, OSError):
        kept = cache_folder() / f"plotting-{engine.__version__}.js"
        if is_own(kept):
            return kept.read_bytes().decode("utf-8")
    made: str = engine.javascript_bundle().replace("</script", "<\\/script")
    if kept is not None:
        with suppress(OSError), private_file(kept) as partial:
            partial.write_bytes(made.encode("utf-8"))
    return made


def _text(name: str) -> str:
    return files("frameworktax.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
