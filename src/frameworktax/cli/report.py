"""`frameworktax report`: redraw without measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output
from frameworktax.cli.options import Conditions, JsonFile, Quiet, Verbose
from frameworktax.errors import UsageError, check_suffix


@app.command("report")
def report_command(
    store: Annotated[Path, typer.Argument(help="A store's folder.")],
    after: Annotated[
        Path | None, typer.Argument(help="Second store to compare side by side (HTML).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File: .html .json .md .csv .parquet .svg .png .pdf .collapsed .speedscope.",
        ),
    ] = None,
    where: Conditions = None,
    figure: Annotated[
        str | None,
        typer.Option(help="Picture to draw: latency, bill, shares, operations, length, width …"),
    ] = None,
    json_file: JsonFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show or export the results in a store, without measuring.

    Examples:

      frameworktax report frameworktax-results -o report.html

      frameworktax report frameworktax-results --where runtime=eager,onnxruntime

      frameworktax report frameworktax-results --figure bill -o bill.pdf

      frameworktax report before/ after/ -o report.html
    """
    from frameworktax.api import no_collection
    from frameworktax.report.vega import PICTURES

    if output is not None:
        from frameworktax.report.export import SUFFIXES

        check_suffix(output, SUFFIXES)
    out = Output(json_file, None, output, quiet=quiet, verbose=verbose)
    if figure is not None and (output is None or output.suffix not in PICTURES):
        raise UsageError(f"--figure needs a picture to write: add -o {figure}.svg, .png or .pdf")
    with no_collection():  # it would look through all points again and again while they are shown
        _report(out, store, after, output, where or [], figure or "latency")


def _report(
    out: Output,
    store: Path,
    after: Path | None,
    output: Path | None,
    where: list[str],
    figure: str,
) -> None:
    from frameworktax import api
    from frameworktax.store import Where

    conditions = Where.parse(where) if where else None
    results = api.read_store(store, conditions)
    if conditions is not None and not results:
        raise UsageError(
            f"no point in {store} has {' and '.join(where)}; "
            f"see which there are: frameworktax store list {store}"
        )
    before = beside = None
    if after is not None:
        if output is None:
            raise UsageError(
                "two stores are compared side by side in a page: add -o report.html; "
                "in the terminal: frameworktax compare BEFORE AFTER"
            )
        from frameworktax import comparing

        before, results = results, api.read_store(after, conditions)
        beside = comparing.compare(before, results, across=True).comparison
    if output is None:
        out.run(results.run, *out.kept(results))
        return
    from frameworktax.report.export import write

    other = None if before is None else before.run
    write(results.run, output, beside, figure, other)
    out.line(f"written: {output}")
    out.document(results.to_json())
