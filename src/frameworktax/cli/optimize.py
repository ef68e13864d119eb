"""`frameworktax optimize`: the fastest runtime for every shape, delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli import options
from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, this_command


@app.command("optimize")
def optimize_command(
    model: options.ModelName,
    batch: options.Batches = "1",
    length: Annotated[
        str | None, typer.Option(help="Tokens per sample: 128, or 16,64 or 16..128.")
    ] = None,
    image_size: options.ImageSize = None,
    batch_dim: options.BatchDim = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the deployment.")
    ] = Path("deploy"),
    runtimes: options.Runtimes = "all",
    device: options.Device = "auto",
    threads: options.Threads = 1,
    aim: Annotated[
        str, typer.Option("--for", help="latency, throughput, memory or startup.")
    ] = "latency",
    allow: Annotated[
        str, typer.Option(help="Lower precisions to try as well: bfloat16,int8.")
    ] = "",
    time_budget: options.TimeBudget = "5min",
    setup_limit: options.SetupLimit = "5min",
    until: options.Until = "3%",
    processes: options.Processes = 3,
    store: options.Store = options.STORE,
    resume: Annotated[
        bool, typer.Option(help="Take stages that the store already has whole.")
    ] = False,
    json_file: options.JsonFile = None,
    report: Annotated[Path | None, typer.Option(help="Write the race: .html or .md.")] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Deliver the fastest runtime for every shape, its outputs and its gain proven.

    Exit code 1 where nothing is proven faster than eager: nothing is written then.

    Examples:

      frameworktax optimize bert-base --batch 1,4,16 --length 16..128 -o deploy/

      frameworktax optimize my_code.py:build --batch 1,8
    """
    given = dict(locals())
    from frameworktax.optimize.blocks import document, optimized_blocks, write_page
    from frameworktax.optimize.run import Asked, optimize_model

    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    command = this_command("--resume", options.QUIET, options.VERBOSE)
    asked = Asked(**options.arguments(Asked, given, command=command))
    then = f"Go on: {command} --resume"
    with out.measuring(store, then, budget_s=asked.time_budget) as view:
        found = optimize_model(asked, view)
    out.document(document(found))
    if report is not None:
        write_page(found, report)
    out.blocks(optimized_blocks(found))
    return 0 if found.folder is not None else 1
