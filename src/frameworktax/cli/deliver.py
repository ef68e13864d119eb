"""What every verb does with its result: check the files first, write them, then print.

Output may have no reader any more, one that is stuck, or a full disk: each ends with one line at
most, and its own exit code.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import select
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO, cast

from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results
    from frameworktax.cli.progress import ProgressView
    from frameworktax.records import Run

PAGES = (".md", ".html")
INTERRUPTED = 130
UNREAD = 141
"""128 + SIGPIPE: how every filter ends whose reader has left. Not 0: a gate was not passed."""


# --- files ------------------------------------------------------------------------------------


def check_writable(*files: str | Path | None) -> None:
    """Find out before measuring, not after, that a result cannot be written; ``-`` always can."""
    from frameworktax.report.vega import PICTURES

    for path in (Path(file) for file in files if file not in (None, "-")):
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            with path.open("a"):
                pass
            if not existed:
                path.unlink()  # a command refused later leaves nothing behind
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; name another") from error
        if path.suffix in (".html", *PICTURES) and not importlib.util.find_spec("vl_convert"):
            raise UsageError(
                f"drawing {path} needs vl-convert-python; pip install 'frameworktax[report]'"
            )


def check_suffix(path: Path | None, suffixes: Sequence[str]) -> None:
    """Raise UsageError if a file to write has none of these suffixes."""
    if path is not None and path.suffix not in suffixes:
        raise UsageError(f"cannot write '{path.name}'; choose {', '.join(suffixes)}")


def write_whole(path: Path, text: str) -> None:
    """Write a document completely or not at all.

    Raises:
        UsageError: the disk is full, or the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if path.is_file():
            path.unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror}; what was measured is kept: "
            "free space, or name another file, and run the same command again"
        ) from error


def write_json(document: Any, json_file: str | None) -> None:
    """Write a document where ``--json`` says: to a file, to standard output, or not at all."""
    if json_file == "-":
        print(json.dumps(document, allow_nan=False))
    elif json_file:
        write_whole(Path(json_file), json.dumps(document, allow_nan=False) + "\n")


def deliver(
    results: Results,
    json_file: str | None,
    report: Path | None,
    quiet: bool,
    verbose: bool = False,
) -> None:
    """Write and print what was measured."""
    from frameworktax.report.words import points_text

    points = results.run.points
    kept = [f"samples in {results.store}"]
    if points is not None:
        kept.insert(0, points_text(points))
    deliver_run(results.run, json_file, report, quiet, kept, verbose=verbose)


def say_missing(results: Results) -> None:
    """Say on standard error how many points are missing: for ``--quiet``."""
    from frameworktax.report.words import points_text

    points = results.run.points
    if points is not None and points.measured < points.asked:
        missing = f"{points_text(points)} measured; see which: frameworktax report {results.store}"
        print(f"frameworktax: {missing}", file=sys.stderr)


def deliver_run(
    run: Run,
    json_file: str | None,
    report: Path | None,
    quiet: bool,
    kept: Sequence[str] = (),
    *,
    verbose: bool = False,
) -> None:
    """Write and print a document; ``kept`` names what else was written."""
    from frameworktax.report.json_document import dump
    from frameworktax.report.render_terminal import print_blocks
    from frameworktax.report.run_blocks import run_blocks

    if json_file:
        write_json(dump(run), json_file)
    if report:
        from frameworktax.report.html import write_report

        write_report(run, report)
    if quiet or json_file == "-":
        return
    terminal = console()
    print_blocks(run_blocks(run), terminal, full=verbose)
    files = [*kept]
    files += [f"document in {json_file}"] if json_file else []
    files += [f"report in {report}"] if report else []
    if files:
        terminal.print(f"[dim]{', '.join(files)}[/dim]", soft_wrap=True)


# --- standard output and error ----------------------------------------------------------------


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error and leave."""
    try:
        print(f"frameworktax: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:  # no reader: the exit code remains
        into_nothing(2)
    sys.exit(code)


def interrupted(store: Path, *then: str) -> NoReturn:
    """Say what to do after Ctrl-C, and leave."""
    steps = "; ".join(then)
    fail(f"interrupted; what was measured is kept in {store}. {steps}", INTERRUPTED)


def this_command(*without: str) -> str:
    """Return the command line as the user typed it, some options left out."""
    return f"frameworktax {shlex.join(word for word in sys.argv[1:] if word not in without)}"


def console(*, stderr: bool = False) -> Console:
    """Return where to print for people."""
    from rich.console import Console

    class Strict(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` decides how a command ends whose reader has left

    if not stderr or sys.stderr is None:
        return Strict(stderr=stderr, highlight=False, soft_wrap=False)
    aside = cast("IO[str]", Aside(sys.stderr))
    return Strict(file=aside, stderr=True, highlight=False, soft_wrap=False)


def progress_bar(budget_s: float, quiet: bool, verbose: bool) -> ProgressView | None:
    """Return a reporter on standard error, or None for ``--quiet``."""
    from frameworktax.cli.progress import ProgressView

    if quiet:
        return None
    out = console(stderr=True)
    if verbose:
        introduce(out)
    return ProgressView(out, budget_s, verbose=verbose)


def introduce(out: Console) -> None:
    """Print what measures, and on which machine: for ``--verbose``."""
    from frameworktax.measure.shard import this_environment
    from frameworktax.report.render_terminal import print_blocks
    from frameworktax.report.run_blocks import environment_blocks

    print_blocks(environment_blocks(this_environment()), out, full=True)


def into_nothing(descriptor: int) -> None:
    """Let what is still to be written to a descriptor go nowhere: its reader has left."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def writable(descriptor: int) -> bool:
    """Return whether a line can be written at once: no full pipe, no stopped terminal."""
    with suppress(OSError, ValueError):
        return bool(select.select((), (descriptor,), (), 0)[1])
    return False


class Aside:
    """A stream for progress: a reader that left or is stuck changes nothing.

    An hour of measuring is not lost to a log that cannot be written, and does not wait for a pager.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop the text where no one can read it."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, io.UnsupportedOperation):  # no file: a test, a notebook
            return self._stream.write(text)
        if writable(descriptor):
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                into_nothing(descriptor)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write was flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
