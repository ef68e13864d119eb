"""`frameworktax validate`: how far are predictions off on this machine?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli.app import Quiet, Verbose, app, check_loudness
from frameworktax.cli.deliver import check_writable, console, introduce
from frameworktax.sweep.values import seconds, words


@app.command("validate")
def validate_command(
    models: Annotated[
        str | None, typer.Option(help="Names with commas between; a list of small ones if not.")
    ] = None,
    time_budget: Annotated[str, typer.Option(help="Wall time for everything.")] = "11min",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
    processes: Annotated[int, typer.Option(help="Fresh processes a point.", min=1)] = 2,
    store: Annotated[Path, typer.Option(help="Folder that keeps every sample.")] = Path(
        "frameworktax-results/validate"
    ),
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure predictions and what they speak of, and tell the errors of every formula.

    Example:

      frameworktax validate --models bert-mini,resnet-18 --time-budget 3min
    """
    from frameworktax.cli.progress import Bar
    from frameworktax.report.validation import markdown, print_validation
    from frameworktax.validate import validate

    check_loudness(quiet, verbose)
    check_writable(json_file, report)
    budget = seconds(time_budget, "--time-budget")
    names = words(models) if models else None
    arguments: dict[str, Any] = {
        "device": device,
        "processes": processes,
        "folder": store,
        "time_budget": budget,
    }
    if quiet:
        found = validate(names, **arguments)
    else:
        out = console(stderr=True)
        if verbose:
            introduce(out)
        with Bar(out, budget, verbose=verbose) as bar:
            found = validate(names, reporter=bar, **arguments)
    document = found.document()
    if json_file == "-":
        print(json.dumps(document, allow_nan=False))
    elif json_file:
        Path(json_file).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    if report is not None:
        report.write_text(markdown(document))
    if not quiet and json_file != "-":
        print_validation(document, console())
