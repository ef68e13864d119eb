"""`frameworktax sweep` and `init`: a study, resumable, and one to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli import options
from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, console, this_command
from frameworktax.errors import UsageError, flat


@app.command()
def sweep(
    study: Annotated[Path, typer.Argument(help="A TOML file; `frameworktax init` writes one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="TABLE.KEY=VALUE over what it says: grid.batch=1,2 or ~exclude."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, ray (the cluster this host is in) or ray://HOST:PORT.")
    ] = "local",
    store: options.Store = options.STORE,
    dry_run: options.DryRun = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Leave out points the store holds.")
    ] = True,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let models that the file names be Python code.")
    ] = False,
    json_file: options.JsonFile = None,
    report: options.HtmlReport = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure every point of a study exactly once; run it again to resume.

    Examples:

      frameworktax sweep study.toml

      frameworktax sweep study.toml grid.batch=1,2 study.time_budget=5min

      frameworktax sweep study.toml --engine ray
    """
    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    words = overrides or []
    if dry_run:
        from frameworktax.cli.progress import ProgressView
        from frameworktax.sweep.plan import plan_blocks, plan_sweep

        shown = ProgressView(console(stderr=True))
        plan = plan_sweep(study, *words, store=store, engine=engine, resume=resume, reporter=shown)
        out.document(plan.as_data())
        out.blocks(plan_blocks(plan))
        return
    from frameworktax.sweep.plan import summary
    from frameworktax.sweep.run import sweep as run_sweep

    then = f"See it: frameworktax report {store}", f"go on: {this_command('--no-resume')}"
    with out.ending(store, *then, partial=True):
        with out.view() as view:
            results = run_sweep(
                study,
                *words,
                store=store,
                resume=resume,
                allow_code=allow_code,
                engine=engine,
                reporter=view,
                command=sys.argv[1:],
            )
        out.results(results)
        if not quiet:
            aside = console(stderr=json_file == "-")
            for line in summary(results):
                aside.print(flat(line), soft_wrap=True, markup=False)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
) -> None:
    """Write a commented study for `frameworktax sweep`; nothing is overwritten.

    Example:

      frameworktax init study.toml
    """
    from frameworktax.sweep.study import TEMPLATE

    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise UsageError(f"{file} exists; name another file") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file") from error
    print(f"written: {file}; next: frameworktax sweep {file} --dry-run")
