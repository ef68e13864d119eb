"""`frameworktax compare`: did it change?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output
from frameworktax.cli.options import JsonFile, Quiet, Verbose, parse_pairs
from frameworktax.errors import UsageError, check_suffix, write_text
from frameworktax.sweep.values import share


@app.command("compare")
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
        if b is not None or gate is not None:
            raise UsageError("--save-baseline saves A and compares nothing; leave B and --gate out")
        saved = comparing.save_baseline(a, save_baseline)
        out.line(f"written: {save_baseline}, {len(saved.measurements)} points")
        return 0
    limit = None if gate is None else share(gate, "--gate")
    is_deployment = any((Path(a) / name).is_file() for name in (MANIFEST, PROOF))
    if is_deployment and not any(Path(a).glob("*.jsonl")):
        if b or baseline or runtime or model or metric != "latency":
            raise UsageError(
                f"{a} is a deployment: its latency is measured again and compared with its proof; "
                "give nothing beside it but --gate and --across"
            )
        with out.view(comparing.AGAIN_S) as view:
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
            runtimes=parse_pairs(runtime or [], "--runtime"),
            models=parse_pairs(model or [], "--model"),
        )
    out.document(found.to_json())
    if output is not None:
        write_text(output, found.comment())
    out.blocks(compare_blocks(found.comparison))
    return found.exit_code
