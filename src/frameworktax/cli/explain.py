"""`frameworktax explain`: where did the time go?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output
from frameworktax.cli.options import HtmlReport, JsonFile, Quiet, Verbose, arguments


@app.command("explain")
def explain_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="A profiler trace (Kineto or Chrome JSON, also gzipped), a store, a document of "
            "--json, a CSV of latencies, a report of optimum-benchmark or pytest-benchmark.",
        ),
    ],
    step: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Take the annotations of a trace whose names match as its steps. [default: "
            "the profiler's steps, else the annotation that repeats]",
        ),
    ] = None,
    device_speed: Annotated[
        float | None, typer.Option(help="Predict latency with a device N× as fast.")
    ] = None,
    host_speed: Annotated[
        float | None,
        typer.Option(
            help="Predict latency with the framework's part N× as fast, kernels as they are."
        ),
    ] = None,
    cpu_speed: Annotated[
        float | None,
        typer.Option(help="Predict latency with a CPU N× as fast: kernels too, if they run on it."),
    ] = None,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Predict latency with captured CUDA graphs.")
    ] = False,
    runtime: Annotated[str | None, typer.Option(help="Predict latency in this runtime.")] = None,
    json_file: JsonFile = None,
    report: HtmlReport = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Explain where the time went, and predict what would change it.

    Examples:

      frameworktax explain trace.json.gz

      frameworktax explain trace.json.gz --step 'ProfilerStep#[6-9]' --device-speed 2 --graphs
    """
    given = dict(locals())
    from frameworktax.analysis.whatif.formulas import WhatIf
    from frameworktax.explaining import explain

    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    asked = WhatIf(**arguments(WhatIf, given))
    out.run(explain(path, what_if=asked if asked != WhatIf() else None, step=step).run)
