"""`frameworktax run`: what does a program as it is pay, and where?"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, console
from frameworktax.cli.options import HtmlReport, Quiet, Verbose
from frameworktax.errors import UsageError


@app.command(
    "run",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
def run_command(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, or a program such as pytest.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    by: Annotated[str, typer.Option(help="Break calls down by module or none.")] = "module",
    skip_first: Annotated[
        int, typer.Option(min=0, help="Calls of each kind to leave out: warming up, compiling.")
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
    from frameworktax.report.html import write_page
    from frameworktax.report.json_document import dump

    if json_file == "-":
        raise UsageError("standard output is the program's; give --json a file")
    out = Output(json_file, report, record_inputs, quiet=quiet, verbose=verbose)
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
    out.document(dump(found))
    if report is not None:
        write_page(report, found.headline, program_blocks(found))
    if not quiet:
        from frameworktax.report.render_terminal import print_blocks

        print_blocks(program_blocks(found), console(stderr=True), full=verbose)
    _end_like(found.status)


def _end_like(status: int | None) -> None:
    """End with the exit code of the program, or by the signal that ended it."""
    if status is not None and status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own, if any
        with suppress(OSError):  # SIGKILL and SIGSTOP have no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status or 0)
