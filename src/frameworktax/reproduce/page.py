"""The page of a reproduction: each claim's verdict, each figure, the machine; and the document."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.report.json_document import dump, plain
from frameworktax.report.words import interval, milliseconds, percent
from frameworktax.reproduce import figures, paper
from frameworktax.reproduce.claims import estimate_text
from frameworktax.reproduce.proxies import PROXIES
from frameworktax.reproduce.results import Reproduction, StudyResult
from frameworktax.reproduce.rows import Row, select
from frameworktax.reproduce.terminal import WORDS, counted, ours, theirs

SIZES = {
    "small": (
        "Small scale: the paper's models at an eighth of their width, 16 tokens or 64 pixels, so "
        "that batch 1 on one CPU thread is near the border that it has on their GPU; fewer batch "
        "sizes. Depth, operators and the order of every axis are the paper's."
    ),
    "full": "Full scale: the paper's sizes.",
}
Line = list[str]


def document(found: Reproduction) -> dict[str, Any]:
    """Return the document of ``--json``: the run's, with claims and studies beside."""
    studies = [
        {
            "name": study.file.name,
            "title": study.file.title,
            "scale": study.scale,
            "proxies": [asdict(proxy) for proxy in study.proxies],
            "free": [asdict(free) for free in study.free],
            "machines": [asdict(effect) for effect in study.effects],
        }
        for study in found.studies
    ]
    more = {
        "claims": [claim.document() for claim in found.claims],
        "studies": studies,
        "machines": list(found.machines),
        "paper": paper.provenance(),
    }
    return {**dump(found.run), **plain(more)}


