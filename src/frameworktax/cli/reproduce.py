"""`frameworktax reproduce`: repeat the paper's studies and judge its claims."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import (
    PAGES,
    check_suffix,
    check_writable,
    console,
    interrupted,
    introduce,
    this_command,
    write_json,
)
from frameworktax.cli.options import JsonFile, Quiet, Store, Verbose, check_loudness
from frameworktax.errors import UsageError
from frameworktax.sweep.values import seconds

SCALES = ("full", "small")


@app.command("reproduce")
def reproduce_command(
    names: Annotated[
        list[str], typer.Argument(help="figure-4, table-1, text …, or all; see list studies.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(help="full: the paper's sizes (default with a GPU); small: for two cores."),
    ] = None,
    store: Store = Path("frameworktax-results/paper"),
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Measure nothing: show the results in the store.")
    ] = False,
    time_budget: Annotated[
        str | None, typer.Option(help="Wall time for everything (default: that of the studies).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how much there is to measure, and stop.")
    ] = False,
    json_file: JsonFile = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the page: .md beside its figures, or .html.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures, SVG and PNG.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the paper's studies on this machine and judge its claims from intervals.

    Examples:

      frameworktax reproduce figure-4

      frameworktax reproduce all --scale small --report paper.md
    """
    if scale not in (None, *SCALES):
        raise UsageError(f"no scale '{scale}'; choose {' or '.join(SCALES)}")
    check_suffix(report, PAGES)
    check_loudness(quiet, verbose)
    check_writable(json_file, report)
    from frameworktax.reproduce.studies import chosen

    studies = chosen(names)
    if dry_run:
        _dry_run(studies, scale, store)
        return
    from frameworktax.cli.progress import ProgressView
    from frameworktax.reproduce.results import reproduce

    aside = console(stderr=True)
    if verbose:
        introduce(aside)
    view = None if quiet or redraw else ProgressView(aside, verbose=verbose)
    try:
        with view or nullcontext():
            found = reproduce(
                [study.name for study in studies],
                scale=scale,  # type: ignore[arg-type] # checked above
                store=store,
                redraw=redraw,
                time_budget=None if time_budget is None else seconds(time_budget, "--time-budget"),
                reporter=view,
                command=sys.argv[1:],
            )
    except KeyboardInterrupt:
        interrupted(store, f"Go on: {this_command()}")
    from frameworktax.report.render_terminal import print_blocks
    from frameworktax.reproduce import figures, page

    if json_file:
        write_json(page.document(found), json_file)
    written: list[Path] = []
    if out is not None:
        written = figures.write(found, out)
    if report is not None:
        page.write(found, report)
    if quiet or json_file == "-":
        return
    print_blocks(page.verdicts(found), console())
    kept = [str(path) for path in ([report] if report else []) + written[:1]]
    if kept:
        print(f"written: {', '.join(kept)}{' …' * (len(written) > 1)}")


def _dry_run(studies: tuple[object, ...], scale: str | None, store: Path) -> None:
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.reproduce.results import forecast
    from frameworktax.reproduce.studies import default_scale

    size = scale or default_scale()
    plan = forecast(studies, size, store)  # type: ignore[arg-type] # as chosen
    rows = [[f"{g.estimate_s:.0f} s", str(len(g.planned)), g.name] for g in plan.groups]
    print_rows(console(), ["about", "points", "session"], rows)
    done = sum(one.status == "measured" for one in plan.statuses.values())
    print(
        f"{len(plan.chosen)} points at the {size} scale, {done} in {store}; "
        f"about {plan.estimate_s / 60:.0f} minutes to go"
    )
