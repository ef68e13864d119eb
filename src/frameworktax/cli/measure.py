"""`frameworktax measure`: one model in several runtimes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import (
    INTERRUPTED,
    check_writable,
    console,
    deliver,
    fail,
    introduce,
)
from frameworktax.cli.options import Quiet, Verbose, check_loudness
from frameworktax.cli.parse import parse_input, parse_numbers, parse_seconds, parse_share, words


@app.command()
def measure(
    model: Annotated[str, typer.Argument(help="A name, file.py:function or package.mod:function.")],
    runtimes: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    batch: Annotated[str, typer.Option(help="1,2,4 or 1..64 (powers of two).")] = "1..64",
    length: Annotated[
        int | None, typer.Option(help="Tokens a sample; for speech models samples at 16 kHz.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side.")] = None,
    input_: Annotated[
        str, typer.Option("--input", help="dense, or ragged, or ragged:MEAN,SD in tokens.")
    ] = "dense",
    phase: Annotated[str, typer.Option(help="forward, or generate: greedy decoding.")] = "forward",
    new_tokens: Annotated[int | None, typer.Option(help="Tokens to generate (16).")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="none, dynamic or static (dynamic).")] = None,
    channels_last: Annotated[bool, typer.Option(help="Images in that memory format.")] = False,
    precision: Annotated[str, typer.Option(help="float32,float16,bfloat16,int8.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.", min=1)] = 1,
    width: Annotated[float, typer.Option(help="Factor on layer widths.")] = 1.0,
    depth: Annotated[float, typer.Option(help="Factor on the number of layers.")] = 1.0,
    batch_dim: Annotated[int | None, typer.Option(help="Batch dimension of own inputs.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Let a hub model's own code run.")
    ] = False,
    time_budget: Annotated[str, typer.Option(help="Wall time for everything.")] = "60s",
    until: Annotated[str, typer.Option(help="Stop at this half-width of the interval.")] = "3%",
    processes: Annotated[int, typer.Option(help="Fresh processes a point.", min=1)] = 3,
    twin: Annotated[str, typer.Option(help="Width-shrunk twin: auto, all or none.")] = "auto",
    store: Annotated[Path, typer.Option(help="Folder that keeps every sample.")] = Path(
        "frameworktax-results"
    ),
    resume: Annotated[bool, typer.Option(help="Leave out points the store holds.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure one model in several runtimes: latency, tax, regime, advice.

    Examples:

      frameworktax measure bert-base

      frameworktax measure my_code.py:build --batch 1,8 --runtimes eager,onnxruntime

      frameworktax measure bert-base --input ragged --runtimes eager,nested

      frameworktax measure gpt2 --phase generate --kv-cache static
    """
    from frameworktax import api
    from frameworktax.cli.progress import Bar

    check_loudness(quiet, verbose)
    check_writable(json_file, report)
    budget = parse_seconds(time_budget)
    kind, mean, deviation = parse_input(input_)
    arguments: dict[str, Any] = {
        "runtimes": words(runtimes),
        "batch": parse_numbers(batch, "--batch"),
        "length": length,
        "image_size": image_size,
        "width": width,
        "depth": depth,
        "batch_dim": batch_dim,
        "input": kind,
        "length_mean": mean,
        "length_sd": deviation,
        "phase": phase,
        "new_tokens": new_tokens,
        "kv_cache": kv_cache,
        "channels_last": channels_last,
        "trust_remote_code": trust_remote_code,
        "precision": words(precision),
        "device": device,
        "threads": threads,
        "time_budget": budget,
        "until": parse_share(until),
        "processes": processes,
        "twin": twin,
        "store": store,
        "resume": resume,
        "command": sys.argv[1:],
    }
    try:
        if quiet:
            results = api.measure(model, **arguments)
        else:
            out = console(stderr=True)
            if verbose:
                introduce(out)
            with Bar(out, budget, verbose=verbose) as bar:
                results = api.measure(model, reporter=bar, **arguments)
    except KeyboardInterrupt:
        _interrupted(store)
        return
    deliver(results, json_file, report, quiet, verbose)


def _interrupted(store: Path) -> None:
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    fail(
        f"interrupted; what was measured is kept in {store}. See it: frameworktax report {store}; "
        f"go on: frameworktax {shlex.join([*arguments, '--resume'])}",
        INTERRUPTED,
    )