def write(found: Reproduction, path: Path) -> None:
    """Write the page: Markdown with its figures in a folder of its name, or HTML with them inside.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        if path.suffix == ".md":
            figures.write(found, path.with_suffix(""), (".svg",))
            path.write_text(markdown(found, path.stem), encoding="utf-8")
        else:
            path.write_text(as_html(found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another") from error


def markdown(found: Reproduction, folder: str) -> str:
    """Return the page as Markdown.

    Args:
        found: what was study.
        folder: where its figures lie, from the page.
    """
    lines = ["# The paper on this machine", "", *_opening(found), ""]
    lines += _table(_summary(found))
    for study in found.studies:
        lines += ["", f"## {study.file.name}: {study.file.title}", "", study.file.caption]
        if figures.figure(study) is not None:
            lines += ["", f"![{study.file.title}]({folder}/{study.file.name}.svg)"]
            if not paper.rows(study.file.name):
                lines += ["", "The paper gives no numbers for this figure."]
        for table in _tables(study):
            lines += ["", *_table(table)]
    lines += ["", "## Where the paper's numbers come from", "", paper.provenance()["paper"] + "."]
    lines += ["", f"Their setting: {paper.provenance()['setting']}."]
    lines += [f"Their latency: {paper.provenance()['latency']}", ""]
    for kind in ("figures", "tables"):
        lines += [f"- {name}: {text}." for name, text in paper.provenance()[kind].items()]
    return "\n".join(lines) + "\n"


def _opening(found: Reproduction) -> list[str]:
    scale = found.studies[0].scale
    machine = found.environment
    libraries = dict(machine.libraries) if machine else {}
    named = [
        f"{n} {libraries[n]}"
        for n in ("torch", "transformers", "onnxruntime", "openvino")
        if n in libraries
    ]
    where = f"{found.machines[-1]}, {machine.cores} processors" if machine else "?"
    return [
        f"Written by `frameworktax reproduce`. {counted(found)}.",
        "",
        f"{SIZES[scale]} Measured on {_cell(where)}; {', '.join(named)}; one thread. Latency is "
        "the pipelined kind, as the paper's. A verdict is computed from 95 % intervals by the rule "
        "in the study's file: a claim holds if the whole interval lies inside its bound, does not "
        "if it lies outside, and cannot be judged if it lies across or a number is missing. "
        "Where the paper gives its numbers as data, the same rule is applied to them.",
    ]


def _summary(found: Reproduction) -> list[Line]:
    rows = [["claim", "study", "says", "verdict", "ours", "the paper's"]]
    rows += [
        [
            c.id,
            f"[{c.study}](#{_anchor(study)})",
            c.text,
            f"**{WORDS[c.verdict]}**",
            ours(c),
            theirs(c),
        ]
        for study in found.studies
        for c in study.claims
    ]
    return rows


def _anchor(study: StudyResult) -> str:
    kept = f"{study.file.name}: {study.file.title}".lower()
    return "".join(c for c in kept.replace(" ", "-") if c.isalnum() or c == "-")


def _tables(study: StudyResult) -> Iterator[list[Line]]:
    """Yield the tables of a study: its lines, its claims in full, free values, proxies."""
    if study.file.line:
        yield _printed_lines(study)
    yield [["claim", "what was computed", "ours", "asked for", "the paper's data", "verdict"]] + [
        [
            c.id,
            f.says,
            estimate_text(f.ours, "%" if "%" in f.bounds else "")
            if f.ours is not None
            else f.reason.removeprefix(f"{f.says}: "),
            f.bounds,
            _theirs(f.paper, f.paper_verdict, "%" in f.bounds),
            WORDS[f.verdict],
        ]
        for c in study.claims
        for f in c.findings
    ]
    if study.free:
        yield [["axis", "curve", "free up to (within 10 % of the first value)"]] + [
            [
                f.axis,
                f.at,
                f"{'at least ' * f.lower_bound}{f.value:.3g} ({f.low:.3g} to {f.high:.3g})",
            ]
            for f in study.free
        ]
    if study.effects:
        yield [["machine", "model", "latency, ms", "host, ms", "kernels, ms", "of the first"]] + [
            [
                e.machine,
                e.model,
                *map(milliseconds, (e.latency_ns, e.host_ns, e.kernel_ns)),
                f"host × {_factor(e.host_ratio)}, device × {_factor(e.device_ratio)}",
            ]
            for e in study.effects
        ]
    if study.proxies:
        yield _proxies(study)


def _proxies(study: StudyResult) -> list[Line]:
    """Return a line a proxy, a column a regime."""
    regimes = list(dict.fromkeys(p.regime for p in study.proxies))
    by_place = {(p.proxy, p.regime): p for p in study.proxies}
    rows = [["Spearman's ρ of latency with", *(f"{name} points" for name in regimes)]]
    for proxy in dict.fromkeys(p.proxy for p in study.proxies):
        found = [by_place[proxy, regime] for regime in regimes]
        cells = [
            f"{estimate_text(p.rho)}, n = {p.n}" if p.rho is not None else p.reason or "–"
            for p in found
        ]
        rows.append([PROXIES[proxy], *cells])
    return rows


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _theirs(value: float | None, verdict: str | None, share: bool) -> str:
    if value is None:
        return "–"
    said = f"{100 * value:.3g} %" if share else f"{value:.3g}"
    return said if verdict is None else f"{said} ({WORDS[verdict]})"


def _printed_lines(study: StudyResult) -> list[Line]:
    theirs_rows = paper.rows(study.file.name)
    rows = [["", "ours, ms", "tax share", "the paper's, ms", "SM activity", "warp occupancy"]]
    for line in study.file.line:
        mine = select(study.rows, line.where)
        printed = select(theirs_rows, line.where)
        rows.append([line.label, *_ours(mine), *_printed(printed)])
    if not any(row[4:] != ["–", "–"] for row in rows[1:]):
        rows = [row[:4] for row in rows]
    return rows


def _ours(rows: list[Row]) -> list[str]:
    if not rows or "latency" not in rows[0].numbers:
        return [rows[0].reason or "–" if rows else "–", "–"]
    numbers = rows[0].numbers
    share = numbers.get("tax_share")
    return [interval(numbers["latency"]), percent(share.value if share else None)]


def _printed(rows: list[Row]) -> list[str]:
    numbers = rows[0].numbers if rows else {}
    latency = numbers.get("latency")
    shares = [numbers.get(name) for name in ("sm_active", "warp_occupancy")]
    said = [f"{latency.value / 1e6:.4g}" if latency else "–"]
    return said + [f"{100 * s.value:.3g} %" if s else "–" for s in shares]


def _table(rows: list[Line]) -> list[str]:
    head, *rest = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rest]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def as_html(found: Reproduction) -> str:
    """Return the page as one HTML file without scripts, its figures inside, texts escaped."""
    parts = [f"<h1>The paper on this machine</h1><p>{html.escape(counted(found))}.</p>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in _opening(found)[2:]]
    head, *rest = _summary(found)
    plain_rows = [
        [row[0], row[1].split("]")[0].strip("["), row[2], row[3].strip("*"), *row[4:]]
        for row in rest
    ]
    parts.append(_html_table([head, *plain_rows]))
    for study in found.studies:
        parts.append(f"<h2>{html.escape(f'{study.file.name}: {study.file.title}')}</h2>")
        parts.append(f"<p>{html.escape(study.file.caption)}</p>{figures.svg(study) or ''}")
        parts += [_html_table(table) for table in _tables(study)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        f"<title>The paper on this machine</title><style>{STYLE}</style><body>"
        + "".join(parts)
        + "</body></html>\n"
    )


STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}"
    "td,th{border-bottom:1px solid #d8dce2;padding:.3rem .6rem;text-align:left;vertical-align:top}"
    "svg{max-width:100%;height:auto}"
)


def _html_table(rows: list[Line]) -> str:
    head, *rest = rows
    cells = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rest
    )
    return f"<table><tr>{cells}</tr>{body}</table>"
