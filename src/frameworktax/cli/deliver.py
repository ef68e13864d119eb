"""What every verb does with its result: files checked first, written, then printed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

from frameworktax.cli.streams import Aside, into_nothing
from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results
    from frameworktax.records import Run

DRAWN = (".html", ".svg", ".png", ".pdf")
"""Suffixes of files that hold pictures."""
INTERRUPTED = 130
UNREAD = 141
"""128 + SIGPIPE: how every filter ends whose output nobody reads. Not 0, which says a gate held."""


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error and leave."""
    try:
        print(f"frameworktax: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads it; the exit code still tells
        into_nothing(2)
    sys.exit(code)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    class Unread(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` says how a command ends whose reader has left

    if not stderr or sys.stderr is None:
        return Unread(stderr=stderr, highlight=False, soft_wrap=False)
    aside = cast("IO[str]", Aside(sys.stderr))
    return Unread(file=aside, stderr=True, highlight=False, soft_wrap=False)


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
    drawn = report is not None and report.suffix in DRAWN
    if drawn and importlib.util.find_spec("vl_convert") is None:
        raise UsageError(
            f"drawing {report} needs vl-convert-python; pip install 'frameworktax[report]'"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a document, or nothing: the half of one is worse than none.

    Raises:
        UsageError: the disk is full, or there is no writing here.
    """
    try:
        path.write_text(text)
    except OSError as error:
        if path.is_file():
            path.unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror}; what was measured is kept: "
            "free space, or name another file, and run the same command again"
        ) from error


def introduce(out: Console) -> None:
    """Say what measures, and where: for ``--verbose``."""
    from frameworktax import host
    from frameworktax.attribution import available_samplers
    from frameworktax.report.terminal_notes import print_environment

    sampler = next((name for name, usable, _ in available_samplers() if usable), None)
    print_environment(host.environment(sampler=sampler), out)


def deliver(
    results: Results,
    json_file: str | None,
    report: Path | None,
    quiet: bool,
    verbose: bool = False,
) -> None:
    kept = [f"samples in {results.store}"]
    deliver_run(results.run, json_file, report, quiet, kept, verbose=verbose)


def deliver_run(
    run: Run,
    json_file: str | None,
    report: Path | None,
    quiet: bool,
    kept: Sequence[str] = (),
    *,
    verbose: bool = False,
) -> None:
    """Write and print a document; ``kept`` says what else there is."""
    from frameworktax.report.json_document import dump
    from frameworktax.report.terminal import print_run

    if json_file == "-":
        print(json.dumps(dump(run), allow_nan=False))
    elif json_file:
        write_whole(Path(json_file), json.dumps(dump(run), allow_nan=False) + "\n")
    if report:
        from frameworktax.report.html import write_report

        write_report(run, report)
    if quiet or json_file == "-":
        return
    terminal = console()
    print_run(run, terminal, full=verbose)
    kept = list(kept)
    kept += [f"document in {json_file}"] if json_file else []
    kept += [f"report in {report}"] if report else []
    if kept:
        terminal.print(f"[dim]{', '.join(kept)}[/dim]", soft_wrap=True)
