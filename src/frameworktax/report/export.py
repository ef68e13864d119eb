"""Writing a run to a file whose suffix names the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.errors import UsageError, write_text
from frameworktax.records import Run
from frameworktax.report import charts, html, json_document, stacks, vega
from frameworktax.report.render_markdown import markdown
from frameworktax.report.rows import csv_text, write_parquet
from frameworktax.report.run_blocks import run_blocks

TEXTS: Mapping[str, Callable[[Run], str]] = {
    ".json": json_document.text,
    ".md": lambda run: markdown(run_blocks(run)),
    ".csv": csv_text,
    stacks.SUFFIX: stacks.collapsed,
    stacks.SPEEDSCOPE: stacks.speedscope,
}
SUFFIXES = (".html", *TEXTS, ".parquet", *vega.PICTURES)


def write(
    run: Run,
    path: Path,
    beside: Comparison | None = None,
    picture: str = "latency",
    before: Run | None = None,
) -> None:
    """Write a run to a file; one of ``SUFFIXES`` names the format.

    A comparison with the side ``before`` is shown in a page, ``picture`` is one of
    ``charts.FIGURES``.

    Raises:
        UsageError: two results are for a page alone, or what the format needs is not installed.
    """
    if beside is not None and path.suffix != ".html":
        raise UsageError(
            f"two results stand side by side in an .html page, not in {path.name}; "
            "other formats: frameworktax compare BEFORE AFTER -o FILE"
        )
    if path.suffix == ".html":
        write_text(path, html.page(run, beside, before))
    elif path.suffix in TEXTS:
        write_text(path, TEXTS[path.suffix](run))
    elif path.suffix == ".parquet":
        write_parquet(run, path)
    else:
        charts.figure(run, picture, path)
