"""The command line: parse, call, print, exit code. No arithmetic here."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frameworktax.errors import FrameworktaxError, UsageError
from frameworktax.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from frameworktax.api import Results

app = typer.Typer(
    name="frameworktax",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help costs more than the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure, itemise, explain and cut the framework tax of neural-network inference.",
)
lister = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Say what there is, and what is missing."
)
app.add_typer(lister, name="list")

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}
INTERRUPTED = 130
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What typer's parser raises; newer ones carry a click of their own, so it is found from here."""


def main() -> None:
    """Run the command line; every expected error is one line and an exit code."""
    try:
        code = app(standalone_mode=False)
    except FrameworktaxError as error:
        _fail(str(error), error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # noqa: T201 - the help itself
            sys.exit(2)
        _fail(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; there is nobody to tell
        sys.exit(0)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(f"frameworktax: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def parse_numbers(text: str, option: str) -> list[int]:
    """Return ``1,2,4`` as numbers and ``1..64`` as the powers of two from 1 to 64."""
    numbers: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", part)
        if span:
            low, high = int(span[1]), int(span[2])
            if not 1 <= low <= high:
                raise UsageError(f"{option} {part.strip()} is no range; write it as 1..64")
            numbers += _doubling(low, high)
        elif re.fullmatch(r"\s*\d+\s*", part):
            numbers.append(int(part))
        else:
            raise UsageError(f"{option} '{text}' is no list of numbers; write 1,2,4 or 1..64")
    if not all(numbers):
        raise UsageError(f"{option} 0 cannot be; give 1 or more, as in {option} 1,2,4")
    return numbers


def _doubling(low: int, high: int) -> list[int]:
    found = [low]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found


def parse_seconds(text: str) -> float:
    """Return ``60s``, ``10min``, ``1h`` or ``90`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if not found or float(found[1]) == 0:
        raise UsageError(f"--time-budget '{text}' is no time; write 60s, 10min or 1h")
    return float(found[1]) * UNITS[found[2]]


def parse_share(text: str) -> float:
    """Return ``3%`` or ``0.03`` as a fraction."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"--until '{text}' is no share; write 3% or 0.03")
    return share


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show:
        print(__version__)  # noqa: T201
        raise typer.Exit


@app.command()
def measure(
    model: Annotated[str, typer.Argument(help="A name, file.py:function or package.mod:function.")],
    runtimes: Annotated[str, typer.Option(help="Names with commas between, or all.")] = "all",
    batch: Annotated[str, typer.Option(help="1,2,4 or 1..64 (powers of two).")] = "1..64",
    length: Annotated[int | None, typer.Option(help="Tokens a sample.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side.")] = None,
    precision: Annotated[str, typer.Option(help="float32,float16,bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads on a CPU.", min=1)] = 1,
    width: Annotated[float, typer.Option(help="Factor on layer widths.")] = 1.0,
    depth: Annotated[float, typer.Option(help="Factor on the number of layers.")] = 1.0,
    batch_dim: Annotated[int | None, typer.Option(help="Batch dimension of own inputs.")] = None,
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
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors.")] = False,
) -> None:
    """Measure one model in several runtimes: latency, tax, regime, advice.

    Examples:

      frameworktax measure bert-base

      frameworktax measure my_code.py:build --batch 1,8 --runtimes eager,onnxruntime
    """
    from frameworktax import api
    from frameworktax.progress import Bar

    _check_writable(json_file, report)
    budget = parse_seconds(time_budget)
    arguments: dict[str, Any] = {
        "runtimes": _words(runtimes),
        "batch": parse_numbers(batch, "--batch"),
        "length": length,
        "image_size": image_size,
        "width": width,
        "depth": depth,
        "batch_dim": batch_dim,
        "precision": _words(precision),
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
            with Bar(_console(stderr=True), budget) as bar:
                results = api.measure(model, reporter=bar, **arguments)
    except KeyboardInterrupt:
        _interrupted(store)
        return
    _deliver(results, json_file, report, quiet)


def _interrupted(store: Path) -> None:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    _fail(
        f"interrupted; what was measured is kept in {store}. See it: frameworktax report {store}; "
        f"go on: frameworktax {shlex.join([*words, '--resume'])}",
        INTERRUPTED,
    )


def _check_writable(json_file: str | None, report: Path | None) -> None:
    """Find out before measuring, not after, that a result cannot be written."""
    for path in (None if json_file in (None, "-") else Path(str(json_file)), report):
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            with path.open("a"):
                pass
            if not existed:
                path.unlink()  # what is refused later leaves nothing behind
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; name another") from error


def _deliver(results: Results, json_file: str | None, report: Path | None, quiet: bool) -> None:
    from frameworktax.report.terminal import print_run

    if json_file == "-":
        print(json.dumps(results.to_json(), allow_nan=False))  # noqa: T201
    elif json_file:
        Path(json_file).write_text(json.dumps(results.to_json(), allow_nan=False) + "\n")
    if report:
        results.report(report)
    if quiet or json_file == "-":
        return
    console = _console()
    print_run(results.run, console)
    kept = [f"samples in {results.store}"]
    kept += [f"document in {json_file}"] if json_file else []
    kept += [f"report in {report}"] if report else []
    console.print(f"[dim]{', '.join(kept)}[/dim]", soft_wrap=True)


@app.command("report")
def report_command(
    store: Annotated[Path, typer.Argument(help="A store's folder.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File: .html .json .md .csv .svg .png .pdf."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write the document; - for standard output.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Print nothing but errors.")] = False,
) -> None:
    """Redraw what a store holds, without measuring.

    Example:

      frameworktax report frameworktax-results -o report.html
    """
    from frameworktax import api
    from frameworktax.report.export import check, write

    if output is not None:
        check(output)
    _check_writable(json_file, output)
    results = api.read_store(store)
    if output is not None:
        write(results.run, output)
        if not quiet and json_file != "-":
            print(f"written: {output}")  # noqa: T201
    _deliver(results, json_file, None, quiet or output is not None)


@lister.command("models")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Every model by name, and how to bring your own."""
    from dataclasses import asdict

    from frameworktax import models
    from frameworktax.report.terminal import print_rows

    rows = [asdict(row) for row in models.describe_names()]
    if as_json:
        print(json.dumps(rows, indent=1))  # noqa: T201
        return
    print_rows(
        _console(),
        ["model", "family", "what it is", "missing"],
        [[r["name"], r["family"], r["summary"], r["missing"] or ""] for r in rows],
    )
    print("your own: file.py:function or package.module:function")  # noqa: T201


@lister.command("runtimes")
def list_runtimes(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
) -> None:
    """Every runtime by name, and why one is not available here."""
    from frameworktax import api, runtimes
    from frameworktax.report.terminal import print_rows
    from frameworktax.runtimes.base import Target

    target = Target(device=api.pick_device(device))
    rows = []
    for name in runtimes.names():
        runtime = runtimes.get(name)
        reason = runtime.missing(target)
        rows.append(
            {
                "name": name,
                "paradigm": runtime.paradigm,
                "devices": list(runtime.devices),
                "precisions": list(runtime.precisions),
                "available": reason is None,
                "reason": reason,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))  # noqa: T201
        return
    print_rows(
        _console(),
        ["runtime", "paradigm", f"on {target.device}"],
        [[str(r["name"]), str(r["paradigm"]), str(r["reason"] or "available")] for r in rows],
    )


@lister.command("studies")
def list_studies(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Studies that ship with this version."""
    print("[]" if as_json else "no studies in this version yet")  # noqa: T201


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say whether this machine is fit to measure, and what would make it fitter."""
    from dataclasses import asdict

    from frameworktax import host
    from frameworktax.attribution import available_samplers
    from frameworktax.report.terminal import print_rows

    checks = host.doctor(available_samplers())
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1))  # noqa: T201
        return
    print_rows(
        _console(),
        ["check", "", "found", "remedy"],
        [[c.code, c.status, c.text, c.remedy or ""] for c in checks],
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of the document that --json writes."""
    from frameworktax.report.json_document import schema as document_schema

    print(json.dumps(document_schema(), indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
