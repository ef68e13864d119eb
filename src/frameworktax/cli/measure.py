"""`frameworktax measure`: one model in several runtimes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from frameworktax.cli import options
from frameworktax.cli.app import app
from frameworktax.cli.deliver import Output, this_command
from frameworktax.sweep.values import words


@app.command()
def measure(
    model: options.ModelName,
    runtimes: options.Runtimes = "all",
    batch: options.Batches = "1..64",
    length: options.Length = None,
    image_size: options.ImageSize = None,
    input_: Annotated[
        str, typer.Option("--input", help="dense, or ragged, or ragged:MEAN,SD in tokens.")
    ] = "dense",
    phase: options.Phase = "forward",
    new_tokens: Annotated[int | None, typer.Option(help="Tokens to generate (16).")] = None,
    kv_cache: Annotated[str | None, typer.Option(help="none, dynamic or static (dynamic).")] = None,
    channels_last: Annotated[bool, typer.Option(help="Images in that memory format.")] = False,
    precision: Annotated[str, typer.Option(help="float32,float16,bfloat16,int8.")] = "float32",
    device: options.Device = "auto",
    threads: options.Threads = 1,
    force_threads: Annotated[
        bool, typer.Option("--force-threads", help="Allow more threads than processors.")
    ] = False,
    width: options.Width = 1.0,
    depth: options.Depth = 1.0,
    batch_dim: options.BatchDim = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Let a hub model's own code run.")
    ] = False,
    time_budget: options.MeasureBudget = None,
    setup_limit: options.SetupLimit = "5min",
    until: options.Until = "3%",
    processes: options.Processes = 3,
    twin: Annotated[str, typer.Option(help="Width-shrunk twin: auto, all or none.")] = "auto",
    by: Annotated[
        str, typer.Option(help="Break down by module, operator or line; auto: modules in 1 s.")
    ] = "auto",
    store: options.Store = options.STORE,
    resume: Annotated[bool, typer.Option(help="Skip points that the store already has.")] = False,
    json_file: options.JsonFile = None,
    report: options.HtmlReport = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure one model in several runtimes: latency, tax, regime, advice.

    Examples:

      frameworktax measure bert-base

      frameworktax measure my_code.py:build --batch 1,8 --runtimes eager,onnxruntime

      frameworktax measure bert-base --input ragged --runtimes eager,nested

      frameworktax measure gpt2 --phase generate --kv-cache static
    """
    given = dict(locals())
    from frameworktax import api
    from frameworktax.measure.plan import DEFAULT_PRECISE_S

    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    kind, mean, deviation = options.parse_input(input_)
    asked = options.arguments(
        api.measure,
        given,
        input=kind,
        length_mean=mean,
        length_sd=deviation,
        precision=words(precision),
        command=sys.argv[1:],
    )
    then = (
        f"See it: frameworktax report {store}",
        f"go on: {this_command('--resume')} --resume",
    )
    expected_s = asked["time_budget"] or DEFAULT_PRECISE_S
    with out.measuring(store, *then, budget_s=expected_s, partial=True) as view:
        results = api.measure(**asked, reporter=view)
    out.results(results)
