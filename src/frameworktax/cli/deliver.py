"""What every verb does with its result: check the files first, write them, then print.

Output may have no reader any more, one that is stuck, or a full disk: each ends with one line at
most, and its own exit code. A reader that leaves costs no file, and a file that cannot be written
does not cost the tables.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO, cast

from frameworktax.cli.endings import ENDINGS, Ended, ends_once, writable
from frameworktax.errors import (
    NothingMeasuredError,
    UsageError,
    check_suffix,
    flat,
    quoted,
    shortened,
    write_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results
    from frameworktax.cli.progress import ProgressView
    from frameworktax.records import Run
    from frameworktax.report.blocks import Block

PAGES = (".md", ".html")
INTERRUPTED = 130
UNREAD = 141
"""128 + SIGPIPE: how every filter ends whose reader has left. Not 0: a gate was not passed."""


# --- files ------------------------------------------------------------------------------------


def check_writable(*files: str | Path | None) -> None:
    """Find out before measuring, not after, that a result cannot be written; ``-`` always can."""
    from frameworktax.report.vega import PICTURES

    paths = [Path(file) for file in files if file is not None and file != "-"]
    for path in paths:
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise UsageError(f"two results would be written to {path}; name a file for each")
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


class Output:
    """What a verb does with its result: files are checked before anything is measured.

    With ``-`` as ``json_file`` standard output gets the document and nothing else; ``report`` is
    the page, Markdown or HTML by its suffix, ``files`` are others that will be written. With
    ``aside`` standard output is a program's, and blocks are printed on standard error.

    Raises:
        UsageError: a file cannot be written, a page has another suffix, or both ``quiet`` and
            ``verbose``.
    """

    def __init__(
        self,
        json_file: str | None = None,
        report: Path | None = None,
        *files: Path | None,
        quiet: bool = False,
        verbose: bool = False,
        aside: bool = False,
    ) -> None:
        if quiet and verbose:
            raise UsageError("--quiet and --verbose are opposites; give one of them")
        check_suffix(report, PAGES)
        check_writable(json_file, report, *files)
        self._json_file = json_file
        self._report = report
        self._quiet = quiet
        self._verbose = verbose
        self._aside = aside
        self.prints = not quiet and json_file != "-"

    def document(self, data: Any) -> None:
        """Write a document where ``--json`` says: to a file, to standard output, or not at all."""
        if self._json_file == "-":
            print(json.dumps(data, allow_nan=False))
        elif self._json_file:
            write_text(Path(self._json_file), json.dumps(data, allow_nan=False) + "\n")

    def blocks(self, blocks: Iterable[Block]) -> None:
        """Print blocks."""
        from frameworktax.report.render_terminal import print_blocks

        if self.prints:
            print_blocks(blocks, console(stderr=self._aside), full=self._verbose)

    def deliver(self, data: Any, title: str, blocks: Sequence[Block]) -> None:
        """Write a document, and blocks as the page, where that was asked for; print the blocks."""
        try:
            self.document(data)
            if self._report:
                from frameworktax.report.html import write_page

                write_page(self._report, title, blocks)
        finally:
            self.blocks(blocks)

    def line(self, text: str) -> None:
        """Print a line."""
        if self.prints:
            print(flat(text))

    def files(self, run: Run) -> None:
        """Write a run to the files that were asked for."""
        from frameworktax.report.json_document import dump

        if self._json_file:
            self.document(dump(run))
        if self._report:
            from frameworktax.report.export import write

            write(run, self._report)

    def run(self, run: Run, store: Path | None = None) -> None:
        """Write and print a run; the last line says what is kept where."""
        from frameworktax.report.run_blocks import run_blocks
        from frameworktax.report.words import points_text

        try:
            self.files(run)
        finally:
            if self.prints:
                self.blocks(run_blocks(run, folded=self._verbose))
        kept = [points_text(run.points)] if store and run.points is not None else []
        places = {"samples": store, "document": self._json_file, "report": self._report}
        kept += [f"{what} in {place}" for what, place in places.items() if place]
        if self.prints and kept:
            console().print(flat(", ".join(kept)), style="dim", markup=False, soft_wrap=True)

    def results(self, results: Results) -> None:
        """Write and print what was measured; points that are missing are said even if quiet."""
        from frameworktax.report.words import points_text

        self.run(results.run, results.store)
        points = results.run.points
        if self._quiet and points is not None and points.measured < points.asked:
            see = f"see which: frameworktax report {quoted(results.store)}"
            print(flat(f"frameworktax: {points_text(points)} measured; {see}"), file=sys.stderr)

    def view(self) -> ProgressView | nullcontext[None]:
        """Return a reporter on standard error, as a context; None in it for ``--quiet``."""
        if self._quiet:
            return nullcontext()
        from frameworktax.cli.progress import ProgressView

        out = console(stderr=True)
        if self._verbose:
            from frameworktax.measure.recorder import this_environment
            from frameworktax.report.render_terminal import print_blocks
            from frameworktax.report.run_blocks import environment_blocks

            print_blocks(environment_blocks(this_environment()), out, full=True)
        return ProgressView(out, verbose=self._verbose)

    @contextmanager
    def ending(
        self, store: Path | None, then: str, rest: str = "", partial: bool = False
    ) -> Iterator[None]:
        """After Ctrl-C say what to do ``then``, and leave; without a store nothing is kept.

        With ``partial`` results that are not whole are delivered before. What is to be done for the
        ``rest`` is said where points are left to measure.
        """
        try:
            with ends_once():
                yield
        except KeyboardInterrupt as ended:
            from frameworktax.api import Interrupted

            stopped = ended.__cause__ if isinstance(ended, Ended) else ended
            if partial and isinstance(stopped, Interrupted) and stopped.results.any_measured:
                self.results(stopped.results)
            is_whole = isinstance(stopped, Interrupted) and not stopped.left
            leave(ended, store, then if is_whole else then + rest)
        except NothingMeasuredError as error:
            if partial and error.results is not None:
                self.files(error.results.run)  # with every status and reason
            raise


def print_list(
    data: Sequence[Mapping[str, Any]],
    as_json: bool,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> None:
    """Print what a list has: as data, or as a table."""
    if as_json:
        print(json.dumps(data, indent=1))
    else:
        from frameworktax.report.render_terminal import print_rows

        print_rows(console(), head, rows)


# --- standard output and error ----------------------------------------------------------------


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error and leave."""
    try:
        print(f"frameworktax: {shortened(flat(message))}", file=sys.stderr, flush=True)
    except OSError:  # no reader: the exit code remains
        into_nothing(2)
    sys.exit(code)


