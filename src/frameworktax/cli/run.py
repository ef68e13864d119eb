"""The verbs for programs as they are: `run` and `attach`."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frameworktax.cli.deliver import Output, console
from frameworktax.cli.endings import ended_softly
from frameworktax.cli.options import HtmlReport, JsonFile, Quiet, Verbose
from frameworktax.errors import UsageError, check_suffix, write_text
from frameworktax.sweep.values import seconds

if TYPE_CHECKING:
    from frameworktax.cli.progress import AttachView
    from frameworktax.programs.attach import Observation

LOOK_S = 0.05


def run_command(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, or a program such as pytest.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The program's own.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    by: Annotated[str, typer.Option(help="Break calls down by module or none.")] = "module",
    skip_first: Annotated[
        int,
        typer.Option(min=0, help="First calls of each kind to leave out, copies together."),
    ] = 0,
    only: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Show only what has this in its name.")
    ] = None,
    record_inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py",
            help="Note shapes and types (no values) of what modules are called with; write a "
            "function for measure and optimize.",
        ),
    ] = None,
    input_values: Annotated[
        bool, typer.Option("--input-values", help="Record values of inputs too, in FILE.npz.")
    ] = False,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the document.")] = None,
    report: HtmlReport = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a program unchanged; say on standard error what its calls of modules cost.

    Standard output and exit code are the program's. Options come before the program.

    Examples:

      frameworktax run train.py --epochs 1

      frameworktax run -m package --option

      frameworktax run --report report.html pytest tests
    """
    from frameworktax.programs.blocks import program_blocks
    from frameworktax.programs.running import run_program
    from frameworktax.report.json_document import dump

    if json_file == "-":
        raise UsageError("standard output is the program's; give --json a file")
    out = Output(json_file, report, record_inputs, quiet=quiet, verbose=verbose, aside=True)
    found = run_program(
        program,
        arguments or [],
        module=module,
        by=by,
        skip_first=skip_first,
        only=only,
        record=record_inputs,
        values=input_values,
    )
    out.deliver(dump(found), found.headline, program_blocks(found))
    _end_like(found.status)


def _end_like(status: int | None) -> None:
    """End with the exit code of the program, or by the signal that ended it."""
    if status is not None and status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own, if any
        with suppress(OSError):  # SIGKILL and SIGSTOP have no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status or 0)


def attach_command(
    pid: Annotated[str, typer.Argument(metavar="PID", help="Id of a running process.")],
    duration: Annotated[
        str | None, typer.Option(help="Observe for 30s, 5min … [default: until Ctrl-C]")
    ] = None,
    json_file: JsonFile = None,
    report: HtmlReport = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write stacks for flame graphs: FILE.collapsed."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Observe a running process from outside: what of its processor time is framework tax?

    Nothing is injected and nothing is stopped: every thread is sampled, and those of the processes
    that it starts. Ctrl-C ends the observation, not the process.

    Examples:

      frameworktax attach 4711

      frameworktax attach 4711 --duration 30s --json tax.json --report tax.html
    """
    from frameworktax.cli.progress import AttachView
    from frameworktax.programs.attach import Observation
    from frameworktax.programs.blocks import collapsed, program_blocks
    from frameworktax.programs.target import parse_pid
    from frameworktax.report.json_document import dump

    number = parse_pid(pid)
    check_suffix(output, [".collapsed"])
    limit_s = None if duration is None else seconds(duration, "--duration")
    out = Output(json_file, report, output, quiet=quiet, verbose=verbose)
    with ended_softly() as came, Observation(number) as observed:
        _observe(observed, limit_s, came, AttachView(console(stderr=True), quiet=quiet))
        found = observed.finish()
    try:
        if output is not None:
            write_text(output, collapsed(found))
    finally:
        out.deliver(dump(found), found.headline, program_blocks(found))
    # Ctrl-C is the way to end what has no duration.
    if came and (came[0] != signal.SIGINT or limit_s is not None):
        raise typer.Exit(128 + came[0])


def _observe(
    observed: Observation, limit_s: float | None, came: list[int], view: AttachView
) -> None:
    """Show what is known now and then until it is to end."""
    from frameworktax.programs.attach import WINDOW_S, next_window_s

    begin = time.monotonic()
    due = begin + WINDOW_S
    with view:
        while not came and not observed.is_ended:
            now = time.monotonic()
            if limit_s is not None and now - begin >= limit_s:
                break
            if now >= due:
                spent_s = time.thread_time()
                if view.is_due:
                    view.show(observed.update())
                else:
                    observed.place()
                due = time.monotonic() + next_window_s(time.thread_time() - spent_s)
            time.sleep(LOOK_S)
