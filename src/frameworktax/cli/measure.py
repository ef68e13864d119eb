"""The verbs that measure models: `measure`, `sweep`, `init`, `optimize`, `ablate`, `reproduce`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli import options
from frameworktax.cli.deliver import Output, console, this_command
from frameworktax.errors import UsageError, check_suffix, flat, quoted, write_text
from frameworktax.sweep.values import words

DRY = "--dry-run writes no report and no figures, leave them out; --json writes the plan"


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
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Images in that memory format.")
    ] = False,
    precision: Annotated[str, typer.Option(help="float32,float16,bfloat16,int8.")] = "float32",
    device: options.Device = "auto",
    threads: options.Threads = 1,
    force_threads: options.ForceThreads = False,
    width: options.Width = 1.0,
    depth: options.Depth = 1.0,
    batch_dim: options.BatchDim = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let a hub model's own code run.")
    ] = False,
    time_budget: options.MeasureBudget = None,
    setup_limit: options.SetupLimit = "5min",
    until: options.Until = "3%",
    processes: options.Processes = None,
    twin: Annotated[str, typer.Option(help="Width-shrunk twin: auto, all or none.")] = "auto",
    by: Annotated[
        str,
        typer.Option(help="Break down by module, operator, line or none; auto: modules, in 1 s."),
    ] = "auto",
    store: options.Store = options.STORE,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip points that the store already has.")
    ] = False,
    json_file: options.JsonFile = None,
    report: options.HtmlReport = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure one model in several runtimes: latency, tax, regime, advice.

    Examples:

      frameworktax measure bert-base

      frameworktax measure my_code.py:build --batch 1,8

      frameworktax measure bert-base --input ragged --runtimes eager,nested

      frameworktax measure gpt2 --phase generate --kv-cache static
    """
    given = dict(locals())
    from frameworktax import api

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
    then = f"See it: frameworktax report {quoted(store)}"
    rest = f"; go on: {this_command('--resume')} --resume"
    with out.ending(store, then, rest, partial=True), out.view() as view:
        results = api.measure(**asked, reporter=view)
    out.results(results)


def sweep(
    study: Annotated[Path, typer.Argument(help="A TOML file; `frameworktax init` writes one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="TABLE.KEY=VALUE over what it says: grid.batch=1,2 or ~exclude."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, ray (the cluster this host is in) or ray://HOST:PORT.")
    ] = "local",
    store: options.Store = options.STORE,
    dry_run: options.DryRun = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Leave out points the store holds.")
    ] = True,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let models that the file names be Python code.")
    ] = False,
    force_threads: options.ForceThreads = False,
    json_file: options.JsonFile = None,
    report: options.HtmlReport = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure every point of a study exactly once; run it again to resume.

    Examples:

      frameworktax sweep study.toml

      frameworktax sweep study.toml grid.batch=1,2 study.time_budget=5min

      frameworktax sweep study.toml --engine ray
    """
    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    words = overrides or []
    how: dict[str, Any] = {
        "store": store,
        "engine": engine,
        "resume": resume,
        "force_threads": force_threads,
    }
    if dry_run:
        if report is not None:
            raise UsageError(DRY)
        from frameworktax.cli.progress import ProgressView
        from frameworktax.sweep.plan import plan_blocks, plan_sweep

        plan = plan_sweep(study, *words, **how, reporter=ProgressView(console(stderr=True)))
        out.document(plan.as_data())
        out.blocks(plan_blocks(plan))
        return
    from frameworktax.sweep.plan import summary
    from frameworktax.sweep.run import sweep as run_sweep

    then = f"See it: frameworktax report {quoted(store)}; go on: {this_command('--no-resume')}"
    with out.ending(store, then, partial=True):
        with out.view() as view:
            how |= {"allow_code": allow_code, "reporter": view, "command": sys.argv[1:]}
            results = run_sweep(study, *words, **how)
        out.results(results)
        if not quiet:
            aside = console(stderr=json_file == "-")
            for line in summary(results):
                aside.print(flat(line), soft_wrap=True, markup=False)


def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
) -> None:
    """Write a commented study for `frameworktax sweep`; nothing is overwritten.

    Example:

      frameworktax init study.toml
    """
    from frameworktax.sweep.study import TEMPLATE

    if os.path.lexists(file):
        raise UsageError(f"{file} exists; name another file")
    write_text(file, TEMPLATE.read_text(encoding="utf-8"))
    Output().line(f"written: {file}; next: frameworktax sweep {quoted(file)} --dry-run")


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
    processes: options.Processes = None,
    store: options.Store = options.STORE,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take stages that the store already has whole.")
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
    from frameworktax.optimize.blocks import document, headline, optimized_blocks
    from frameworktax.optimize.run import Asked, optimize_model

    out = Output(json_file, report, quiet=quiet, verbose=verbose)
    command = this_command("--resume", options.QUIET, options.VERBOSE)
    asked = Asked(**options.arguments(Asked, given, command=command))
    then = f"Go on: {command} --resume"
    with out.ending(store, then), out.view() as view:
        found = optimize_model(asked, view)
    out.deliver(document(found), headline(found), optimized_blocks(found))
    return 0 if found.folder is not None else 1


def ablate_command(
    context: typer.Context,
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
    processes: options.Processes = None,
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
        used = ("redraw", "store", "paths", "device", *options.arguments(Workload, given))
        options.refuse_beside(context, "--redraw", *used, *options.SHOWING)
        found = ablating.read(store, **_ladder_asked(context, given))
    else:
        asked = options.arguments(
            ablating.ablate,
            given,
            workload=Workload(**options.arguments(Workload, given)),
            paths=ablating.PATHS if paths == "all" else words(paths),
            folder=store,
            command=sys.argv[1:],
        )
        then = f"See it: frameworktax ablate {quoted(model)} --store {quoted(store)} --redraw"
        with out.ending(store, then), out.view() as view:
            found, _ = ablating.ablate(**asked, reporter=view)
    try:
        out.document(document(found))
        if report is not None and report.suffix == ".md":
            write_page(report, "", ablation_blocks(found))
        elif report is not None:
            write_text(report, page(found.run))
        if figure is not None:
            vega.write(waterfall(found), figure)
    finally:
        out.blocks(ablation_blocks(found))
        if verbose:
            out.blocks(run_blocks(found.run))


def _ladder_asked(context: typer.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``ablate.read`` is to look for: the options as typed, their defaults left out."""
    from frameworktax.api import pick_device
    from frameworktax.records import Workload

    typed = {name: given[name] for name in options.typed(context)}
    asked = options.arguments(Workload, typed)
    if typed.get("paths", "all") != "all":
        asked["paths"] = words(typed["paths"])
    if typed.get("device", "auto") != "auto":
        asked["platform"] = pick_device(typed["device"])
    return asked


