"""The verbs that read results: `report`, `compare` and `explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli import options
from frameworktax.cli.deliver import Output, this_command
from frameworktax.cli.options import JsonFile, Quiet, Verbose
from frameworktax.errors import UsageError, check_suffix, counted, quoted, write_text
from frameworktax.sweep.values import share


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
    where: options.Conditions = None,
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
        if not results and where:
            raise UsageError(
                f"no point in {store} has {' and '.join(where)}; "
                f"see which there are: frameworktax store list {quoted(store)}"
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
            out.run(results.run, results.store)
            return
        write(results.run, output, beside, figure or "latency", before.run if before else None)
        out.line(f"written: {output}")
        runs = [results.run] if before is None else [before.run, results.run]
        for note in (note for run in runs for note in run.notes):
            if note.code in ("torn-line", "bad-line"):  # a file of numbers has no place for it
                out.line(note.text)
        out.files(results.run)


def compare_command(
    a: Annotated[str, typer.Argument(help="Before: a store, document, baseline; or a deployment.")],
    b: Annotated[
        str | None, typer.Argument(help="After (default: the last two sessions of the store).")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="A further session of the code before; repeat for more."),
    ] = None,
    gate: Annotated[str | None, typer.Option(help="Regression that fails: 5% or 0.05.")] = None,
    metric: Annotated[str, typer.Option(help="latency, tax or kernel.")] = "latency",
    across: Annotated[bool, typer.Option("--across", help="Compare different machines.")] = False,
    runtime: Annotated[
        list[str] | None, typer.Option(help="BEFORE=AFTER: runtimes to compare.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="BEFORE=AFTER: models to compare.")
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option(help="Save A as a small JSON file for git; compare nothing.")
    ] = None,
    json_file: JsonFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for a comment: .md.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Compare two results point by point: faster, slower, same or inconclusive.

    Exit code 0; 1 a regression beyond the gate; 2 wrong use; 3 inconclusive.

    A deployment of 'frameworktax optimize' is measured again and compared with its proof.

    Examples:

      frameworktax compare before/ after/ --gate 5%

      frameworktax compare results --runtime eager=onnxruntime
    """
    from frameworktax import comparing
    from frameworktax.report.compare_blocks import compare_blocks
    from frameworktax.runtimes.deployment import MANIFEST, PROOF

    check_suffix(output, (".md",))
    out = Output(json_file, None, output, save_baseline, quiet=quiet, verbose=verbose)
    if save_baseline is not None:
        chosen = (b, gate, baseline, across, runtime, model, json_file, output)
        if any(chosen) or metric != "latency":
            raise UsageError("--save-baseline saves A and compares nothing; give only A with it")
        saved = comparing.save_baseline(a, save_baseline)
        out.line(f"written: {save_baseline}, {counted(len(saved.measurements), 'point')}")
        return 0
    limit = None if gate is None else share(gate, "--gate")
    is_deployment = any((Path(a) / name).is_file() for name in (MANIFEST, PROOF))
    if is_deployment and not any(Path(a).glob("*.jsonl")):
        if b or baseline or runtime or model or metric != "latency":
            raise UsageError(
                f"{a} is a deployment: its latency is measured again and compared with its proof; "
                "give nothing beside it but --gate and --across"
            )
        with out.ending(None, f"Again: {this_command()}"), out.view() as view:
            found = comparing.measure_again(
                Path(a), gate=limit, across=across, reporter=view, command=sys.argv[1:]
            )
    else:
        found = comparing.compare(
            a,
            b,
            baselines=baseline or (),
            gate=limit,
            metric=metric,
            across=across,
            runtimes=options.parse_pairs(runtime or [], "--runtime"),
            models=options.parse_pairs(model or [], "--model"),
        )
    try:
        out.document(found.to_json())
        if output is not None:
            write_text(output, found.comment())
    finally:
        out.blocks(compare_blocks(found.comparison))
    return found.exit_code


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
    report: options.HtmlReport = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Explain where the time went, and predict what would change it.

    Examples:

      frameworktax explain trace.json.gz

      frameworktax explain trace.json.gz --step 'ProfilerStep#[6-9]' --graphs
    """
    given = dict(locals())
    from frameworktax.analysis.whatif.formulas import WhatIf
    from frameworktax.explaining import explain

    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    asked = WhatIf(**options.arguments(WhatIf, given))
    out.run(explain(path, what_if=asked if asked != WhatIf() else None, step=step).run)
