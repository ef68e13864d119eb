"""A comparison for other programs: a pull request, a dashboard, a test report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from frameworktax.analysis.compare.comparison import Change, Comparison
from frameworktax.errors import UsageError, nearest
from frameworktax.report import compare_document
from frameworktax.report.compare_words import (
    MARKS,
    change_told,
    counts,
    flat,
    footers,
    point,
    reason,
    unit,
    value,
    verdict,
)
from frameworktax.report.markdown import escape
from frameworktax.report.words import half_width


def markdown(comparison: Comparison) -> str:
    """Return a comment for a pull request: headline, table, what to know folded away."""
    metric = comparison.metric
    head = ["", f"{metric}{unit(metric)}", "before", "after", "change (95 %)", "verdict"]
    rows = [
        [
            MARKS[change.verdict],
            escape(point(change)),
            value(change.before, metric),
            value(change.after, metric),
            change_told(change),
            f"**{verdict(change)}**" if change.gate == "regressed" else verdict(change),
        ]
        for change in comparison.points
    ]
    lines = [head, ["---", "---", "---:", "---:", "---:", "---"], *rows]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    said = [
        f"{point(change)}: {'; '.join(part for part in (reason(change), counts(change)) if part)}"
        for change in comparison.points
        if change.verdict != "same" or change.counts
    ]
    parts = [f"### {escape(comparison.headline)}", table]
    more = [f"- {escape(text)}" for text in [*said, *footers(comparison)]]
    if more:
        parts.append("<details><summary>Reasons and notes</summary>\n\n" + "\n".join(more))
        parts.append("</details>")
    return "\n\n".join(parts) + "\n"


def junit(comparison: Comparison) -> str:
    """Return JUnit XML: a regression is a failure, what cannot be told is skipped with its reason.

    Names may hold anything; what XML cannot hold is left out.
    """
    told = [_state(change, comparison) for change in comparison.points]
    suite = ElementTree.Element(
        "testsuite",
        name=f"frameworktax compare {comparison.metric}",
        tests=str(len(told)),
        failures=str(told.count("failure")),
        skipped=str(told.count("skipped")),
        errors="0",
    )
    for change, state in zip(comparison.points, told, strict=True):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"frameworktax.{flat(change.workload.model)}",
            name=point(change),
            time=f"{change.after.value / 1e9:.9f}"
            if change.after is not None and comparison.metric != "launches"
            else "0",
        )
        if state:
            ElementTree.SubElement(case, state, message=reason(change))
    ElementTree.indent(suite)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + ElementTree.tostring(suite, encoding="unicode")
        + "\n"
    )


def _state(change: Change, comparison: Comparison) -> str:
    if change.gate == "regressed":
        return "failure"
    is_open = change.gate == "undecided" if comparison.gate else change.verdict == "cannot tell"
    return "skipped" if is_open else ""


def benchmark(comparison: Comparison) -> str:
    """Return the side after for github-action-benchmark, tool ``customSmallerIsBetter``."""
    rows = [
        {
            "name": f"{point(change)}, {comparison.metric}",
            "unit": "launches" if comparison.metric == "launches" else "ms",
            "value": change.after.value / (1 if comparison.metric == "launches" else 1e6),
            "range": f"± {half_width(change.after)}",
            "extra": f"{verdict(change)}: {reason(change)}",
        }
        for change in comparison.points
        if change.after is not None
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "junit": junit,
    "github-action-benchmark": benchmark,
    "json": compare_document.text,
}
SUFFIXES = {".md": "markdown", ".xml": "junit", ".json": "github-action-benchmark"}


def text(comparison: Comparison, form: str) -> str:
    """Return the comparison in a format.

    Raises:
        UsageError: no such format.
    """
    if form not in FORMATS:
        raise UsageError(f"no format '{form}'{nearest(form, FORMATS)}; choose {', '.join(FORMATS)}")
    return FORMATS[form](comparison)


def form_of(path: Path) -> str:
    """Return the format that a file's suffix names.

    Raises:
        UsageError: it names none.
    """
    if path.suffix not in SUFFIXES:
        known = ", ".join(f"{suffix} {form}" for suffix, form in SUFFIXES.items())
        raise UsageError(f"cannot tell the format of '{path.name}'; give --format, or {known}")
    return SUFFIXES[path.suffix]
