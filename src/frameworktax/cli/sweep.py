"""`frameworktax sweep`: a study, resumable."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frameworktax.cli.app import Quiet, Verbose, app, check_loudness
from frameworktax.cli.deliver import (
    check_writable,
    console,
    deliver,
    fail,
    into_nothing,
    introduce,
    writable,
    write_whole,
)

if TYPE_CHECKING:
    from frameworktax.sweep.results import SweepResults

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a sweep from outside: Ctrl-C, a scheduler or a shutdown, a terminal that is closed."""


class Ended(KeyboardInterrupt):
    """A sweep is ended from outside; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@app.command()
def sweep(
    study: Annotated[Path, typer.Argument(help="A TOML file; `frameworktax init` writes one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value over what it says: grid.batch=1,2 or ~exclude."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, ray (the cluster this host is in) or ray://HOST:PORT.")
    ] = "local",
    store: Annotated[Path, typer.Option(help="Folder that keeps every sample.")] = Path(
        "frameworktax-results"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured, and stop.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Leave out points the store holds.")
    ] = True,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let models of the study be Python code.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure a study: a grid of points, whatever happens each of them once.

    Examples:

      frameworktax sweep study.toml

      frameworktax sweep study.toml grid.batch=1,2 study.time_budget=5min

      frameworktax sweep study.toml --engine ray
    """
    words = overrides or []
    check_loudness(quiet, verbose)
    check_writable(json_file, report)
    if dry_run:
        _dry_run(study, words, engine, store, resume, allow_code, json_file, quiet)
        return
    from frameworktax.cli.live import StudyView
    from frameworktax.sweep.run import sweep as run_sweep

    out = console(stderr=True)
    view = None if quiet else StudyView(out, verbose=verbose)
    if verbose:
        introduce(out)
    arguments: dict[str, Any] = {
        "store": store,
        "engine": engine,
        "resume": resume,
        "allow_code": allow_code,
        "reporter": view,
        "command": sys.argv[1:],
    }
    try:
        with _ends_once():
            with view or nullcontext():
                results = run_sweep(study, *words, **arguments)
            deliver(results, json_file, report, quiet, verbose)
            if not quiet:
                _summarise(results, json_file)
    except Ended as ended:
        into_nothing(
            1
        )  # who reads standard output may be stuck: what is left of it is not waited for
        for number in ENDINGS:
            signal.signal(number, signal.SIG_IGN)  # all that is left is to leave
        name = signal.Signals(ended.number).name
        by = "interrupted" if ended.number == signal.SIGINT else f"ended by {name}"
        fail(
            f"{by}; what was measured is kept in {store}. "
            f"See it: frameworktax report {store}; "
            f"go on: frameworktax {shlex.join(w for w in sys.argv[1:] if w != '--no-resume')}",
            128 + ended.number,
        )


def _summarise(results: SweepResults, json_file: str | None) -> None:
    from frameworktax.sweep.words import summary

    out = console(stderr=json_file == "-")
    for line in summary(results):
        out.print(line, soft_wrap=True, markup=False)


def _dry_run(
    study: Path,
    words: list[str],
    engine: str,
    store: Path,
    resume: bool,
    allow_code: bool,
    json_file: str | None,
    quiet: bool,
) -> None:
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.sweep.executors import platforms
    from frameworktax.sweep.look import outlook
    from frameworktax.sweep.words import forecast, plain, rows

    places = platforms(engine, lambda text: print(text, file=sys.stderr))
    found = outlook(
        study, *words, store=store, resume=resume, allow_code=allow_code, platforms=places
    )
    if json_file:
        text = json.dumps(plain(found), allow_nan=False)
        if json_file == "-":
            print(text)
            return
        write_whole(Path(json_file), text + "\n")
    if quiet:
        return
    out = console()
    print_rows(out, ["session", "model", "runtime", "point", "stands"], rows(found))
    for line in forecast(found):
        out.print(line, soft_wrap=True, markup=False)


@contextmanager
def _ends_once() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM end the sweep and the second not disturb the ending."""

    came: list[int] = []

    def first(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for one in before:
            signal.signal(one, second)
        raise Ended(number)

    def second(number: int, frame: FrameType | None) -> None:
        for one, how in before.items():
            signal.signal(one, how)  # a third one ends whatever hangs
        if writable(2):  # not print: this may be in the middle of one
            with suppress(OSError):
                os.write(2, b"ending the measuring processes\n")

    # What is ignored stays so: nohup is a wish that the closing of a terminal ends nothing.
    before = {
        one: signal.getsignal(one)
        for one in ENDINGS
        if one == signal.SIGINT or signal.getsignal(one) != signal.SIG_IGN
    }
    for one in before:
        signal.signal(one, first)
    try:
        yield
    except Ended:
        raise  # the ending goes on outside: what to do next is still to be said
    except BaseException as error:
        if came and isinstance(error, KeyboardInterrupt):  # Ray raises one of its own for ours
            raise Ended(came[0]) from error
        for one, how in before.items():
            signal.signal(one, how)
        raise
    else:
        for one, how in before.items():
            signal.signal(one, how)
