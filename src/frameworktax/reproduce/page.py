"""A reproduction as blocks for a page and for a terminal, and as the document of ``--json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frameworktax.analysis.regime import gpu_peaks
from frameworktax.errors import counted
from frameworktax.report.blocks import Block, Cell, Chart, Heading, Item, Items, Table, Text, table
from frameworktax.report.html import write_page
from frameworktax.report.json_document import dump, plain
from frameworktax.report.words import NONE, interval, milliseconds, percent
from frameworktax.reproduce import figures, paper
from frameworktax.reproduce.claims import (
    PROXIES,
    Finding,
    Judged,
    estimate_text,
    row_text,
    value_text,
)
from frameworktax.reproduce.results import TIMES, Reproduction, StudyResult
from frameworktax.reproduce.rows import WORDS, Row, select, values

TITLE = "The paper on this machine"
VERDICTS, STYLES = WORDS["verdicts"], WORDS["styles"]
NOT_GIVEN = "none given"
"""In a study file: a number that the paper does not give."""
FILLED = {"sm_active": "SM activity", "warp_occupancy": "warp occupancy"}
LIBRARIES = ("torch", "transformers", "onnxruntime", "openvino")
"""Of which the page names the version."""


def document(found: Reproduction) -> dict[str, Any]:
    """Return the document of ``--json``: the run's, with claims and studies beside."""
    studies = [
        {
            "name": study.file.name,
            "title": study.file.title,
            "scale": found.scale,
            "proxies": [
                {**one, "rho": asdict(one["rho"]) if one["rho"] else None} for one in study.proxies
            ],
            "free": study.free,
            "machines": study.effects,
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
    if path.suffix == ".md":
        figures.write(found, path.with_suffix(""), (".svg",))
    write_page(path, TITLE, list(page(found, path.stem)))


def verdicts(found: Reproduction) -> Iterator[Block]:
    """Yield every claim with its verdict, ours with the reason, and the paper's."""
    for study in found.studies:
        items = [
            Item(
                lead=f"{claim.id}  {VERDICTS[claim.verdict]}",
                text=claim.text,
                detail=f"{claim.reason}; the paper: {theirs(claim)}",
                style=STYLES[claim.verdict],
            )
            for claim in study.claims
        ]
        yield Items(f"{study.file.name}: {study.file.title}", tuple(items))
    yield Text(tally(found))


def page(found: Reproduction, folder: str = "") -> Iterator[Block]:
    """Yield the page: each claim's verdict, the figures (files in ``folder``), the tables."""
    yield Heading(TITLE, 1)
    yield Text(f"Written by frameworktax reproduce. {tally(found)}.")
    yield Text(_setting(found))
    yield table(
        "",
        ["claim", "study", "says", "verdict", "ours", "the paper's"],
        [
            [
                c.id,
                Cell(c.study, link=f"#{_anchor(study)}"),
                c.text,
                Cell(VERDICTS[c.verdict], style=STYLES[c.verdict]),
                ours(c),
                theirs(c),
            ]
            for study in found.studies
            for c in study.claims
        ],
    )
    for study in found.studies:
        name, title = study.file.name, study.file.title
        yield Heading(f"{name}: {title}", anchor=_anchor(study))
        yield Text(study.file.caption)
        spec = figures.figure(study)
        if spec is not None:
            yield Chart(title, spec, file=f"{folder}/{name}.svg")
            if not paper.rows(name):
                yield Text("The paper gives no numbers for this figure.")
        yield from _tables(study)
    yield Heading("table-2: Hardware platforms")
    yield _platforms(found)
    yield Text(
        "The paper's peaks are as it prints them, without tensor cores; those here are of data "
        "sheets, with tensor cores."
    )
    source = paper.provenance()
    yield Heading("Where the paper's numbers come from")
    yield Text(f"{source['paper']}.")
    yield Text(f"Their setting: {source['setting']}. Their latency: {source['latency']}")
    yield table("", ["numbers", "source"], [*source["figures"].items(), *source["tables"].items()])


def tally(found: Reproduction) -> str:
    """Return how many claims hold, do not, and cannot be judged."""
    counts: Counter[str] = Counter(claim.verdict for claim in found.claims)
    parts = ", ".join(f"{words}: {counts[v]}" for v, words in VERDICTS.items() if counts[v])
    return f"{counted(len(found.claims), 'claim')}; {parts}"


def ours(claim: Judged) -> str:
    """Return our numbers, one after the other; where there is none, why."""
    numbers = [estimate_text(f.ours, f.unit) for f in claim.findings if f.ours is not None]
    return "; ".join(numbers) or _own(claim.findings[0])


def _own(finding: Finding) -> str:
    """Return our number, or why there is none."""
    if finding.ours is not None:
        return estimate_text(finding.ours, finding.unit)
    return finding.reason.removeprefix(f"{finding.says}: ")


def theirs(claim: Judged) -> str:
    """Return the paper's numbers: by the same rule from its data, and as it words them."""
    numbers = [value_text(f.paper, f.unit) for f in claim.findings if f.paper is not None]
    if not numbers:
        return f"{claim.number} ({claim.where})"
    words = f", {claim.number} in words" if claim.number != NOT_GIVEN else ""
    return f"{'; '.join(numbers)} by its data{words} ({claim.where})"


def _setting(found: Reproduction) -> str:
    machine = found.run.environment
    versions = dict(machine.libraries) if machine else {}
    named = [f"{name} {versions[name]}" for name in LIBRARIES if name in versions]
    where = f"{found.machines[-1]}, {machine.cores} processors" if machine else "?"
    return (
        f"{WORDS['scales'][found.scale]} Measured on {where}; {', '.join(named)}; one thread. "
        "Latency is the pipelined kind, as the paper's. A verdict is computed from 95 % intervals "
        "by the rule in the study's file: a claim holds if the whole interval lies inside its "
        "bound, does not if it lies outside (of a claim of n parts, the interval at 1 − 0.05 / n), "
        "and cannot be judged if it lies across or a number is missing. Where the paper gives its "
        "numbers as data, the same rule is applied to them."
    )


def _platforms(found: Reproduction) -> Table:
    """Return the machines: ours, where they have GPUs with their data sheets', and the paper's."""
    machine = found.run.environment
    host = machine.cpu if machine else "?"
    rows: list[list[str]] = []
    for gpu in machine.gpus if machine else ():
        sheet = gpu_peaks(gpu)
        peaks = (sheet.bandwidth / 1e9, sheet.half / 1e12) if sheet else ()
        rows.append(["here", str(gpu.get("name")), host, *(f"{x:.4g}" for x in peaks)])
    rows = rows or [["here", "no GPU", host]]
    for p in paper.platforms():
        numbers = (float(p[name]) for name in ("memory_bandwidth_gb_per_s", "fp16_tflops"))
        rows.append(["the paper", p["gpu"], p["host_cpu"], *(f"{x:.4g}" for x in numbers)])
    heads = ["", "device", "host", "memory bandwidth, GB/s", "peak in half precision, TFLOPS"]
    return table("", heads, [[*row, *[NONE] * (len(heads) - len(row))] for row in rows])


def _anchor(study: StudyResult) -> str:
    text = f"{study.file.name}: {study.file.title}".lower()
    return "".join(c for c in text.replace(" ", "-") if c.isalnum() or c == "-")


def _tables(study: StudyResult) -> Iterator[Block]:
    """Yield the tables of a study: its lines, its claims in full, free values, proxies."""
    if study.file.line:
        yield lines(study)
    yield table(
        "",
        ["claim", "what was computed", "ours", "asked for", "the paper's data", "verdict"],
        [
            [claim.id, f.says, _own(f), f.bounds, _by_data(f), VERDICTS[f.verdict]]
            for claim in study.claims
            for f in claim.findings
        ],
    )
    for row in study.rows:
        if row.other_kernels:
            yield Text(f"{row_text(row)}: {row.other_kernels}.")
    if study.free:
        heads = ["axis", "curve", "free up to (within 10 % of the first value)"]
        between = "from {low:.3g} to below {high:.3g} (interpolated: {value:.3g})"
        said = (between, "at least {low:.3g}")
        rows = [
            [f["axis"], f["at"], f["reason"] or said[f["lower_bound"]].format(**f)]
            for f in study.free
        ]
        yield table("", heads, rows)
    if study.effects:
        heads = ["machine", "model", "latency, ms", "host, ms", "kernels, ms", "of the first"]
        yield table("", heads, map(_effect, study.effects))
    if study.proxies:
        yield _proxies(study)


def _by_data(finding: Finding) -> str:
    if finding.paper is None or finding.paper_verdict is None:
        return NONE
    return f"{value_text(finding.paper, finding.unit)} ({VERDICTS[finding.paper_verdict]})"


def _effect(e: Mapping[str, Any]) -> list[str]:
    ratios = (e["host_ratio"], e["device_ratio"])
    host, device = (NONE if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    times = (milliseconds(e[f"{name}_ns"]) for name in TIMES)
    return [e["machine"], e["model"], *times, f"host × {host}, device × {device}"]


def _proxies(study: StudyResult) -> Block:
    """Return a line a proxy, a column a regime."""
    regimes = list(dict.fromkeys(p["regime"] for p in study.proxies))
    cells = {
        (p["proxy"], p["regime"]): f"{estimate_text(p['rho'])}, n = {p['n']}"
        if p["rho"]
        else p["reason"] or NONE
        for p in study.proxies
    }
    names = dict.fromkeys(p["proxy"] for p in study.proxies)
    heads = ["Spearman's ρ of latency with", *(f"{name} points" for name in regimes)]
    return table(
        "", heads, [[PROXIES[p], *(cells[p, regime] for regime in regimes)] for p in names]
    )


def lines(study: StudyResult) -> Table:
    """Return the lines of a table of the paper, ours beside the printed numbers."""
    printed = (
        "the paper's, ms",
        "the paper's, ms a sample",
        *(f"the paper's {name}" for name in FILLED.values()),
    )
    heads = ["", "ours, ms", "ours, ms a sample", "tax share", *FILLED.values(), *printed]
    rows = []
    theirs = paper.rows(study.file.name)
    has_batches = len(values(study.rows, "batch")) > 1
    for line in study.file.line:
        mine, other = (
            next(iter(select(every, line.where)), Row(at={})) for every in (study.rows, theirs)
        )
        latency, share = mine.numbers.get("latency"), mine.numbers.get("tax_share")
        cells = [mine.reason or NONE, *[NONE] * 4]
        if latency is not None:
            cells = [interval(latency), _per_sample(mine) if has_batches else NONE]
            cells += [percent(share.value if share else None), *_filled(mine)]
        theirs_ns = other.numbers.get("latency")
        cells += [f"{theirs_ns.value / 1e6:.4g}" if theirs_ns else NONE]
        cells += [_per_sample(other) if has_batches else NONE, *_filled(other)]
        rows.append([line.label, *cells])
    always = (0, 1, heads.index("tax share"))
    shown = [i for i in range(len(heads)) if i in always or any(row[i] != NONE for row in rows)]
    return table("", [heads[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _per_sample(row: Row) -> str:
    """Return latency over batch size, ms: what the paper's table 1 calls TP."""
    latency = row.numbers.get("latency")
    return NONE if latency is None else f"{latency.value / row.at['batch'] / 1e6:.3g}"


def _filled(row: Row) -> list[str]:
    """Return how full the device was, in words."""
    shares = [row.numbers.get(name) for name in FILLED]
    return [f"{100 * share.value:.3g} %" if share else NONE for share in shares]
