"""`frameworktax attach`: what does a process pay that is running now?"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, console
from frameworktax.cli.endings import ended_softly
from frameworktax.cli.options import HtmlReport, JsonFile, Quiet, Verbose
from frameworktax.errors import check_suffix, write_text
from frameworktax.sweep.values import seconds

if TYPE_CHECKING:
    from frameworktax.cli.progress import AttachView
    from frameworktax.programs.attach import Observation

UPDATE_S = 1.0
LOOK_S = 0.05


@app.command("attach")
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
    from frameworktax.report.html import write_page
    from frameworktax.report.json_document import dump

    number = parse_pid(pid)
    check_suffix(output, [".collapsed"])
    limit_s = None if duration is None else seconds(duration, "--duration")
    out = Output(json_file, report, output, quiet=quiet, verbose=verbose)
    with ended_softly() as came, Observation(number) as observed:
        _observe(observed, limit_s, came, AttachView(console(stderr=True), quiet=quiet))
        found = observed.finish()
    out.document(dump(found))
    blocks = program_blocks(found)
    if report is not None:
        write_page(report, found.headline, blocks)
    if output is not None:
        write_text(output, collapsed(found))
    out.blocks(blocks)
    # Ctrl-C is the way to end what has no duration.
    if came and (came[0] != signal.SIGINT or limit_s is not None):
        raise typer.Exit(128 + came[0])


def _observe(
    observed: Observation, limit_s: float | None, came: list[int], view: AttachView
) -> None:
    """Show what is known every second until it is to end."""
    begin = updated = time.monotonic()
    with view:
        while not came and not observed.is_ended:
            now = time.monotonic()
            if limit_s is not None and now - begin >= limit_s:
                break
            if now - updated >= UPDATE_S:
                view.show(observed.update())
                updated = time.monotonic()
            time.sleep(LOOK_S)
