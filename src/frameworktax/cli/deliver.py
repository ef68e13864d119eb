"""What every verb does with its result: files checked first, written, then printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results
    from frameworktax.records import Run

INTERRUPTED = 130


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error and leave."""
    print(f"frameworktax: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def check_writable(json_file: str | None, report: Path | None) -> None:
    """Find out before measuring, not after, that a result cannot be written."""
    for path in (None if json_file in (None, "-") else Path(str(json_file)), report):
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            with path.open("a"):
                pass
            if not existed:
                path.unlink()  # what is refused later leaves nothing behind
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; name another") from error


def deliver(results: Results, json_file: str | None, report: Path | None, quiet: bool) -> None:
    deliver_run(results.run, json_file, report, quiet, [f"samples in {results.store}"])


def deliver_run(
    run: Run, json_file: str | None, report: Path | None, quiet: bool, kept: Sequence[str] = ()
) -> None:
    """Write and print a document; ``kept`` says what else there is."""
    from frameworktax.report.json_document import dump
    from frameworktax.report.terminal import print_run

    if json_file == "-":
        print(json.dumps(dump(run), allow_nan=False))  # noqa: T201
    elif json_file:
        Path(json_file).write_text(json.dumps(dump(run), allow_nan=False) + "\n")
    if report:
        from frameworktax.report.html import write_report

        write_report(run, report)
    if quiet or json_file == "-":
        return
    terminal = console()
    print_run(run, terminal)
    kept = list(kept)
    kept += [f"document in {json_file}"] if json_file else []
    kept += [f"report in {report}"] if report else []
    if kept:
        terminal.print(f"[dim]{', '.join(kept)}[/dim]", soft_wrap=True)
