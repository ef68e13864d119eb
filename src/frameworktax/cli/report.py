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
    import ctypes
    import gc

    from frameworktax import api
    from frameworktax.report.vega import PICTURES
    from frameworktax.store.read import condition

    if output is not None:
        from frameworktax.report.export import SUFFIXES, write

        check_suffix(output, SUFFIXES)
    out = Output(json_file, None, output, quiet=quiet, verbose=verbose)
    if figure is not None and (output is None or output.suffix not in PICTURES):
        raise UsageError(f"--figure needs a picture to write: add -o {figure}.svg, .png or .pdf")
    wanted = condition(where) if where else None
    before = beside = None
    with api.no_collection():  # it would look through all points again and again meanwhile
        results = api.read_store(store, wanted)
        # the process is about to end: to free millions of objects would take a tenth of its time
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(results))
        gc.freeze()
        if not results and where:
            raise UsageError(
                f"no point in {store} has {' and '.join(where)}; "
                f"see which there are: frameworktax store list {store}"
            )
        if after is not None:
            if output is None:
                raise UsageError(
                    "two stores are compared side by side in a page: add -o report.html; "
                    "in the terminal: frameworktax compare BEFORE AFTER"
                )
            from frameworktax import comparing

            before, results = results, api.read_store(after, wanted)
            beside = comparing.compare(before, results, across=True).comparison
        if output is None:
            out.run(results.run, *out.kept(results))
            return
        write(results.run, output, beside, figure or "latency", before.run if before else None)
        out.line(f"written: {output}")
        out.document(results.to_json())
