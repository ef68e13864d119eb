"""What every verb does with its result: files checked first, written, then printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results

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
    from frameworktax.report.terminal import print_run

    if json_file == "-":
        print(json.dumps(results.to_json(), allow_nan=False))  # noqa: T201
    elif json_file:
        Path(json_file).write_text(json.dumps(results.to_json(), allow_nan=False) + "\n")
    if report:
        results.report(report)
    if quiet or json_file == "-":
        return
    terminal = console()
    print_run(results.run, terminal)
    kept = [f"samples in {results.store}"]
    kept += [f"document in {json_file}"] if json_file else []
    kept += [f"report in {report}"] if report else []
    terminal.print(f"[dim]{', '.join(kept)}[/dim]", soft_wrap=True)
