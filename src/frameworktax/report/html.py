"""One offline page: the verdict, its pictures and tables, and every number.

Nothing is loaded and nothing is evaluated: the page carries a Content-Security-Policy that names
its two scripts by their hashes, the pictures' expressions are interpreted, data stands in a block
that is no script, and names from outside are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.errors import UsageError, nearest
from frameworktax.records import Run
from frameworktax.report import (
    bill_charts,
    charts,
    compare_charts,
    compare_html,
    flame_html,
    overview_charts,
    page_data,
    page_sections,
    points,
    sections,
    trace_html,
    vega,
    whatif_html,
)
from frameworktax.report.latency_layers import AXES
from frameworktax.report.palette import Spec
from frameworktax.report.tables import Family, families

Chart = Callable[..., Spec]
CHARTS: dict[str, Chart] = {
    "latency": charts.latency_chart,
    "bill": bill_charts.bill_chart,
    "shares": bill_charts.shares_chart,
}
SCRIPTS = (
    "page.js",
    "page_charts.js",
    "page_tables.js",
    "page_flame.js",
    "page_whatif.js",
    "page_sliders.js",
)
"""Joined in this order into one script of the page."""
FIGURES = (*CHARTS, "operations", *(axis for axis in AXES if axis != "batch"))
"""What can be drawn alone: an axis is latency against it."""
FIGURE_WIDTH = 760


def write_report(run: Run, path: Path, beside: Comparison | None = None) -> None:
    """Write the page.

    Args:
        run: to tell of.
        path: of the page.
        beside: a comparison whose side after is the run, told first.

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
    script = "".join(map(_data, SCRIPTS))
    contents = page_data.contents(run)
    shown = contents.in_full
    subject, verdict, rest = split_headline(run.headline)
    drawn = {
        f"{name}-{i}": {"wide": draw(family), "narrow": draw(family, wide=False)}
        for i, family in enumerate(shown)
        for name, draw in drawable(family).items()
        if name != "latency"
    }
    if beside and (changes := compare_charts.changes_chart(beside)):
        narrow = compare_charts.changes_chart(beside, wide=False) or changes
        drawn["changes"] = {"wide": changes, "narrow": narrow}
    whatif = whatif_html.data(run)
    hashes = " ".join(_hash(text) for text in (bundle, script))
    return _fill(
        _data("template.html"),
        policy=(
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        title=sections.esc(run.headline or "frameworktax"),
        css=_data("page.css"),
        subject=sections.esc(subject or "frameworktax"),
        verdict=sections.esc(_tied(verdict)),
        lede=f'<p class="lede">{sections.esc(_tied(rest))}</p>' if rest else "",
        tiles=sections.tiles(run, shown[0]) if shown and shown[0].measured else "",
        families="".join(
            sections.family_section(
                family,
                i,
                list(drawable(family)),
                sum(bool(f.measured) for f in shown[:i]),
                flame_html.flames(family) if family.measured else "",
            )
            for i, family in enumerate(shown)
        ),
        beside=compare_html.section(beside, "changes" in drawn) if beside else "",
        explore=page_sections.explore(contents),
        overview=page_sections.overview_section(run, contents),
        trace=trace_html.trace_section(run.trace),
        advice=sections.advice_section(run.advice),
        whatif=whatif_html.section(whatif["subjects"]),
        predictions=trace_html.predictions_section(run.predictions),
        trust=sections.trust_section(run),
        environment=sections.environment_section(run.environment) + page_sections.cite(run),
        numbers=page_sections.numbers(contents),
        data=json_block({**contents.data, "charts": points.rounded(drawn), "whatif": whatif}),
        bundle=bundle,
        script=script,
    )


def fragment(run: Run) -> str:
    """Return the headline and the tables as HTML for a notebook: no script, names escaped."""
    every = families(run)
    shown = every[: page_data.SECTIONS]
    tables = "".join(sections.family_section(family, i, []) for i, family in enumerate(shown))
    if len(shown) < len(every):
        tables += f"<p>The first {len(shown)} of {len(every):,} groups; a report has all.</p>"
    tables += trace_html.trace_section(run.trace) + trace_html.predictions_section(run.predictions)
    return f"<p><strong>{sections.esc(run.headline)}</strong></p>{tables}"


def drawable(family: Family) -> dict[str, Chart]:
    """Return the charts that this family has numbers for."""
    wanted: list[str] = []
    if family.measured:
        wanted.append("latency")
    batches = {m.workload.batch for m in family.measured if m.bill_ns}
    if family.measured and family.batches[0] in batches:
        wanted.append("bill")
    if len(batches) > 1:
        wanted.append("shares")
    return {name: CHARTS[name] for name in wanted}


def split_headline(headline: str) -> tuple[str, str, str]:
    """Return subject, first clause and the rest of ``subject: clause; clause``, capitalised."""
    subject, colon, said = headline.partition(": ")
    if not colon:
        subject, said = "", headline
    verdict, _, rest = said.partition("; ")
    return subject, verdict[:1].upper() + verdict[1:], rest[:1].upper() + rest[1:]


def _tied(text: str) -> str:
    """Return the text with numbers on one line with their signs."""
    return text.replace(" %", "\u00a0%").replace(" ×", "\u00a0×")


def json_block(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in, nor open a comment in it."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def figure(run: Run, name: str, path: Path) -> None:
    """Write one picture: of the first model, or of all points.

    Args:
        run: the document.
        name: one of ``FIGURES``; an axis is latency against it, ``latency`` is that against batch.
        path: its suffix chooses ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        UsageError: no such picture, no numbers for it, another suffix, or no plotting package.
    """
    if name not in FIGURES:
        raise UsageError(f"no figure '{name}'{nearest(name, FIGURES)}; have {', '.join(FIGURES)}")
    vega.check(path)
    drawn = _drawn(families(run), name)
    if drawn is None:
        raise UsageError(f"no numbers for the figure '{name}' in this run")
    vega.write({**drawn, "width": FIGURE_WIDTH, "background": "white", "config": PAPER}, path)


def _drawn(shown: Sequence[Family], name: str) -> Spec | None:
    """Return a picture's specification, None where there are no numbers for it."""
    measurements = [m for family in shown for m in family.measurements]
    if name == "operations":
        return overview_charts.operations_chart(measurements)
    if name in CHARTS:
        there = shown and name in drawable(shown[0])
        return CHARTS[name](shown[0]) if there else None
    line = next((line for line in points.slices(shown) if line.axis == name), None)
    if line is None:
        return None
    return charts.axis_chart([measurements[i] for i in line.rows], name, line.title)


PAPER = {
    "font": "Helvetica Neue, Arial, sans-serif",
    "view": {"stroke": None},
    "padding": 12,
    "axis": {
        "labelColor": "#59626e",
        "titleColor": "#59626e",
        "titleFontWeight": "normal",
        "gridColor": "#e3e6ea",
        "domainColor": "#e3e6ea",
        "tickColor": "#e3e6ea",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titlePadding": 10,
    },
    "axisY": {"labelColor": "#16191d"},
    "legend": {"labelFontSize": 12, "symbolFillColor": "#59626e", "columnPadding": 16},
    "text": {"color": "#59626e"},
}
"""Look of pictures on white."""


@cache
def _bundle() -> str:
    """Return the plotting scripts; making them takes a second, once a process."""
    scripts: str = vega.engine().javascript_bundle()
    return scripts.replace("</script", "<\\/script")


def _data(name: str) -> str:
    return files("frameworktax.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _fill(template: str, **parts: str) -> str:
    """Fill every ``{{name}}`` in one pass, so that nothing filled in is looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)