def reproduce_command(
    names: Annotated[
        list[str], typer.Argument(help="figure-4, table-1, text …, or all; see list studies.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(help="full: the paper's sizes (default with a GPU); small: for two cores."),
    ] = None,
    store: options.Store = options.STORE / "paper",
    redraw: options.Redraw = False,
    time_budget: Annotated[
        str | None, typer.Option(help="Wall time for everything (default: that of the studies).")
    ] = None,
    dry_run: options.DryRun = False,
    json_file: options.JsonFile = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the page: .md beside its figures, or .html.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures, SVG and PNG.")] = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Run the paper's studies on this machine and judge its claims from intervals.

    Examples:

      frameworktax reproduce figure-4

      frameworktax reproduce all --scale small --report paper.md
    """
    given = dict(locals())
    output = Output(json_file, report, quiet=quiet, verbose=verbose)
    from frameworktax.report import vega
    from frameworktax.reproduce import figures, page
    from frameworktax.reproduce.results import reproduce
    from frameworktax.reproduce.studies import chosen, default_scale, study_data

    studies = chosen(names)
    asked = options.arguments(reproduce, given, command=sys.argv[1:])
    if redraw and (dry_run or time_budget is not None):
        raise UsageError("--redraw measures nothing; leave out --dry-run and --time-budget")
    if dry_run:
        from frameworktax.api import pick_device
        from frameworktax.sweep.plan import plan_blocks, plan_sweep

        if report is not None or out is not None:
            raise UsageError(DRY)
        size: Any = scale or default_scale()
        data = study_data(studies, size, pick_device("auto"), asked["time_budget"])
        plan = plan_sweep(data, store=store)
        output.document(plan.as_data())
        output.line(f"at the {size} scale:")
        output.blocks(plan_blocks(plan))
        return
    if (report or out) and any(study.panel for study in studies):
        vega.engine()  # refused now, and not after measuring
    with output.ending(store, f"Go on: {this_command()}"), output.view() as view:
        found = reproduce(**asked, reporter=view)
    if json_file:
        output.document(page.document(found))
    written = figures.write(found, out) if out is not None else []
    if report is not None:
        page.write(found, report)
    output.blocks(page.verdicts(found))
    kept = [str(path) for path in ([report] if report else []) + written[:1]]
    if kept:
        output.line(f"written: {', '.join(kept)}{' …' * (len(written) > 1)}")
