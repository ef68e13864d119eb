"""`frameworktax ablate`: which optimisation buys what?"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import INTERRUPTED, check_writable, console, fail, introduce
from frameworktax.cli.options import Quiet, Verbose, check_loudness
from frameworktax.cli.parse import parse_seconds, parse_share, words
from frameworktax.errors import UsageError

FIGURES = (".svg", ".png", ".pdf")


@app.command("ablate")
def ablate_command(
    model: Annotated[str, typer.Argument(help="A name, file.py:function or package.mod:function.")],
    batch: Annotated[int, typer.Option(help="Samples a call.", min=1)] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens a sample.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side.")] = None,
    width: Annotated[float, typer.Option(help="Factor on layer widths.")] = 1.0,
    depth: Annotated[float, typer.Option(help="Factor on the number of layers.")] = 1.0,
    precision: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    phase: Annotated[str, typer.Option(help="forward, or generate: greedy decoding.")] = "forward",
    paths: Annotated[
        str, typer.Option(help="eager,torchscript,inductor,onnxruntime,device: some, or all.")
    ] = "all",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="Of the step with several: all processors; 1 leaves it out.", min=1),
    ] = None,
    time_budget: Annotated[str, typer.Option(help="Wall time for everything.")] = "10min",
    until: Annotated[str, typer.Option(help="Stop at this half-width of the interval.")] = "3%",
    processes: Annotated[int, typer.Option(help="Fresh processes a point.", min=1)] = 3,
    store: Annotated[Path, typer.Option(help="Folder that keeps every sample.")] = Path(
        "frameworktax-results"
    ),
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Measure nothing: show the store's newest of it.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write .md (the ladder) or .html (all its points).")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the waterfall: .svg .png .pdf.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Take optimisations one by one, alone and on top of each other: what does each buy?

    Examples:

      frameworktax ablate bert-base --length 16 --figure ladder.svg

      frameworktax ablate resnet-50 --paths eager,torchscript --time-budget 3min
    """
    check_loudness(quiet, verbose)
    check_writable(json_file, report)
    check_writable(None, figure)
    if report is not None and report.suffix not in (".md", ".html"):
        raise UsageError(f"cannot write '{report.name}'; choose .md or .html")
    if figure is not None and figure.suffix not in FIGURES:
        raise UsageError(f"cannot draw '{figure.name}'; choose {', '.join(FIGURES)}")
    from frameworktax import ablate as ablating
    from frameworktax.ablate import figure as drawing
    from frameworktax.ablate.terminal import print_ablation
    from frameworktax.ablate.words import markdown, plain
    from frameworktax.cli.progress import Bar
    from frameworktax.records import Workload
    from frameworktax.report.terminal import print_run

    if redraw:
        found = ablating.read(store, model)
    else:
        budget = parse_seconds(time_budget)
        aside = console(stderr=True)
        if verbose:
            introduce(aside)
        bar = None if quiet else Bar(aside, budget, verbose=verbose)
        try:
            with bar or nullcontext():
                found, _ = ablating.ablate(
                    model,
                    Workload(
                        model=model,
                        batch=batch,
                        length=length,
                        image_size=image_size,
                        width=width,
                        depth=depth,
                        precision=precision,
                        phase=phase,
                    ),
                    paths=ablating.PATHS if paths == "all" else words(paths),
                    device=device,
                    threads=threads,
                    time_budget=budget,
                    until=parse_share(until),
                    processes=processes,
                    folder=store,
                    reporter=bar,
                    command=sys.argv[1:],
                )
        except KeyboardInterrupt:
            fail(
                f"interrupted; what was measured is kept in {store}. "
                f"See it: frameworktax ablate {model} --store {store} --redraw",
                INTERRUPTED,
            )
    document = json.dumps(plain(found), allow_nan=False)
    if json_file and json_file != "-":
        Path(json_file).write_text(document + "\n", encoding="utf-8")
    if report is not None and report.suffix == ".md":
        report.write_text(markdown(found), encoding="utf-8")
    elif report is not None:
        from frameworktax.report.html import write_report

        write_report(found.run, report)
    if figure is not None:
        drawing.write(found, figure)
    if json_file == "-":
        print(document)
    elif not quiet:
        print_ablation(found, console())
        if verbose:
            print_run(found.run, console(), full=True)
