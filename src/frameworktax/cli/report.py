"""`frameworktax report`: redraw without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import check_writable, deliver


@app.command("report")
def report_command(
    store: Annotated[Path, typer.Argument(help="A store's folder.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File: .html .json .md .csv .svg .png .pdf."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors.")] = False,
) -> None:
    """Redraw what a store holds, without measuring.

    Example:

      frameworktax report frameworktax-results -o report.html
    """
    from frameworktax import api
    from frameworktax.report.export import check, write

    if output is not None:
        check(output)
    check_writable(json_file, output)
    results = api.read_store(store)
    if output is not None:
        write(results.run, output)
        if not quiet and json_file != "-":
            print(f"written: {output}")  # noqa: T201
    deliver(results, json_file, None, quiet or output is not None)
