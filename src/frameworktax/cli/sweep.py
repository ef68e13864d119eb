"""`frameworktax sweep`: a study, resumable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, console, leave, this_command
from frameworktax.cli.endings import Ended, ends_once
from frameworktax.cli.options import (
    STORE,
    DryRun,
    HtmlReport,
    JsonFile,
    Quiet,
    Store,
    Verbose,
)
from frameworktax.errors import NothingMeasuredError, flat


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
        bool, typer.Option("--allow-code", help="Let models that the file names be Python code.")
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
    options: dict[str, Any] = {"store": store, "resume": resume}
    if dry_run:
        _dry_run(study, overrides or [], engine, options, out)
        return
    from frameworktax.sweep.run import sweep as run_sweep
    from frameworktax.sweep.words import summary

    try:
        with ends_once():
            with out.view() as view:
                results = run_sweep(
                    study,
                    *(overrides or []),
                    allow_code=allow_code,
                    engine=engine,
                    reporter=view,
                    command=sys.argv[1:],
                    **options,
                )
            out.results(results)
            if not quiet:
                aside = console(stderr=json_file == "-")
                for line in summary(results):
                    aside.print(flat(line), soft_wrap=True, markup=False)
    except NothingMeasuredError as error:
        out.files(error.results.run)  # with every status and reason
        raise
    except Ended as ended:
        see = f"See it: frameworktax report {store}"
        leave(ended, store, see, f"go on: {this_command('--no-resume')}")


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