def leave(ended: KeyboardInterrupt, store: Path | None, then: str) -> NoReturn:
    """Say by what a session was ended, where its results are and what to do next; leave."""
    number = signal.SIGINT
    if isinstance(ended, Ended):
        number = signal.Signals(ended.number)
        into_nothing(1)  # its reader may be stuck: do not wait for the rest of the output
        for one in ENDINGS:
            signal.signal(one, signal.SIG_IGN)  # all that is left is to leave
    by = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    kept = f"what was measured is kept in {store}" if store else "what was measured is not kept"
    fail(f"{by}; {kept}. {then}", 128 + number)


def this_command(*without: str) -> str:
    """Return the command line as the user typed it, some options left out."""
    return f"frameworktax {shlex.join(word for word in sys.argv[1:] if word not in without)}"


def console(*, stderr: bool = False) -> Console:
    """Return where to print for people."""
    from rich.console import Console

    class Strict(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `main` decides how a command ends whose reader has left

    file = cast("IO[str]", Aside(sys.stderr)) if stderr else None
    # COLUMNS=0 is of a terminal that does not know its size; rich takes it for one
    unknown = [("COLUMNS", "0"), ("LINES", "0")]
    known = {name: text for name, text in os.environ.items() if (name, text) not in unknown}
    return Strict(file=file, highlight=False, _environ=known)


def into_nothing(descriptor: int) -> None:
    """Let what is still to be written to a descriptor go nowhere: its reader has left."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


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
