"""`frameworktax sweep`: a study, resumable."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import (
    Output,
    console,
    fail,
    into_nothing,
    this_command,
    writable,
)
from frameworktax.cli.options import (
    STORE,
    DryRun,
    HtmlReport,
    JsonFile,
    Quiet,
    Store,
    Verbose,
)
from frameworktax.errors import flat

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
    store: Store = STORE,
    dry_run: DryRun = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Leave out points the store holds.")
    ] = True,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let models of the study be Python code.")
    ] = False,
    json_file: JsonFile = None,
    report: HtmlReport = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure every point of a study exactly once; run it again to resume.

    Examples:

      frameworktax sweep study.toml

      frameworktax sweep study.toml grid.batch=1,2 study.time_budget=5min

      frameworktax sweep study.toml --engine ray
    """
    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    options: dict[str, Any] = {"store": store, "resume": resume, "allow_code": allow_code}
    if dry_run:
        _dry_run(study, overrides or [], engine, options, out)
        return
    from frameworktax.sweep.run import sweep as run_sweep
    from frameworktax.sweep.words import summary

    try:
        with _ends_once():
            with out.view() as view:
                options |= {"engine": engine, "reporter": view, "command": sys.argv[1:]}
                results = run_sweep(study, *(overrides or []), **options)
            out.results(results)
            if not quiet:
                aside = console(stderr=json_file == "-")
                for line in summary(results):
                    aside.print(flat(line), soft_wrap=True, markup=False)
    except Ended as ended:
        into_nothing(1)  # its reader may be stuck: do not wait for the rest of the output
        for number in ENDINGS:
            signal.signal(number, signal.SIG_IGN)  # all that is left is to leave
        name = signal.Signals(ended.number).name
        by = "interrupted" if ended.number == signal.SIGINT else f"ended by {name}"
        fail(
            f"{by}; what was measured is kept in {store}. "
            f"See it: frameworktax report {store}; "
            f"go on: {this_command('--no-resume')}",
            128 + ended.number,
        )


def _dry_run(
    study: Path, overrides: list[str], engine: str, options: dict[str, Any], out: Output
) -> None:
    from frameworktax.cli.progress import ProgressView
    from frameworktax.sweep.plan import plan_sweep
    from frameworktax.sweep.run import platforms_of
    from frameworktax.sweep.words import plan_blocks

    platforms = platforms_of(engine, ProgressView(console(stderr=True)))
    plan = plan_sweep(study, *overrides, platforms=platforms, **options)
    out.document(plan.as_data())
    out.blocks(plan_blocks(plan))


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
        restore()  # a third one ends a sweep that hangs
        if writable(2):  # not print: this may be in the middle of one
            with suppress(OSError):
                os.write(2, b"ending the measuring processes\n")

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

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
        raise  # the caller still says what to do next, without being disturbed
    except BaseException as error:
        if came and isinstance(error, KeyboardInterrupt):  # Ray raises one of its own for ours
            raise Ended(came[0]) from error
        restore()
        raise
    restore()
