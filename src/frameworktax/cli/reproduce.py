"""`frameworktax reproduce`: repeat the paper's studies and judge its claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli import options
from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, this_command


@app.command("reproduce")
def reproduce_command(
    names: Annotated[
        list[str], typer.Argument(help="figure-4, table-1, text …, or all; see list studies.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(help="full: the paper's sizes (default with a GPU); small: for two cores."),
    ] = None,
    store: options.Store = options.STORE / "paper",
    redraw: options.Redraw = False,
    time_budget: Annotated[
        str | None, typer.Option(help="Wall time for everything (default: that of the studies).")
    ] = None,
    dry_run: options.DryRun = False,
    json_file: options.JsonFile = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the page: .md beside its figures, or .html.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures, SVG and PNG.")] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Run the paper's studies on this machine and judge its claims from intervals.

    Examples:

      frameworktax reproduce figure-4

      frameworktax reproduce all --scale small --report paper.md
    """
    given = dict(locals())
    output = Output(json_file, report, quiet=quiet, verbose=verbose)
    from frameworktax.report import vega
    from frameworktax.reproduce import figures, page
    from frameworktax.reproduce.results import reproduce
    from frameworktax.reproduce.studies import chosen, default_scale, study_data

    studies = chosen(names)
    if dry_run:
        from frameworktax.api import pick_device
        from frameworktax.sweep.plan import plan_blocks, plan_sweep

        size: Any = scale or default_scale()
        plan = plan_sweep(study_data(studies, size, pick_device("auto")), store=store)
        output.document(plan.as_data())
        output.line(f"at the {size} scale:")
        output.blocks(plan_blocks(plan))
        return
    if (report or out) and any(study.panel for study in studies):
        vega.engine()  # refused now, and not after measuring
    asked = options.arguments(reproduce, given, command=sys.argv[1:])
    with output.measuring(store, f"Go on: {this_command()}") as view:
        found = reproduce(**asked, reporter=view)
    if json_file:
        output.document(page.document(found))
    written = figures.write(found, out) if out is not None else []
    if report is not None:
        page.write(found, report)
    output.blocks(page.verdicts(found))
    kept = [str(path) for path in ([report] if report else []) + written[:1]]
    if kept:
        output.line(f"written: {', '.join(kept)}{' …' * (len(written) > 1)}")
