"""`frameworktax ablate`: which optimisation buys what?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli import options
from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output
from frameworktax.errors import check_suffix, write_text
from frameworktax.sweep.values import words


@app.command("ablate")
def ablate_command(
    model: options.ModelName,
    batch: Annotated[int, typer.Option(help="Samples per call.", min=1)] = 1,
    length: options.Length = None,
    image_size: options.ImageSize = None,
    width: options.Width = 1.0,
    depth: options.Depth = 1.0,
    precision: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    phase: options.Phase = "forward",
    paths: Annotated[
        str, typer.Option(help="eager,torchscript,inductor,onnxruntime,device: some, or all.")
    ] = "all",
    device: options.Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="For the multi-threaded step: all processors; 1 skips it.", min=1),
    ] = None,
    time_budget: options.TimeBudget = "10min",
    setup_limit: options.SetupLimit = "5min",
    until: options.Until = "3%",
    processes: options.Processes = 3,
    store: options.Store = options.STORE,
    redraw: options.Redraw = False,
    json_file: options.JsonFile = None,
    report: Annotated[
        Path | None, typer.Option(help="Write .md (the ladder) or .html (all its points).")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the waterfall: .svg .png .pdf.")] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure optimisations one by one, alone and combined: which buys what?

    Examples:

      frameworktax ablate bert-base --length 16 --figure ladder.svg

      frameworktax ablate resnet-50 --paths eager,torchscript --time-budget 3min
    """
    given = dict(locals())
    from frameworktax import ablate as ablating
    from frameworktax.ablate.blocks import ablation_blocks, document, waterfall
    from frameworktax.records import Workload
    from frameworktax.report import vega
    from frameworktax.report.html import page, write_page
    from frameworktax.report.run_blocks import run_blocks

    out = Output(json_file, report, figure, quiet=quiet, verbose=verbose)
    check_suffix(figure, vega.PICTURES)
    if redraw:
        found = ablating.read(store, model)
    else:
        asked = options.arguments(
            ablating.ablate,
            given,
            workload=Workload(**options.arguments(Workload, given)),
            paths=ablating.PATHS if paths == "all" else words(paths),
            folder=store,
            command=sys.argv[1:],
        )
        then = f"See it: frameworktax ablate {model} --store {store} --redraw"
        with out.measuring(store, then, budget_s=asked["time_budget"]) as view:
            found, _ = ablating.ablate(**asked, reporter=view)
    out.document(document(found))
    if report is not None and report.suffix == ".md":
        write_page(report, "", ablation_blocks(found))
    elif report is not None:
        write_text(report, page(found.run))
    if figure is not None:
        vega.write(waterfall(found), figure)
    out.blocks(ablation_blocks(found))
    if verbose:
        out.blocks(run_blocks(found.run))
