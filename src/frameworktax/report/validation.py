"""The errors that formulas have shown, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from frameworktax.analysis.whatif.formula_errors import ENOUGH, MEDIAN, P95, distrust

if TYPE_CHECKING:
    from rich.console import Console

HEADER = ("formula", "median", "p95", "n", "")


def print_validation(document: Mapping[str, Any], console: Console) -> None:
    """Print the table of formulas, and how many checks were too uncertain to count."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="left" if i in (0, 4) else "right")
    for row in _rows(document):
        table.add_row(*row)
    console.print(table)
    console.print(_counted(document), soft_wrap=True)


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, shown in sorted(document["formulas"].items()):
        verdict = "refused" if distrust(shown) else "predicts"
        verdict = verdict if shown["n"] >= ENOUGH else "too few checks to judge"
        yield (
            name,
            _percent(shown["median"]),
            _percent(shown["p95"]),
            f"{shown['n']:.0f}",
            verdict,
        )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _counted(document: Mapping[str, Any]) -> str:
    checks = document["checks"]
    left = sum(not check["counted"] for check in checks)
    return (
        f"{len(checks)} checks; {left} not counted, because what was measured is itself uncertain; "
        f"a formula predicts with errors up to {_percent(MEDIAN)} at the median and "
        f"{_percent(P95)} at the 95th percentile"
    )


def markdown(document: Mapping[str, Any]) -> str:
    """Return the document as a page: the table, the machine, every check."""
    where = document["environment"] or {}
    libraries = where.get("libraries") or {}
    named = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if name in libraries]
    lines = [
        "# The errors of predictions",
        "",
        f"Written by `frameworktax validate` on {document['made']}, on {where.get('cpu', '?')}, "
        f"{where.get('cores', '?')} processors; {', '.join(named)}. Predictions run on a document "
        "without the point in question and are held against what was measured for it in the same "
        "session.",
        "",
        "| formula | median error | 95th percentile | checks | |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(document)]
    lines += ["", _counted(document) + ".", ""]
    lines += [
        "| from | change | formula | error | measured to | counted |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(c['subject'])} | `{_cell(c['change'])}` | {_cell(c['formula'])} | "
        f"{100 * c['error']:+.1f} % | ±{_percent(c['uncertainty'])} | "
        f"{'yes' if c['counted'] else 'no'} |"
        for c in document["checks"]
    ]
    if document["refused"]:
        lines += ["", "Not predicted:", ""]
        lines += [f"- {_cell(reason)}" for reason in document["refused"]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("`", "'")
