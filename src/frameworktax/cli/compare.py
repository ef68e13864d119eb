"""`frameworktax compare`: did it change?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import check_writable, console
from frameworktax.cli.options import Quiet, Verbose, check_loudness
from frameworktax.cli.parse import parse_pairs, parse_share
from frameworktax.errors import UsageError


@app.command("compare")
def compare_command(
    a: Annotated[str, typer.Argument(help="Before: a store, a document of --json, a baseline.")],
    b: Annotated[str | None, typer.Argument(help="After; else the store's last two.")] = None,
    gate: Annotated[str | None, typer.Option(help="Regression that fails: 5% or 0.05.")] = None,
    metric: Annotated[str, typer.Option(help="latency, tax, launches or kernel.")] = "latency",
    across: Annotated[bool, typer.Option("--across", help="Other machines too.")] = False,
    runtime: Annotated[
        list[str] | None, typer.Option(help="BEFORE=AFTER: runtimes to compare.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="BEFORE=AFTER: models to compare.")
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option(help="Keep A as a small JSON file for git; compares nothing.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="File: .md .xml (JUnit) .json (benchmark action)."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="markdown, junit, github-action-benchmark or json."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Compare two results: faster, slower, same or cannot tell, point by point.

    Exit code 0; 1 a regression beyond the gate; 2 wrong use; 3 cannot tell.

    Examples:

      frameworktax compare before/ after/ --gate 5%

      frameworktax compare results --runtime eager=onnxruntime
    """
    from frameworktax import comparing
    from frameworktax.report import compare_export
    from frameworktax.report.compare_terminal import print_comparison

    check_loudness(quiet, verbose)
    files = output or []
    for path in (*files, save_baseline):
        check_writable(json_file, path)
    if form is not None and form not in compare_export.FORMATS:
        raise UsageError(f"no --format '{form}'; choose {', '.join(compare_export.FORMATS)}")
    if save_baseline is not None:
        _save(a, b, save_baseline, quiet)
        return 0
    forms = [form or compare_export.form_of(path) for path in files]
    found = comparing.compare(
        a,
        b,
        gate=None if gate is None else parse_share(gate, "--gate"),
        metric=metric,
        across=across,
        runtimes=parse_pairs(runtime or [], "--runtime"),
        models=parse_pairs(model or [], "--model"),
    )
    document = json.dumps(found.to_json(), allow_nan=False)
    if json_file and json_file != "-":
        Path(json_file).write_text(document + "\n", encoding="utf-8")
    for path, name in zip(files, forms, strict=True):
        path.write_text(found.text(name), encoding="utf-8")
    if json_file == "-":
        print(document)
    elif form is not None and not files:
        print(found.text(form), end="")
    elif not quiet:
        print_comparison(found.comparison, console(), full=verbose)
    return found.exit_code


def _save(a: str, b: str | None, path: Path, quiet: bool) -> None:
    from frameworktax import comparing

    if b is not None:
        raise UsageError("--save-baseline keeps one side; name one, and compare in another command")
    kept = comparing.save_baseline(a, path)
    if not quiet:
        print(f"written: {path}, {len(kept.measurements)} points")
