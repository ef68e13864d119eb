"""A comparison for other programs: a pull request, a dashboard, a test report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from frameworktax.analysis.compare.comparison import Change, Comparison
from frameworktax.errors import UsageError, flat, nearest
from frameworktax.report import json_document
from frameworktax.report.blocks import Heading
from frameworktax.report.compare_blocks import change_name, compare_blocks, reason, verdict
from frameworktax.report.render_markdown import markdown
from frameworktax.report.words import plus_minus


def comment(comparison: Comparison) -> str:
    """Return Markdown for a pull request: headline, table, what to know folded away."""
    headline, table, notes = compare_blocks(comparison)
    if isinstance(headline, Heading):
        headline = replace(headline, level=3)  # a title within a page of comments
    more = markdown([notes])
    if not more.strip():
        return markdown([headline, table])
    folded = f"<details><summary>Reasons and notes</summary>\n\n{more}\n</details>\n"
    return f"{markdown([headline, table])}\n{folded}"


def junit(comparison: Comparison) -> str:
    """Return JUnit XML: a regression is a failure, an open verdict is skipped with its reason.

    Names may hold anything; what XML cannot hold is left out.
    """
    states = [_state(change, comparison) for change in comparison.points]
    suite = ElementTree.Element(
        "testsuite",
        name=f"frameworktax compare {comparison.metric}",
        tests=str(len(states)),
        failures=str(states.count("failure")),
        skipped=str(states.count("skipped")),
        errors="0",
    )
    for change, state in zip(comparison.points, states, strict=True):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"frameworktax.{flat(change.workload.model)}",
            name=change_name(change),
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
            "name": f"{change_name(change)}, {comparison.metric}",
            "unit": "launches" if comparison.metric == "launches" else "ms",
            "value": change.after.value / (1 if comparison.metric == "launches" else 1e6),
            "range": plus_minus(change.after),
            "extra": f"{verdict(change)}: {reason(change)}",
        }
        for change in comparison.points
        if change.after is not None
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": comment,
    "junit": junit,
    "github-action-benchmark": benchmark,
    "json": json_document.text,
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
        raise UsageError(f"unknown format of '{path.name}'; give --format, or {known}")
    return SUFFIXES[path.suffix]
